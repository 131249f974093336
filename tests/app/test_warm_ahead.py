"""`warm_ahead`: while a worker has no room, what the next jobs will read is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.app.work import working

from selaras import Read, Selaras


class Shop:
    """A task that holds the only place of a worker until it is told, and a family whose loads are noted."""

    def __init__(self, app: Selaras) -> None:
        self.app = app
        self.loads: list[int] = []
        self.begun: list[int] = []
        self.gate = asyncio.Event()
        self.holding = asyncio.Event()
        self.slow: asyncio.Event | None = None

        @app.cached(ttl=300, tags="goods")
        async def product(id: int) -> int:
            self.loads.append(id)
            if self.slow is not None:
                await self.slow.wait()
            if id < 0:
                raise ValueError(f"no product {id}")
            return id * 10

        @app.task
        async def hold() -> None:
            self.holding.set()
            await self.gate.wait()

        @app.task(timeout=5, retries=0)
        async def look(id: int, *, p: int = Read(product)) -> int:
            self.begun.append(id)
            return p

        self.product, self.hold, self.look = product, hold, look

    def working(self, ahead: int = 10) -> Any:
        return working(self.app, concurrency=1, warm_ahead=ahead)

    async def hold_the_place(self) -> None:
        await self.hold.options(priority=1).enqueue()


async def until(what: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            answer = what()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


async def settled(seconds: float = 0.15) -> None:
    """Wait for as long as several looks ahead take: for what must not happen."""
    await asyncio.sleep(seconds)


async def test_what_waiting_jobs_will_read_is_loaded_while_there_is_no_room(app: Selaras) -> None:
    shop = Shop(app)
    await shop.hold_the_place()
    jobs = [await shop.look.enqueue(id) for id in range(5)]

    async with shop.working():
        await until(lambda: sorted(shop.loads) == [0, 1, 2, 3, 4])
        assert shop.begun == []
        await until(lambda: app.process().cache.stats()["families"]["product"]["ahead"] == 5)
        shop.gate.set()
        assert [await job.result(timeout=5) for job in jobs] == [0, 10, 20, 30, 40]

    assert len(shop.loads) == 5  # and never again


async def test_nothing_is_loaded_ahead_unless_it_is_asked_for(app: Selaras) -> None:
    shop = Shop(app)
    await shop.hold_the_place()
    await shop.look.enqueue(1)

    async with shop.working(ahead=0):
        await shop.holding.wait()
        await settled()
        assert shop.loads == []
        shop.gate.set()


async def test_no_further_than_asked_for_is_looked_ahead(app: Selaras) -> None:
    shop = Shop(app)
    await shop.hold_the_place()
    for id in range(6):
        await shop.look.enqueue(id)

    async with shop.working(ahead=2):
        await until(lambda: len(shop.loads) >= 2)
        await settled()
        assert sorted(shop.loads) == [0, 1]
        shop.gate.set()
        await until(lambda: len(shop.begun) == 6)


async def test_what_a_job_ahead_writes_is_not_loaded(app: Selaras) -> None:
    shop = Shop(app)

    @app.task(writes=shop.product)
    async def reprice(id: int, *, p: int = Read(shop.product)) -> None: ...

    await shop.hold_the_place()
    await reprice.options(priority=1).enqueue(1)
    for id in (1, 2):
        await shop.look.enqueue(id)

    async with shop.working():
        await until(lambda: bool(shop.loads))
        await settled()
        assert shop.loads == [2]
        shop.gate.set()
        await until(lambda: len(shop.begun) == 2)


async def test_what_a_job_ahead_writes_as_a_whole_is_not_loaded(app: Selaras) -> None:
    shop = Shop(app)

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

    await shop.hold_the_place()
    await rewrite.options(priority=1).enqueue()
    await look_at_other.enqueue(1)
    await restock.enqueue()
    await shop.look.enqueue(1)

    async with shop.working():
        await until(lambda: bool(shop.loads))
        await settled()
        assert shop.loads == [1_001]
        shop.gate.set()
        await until(lambda: bool(shop.begun))


async def test_what_is_being_written_is_left_alone(app: Selaras) -> None:
    shop = Shop(app)
    await shop.hold_the_place()
    for id in (1, 2):
        await shop.look.enqueue(id)

    async with shop.product.key(1).writing(), shop.working():
        await until(lambda: bool(shop.loads))
        await settled()
        assert shop.loads == [2]
        shop.gate.set()
        await until(lambda: len(shop.begun) == 2)


async def test_what_fails_ahead_is_tried_once_and_told_by_the_job(app: Selaras) -> None:
    shop = Shop(app)
    await shop.hold_the_place()
    job = await shop.look.enqueue(-1)

    async with shop.working():
        await until(lambda: bool(shop.loads))
        for id in range(3):
            await shop.look.enqueue(id)
            await settled(0.05)
        assert shop.loads.count(-1) == 1
        shop.gate.set()
        await until(lambda: len(shop.begun) == 3)
        assert (await job.info()).state == "failed"


async def test_a_job_that_is_claimed_while_its_value_is_loaded_waits_for_that_load(app: Selaras) -> None:
    shop = Shop(app)
    shop.slow = asyncio.Event()
    await shop.hold_the_place()
    job = await shop.look.enqueue(7)

    async with shop.working():
        await until(lambda: shop.loads == [7])
        shop.gate.set()
        await settled(0.05)
        shop.slow.set()
        assert await job.result(timeout=5) == 70

    assert shop.loads == [7]


async def test_a_value_loaded_ahead_is_not_read_by_a_job_that_comes_after_a_write(app: Selaras) -> None:
    """G1: the load began before the writer's claim; its fill is refused."""
    shop = Shop(app)
    shop.slow = asyncio.Event()
    rows = {1: 1}

    @app.cached
    async def row(id: int) -> int:
        value = rows[id]
        shop.loads.append(id)
        assert shop.slow is not None
        await shop.slow.wait()
        return value

    @app.task(writes=row)
    async def change(id: int) -> None:
        rows[id] += 1

    @app.task
    async def see(id: int, *, value: int = Read(row)) -> int:
        return value

    await shop.hold_the_place()
    job = await see.enqueue(1)
    async with shop.working():
        await until(lambda: shop.loads == [1])
        changed = await change.options(priority=9).enqueue(1)
        shop.gate.set()
        await changed.result(timeout=5)
        shop.slow.set()
        assert await job.result(timeout=5) == 2
