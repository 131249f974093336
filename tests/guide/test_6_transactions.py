"""Transactions: rows that are written through SQLAlchemy tell the cache by themselves. Read from top to bottom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from selaras import Selaras
from selaras.contrib.sqlalchemy import bind, writes


class Base(DeclarativeBase):
    """The tables."""


class Product(Base):
    """A row."""

    __tablename__ = "product"
    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[float]


class Shop:
    """An app over a database."""

    def __init__(self, folder: Path) -> None:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shop.db'}")
        self.Session = async_sessionmaker(self.engine)
        self.app = app = Selaras("memory://")
        self.mailed: list[str] = []

        @app.cached(ttl="1h")
        async def price_of(id: int) -> float | None:
            async with self.Session() as session:  # one of its own: that is what apart=True says
                return await session.scalar(select(Product.price).where(Product.id == id))

        @app.task
        async def mail(text: str) -> None:
            self.mailed.append(text)

        self.price_of, self.mail = price_of, mail
        bind(app, self.Session, {Product: price_of}, apart=True)  # its arguments are the row's primary key


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    async with shop.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with shop.app:
        async with shop.Session.begin() as session:
            session.add(Product(id=42, price=10.0))
        yield shop
    await shop.engine.dispose()


async def _reprice(session: AsyncSession, price: float) -> None:
    (await session.get_one(Product, 42)).price = price


async def test_a_commit_is_all_it_takes(shop: Shop) -> None:
    assert await shop.price_of(42) == 10.0

    async with shop.Session.begin() as session:
        await _reprice(session, 12.5)

    assert await shop.price_of(42) == 12.5


async def test_jobs_enqueued_in_a_transaction_go_with_its_commit(shop: Shop) -> None:
    async with shop.Session() as session:
        await _reprice(session, 12.5)
        await shop.mail.enqueue("dropped")
        await session.rollback()

        await _reprice(session, 13.0)
        await shop.mail.enqueue("13.0 now")
        await session.commit()

    await shop.app.worker(burst=True).run()
    assert shop.mailed == ["13.0 now"]


async def test_a_bulk_update_names_no_rows_so_you_do(shop: Shop) -> None:
    assert await shop.price_of(42) == 10.0

    async with shop.Session.begin() as session:
        writes(session, shop.price_of.key(42))
        await session.execute(update(Product).values(price=1.0))

    assert await shop.price_of(42) == 1.0
