"""The memory store: partitions and bells of one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from random import Random

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest
from selaras._contracts.store import Bell, Pulse
from selaras._core.positions import Grown
from selaras._stores.memory.partition import MemoryPartition
from selaras._stores.waiters import Waiters


class MemoryStore:
    """Everything in this process, gone with it."""

    url = "memory://"

    returns = False

    def __init__(self, clock: Clock, *, partitions: int = 1, entropy: Entropy | None = None) -> None:
        chance = entropy or Random()  # event ids guard against mistakes, not against people
        self._bells: dict[str, MemoryBell] = {}
        self._numbers = itertools.count(1)
        self.partitions = [
            MemoryPartition(i, partitions, clock, chance, partial(self._ring, i)) for i in range(partitions)
        ]

    async def open(self) -> None:
        """Nothing to connect."""

    async def close(self) -> None:
        """Nothing to disconnect."""

    def pulse(self) -> Pulse:
        """See `Store`."""
        return _MemoryPulse(self.partitions)

    def bell(self) -> Bell:
        """See `Store`."""
        address = f"memory:{next(self._numbers)}"
        bell = MemoryBell(address, len(self.partitions), forget=lambda: self._bells.pop(address, None))
        self._bells[bell.address] = bell
        return bell

    def listen(self, told: Grown) -> None:
        """Whoever reads looks at the tail itself."""

    def _ring(self, partition: int, address: str) -> None:
        bell = self._bells.get(address)
        if bell:
            bell.ring_for(partition)


class _MemoryPulse:
    def __init__(self, partitions: list[MemoryPartition]) -> None:
        self._partitions = partitions

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        return self._partitions[partition].beat(request)

    def close(self) -> None:
        pass


class MemoryBell:
    """Wakes waiters of any loop in this process."""

    def __init__(self, address: str, partitions: int, forget: Callable[[], object]) -> None:
        self.address = address
        self._forget = forget
        self._waiters = Waiters(partitions)

    async def wait(self, timeout: float) -> frozenset[int]:
        """See `Bell`."""
        return await self._waiters.wait(timeout)

    def ring(self) -> None:
        """See `Bell`."""
        self._waiters.ring(self._waiters.everywhere)

    def ring_for(self, partition: int) -> None:
        """It was rung there."""
        self._waiters.ring_for(partition)

    def close(self) -> None:
        """See `Bell`."""
        self._forget()
