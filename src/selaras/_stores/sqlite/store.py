"""The SQLite store: a file a partition, and the bells and pulses of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest
from selaras._contracts.store import Bell, Pulse
from selaras._core.errors import StoreUnavailable
from selaras._core.positions import Grown
from selaras._stores.sqlite.bell import Ringer
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.partition import PartitionPulse, SqlitePartition


class SqliteStore:
    """Partitions in files of this machine, shared by its processes.

    `synchronous`: "normal" loses no commit when a process dies, and the last ones when the machine does;
    "full" waits for the disk at each commit, and many share one wait.
    """

    returns = False

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        partitions: int = 1,
        entropy: Entropy | None = None,
        synchronous: Literal["normal", "full"] = "normal",
    ) -> None:
        chance = entropy or Random()  # event ids guard against mistakes, not against people
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{self.path}"
        self._ringer = Ringer()
        inline = synchronous == "normal"
        self.partitions: Sequence[SqlitePartition] = [
            SqlitePartition(
                DatabaseFile(
                    self.path if index == 0 else Path(f"{self.path}.p{index}"),
                    clock,
                    chance,
                    index=index,
                    partitions=partitions,
                    synchronous=synchronous,
                ),
                partial(self._ringer.ring, index),
                inline=inline,
            )
            for index in range(partitions)
        ]

    async def open(self) -> None:
        """See `Store`."""
        for partition in self.partitions:
            await asyncio.to_thread(partition.prepare)

    async def close(self) -> None:
        """See `Store`."""
        for partition in self.partitions:
            await asyncio.to_thread(partition.close)
        self._ringer.close()

    def pulse(self) -> Pulse:
        """See `Store`."""
        return _SqlitePulse([each.pulse(partial(self._ringer.ring, each.index)) for each in self.partitions])

    def bell(self) -> Bell:
        """See `Store`."""
        return self._ringer.make(self._signs_of_news, len(self.partitions))

    def listen(self, told: Grown) -> None:
        """Whoever reads looks at the tail itself."""

    def _signs_of_news(self, partition: int) -> object:
        try:
            return self.partitions[partition].signs_of_news()
        except StoreUnavailable:  # a bell is a hint: whoever it wakes hears of it from the store
            return None


class _SqlitePulse:
    def __init__(self, partitions: list[PartitionPulse]) -> None:
        self._partitions = partitions

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        return self._partitions[partition].beat(request)

    def close(self) -> None:
        for partition in self._partitions:
            partition.close()
