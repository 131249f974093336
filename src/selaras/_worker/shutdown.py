"""The last act of a worker process: give back what cannot be stopped, and be gone before it can go on.

A thread cannot be stopped: given back earlier its job would run twice at once. So the release is the very last
thing before `os._exit`, sent by a heartbeat that names nothing as held (P16), while this thread waits: no coroutine
goes on meanwhile. What never began is released by that alone; a body that began is settled by the same beat, as
unsure: a write of it may be on its way to the datastore (P18).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from threading import Event, Thread
from typing import Final, NoReturn

from msgspec import Struct

from selaras._contracts.partition import HeartbeatRequest
from selaras._contracts.store import Store
from selaras._core.jobs.job import Abandoned, Settlement

LAST_ACT_MOST: Final = 2.0
"""A store that does not answer must not keep the process: its leases will lapse."""


class Leaving(Struct, frozen=True):
    """What one partition is told.

    Attributes:
        last_turn: everything claimed up to it that is neither abandoned nor settled here is released uncounted.
        abandoned: as `HeartbeatRequest.abandoned`.
        settlements: of bodies that began; and ends that no turn has delivered.
    """

    partition: int
    last_turn: int
    abandoned: tuple[Abandoned, ...] = ()
    settlements: tuple[Settlement, ...] = ()


def give_back_everything(
    store: Store, instance: str, leaving: Sequence[Leaving], *, seconds: float = LAST_ACT_MOST
) -> bool:
    """Release what the instance holds; blocks, at most `seconds`. Returns whether every partition heard it.

    The partitions are told side by side: one that is held up does not keep the others from hearing it (P19).
    The caller ends the process at once, whatever this returns.
    """
    answers: list[bool] = []
    all_answered = Event()

    def say(each: Leaving) -> None:
        request = HeartbeatRequest(
            instance=instance,
            last_turn=each.last_turn,
            abandoned=each.abandoned,
            settlements=each.settlements,
            names_scopes=True,
        )
        try:
            store.pulse().beat(each.partition, request)
        except Exception:  # noqa: BLE001 - whatever it is, the process ends now
            answers.append(False)
        else:
            answers.append(True)
        if len(answers) == len(leaving):
            all_answered.set()

    for each in leaving:
        Thread(target=say, args=(each,), name=f"selaras-last-act-{each.partition}", daemon=True).start()
    return all_answered.wait(seconds) and all(answers)


def end_process(code: int) -> NoReturn:
    """End this process now, whatever its threads do; what was written is flushed."""
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - this may be called in the middle of a write
        pass
    os._exit(code)
