"""Wakes the waiters of one process, on whatever loop they wait: what rings is a message on a channel of its own."""

from __future__ import annotations

from collections.abc import Callable

from selaras._core.errors import StoreUnavailable
from selaras._stores.waiters import Waiters


class RedisBell:
    """A bell. Scripts ring it by its address, over every partition's channel `bell:<address>`.

    Args:
        partitions: how many the store has.
        attend: called on the waiter's loop, before it waits: somebody must listen for the bell.
        refused: what the server said when it did not let us listen; None: it did.
    """

    def __init__(
        self,
        address: str,
        *,
        partitions: int,
        attend: Callable[[], None],
        refused: Callable[[], StoreUnavailable | None],
        forget: Callable[[RedisBell], None],
    ) -> None:
        self.address = address
        self._attend = attend
        self._refused = refused
        self._forget = forget
        self._told = ""
        self._waiters = Waiters(partitions)

    async def wait(self, timeout: float) -> frozenset[int]:
        """See `Bell`. Raises StoreUnavailable, once for each reason: the server does not let us listen."""
        self._attend()
        refused = self._refused()
        told = "" if refused is None else str(refused)
        if told != self._told:
            self._told = told
            if refused is not None:
                raise refused
        return await self._waiters.wait(timeout)

    def ring(self) -> None:
        """See `Bell`."""
        self._waiters.ring(self._waiters.everywhere)

    def ring_for(self, partition: int) -> None:
        """It was rung there, or may have been."""
        self._waiters.ring_for(partition)

    def close(self) -> None:
        """See `Bell`."""
        self._forget(self)
