"""Those who wait for a bell in one process, each on its own loop."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Final

NOWHERE: Final = frozenset[int]()


class Waiters:
    """What a bell of any store wakes, from any thread. A ring that nobody waited for is kept for the next one.

    What is told, and kept, is for which partitions it rang.
    """

    def __init__(self, partitions: int) -> None:
        self.everywhere = frozenset(range(partitions))
        self._lock = Lock()
        self._rung = NOWHERE
        self._futures: set[asyncio.Future[frozenset[int]]] = set()

    async def wait(self, timeout: float) -> frozenset[int]:
        """Return where it rings, as soon as somebody rings, or had rung; nowhere after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[frozenset[int]] = loop.create_future()
        with self._lock:
            if self._rung:
                rung, self._rung = self._rung, NOWHERE
                return rung
            self._futures.add(future)
        alarm = loop.call_later(timeout, self._answer, future, NOWHERE)
        try:
            return await future
        finally:
            alarm.cancel()
            with self._lock:
                self._futures.discard(future)

    def ring_for(self, partition: int) -> None:
        """It rings for one partition."""
        self.ring(frozenset((partition,)))

    def ring(self, where: frozenset[int]) -> None:
        """Wake all who wait, or the next one who would."""
        with self._lock:
            futures = list(self._futures)
            self._futures.clear()
            if not futures:
                self._rung |= where
        here = asyncio._get_running_loop()  # noqa: SLF001 - documented: None instead of an error
        for future in futures:
            loop = future.get_loop()
            if loop is here:
                self._answer(future, where)
                continue
            try:
                loop.call_soon_threadsafe(self._answer, future, where)
            except RuntimeError:  # its loop is closed
                pass

    def take_ring(self) -> frozenset[int]:
        """Say where it rang while nobody waited, and forget it."""
        with self._lock:
            rung, self._rung = self._rung, NOWHERE
        return rung

    def _answer(self, future: asyncio.Future[frozenset[int]], where: frozenset[int]) -> None:
        if not future.done():
            future.set_result(where)
        elif where:  # it was told that the time is over, and is not awake yet
            with self._lock:
                self._rung |= where
