"""The last act of a worker process: give back what cannot be stopped, and be gone before it can go on.

A thread cannot be stopped: given back earlier its job would run twice at once. So the release is the very last
thing before `os._exit`, sent by a heartbeat that names nothing as held (P16), while this thread waits: no coroutine
goes on meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from threading import Thread
from typing import Final, NoReturn

from msgspec import Struct

from selaras._contracts.partition import HeartbeatRequest
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt

LAST_ACT_MOST: Final = 2.0
"""A store that does not answer must not keep the process: its leases will lapse."""


class Leaving(Struct, frozen=True):
    """What one partition is told: everything claimed up to `last_turn` is released uncounted, but for `abandoned`."""

    partition: int
    last_turn: int
    abandoned: tuple[Attempt, ...] = ()


def give_back_everything(
    store: Store, instance: str, leaving: Sequence[Leaving], *, seconds: float = LAST_ACT_MOST
) -> bool:
    """Release what the instance holds; blocks, at most `seconds`. Returns whether every partition heard it.

    The caller ends the process at once, whatever this returns.
    """
    heard: list[int] = []

    def say() -> None:
        try:
            pulse = store.pulse()
            for each in leaving:
                request = HeartbeatRequest(instance=instance, last_turn=each.last_turn, abandoned=each.abandoned)
                pulse.beat(each.partition, request)
                heard.append(each.partition)
        except StoreUnavailable:
            pass

    thread = Thread(target=say, name="selaras-last-act", daemon=True)
    thread.start()
    thread.join(seconds)
    return len(heard) == len(leaving)


def end_process(code: int) -> NoReturn:
    """End this process now, whatever its threads do; what was written is flushed."""
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - this may be called in the middle of a write
        pass
    os._exit(code)
