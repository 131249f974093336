"""Jobs and cache go on while servers die and slots move: nothing is lost, and nothing stale is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.app.work import working
from tests.redis.servers import Cluster, RedisServer, Sentinels

from selaras import Job, Selaras, StoreUnavailable

ROWS = 10


class Load:
    """Jobs that write rows, each followed by one that reads the row through the cache."""

    def __init__(self, url: str) -> None:
        self.app = app = Selaras(url)
        self.rows = dict.fromkeys(range(ROWS), 0)
        self.rounds = [0] * ROWS
        self.stale: list[tuple[int, int, int]] = []
        self.accepted: list[Job[int]] = []

        @app.cached(ttl=300)
        async def product(id: int) -> int:
            return self.rows[id]

        @app.task(writes=product, retries=5)
        async def bump(id: int) -> int:
            self.rows[id] += 1
            return self.rows[id]

        @app.task(retries=5)
        async def look(id: int, least: int) -> int:
            seen = await product(id)
            if seen < least:
                self.stale.append((id, seen, least))
            return seen

        self._bump, self._look = bump, look

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.app, working(self.app):
            ending = asyncio.Event()
            loads = [asyncio.create_task(self._repeat(id, ending)) for id in range(ROWS)]
            await self.goes_on()
            yield
            ending.set()
            await asyncio.gather(*loads)
            for job in self.accepted:
                assert await job.result(timeout=10) > 0  # every job that was accepted succeeded

    async def _repeat(self, id: int, ending: asyncio.Event) -> None:
        while not ending.is_set():
            try:
                bumped = await self._bump.enqueue(id)
                self.accepted.append(bumped)
                least = await bumped.result(timeout=20)
                looked = await self._look.enqueue(id, least)
                self.accepted.append(looked)
                await looked.result(timeout=20)
            except StoreUnavailable:  # for now
                await asyncio.sleep(0.02)
            else:
                self.rounds[id] += 1

    async def goes_on(self) -> None:
        """Wait until every row has been written and read again."""
        before = list(self.rounds)
        async with asyncio.timeout(30):
            while not all(now > then for now, then in zip(self.rounds, before, strict=True)):
                await asyncio.sleep(0.01)


async def test_a_master_that_is_killed_under_load_costs_no_job_and_no_stale_read() -> None:
    with Sentinels() as sentinels:
        load = Load(sentinels.url)
        async with load.running():
            master = sentinels.master
            await asyncio.to_thread(master.kill)
            await asyncio.to_thread(sentinels.until_master, master)
            await load.goes_on()
        assert load.stale == []


async def test_a_master_that_is_replaced_while_it_lives_is_left_at_once() -> None:
    """It takes writes as before, until a sentinel makes it a replica; what it took in between would be lost."""
    with Sentinels() as sentinels:
        old = sentinels.master
        app = Selaras(sentinels.url)
        rows = [1]

        @app.cached(ttl=300)
        async def product() -> int:
            return rows[-1]

        @app.task(writes=product)
        async def write(value: int) -> None:
            rows.append(value)

        def clients(server: RedisServer) -> int:
            return str(server.call("CLIENT", "LIST")).count("name=selaras")

        async with app, working(app):
            await (await write.enqueue(2)).result(timeout=10)
            assert clients(old)
            sentinels.sentinels[1].call("SENTINEL", "FAILOVER", sentinels.NAME)
            new = await asyncio.to_thread(sentinels.until_master, old)
            async with asyncio.timeout(3):
                while clients(old):
                    await asyncio.sleep(0.05)
            assert str(old.call("ROLE")).startswith("['master'")
            assert await product.key().get(fresh="strict") == 2
            await (await write.enqueue(3)).result(timeout=10)
            assert await product.key().get(fresh="strict") == 3
            assert clients(new)
            assert not clients(old)


async def test_in_a_cluster_a_master_may_die_and_slots_may_move_under_load() -> None:
    with Cluster(masters=3, replicas=1) as cluster:
        load = Load(f"{cluster.url}?partitions=4")
        async with load.running():
            slots = [int(str(cluster.slot(f"selaras:{{selaras.{index}}}:meta"))) for index in range(4)]
            victim = cluster.owner(slots[0])
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(cluster.until_owner, slots[0], victim)
            await load.goes_on()

            for slot in slots[:2]:
                source = await asyncio.to_thread(cluster.owner, slot)
                target = next(node for node in cluster.masters if node is not source)
                await asyncio.to_thread(cluster.migrate, slot, target)
            await load.goes_on()
        assert load.stale == []
