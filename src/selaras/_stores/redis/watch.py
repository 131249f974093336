"""Keeps an eye on the sentinels, so that a master that was replaced while it lives is left at once.

    each sentinel ─ "+switch-master" ─> look now      every second ─> look
                                          │
              one changed its mind, or all say the same: another master than ours ─> leave the old one's connections

A master that was replaced in good health (`SENTINEL FAILOVER`), or stood still, or was cut off from its sentinels,
goes on as one until a sentinel tells it otherwise, some ten seconds later: what it takes meanwhile is lost, and what it
says of its log is out of date. Its own word does not show that; only the sentinels know.

Laws:
    - What is pushed is a hint; what a sentinel answers when it is asked counts.
    - Sentinels hear of a failover one after the other. One that says what it said before tells nothing new.
    - It lives on one loop, the first that needs it; when that one is closed, on the next that does.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final

from msgspec import structs

from selaras._core.errors import SelarasError
from selaras._stores.endings import at_end_of_loop
from selaras._stores.redis.address import Endpoint
from selaras._stores.redis.dialling import dial
from selaras._stores.redis.topology import LOOK_S, Sentinels
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, pack

LOOKS_S: Final = 1.0
"""How often the sentinels are asked: as often as a process looks that is cut off from its log (`max_lag`)."""


class Watch:
    """The watch that a process keeps.

    Args:
        replaced: told when the topology names another master than before; on the loop of the watch.
    """

    def __init__(self, topology: Sentinels, replaced: Callable[[], None]) -> None:
        self._topology = topology
        self._replaced = replaced
        self._account = structs.replace(topology.account, protocol=3, connect_s=LOOK_S, silence_s=LOOK_S)
        self._lock = Lock()
        self._loop: AbstractEventLoop | None = None
        self._task: Task[None] | None = None
        self._last: object = None

    def attend(self) -> None:
        """See to it that somebody watches; on a running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                return
            self._loop = loop
            task = self._task = loop.create_task(self._watch())
        self._last = at_end_of_loop(partial(_end, task))

    def close(self) -> None:
        """Watch no longer; from any loop."""
        with self._lock:
            loop, self._loop = self._loop, None
            task, self._task = self._task, None
        if loop is None or task is None:
            return
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # it is closed
            pass

    async def _watch(self) -> None:
        wires: dict[Endpoint, Wire] = {}
        hint = asyncio.Event()
        try:
            while True:
                hint.clear()
                told = await asyncio.gather(*(self._ask(one, wires, hint) for one in self._topology.sentinels))
                if self._topology.told({sentinel: master for sentinel, master in told if master is not None}):
                    self._replaced()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOKS_S):
                        await hint.wait()
        finally:
            for wire in wires.values():
                wire.abort("the store was closed")

    async def _ask(
        self, sentinel: Endpoint, wires: dict[Endpoint, Wire], hint: asyncio.Event
    ) -> tuple[Endpoint, Endpoint | None]:
        """Return whom a sentinel names; None: it does not answer, or knows nobody."""

        def pushed(push: Any) -> None:
            if push.__class__ is not ReplyError and push[0] == b"message":
                hint.set()

        try:
            wire = wires.get(sentinel)
            if wire is None or not wire.open:
                wire = wires[sentinel] = await dial(sentinel, self._account, on_push=pushed)
                wire.tell(pack("SUBSCRIBE", "+switch-master"))  # where that is not allowed, its answers have to do
            said = await wire.send(pack(*self._topology.question), 1, LOOK_S)
        except (SelarasError, WireLost):
            return sentinel, None
        return sentinel, None if said is None or said.__class__ is ReplyError else self._topology.named(said)


def _end(task: Task[None]) -> None:
    task.cancel()
