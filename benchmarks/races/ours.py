"""The same with Selaras, through its public face: strict reads, jobs that read, jobs and scopes that write."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from benchmarks.races.ground import Tally
from benchmarks.races.load import BURST, Load
from selaras import Selaras
from selaras._app.setup.settings import SettingValues

LOOKS: Final = 1_000
"""Reads of one job."""

AHEAD: Final = 8
"""Reading jobs that a process has waiting or running."""


SMALL: Final = 20
"""Of so many rows the local tier holds one, where there is a host tier behind it."""


class Program:
    """One process's app."""

    def __init__(self, load: Load) -> None:
        self.load = load
        settings = SettingValues(retries=0)
        if load.plan.host_tier:
            settings["host_tier"] = load.plan.host_tier
            settings["host_timeout"] = 0.02  # the machine is busier than any should be
            settings["local_entries"] = load.plan.rows // SMALL
        self.app = app = Selaras(load.plan.url, namespace=load.plan.prefix, **settings)
        loads = load.chance()

        @app.cached(ttl=60)
        async def row(id: int) -> int:
            return await load.select(id, loads)

        @app.task(writes=row)
        async def change(id: int, seed: int, puts: bool) -> int:
            chance = Random(seed)
            await load.wait(chance)
            version = load.ground.commit(id)
            await load.wait(chance)
            if puts:
                await row.key(id).put(version)
            return version

        @app.task
        async def look(seed: int, floors: bytes) -> None:
            chance, known = Random(seed), memoryview(floors).cast("Q")
            for _ in range(LOOKS // BURST):
                for _ in range(BURST):
                    id = load.row(chance)
                    load.judge(id, known[id], await row(id), "a job's read")
                await asyncio.sleep(0)
            load.tally[Tally.JOBS] += 1

        self.row, self.change, self.look = row, change, look
        self.keys = [row.key(id) for id in range(load.plan.rows)]

    async def run(self) -> None:
        """Read and write until the run is over."""
        plan = self.load.plan
        async with self.app:
            worker = self.app.worker()
            working = asyncio.get_running_loop().create_task(worker.run())
            async with asyncio.TaskGroup() as group:
                for _ in range(plan.readers):
                    group.create_task(self._read())
                for number in range(plan.writers):
                    group.create_task(self._write(by_job=number % 2 == 0))
                group.create_task(self._enqueue_looks())
            self.load.tally[Tally.HOSTED] = self.app.process().cache.stats()["families"]["row"]["host"]
            worker.stop()
            await working

    async def _read(self) -> None:
        """What was acknowledged before the call must be seen: by a strict read, in whatever process."""
        load, chance, keys = self.load, self.load.chance(), self.keys
        floors = load.ground.acknowledged
        while not load.ground.over:
            for _ in range(BURST):
                row = load.row(chance)
                floor = floors[row]
                load.judge(row, floor, await keys[row].get(fresh="strict"), "a strict read")
            await load.pause(chance)

    async def _enqueue_looks(self) -> None:
        """What was acknowledged before the enqueue had ended before the claim: each read of the job must see it (G1)."""
        ground, chance, enqueued = self.load.ground, self.load.chance(), 0
        while not ground.over:
            if enqueued - self.load.ground.total(Tally.JOBS) / self.load.plan.processes >= AHEAD:
                await asyncio.sleep(0.001)
                continue
            floors = ground.acknowledged.tobytes()
            await self.app.enqueue_many(self.look.call(chance.getrandbits(63), floors) for _ in range(AHEAD // 2))
            enqueued += AHEAD // 2

    async def _write(self, *, by_job: bool) -> None:
        load, chance = self.load, self.load.chance()
        while not load.ground.over:
            await asyncio.sleep(chance.expovariate(1 / load.plan.pause_s))
            row, puts = load.row(chance), chance.random() < 0.5
            if by_job:
                job = await self.change.enqueue(row, chance.getrandbits(63), puts)
                version = await job.result(timeout=60)
            else:
                async with self.keys[row].writing():
                    await load.wait(chance)
                    version = load.ground.commit(row)
                    await load.wait(chance)
                    if puts:
                        await self.keys[row].put(version)
            load.acknowledged(row, version)


async def race(load: Load) -> None:
    """Read and write until the run is over."""
    await Program(load).run()
