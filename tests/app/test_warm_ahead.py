"""`warm_ahead`: while a worker has no room, what the next jobs will read is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.app.work import working

from selaras import JobFailed, Read, Selaras


class Shop:
    """A family whose loads are noted, a task that reads it, and one that holds a worker's only place until it is told."""

    def __init__(self, app: Selaras) -> None:
        self.app = app
        self.loads: list[int] = []
        self.begun: list[int] = []
        self.gate = asyncio.Event()
        self.holding = asyncio.Event()
        self.slow: asyncio.Event | None = None
        self.rows = {id: id * 10 for id in range(10)}

        @app.cached(ttl=300, tags="goods")
        async def product(id: int) -> int:
            self.loads.append(id)
            value = self.rows[id]
            if self.slow is not None:
                await self.slow.wait()
            return value

        @app.task
        async def hold() -> None:
            self.holding.set()
            await self.gate.wait()

        @app.task(timeout=5, retries=0)
        async def look(id: int, *, p: int = Read(product)) -> int:
            self.begun.append(id)
            return p

        self.product, self.hold, self.look = product, hold, look

    @asynccontextmanager
    async def full(self, ahead: int = 10) -> AsyncGenerator[None]:
        """A worker whose only place is taken until the gate is opened."""
        async with working(self.app, concurrency=1, warm_ahead=ahead):
            await self.hold.enqueue()
            await self.holding.wait()
            try:
                yield
            finally:
                self.gate.set()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.005)


async def a_while() -> None:
    """Wait for as long as several looks ahead take: for what must not happen."""
    await asyncio.sleep(0.15)


async def test_what_waiting_jobs_will_read_is_loaded_while_there_is_no_room(app: Selaras) -> None:
    shop = Shop(app)
    async with shop.full():
        jobs = [await shop.look.enqueue(id) for id in range(5)]

        await until(lambda: sorted(shop.loads) == [0, 1, 2, 3, 4])
        assert shop.begun == []
        await until(lambda: app.process().cache.stats()["families"]["product"]["ahead"] == 5)
        shop.gate.set()

        assert [await job.result(timeout=5) for job in jobs] == [0, 10, 20, 30, 40]
        assert len(shop.loads) == 5


async def test_nothing_is_loaded_ahead_unless_it_is_asked_for(app: Selaras) -> None:
    shop = Shop(app)
    async with shop.full(ahead=0):
        await shop.look.enqueue(1)
        await a_while()

        assert shop.loads == []


async def test_no_further_than_asked_for_is_looked_ahead(app: Selaras) -> None:
    shop = Shop(app)
    async with shop.full(ahead=2):
        for id in range(6):
            await shop.look.options(id=f"look-{id}").enqueue(id)
        await until(lambda: len(shop.loads) >= 2)
        await a_while()
        ahead = len(shop.loads)
        shop.gate.set()
        await until(lambda: len(shop.begun) == 6)

    assert ahead <= 2 * len(app.process().store.partitions)  # each partition has a queue of its own
    assert sorted(shop.loads) == [0, 1, 2, 3, 4, 5]


async def test_what_a_job_ahead_writes_is_not_loaded(app: Selaras) -> None:
    shop = Shop(app)

    @app.task(writes=shop.product, lock=None)
    async def reprice(id: int, *, p: int = Read(shop.product)) -> None: ...

    async with shop.full():
        await app.enqueue_many([reprice.call(id) for id in range(4)])
        await app.enqueue_many([shop.look.call(id) for id in (1, 2, 5)])
        await until(lambda: bool(shop.loads))
        await a_while()

        if len(app.process().store.partitions) == 1:  # elsewhere nobody says which of two partitions' jobs comes first
            assert shop.loads == [5]
        else:
            assert not {0, 3} & set(shop.loads)


async def test_what_a_job_ahead_writes_as_a_whole_is_not_loaded(app: Selaras) -> None:
    shop = Shop(app)
    if len(app.process().store.partitions) > 1:
        pytest.skip("nobody says which of two partitions' jobs comes first")

    @app.cached
    async def other(id: int) -> int:
        shop.loads.append(1_000 + id)
        return id

    @app.task
    async def look_at_other(id: int, *, p: int = Read(other)) -> None: ...

    @app.task(writes=app.tag("goods"))
    async def restock() -> None: ...

    @app.task(writes=app.tag("unrelated"))
    async def rewrite() -> None: ...

    async with shop.full():
        await app.enqueue_many([rewrite.call(), look_at_other.call(1), shop.look.call(1), restock.call()])
        await app.enqueue_many([shop.look.call(2), look_at_other.call(2)])
        await until(lambda: len(shop.loads) >= 3)
        await a_while()

        assert sorted(shop.loads) == [1, 1_001, 1_002]


async def test_what_is_being_written_is_left_alone(app: Selaras) -> None:
    shop = Shop(app)
    async with shop.full(), shop.product.key(1).writing():
        await app.enqueue_many([shop.look.options(now=True).call(id) for id in (1, 2)])
        await until(lambda: bool(shop.loads))
        await a_while()

        assert shop.loads == [2]


async def test_what_fails_ahead_is_tried_once_and_told_by_the_job(app: Selaras) -> None:
    shop = Shop(app)
    async with shop.full():
        job = await shop.look.enqueue(77)
        await until(lambda: bool(shop.loads))
        await app.enqueue_many([shop.look.call(id) for id in range(3)])
        await until(lambda: len(shop.loads) == 4)
        await a_while()
        assert shop.loads.count(77) == 1
        shop.gate.set()

        with pytest.raises(JobFailed, match="77"):
            await job.result(timeout=5)


async def test_a_job_that_is_claimed_while_its_value_is_loaded_waits_for_that_load(app: Selaras) -> None:
    shop = Shop(app)
    shop.slow = asyncio.Event()
    async with shop.full():
        job = await shop.look.enqueue(7)
        await until(lambda: shop.loads == [7])
        shop.gate.set()
        await a_while()
        shop.slow.set()

        assert await job.result(timeout=5) == 70
        assert shop.loads == [7]


async def test_a_value_whose_load_began_before_a_write_is_not_read_after_it(app: Selaras) -> None:
    """G1, G3: the fill is refused, whoever asked for the load."""
    shop = Shop(app)

    @app.task(writes=shop.product)
    async def change(id: int) -> None:
        shop.rows[id] += 1

    shop.slow = asyncio.Event()
    async with shop.full():
        job = await shop.look.enqueue(1)
        await until(lambda: shop.loads == [1])  # and it has read 10
        async with shop.product.key(1).writing():
            shop.rows[1] = 11
        slow, shop.slow = shop.slow, None
        slow.set()
        await a_while()
        shop.gate.set()

        assert await job.result(timeout=5) == 11
