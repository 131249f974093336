"""Several processes on one SQLite file at once."""

from __future__ import annotations

import asyncio
import multiprocessing
from itertools import pairwise
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random

from tests.clock import START_US, VirtualClock
from tests.conformance.world import GRACE, LEASE, World, job

from selaras._stores.sqlite.store import SqliteStore

REAPERS = 8
ROUNDS = 3
JOBS = 20

_spawn = multiprocessing.get_context("spawn")


def _reap(path: Path, barrier: Barrier, told: Queue[int]) -> None:
    """Look at expired leases at the same moment as all others."""

    async def look() -> None:
        clock = VirtualClock(START_US)
        store = SqliteStore(path, clock)
        await store.open()
        for _ in range(ROUNDS):
            lost = 0
            for step in (LEASE, GRACE):
                clock.advance(step)
                barrier.wait()
                lost += (await store.partitions[0].tend(1_000)).lost
            told.put(lost)
            barrier.wait()  # the round is over
            barrier.wait()  # the next one is prepared
        await store.close()

    asyncio.run(look())


async def test_br048_each_job_of_expired_leases_is_taken_back_once_however_many_processes_reap(folder: Path) -> None:
    path, clock = folder / "selaras.db", VirtualClock(START_US)
    world = World(SqliteStore(path, clock, entropy=Random(1)), clock)
    await world.store.open()
    barrier, told = _spawn.Barrier(REAPERS + 1), _spawn.Queue()
    reapers = [_spawn.Process(target=_reap, args=(path, barrier, told)) for _ in range(REAPERS)]
    names = [f"job-{number}" for number in range(JOBS)]
    await world.enqueue(*(job(name, max_lost=ROUNDS + 1) for name in names))
    fences: list[list[int]] = []
    taken_back: list[int] = []

    for reaper in reapers:
        reaper.start()
    for _ in range(ROUNDS):
        worker = await world.worker()
        fences.append(sorted(claim.fence for claim in await worker.claims()))
        for step in (LEASE, GRACE):
            clock.advance(step)
            await asyncio.to_thread(barrier.wait)
        await asyncio.to_thread(barrier.wait)
        taken_back.append(sum([await asyncio.to_thread(told.get) for _ in reapers]))
        await asyncio.to_thread(barrier.wait)
    for reaper in reapers:
        await asyncio.to_thread(reaper.join, 30)

    assert [reaper.exitcode for reaper in reapers] == [0] * REAPERS
    assert taken_back == [JOBS] * ROUNDS
    assert [(await world.record(name)).lost for name in names] == [ROUNDS] * JOBS
    assert [len(claimed) for claimed in fences] == [JOBS] * ROUNDS
    assert all(before[-1] < after[0] for before, after in pairwise(fences))
    await world.store.close()
