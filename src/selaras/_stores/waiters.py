"""Those who wait for a bell in one process, each on its own loop."""

from __future__ import annotations

import asyncio
from threading import Lock


class Waiters:
    """What a bell of any store wakes, from any thread. A ring that nobody waited for is kept for the next one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._rung = False
        self._futures: set[asyncio.Future[None]] = set()

    async def wait(self, timeout: float) -> bool:
        """Return True as soon as somebody rings, or had rung; False after `timeout` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._rung:
                self._rung = False
                return True
            self._futures.add(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._futures.discard(future)
        return True

    def ring(self) -> None:
        """Wake all who wait, or the next one who would."""
        with self._lock:
            futures = list(self._futures)
            self._futures.clear()
            self._rung = not futures
        for future in futures:
            try:
                future.get_loop().call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop is closed
                pass

    def take_ring(self) -> bool:
        """Say whether it rang while nobody waited, and forget it."""
        with self._lock:
            rung, self._rung = self._rung, False
        return rung


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
