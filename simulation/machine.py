"""What a simulated process finds where the machine would be: threads, bells, a clock."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from selaras._stores.sqlite import store as sqlite_store, writer as sqlite_writer
from selaras._worker import heart, watch
from simulation.loop import Event, Loop, SimulatedThread

_PID: Final = 1
_WALL_US: Final = 1_767_225_600_000_000  # 2026-01-01
_WATCH_EVERY: Final = 10.0
_HEART_LOOKS_US: Final = 10_000_000
"""Nothing here can block the loop for real, so the watch need not look often; nor a heart between two beats."""


class SimulatedClock:
    """A process's clock: instants are the loop's, and the wall may be wrong by `offset_us`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.offset_us = 0

    def instant_ns(self) -> int:
        """See `Clock`."""
        return self._loop.now_ns

    def wall_us(self) -> int:
        """See `Clock`."""
        return _WALL_US + self._loop.now_ns // 1_000 + self.offset_us

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)


class SimulatedBell:
    """Rings when it is told to, if fate does not lose it."""

    def __init__(self, address: str, loop: Loop, partitions: int) -> None:
        self.address = address
        self._loop = loop
        self._partitions = partitions
        self._rung = frozenset[int]()
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, timeout: float) -> frozenset[int]:
        """See `Bell`."""
        if not self._rung:
            self._waiter = self._loop.create_future()
            try:
                async with asyncio.timeout(timeout):
                    await self._waiter
            except TimeoutError:
                return frozenset()
            finally:
                self._waiter = None
        rung, self._rung = self._rung, frozenset()
        return rung

    def ring(self) -> None:
        """See `Bell`."""
        for partition in range(self._partitions):
            self.ring_for(partition)

    def ring_for(self, partition: int) -> None:
        """It was rung there."""
        self._rung |= {partition}
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """See `Bell`."""


class Bells:
    """All bells of a world. `delays`: after how long a ring arrives: none, once, or several times."""

    def __init__(self, loop: Loop, delays: Callable[[], tuple[float, ...]]) -> None:
        self._loop = loop
        self._delays = delays
        self._bells: dict[str, SimulatedBell] = {}

    def make(self, look: object, partitions: int) -> SimulatedBell:
        """Make a bell of an address that no other has."""
        del look
        bell = SimulatedBell(f"bell:{len(self._bells)}", self._loop, partitions)
        self._bells[bell.address] = bell
        return bell

    def ring(self, partition: int, address: str) -> None:
        """Ring one, by and by."""
        bell = self._bells.get(address)
        if bell is not None:
            for delay in self._delays():
                self._loop.outside_later(delay, bell.ring_for, partition)

    def close(self) -> None:
        """Nothing to free."""


@contextmanager
def simulated_machine(bells: Bells) -> Generator[None]:
    """Let the product find simulated threads, bells and a process number that is always the same."""
    changed: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, what: Any) -> None:
        changed.append((where, name, getattr(where, name)))
        setattr(where, name, what)

    for module in (heart, watch, sqlite_writer):
        put(module, "Thread", SimulatedThread)
        put(module, "Event", Event)
    put(watch, "LOOK_EVERY", _WATCH_EVERY)
    put(heart, "LOOK_US", _HEART_LOOKS_US)
    put(sqlite_store, "Ringer", lambda: bells)
    put(os, "getpid", lambda: _PID)
    # When the collector comes is no business of the seed's: it comes between worlds.
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for where, name, what in reversed(changed):
            setattr(where, name, what)
        if collecting:
            gc.enable()


def chance_of(*names: object) -> Random:
    """Return a source of its own for each name: what one draws changes nothing for others."""
    return Random("/".join(map(str, names)))
