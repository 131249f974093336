"""A store: its partitions, its heartbeat channel and its hints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest, Partition
from selaras._core.positions import Grown


class Pulse(Protocol):
    """Heartbeats, from a thread of their own over a connection of their own."""

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew the lease in one partition; blocks. Raises StoreUnavailable."""
        ...

    def close(self) -> None:
        """Free the connection."""
        ...


class Bell(Protocol):
    """Wakes one process, and says for which partitions. A hint: it may be lost or ring for nothing, and is never trusted."""

    address: str

    async def wait(self, timeout: float) -> frozenset[int]:
        """Return the partitions it rings for, or where something may have changed, as soon as there is one.

        None of them after `timeout` seconds.
        """
        ...

    def ring(self) -> None:
        """Ring it from this process, from any thread, for every partition."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Store(Protocol):
    """All partitions of one namespace."""

    @property
    def url(self) -> str:
        """Masked, absolute; fit for messages and logs."""
        ...

    @property
    def partitions(self) -> Sequence[Partition]:
        """All of them, in the order of their indexes."""
        ...

    @property
    def returns(self) -> bool:
        """Whether it is a server: one that cannot be reached at first is found again by any verb, as soon as it is back."""
        ...

    async def open(self) -> None:
        """Connect; create or check what is there. Raises StoreUnavailable, StoreMismatch."""
        ...

    async def close(self) -> None:
        """Disconnect; pending verbs end first."""
        ...

    def pulse(self) -> Pulse:
        """Make the heartbeat's channel; called in the heartbeat's own thread."""
        ...

    def bell(self) -> Bell:
        """Make this process's bell."""
        ...

    def listen(self, told: Grown) -> None:
        """Tell of logs that have grown, as soon as may be.

        A hint, as a bell's: it may be lost. `told` is called on a running loop, and must not wait. A store whose tail
        costs nothing to look at (`Partition.tail_now`) may say nothing.
        """
        ...
