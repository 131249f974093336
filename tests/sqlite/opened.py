"""A partition of a file, and a worker of it that does nothing but claim."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from tests.clock import SECOND, VirtualClock

from selaras._contracts.partition import Instance, TurnRequest
from selaras._core.jobs.job import Attempt
from selaras._core.positions import START
from selaras._stores.sqlite.partition import SqlitePartition
from selaras._stores.sqlite.store import SqliteStore


@asynccontextmanager
async def opened(path: Path, clock: VirtualClock, partitions: int = 1) -> AsyncIterator[SqlitePartition]:
    store = SqliteStore(path, clock, partitions=partitions, entropy=Random())
    await store.open()
    try:
        yield store.partitions[0]
    finally:
        await store.close()


async def worker(partition: SqlitePartition, id: str = "w") -> None:
    await partition.enroll(Instance(id=id, lease_us=15 * SECOND, queues=("default",)))


async def claim(partition: SqlitePartition, number: int = 1, limit: int = 10) -> tuple[Attempt, ...]:
    reply = await partition.turn(
        TurnRequest(
            instance="w", number=number, since=START, queues=("default",), tasks=frozenset({"work"}), limit=limit
        )
    )
    return tuple(Attempt(one.job, one.fence) for one in reply.claims)
