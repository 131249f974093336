"""Wakes the waiters of one process, on whatever loop they wait: what rings is a message on a channel of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock

from selaras._core.errors import StoreUnavailable


class RedisBell:
    """A bell. Scripts ring it by its address, over every partition's channel `bell:<address>`.

    Args:
        attend: called on the waiter's loop, before it waits: somebody must listen for the bell.
        refused: what the server said when it did not let us listen; None: it did.
    """

    def __init__(
        self,
        address: str,
        *,
        attend: Callable[[], None],
        refused: Callable[[], StoreUnavailable | None],
        forget: Callable[[RedisBell], None],
    ) -> None:
        self.address = address
        self._attend = attend
        self._refused = refused
        self._forget = forget
        self._told: StoreUnavailable | None = None
        self._lock = Lock()
        self._rung = False
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self, timeout: float) -> bool:
        """See `Bell`. Raises StoreUnavailable, once: the server does not let us listen."""
        self._attend()
        refused = self._refused()
        if refused is not self._told:
            self._told = refused
            if refused is not None:
                raise refused
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._rung:
                self._rung = False
                return True
            self._waiters.add(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(future)
        return True

    def ring(self) -> None:
        """See `Bell`."""
        with self._lock:
            waiters = list(self._waiters)
            self._waiters.clear()
            self._rung = not waiters
        for future in waiters:
            try:
                future.get_loop().call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its loop is closed
                pass

    def close(self) -> None:
        """See `Bell`."""
        self._forget(self)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
