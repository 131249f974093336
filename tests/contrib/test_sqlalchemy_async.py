"""Asynchronous sessions of SQLAlchemy as scopes, on real SQLite files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, insert, select, update
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from tests.contrib.alchemy import Base, Category, Product

from selaras import Selaras, StoreUnavailable
from selaras.contrib.sqlalchemy import bind, writes


class Shop:
    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder / 'shop.db'}"
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("pragma journal_mode=wal")
            connection.execute(insert(Category), {"id": 7})
            connection.execute(insert(Product), [{"id": n, "price": 10 * n, "category": 7} for n in (1, 2)])
        engine.dispose()
        self.engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        self.plain = async_sessionmaker(self.engine)
        self.session = async_sessionmaker(self.engine)
        self.app = app = Selaras(f"sqlite:///{folder / 'store.db'}")
        self.loads: list[int] = []
        self.mailed: list[str] = []

        @app.cached(ttl="1h")
        async def price(id: int) -> int | None:
            self.loads.append(id)
            async with self.plain() as session:
                return await session.scalar(select(Product.price).where(Product.id == id))

        @app.task
        async def mail(text: str) -> None:
            self.mailed.append(text)

        self.price, self.mail = price, mail
        bind(app, self.session, {Product: price})

    async def stands(self, id: int) -> bool:
        return "intent" in await self.price.key(id).explain()

    async def work(self) -> list[str]:
        await self.app.worker(burst=True).run()
        return self.mailed


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    async with shop.app:
        yield shop
    await shop.engine.dispose()


async def test_a_commit_plants_before_and_resolves_after(shop: Shop) -> None:
    assert (await shop.price(1), await shop.price(2)) == (10, 20)
    planted: list[bool] = []
    maker = shop.session.kw["sync_session_class"]
    event.listen(maker, "after_commit", lambda session: planted.append(True), insert=True)

    async with shop.session.begin() as session:
        (await session.get_one(Product, 1)).price = 11
        writes(session, shop.price.key(2))
        await session.execute(update(Product).where(Product.id == 2).values(price=22))
        await session.flush()
        assert not await shop.stands(1)

    assert planted == [True]
    assert not await shop.stands(1)
    assert (await shop.price(1), await shop.price(2)) == (11, 22)


async def test_jobs_wait_for_the_commit_and_are_dropped_by_a_rollback(shop: Shop) -> None:
    async with shop.session() as session:
        (await session.get_one(Product, 1)).price = 11
        await shop.mail.enqueue("committed")
        assert await shop.work() == []
        await session.commit()
    assert await shop.work() == ["committed"]

    with pytest.raises(ValueError, match="no"):
        await _roll_back(shop)
    assert await shop.work() == ["committed"]
    assert await shop.price.key(1).get("strict") == 11


async def _roll_back(shop: Shop) -> None:
    async with shop.session.begin() as session:
        (await session.get_one(Product, 1)).price = 12
        await shop.mail.enqueue("rolled back")
        raise ValueError("no")


async def test_without_a_store_nothing_is_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    assert await shop.price(1) == 10
    monkeypatch.setattr(shop.app.process().store.partitions[0], "open_scope", away)
    async with shop.session() as session:
        (await session.get_one(Product, 1)).price = 11
        with pytest.raises(StoreUnavailable):
            await session.commit()
    async with shop.plain() as session:
        assert (await session.get_one(Product, 1)).price == 10


async def test_a_task_that_is_cancelled_leaves_the_transaction(shop: Shop) -> None:
    begun = asyncio.Event()

    async def write() -> None:
        async with shop.session.begin() as session:
            (await session.get_one(Product, 1)).price = 11
            await session.flush()
            await shop.mail.enqueue("cancelled")
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])

    assert await shop.price.key(1).get("strict") == 10
    assert await shop.work() == []


async def test_strict_readers_never_see_less_than_was_committed(shop: Shop) -> None:
    committed, done = 10, False
    stale: list[tuple[int, int | None]] = []

    async def read() -> None:
        while not done:
            least = committed
            got = await shop.price.key(1).get("strict")
            if got is None or got < least:
                stale.append((least, got))
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    for price in range(11, 51):
        async with shop.session() as session:
            (await session.get_one(Product, 1)).price = price
            if price % 5:
                await session.commit()
                committed = price
            else:
                await session.flush()
    done = True
    await asyncio.gather(*readers)

    assert stale == []
    assert await shop.price.key(1).get("strict") == 49
