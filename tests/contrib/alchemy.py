"""A shop over SQLAlchemy, for tests and for processes that they kill: `python -m tests.contrib.alchemy FOLDER WHEN`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sqlalchemy import ForeignKey, create_engine, event, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from selaras.blocking import Key, Selaras
from selaras.contrib.sqlalchemy import bind


class Base(DeclarativeBase):
    pass


class Category(Base):
    __tablename__ = "category"
    id: Mapped[int] = mapped_column(primary_key=True)


class Product(Base):
    __tablename__ = "product"
    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int]
    category: Mapped[int] = mapped_column(ForeignKey("category.id", deferrable=True, initially="DEFERRED"))


class Shop:
    """Prices by id, and the ids of each category. Loaders open a session of their own, which is not bound."""

    def __init__(self, folder: Path, *, apart: bool = False, lease: float = 15.0, autocommit: bool = False) -> None:
        url = f"sqlite:///{folder / 'shop.db'}"
        self.engine = create_engine(url, isolation_level="AUTOCOMMIT") if autocommit else create_engine(url)
        event.listen(self.engine, "connect", _set_up)
        self.plain = sessionmaker(self.engine)
        self.session: sessionmaker[Session] = sessionmaker(self.engine)
        self.app = app = Selaras(f"sqlite:///{folder / 'store.db'}", lease=lease, heartbeat=lease / 3)
        app.__enter__()
        self.loads: list[int] = []
        self.mailed: list[str] = []

        @app.cached(ttl="1h")
        def price(id: int) -> int | None:
            self.loads.append(id)
            with self.plain() as session:
                return session.scalar(select(Product.price).where(Product.id == id))

        @app.cached(ttl="1h")
        def listed(category: int) -> list[int]:
            with self.plain() as session:
                return list(session.scalars(select(Product.id).where(Product.category == category)))

        @app.task
        def mail(text: str) -> None:
            self.mailed.append(text)

        self.price, self.listed, self.mail = price, listed, mail

        def keys(row: Product) -> list[Key[list[int]]]:
            return [listed.key(row.category)]

        self.keys = keys
        bind(app, self.session, {Product: lambda row: [price.key(row.id), *keys(row)]}, apart=apart)

    def fill(self) -> None:
        Base.metadata.create_all(self.engine)
        with self.plain.begin() as session:
            session.add_all([Category(id=7), Category(id=8)])
            session.add_all([Product(id=1, price=10, category=7), Product(id=2, price=20, category=7)])

    def work(self) -> list[str]:
        self.app.worker(burst=True).run()
        return self.mailed

    def close(self) -> None:
        self.app.__exit__(None, None, None)
        self.engine.dispose()


def _set_up(connection: object, _: object) -> None:
    for pragma in ("journal_mode=wal", "foreign_keys=on", "busy_timeout=500"):
        connection.execute(f"pragma {pragma}")  # type: ignore[attr-defined]


def _pause(_: object) -> None:
    print("here", flush=True)
    time.sleep(120)


if __name__ == "__main__":
    folder, when = Path(sys.argv[1]), sys.argv[2]
    shop = Shop(folder, lease=1.0)
    # After ours: when it is called, ours has not been yet for `after_commit`, which is listened to first.
    if when == "committed":
        event.listen(shop.session.class_, "after_commit", _pause, insert=True)
    if when == "planted":
        event.listen(shop.session.class_, "before_commit", _pause)
    with shop.session() as session:
        row = session.get_one(Product, 1)
        row.price = 11
        shop.mail.enqueue("repriced")
        if when == "flushed":
            session.flush()
            _pause(None)
        session.commit()
    os._exit(1)
