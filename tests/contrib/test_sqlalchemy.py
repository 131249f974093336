"""Sessions of SQLAlchemy as scopes, on real SQLite files."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, ForeignKey, Table, create_engine, event, select, text, update
from sqlalchemy.dialects import registry
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    object_session,
    relationship,
    scoped_session,
    sessionmaker,
)
from tests.contrib.alchemy import Base, Category, Product, Shop
from tests.contrib.conftest import Victim, until

from selaras import ConfigurationError, StoreUnavailable
from selaras.blocking import Key, Selaras
from selaras.contrib.sqlalchemy import bind, writes


class Room(IntEnum):
    EIGHT = 8


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    shop.fill()
    yield shop
    shop.close()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, apart=True)
    shop.fill()
    yield shop
    shop.close()


def stands(shop: Shop, id: int) -> bool:
    return "intent" in shop.price.key(id).explain()


def test_a_commit_voids_what_its_rows_were_and_are(shop: Shop) -> None:
    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (10, [1, 2], [])

    with shop.session.begin() as session:
        row = session.get_one(Product, 1)
        row.price, row.category = 11, 8

    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (11, [2], [1])
    assert not stands(shop, 1)


def test_the_row_as_it_was_is_known_though_it_was_not_loaded(shop: Shop) -> None:
    assert (shop.listed(7), shop.listed(8)) == ([1, 2], [])

    with shop.session() as session:
        row = session.get_one(Product, 1)
        session.commit()  # which expires it
        row.category = 8
        session.commit()

    assert (shop.listed(7), shop.listed(8)) == ([2], [1])


@pytest.mark.parametrize("ends", ["moved", "repriced", "deleted"])
def test_the_row_as_it_was_is_known_though_another_transaction_has_changed_it(shop: Shop, ends: str) -> None:
    with shop.session() as session:
        session.expire_on_commit = False
        row = session.get_one(Product, 1)  # in category 7
        session.commit()
        with shop.session.begin() as other:
            other.get_one(Product, 1).category = 8
        assert (shop.listed(7), shop.listed(8), shop.price(1)) == ([2], [1], 10)

        if ends == "deleted":
            session.delete(row)
        elif ends == "moved":
            row.category, row.price = 9, 11
        else:
            row.price = 11
        session.execute(text("insert into category values (9)"))
        session.commit()

    assert shop.listed.key(8).read().tier == "loader"
    assert (shop.listed(7), shop.listed(8), shop.listed(9)) == {
        "moved": ([2], [], [1]),
        "repriced": ([2], [1], []),
        "deleted": ([2], [], []),
    }[ends]
    assert shop.price(1) == (None if ends == "deleted" else 11)


class _Goods(DeclarativeBase):
    pass


class _Shelf(_Goods):
    __tablename__ = "shelf"
    id: Mapped[int] = mapped_column(primary_key=True)
    room: Mapped[int]


class _Label(_Goods):
    __tablename__ = "label"
    id: Mapped[int] = mapped_column(primary_key=True)


_LABELS = Table("labels", _Goods.metadata, *(Column(name, ForeignKey(f"{name}.id")) for name in ("item", "label")))


class _Item(_Goods):
    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int] = mapped_column(default=1)
    kind: Mapped[str]
    shelf_id: Mapped[int | None] = mapped_column(ForeignKey("shelf.id"))
    shelf: Mapped[_Shelf | None] = relationship()
    untold: Mapped[_Shelf | None] = relationship(lazy="raise", viewonly=True)
    labels: Mapped[list[_Label]] = relationship(secondary=_LABELS)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "item", "with_polymorphic": "*"}

    @property
    def place(self) -> int | None:
        return self.shelf_id

    def room(self) -> int:
        assert self.shelf is not None
        return self.shelf.room


class _Tool(_Item):
    __mapper_args__ = {"polymorphic_identity": "tool"}


_FUNCTIONS_OF_AN_ITEM: dict[str, Callable[[Any], Any]] = {
    "a column": lambda row: row.shelf_id,
    "a relation": lambda row: row.shelf.id,
    "what is behind a relation": lambda row: row.shelf.room // 10,
    "a relation that is not loaded by the way": lambda row: row.untold.id,
    "a property": lambda row: row.place,
    "a method": lambda row: row.room() // 10,
    "its class": lambda row: row.shelf_id if type(row) is _Tool and isinstance(row, _Item) else 0,
}


def _move(session: Session, relation: bool, is_loaded: bool) -> None:
    item = session.get_one(_Item, 1)
    if is_loaded:
        assert item.shelf is not None
        assert item.shelf.id == 7
    if relation:
        item.shelf = session.get_one(_Shelf, 8)
    else:
        item.shelf_id = 8


_CHANGES_OF_AN_ITEM: dict[str, tuple[Callable[[Session], object], set[int]]] = {
    "moved by its relation": (lambda session: _move(session, True, False), {7, 8}),
    "moved by its relation, which was read": (lambda session: _move(session, True, True), {7, 8}),
    "moved by its key": (lambda session: _move(session, False, False), {7, 8}),
    "moved by its key, the relation was read": (lambda session: _move(session, False, True), {7, 8}),
    "deleted": (lambda session: session.delete(session.get_one(_Item, 1)), {7}),
    "new, by its relation": (lambda session: session.add(_Tool(shelf=session.get_one(_Shelf, 8))), {8}),
    "new, with its relation": (lambda session: session.add(_Tool(shelf=_Shelf(id=9, room=90))), {9}),
    "new, by its key": (lambda session: session.add(_Tool(shelf_id=8)), {8}),
}


@pytest.mark.parametrize("function", _FUNCTIONS_OF_AN_ITEM)
@pytest.mark.parametrize("change", _CHANGES_OF_AN_ITEM)
def test_functions_of_a_row_may_ask_whatever_its_class_has(tmp_path: Path, function: str, change: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'goods.db'}")
    _Goods.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([_Shelf(id=7, room=70), _Shelf(id=8, room=80)])
        session.add(_Tool(id=1, shelf_id=7))
        session.commit()
    app = Selaras(f"sqlite:///{tmp_path / 'store.db'}")

    @app.cached(ttl="1h")
    def listed(shelf: int) -> list[int]:
        with Session(engine) as session:
            return list(session.scalars(select(_Item.id).where(_Item.shelf_id == shelf)))

    maker = sessionmaker(engine)
    of = _FUNCTIONS_OF_AN_ITEM[function]
    bind(app, maker, {_Item: lambda row: listed.key(of(row))}, apart=True)
    how, voided = _CHANGES_OF_AN_ITEM[change]
    with app:
        before = {shelf: listed(shelf) for shelf in (7, 8, 9)}
        with maker.begin() as session:
            how(session)
        after = {shelf: listed(shelf) for shelf in (7, 8, 9)}
    assert {shelf for shelf in before if before[shelf] != after[shelf]} == voided
    engine.dispose()


def test_a_function_of_a_collection_is_asked_what_was_in_it_and_what_is(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'goods.db'}")
    _Goods.metadata.create_all(engine)
    app, maker, asked = Selaras(f"sqlite:///{tmp_path / 'store.db'}"), sessionmaker(engine), list[list[int]]()

    @app.cached(ttl="1h")
    def labelled(label: int) -> list[int]:
        return [label]

    def keys(row: _Item) -> list[Key[list[int]]]:
        asked.append([label.id for label in row.labels])
        return [labelled.key(label.id) for label in row.labels]

    with app, maker() as session:
        session.add(_Tool(id=1, labels=[_Label(id=1), _Label(id=2)]))
        session.commit()
        bind(app, maker, {_Item: keys}, apart=True)
        item = session.get_one(_Item, 1)
        item.price, item.labels = 5, [_Label(id=3)]
        session.commit()
        assert asked[-2:] == [[1, 2], [3]]
        asked.clear()
        session.delete(item)
        session.commit()
        assert asked == [[3]]
    engine.dispose()


class _Crate(_Goods):
    __tablename__ = "crate"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    parts: Mapped[list[_Part]] = relationship(back_populates="crate", cascade="all, delete-orphan")
    untold: Mapped[list[_Part]] = relationship(lazy="raise", viewonly=True)


class _Part(_Goods):
    __tablename__ = "part"
    id: Mapped[int] = mapped_column(primary_key=True)
    crate_id: Mapped[int] = mapped_column(ForeignKey("crate.id"))
    crate: Mapped[_Crate] = relationship(back_populates="parts")


@pytest.mark.parametrize(("level", "asked"), [("AUTOCOMMIT", "parts"), ("SERIALIZABLE", "untold")])
def test_rows_of_a_collection_stay_with_their_session(tmp_path: Path, level: Any, asked: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'goods.db'}", isolation_level=level)
    _Goods.metadata.create_all(engine)
    app, maker = Selaras(f"sqlite:///{tmp_path / 'store.db'}"), sessionmaker(engine)

    @app.cached(ttl="1h")
    def crate_of(part: int) -> int | None:
        with Session(engine) as session:
            return session.scalar(select(_Part.crate_id).where(_Part.id == part))

    bind(app, maker, {_Part: crate_of, _Crate: lambda crate: [crate_of.key(part.id) for part in getattr(crate, asked)]})
    with app, maker() as session:
        session.add_all([_Crate(id=1, name="from", parts=[part := _Part(id=1)]), to := _Crate(id=2, name="to")])
        session.commit()
        assert crate_of(1) == 1
        to.parts.append(part)
        session.commit()
        assert object_session(part) is session
        assert crate_of(1) == 2
    engine.dispose()


def test_the_row_as_it_was_is_told_with_its_relations_though_another_has_moved_it(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'goods.db'}")
    _Goods.metadata.create_all(engine)
    app, asked = Selaras(f"sqlite:///{tmp_path / 'store.db'}"), list[int]()
    maker = sessionmaker(engine, expire_on_commit=False)

    @app.cached(ttl="1h")
    def listed(shelf: int) -> list[int]:
        return [shelf]

    def keys(row: _Item) -> Key[list[int]]:
        assert row.shelf is not None
        asked.append(row.shelf.room)
        return listed.key(row.shelf.room)

    with app, maker() as session:
        session.add_all([_Shelf(id=8, room=80), item := _Tool(id=1, shelf=_Shelf(id=7, room=70))])
        session.commit()
        bind(app, maker, {_Item: keys}, apart=True)
        with maker.begin() as other:
            other.get_one(_Item, 1).shelf_id = 8
        asked.clear()
        item.price = 5
        session.commit()
    assert asked == [80, 80]
    engine.dispose()


def test_a_key_of_two_columns_of_which_two_transactions_changed_one_each(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.fill()
    maker = sessionmaker(shop.engine, expire_on_commit=False)

    @shop.app.cached(ttl="1h")
    def ids(category: int, price: int) -> list[int]:
        with shop.plain() as session:
            return list(session.scalars(select(Product.id).where(Product.category == category, Product.price == price)))

    bind(shop.app, maker, {Product: lambda row: ids.key(row.category, row.price)})
    with maker() as session, maker.begin() as other:
        row = session.get_one(Product, 1)
        session.commit()
        other.get_one(Product, 1).category = 8
        other.commit()
        assert (ids(7, 10), ids(8, 10), ids(8, 11)) == ([], [1], [])
        row.price = 11
        session.commit()
    assert (ids(7, 10), ids(8, 10), ids(8, 11)) == ([], [], [1])
    shop.close()


def test_the_row_is_looked_at_once_and_locked_as_its_update_will_lock_it(shop: Shop) -> None:
    looked, postgresql = list[str](), registry.load("postgresql")()

    @event.listens_for(shop.engine, "before_execute")
    def _(connection: object, statement: Any, *_: object) -> None:
        if statement.is_select:
            looked.append(str(statement.compile(dialect=postgresql)))

    for price in (11, 12):
        looked.clear()
        with shop.session.begin() as session:
            row = session.get_one(Product, 1)
            row.price, row.category = price, 8
    assert len(looked) == 2
    assert "FOR" not in looked[0]
    assert looked[1].endswith("FOR NO KEY UPDATE")
    assert "FROM product \nWHERE product.id =" in looked[1]


@pytest.mark.parametrize("category", ["8", Room.EIGHT], ids=["text", "enum"])
def test_the_row_as_it_is_is_what_the_datastore_made_of_it(shop: Shop, category: Any) -> None:
    assert (shop.listed(7), shop.listed(8)) == ([1, 2], [])

    with shop.session.begin() as session:
        session.get_one(Product, 1).category = category
        session.add(Product(id=3, price=30, category=category))

    assert (shop.listed(7), shop.listed(8)) == ([2], [1, 3])


def test_new_and_deleted_rows(shop: Shop) -> None:
    assert (shop.price(3), shop.price(2), shop.listed(7)) == (None, 20, [1, 2])

    with shop.session.begin() as session:
        session.add(Product(id=3, price=30, category=7))
        session.delete(session.get_one(Product, 2))

    assert (shop.price(3), shop.price(2), shop.listed(7)) == (30, None, [1, 3])


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_row_in_place_of_one_that_is_deleted_voids_what_both_are(tmp_path: Path, autocommit: bool) -> None:
    shop = Shop(tmp_path, autocommit=autocommit)
    shop.fill()
    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (10, [1, 2], [])

    with shop.session.begin() as session:
        session.delete(session.get_one(Product, 1))
        session.add(Product(id=1, price=11, category=8))  # one UPDATE

    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (11, [2], [1])
    shop.close()


def test_a_row_in_place_of_one_of_another_class(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'goods.db'}")
    _Goods.metadata.create_all(engine)
    app, maker = Selaras(f"sqlite:///{tmp_path / 'store.db'}"), sessionmaker(engine)

    @app.cached(ttl="1h")
    def tools(shelf: int) -> list[int]:
        with Session(engine) as session:
            return list(session.scalars(select(_Tool.id).where(_Tool.shelf_id == shelf)))

    @app.cached(ttl="1h")
    def kind(item: int) -> str | None:
        with Session(engine) as session:
            return session.scalar(select(_Item.kind).where(_Item.id == item))

    bind(app, maker, {_Tool: lambda row: tools.key(row.shelf_id), _Item: kind}, apart=True)
    with app, maker() as session:
        session.add_all([_Shelf(id=7, room=70), tool := _Tool(id=1, shelf_id=7)])
        session.commit()
        assert (tools(7), kind(1)) == ([1], "tool")
        session.delete(tool)
        session.add(_Item(id=1, shelf_id=7))
        session.commit()
        assert (tools(7), kind(1)) == ([], "item")
    engine.dispose()


def test_intents_stand_from_before_the_commit_until_after_it(shop: Shop) -> None:
    seen: list[bool] = []

    @event.listens_for(shop.engine, "commit")
    def _(_: object) -> None:
        seen.append(stands(shop, 1))

    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        assert not stands(shop, 1)
        session.commit()

    assert seen == [True]
    assert not stands(shop, 1)


def test_rows_that_other_hooks_add_as_the_commit_begins_are_planted_too(shop: Shop) -> None:
    assert shop.price(2) == 20

    def also(session: Session) -> None:
        session.get_one(Product, 2).price = 21

    event.listen(shop.session.class_, "before_commit", also)
    with shop.session.begin() as session:
        session.get_one(Product, 1).price = 11

    assert shop.price(2) == 21


def test_a_rollback_stores_nothing_and_releases(shop: Shop) -> None:
    assert shop.price(1) == 10
    position = shop.app.aio.process().since(0).position

    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        shop.mail.enqueue("dropped")
        session.rollback()

    assert shop.price.key(1).get("strict") == 10
    assert shop.app.aio.process().since(0).position == position  # the store was never asked
    assert shop.work() == []


def test_jobs_are_released_by_the_commit(shop: Shop) -> None:
    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        job = shop.mail.enqueue("repriced")
        assert shop.work() == []
        session.commit()

    assert shop.work() == ["repriced"]
    assert job.info().state == "succeeded"


def test_a_session_that_only_read_keeps_no_job(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with shop.session() as session:
        session.get_one(Product, 1)
        session.execute(text("select 1"))
        shop.mail.enqueue("read")
    assert shop.work() == ["read"]

    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        shop.mail.enqueue("never committed")
    assert shop.work() == ["read"]
    assert "1 jobs enqueued in it are dropped" in caplog.text


def test_within_it_one_reads_what_it_wrote_and_nobody_else_does(shop: Shop) -> None:
    assert shop.price(1) == 10
    with shop.session() as session:
        shop.loads.clear()
        assert shop.price(1) == 10
        assert shop.loads == []
        session.get_one(Product, 1).price = 11
        session.flush()
        assert shop.price(1) == 10  # the loader's own session sees what is committed; it is asked all the same
        assert shop.loads == [1]
        assert shop.price(2) == 20
        assert shop.price(2) == 20
        assert shop.loads == [1, 2, 2]  # nothing that is loaded within is kept
        session.commit()
    assert shop.price(1) == 11


def test_loaders_that_are_apart_fill_as_ever(apart: Shop) -> None:
    with apart.session() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        assert (apart.price(2), apart.price(2)) == (20, 20)
        assert (apart.price(1), apart.price(1)) == (10, 10)
        assert apart.loads == [2, 1, 1]
        session.commit()
    assert apart.price(1) == 11


def test_a_put_within_is_stored_by_the_commit_alone(shop: Shop) -> None:
    shop.price(1)
    with shop.session.begin() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        shop.price.key(1).put(11)
    shop.loads.clear()
    assert shop.price(1) == 11
    assert shop.loads == []

    with shop.session() as session:
        session.get_one(Product, 1).price = 12
        session.flush()
        shop.price.key(1).put(12)
        session.rollback()
    assert shop.price.key(1).get("strict") == 11


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_and_puts_along(shop: Shop) -> None:
    shop.price(1)
    with shop.session.begin() as session:
        shop.mail.enqueue("outer")
        with pytest.raises(ValueError, match="inner"):
            _fail_within(shop, session)
        with session.begin_nested():
            session.get_one(Product, 2).price = 21
            shop.mail.enqueue("second")

    assert (shop.price(1), shop.price(2)) == (10, 21)
    assert not stands(shop, 1)
    assert sorted(shop.work()) == ["outer", "second"]


def _fail_within(shop: Shop, session: Session) -> None:
    with session.begin_nested():
        session.get_one(Product, 1).price = 11
        session.flush()
        shop.price.key(1).put(11)
        shop.mail.enqueue("inner")
        raise ValueError("inner")


def test_several_sessions_end_in_any_order(shop: Shop) -> None:
    assert (shop.price(1), shop.price(2)) == (10, 20)
    first, second = shop.session(), shop.session()
    first.get_one(Product, 1)
    shop.mail.enqueue("of the first")
    second.get_one(Product, 2).price = 21
    shop.mail.enqueue("of the second")
    second.flush()
    first.rollback()
    assert shop.work() == []
    second.commit()
    first.close()
    second.close()

    assert (shop.price(1), shop.price(2)) == (10, 21)
    shop.mail.enqueue("of none")
    assert sorted(shop.work()) == ["of none", "of the second"]


TABLE: Any = Product.__table__
NEW = count(100)

BULK: dict[str, Callable[[Session], object]] = {
    "objects": lambda session: session.bulk_save_objects([Product(id=next(NEW), price=5, category=7)]),
    "mappings": lambda session: session.bulk_update_mappings(Product.__mapper__, [{"id": 1, "price": 5}]),
    "core": lambda session: session.execute(TABLE.update().values(price=5)),
    "connection": lambda session: session.connection().execute(TABLE.update().values(price=5)),
    "delete": lambda session: session.connection().execute(TABLE.delete()),
}


@pytest.mark.parametrize("how", BULK)
def test_what_names_no_rows_is_noted_however_it_is_said(shop: Shop, caplog: pytest.LogCaptureFixture, how: str) -> None:
    with shop.session.begin() as session:
        session.get_one(Product, 2).price = 21
        session.flush()
        session.add(Product(id=9, price=90, category=7))
        session.flush()
        session.execute(Category.__table__.insert().values(id=9))  # type: ignore[attr-defined] # it is a table
    assert caplog.text == ""

    with shop.session.begin() as session:
        BULK[how](session)
    assert "(product) names no rows" in caplog.text
    caplog.clear()

    with shop.session.begin() as session:
        BULK[how](session)
        writes(session, shop.price.key(1))
    assert caplog.text == ""


def test_bulk_updates_say_their_keys(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    assert (shop.price(1), shop.price(2)) == (10, 20)
    with shop.session() as session:
        writes(session, shop.price.key(1))  # before anything has begun
        session.execute(update(Product).values(price=5))
        writes(session, shop.price.key(2))
        session.commit()
    assert (shop.price(1), shop.price(2)) == (5, 5)
    assert caplog.text == ""

    with shop.session.begin() as session:
        session.execute(update(Product).values(price=6))
    assert "update(Product) names no rows" in caplog.text


def test_in_autocommit_intents_stand_before_each_statement(tmp_path: Path) -> None:
    shop = Shop(tmp_path, autocommit=True)
    shop.fill()
    assert (shop.price(1), shop.price(2)) == (10, 20)
    seen: list[tuple[bool, bool]] = []

    @event.listens_for(shop.engine, "before_cursor_execute")
    def _(conn: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE"):
            seen.append((stands(shop, 1), stands(shop, 2)))

    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        session.flush()
        writes(session, shop.price.key(2))
        session.execute(update(Product).where(Product.id == 2).values(price=22))
        session.rollback()  # which undoes nothing here

    assert seen == [(True, False), (True, True)]
    assert (shop.price.key(1).get("strict"), shop.price.key(2).get("strict")) == (11, 22)
    shop.close()


def test_a_savepoint_that_sqlite_commits_by_its_release_is_told_before(shop: Shop) -> None:
    """Its driver begins no transaction for it, unless it is told to as SQLAlchemy's documentation says."""
    assert shop.price(1) == 10
    with shop.session() as session:
        with session.begin_nested():
            session.get_one(Product, 1).price = 11
        assert stands(shop, 1)
        session.rollback()
    assert not stands(shop, 1)
    with shop.plain() as other:
        assert shop.price(1) == other.get_one(Product, 1).price


def test_a_program_that_begins_sqlites_transactions_itself_is_not_in_autocommit(shop: Shop) -> None:
    @event.listens_for(shop.engine, "connect")
    def _(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(shop.engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql("begin")

    shop.engine.dispose()
    assert shop.price(1) == 10
    with shop.session() as session:
        with session.begin_nested():
            session.get_one(Product, 1).price = 11
        assert not stands(shop, 1)
        session.rollback()
    assert shop.price(1) == 10


def test_without_a_store_nothing_is_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shop.price(1) == 10

    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(shop.app.aio.process().store.partitions[0], "open_scope", away)
    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        with pytest.raises(StoreUnavailable, match="away"):
            session.commit()
        session.rollback()
        assert session.get_one(Product, 1).price == 10
        monkeypatch.undo()
        session.get_one(Product, 1).price = 12
        session.commit()
    assert shop.price(1) == 12


def test_a_store_that_goes_away_after_the_commit_leaves_the_intents(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert shop.price(1) == 10

    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(shop.app.aio.process().store.partitions[0], "settle", away)
    with shop.session.begin() as session:
        session.get_one(Product, 1).price = 11

    assert "its lease will end it" in caplog.text
    assert stands(shop, 1)
    assert shop.price(1) == 11


def test_a_commit_that_the_database_refused_is_a_rollback(shop: Shop) -> None:
    assert shop.price(1) == 10
    with shop.session() as session:
        session.get_one(Product, 1).category = 99  # looked at by COMMIT
        shop.mail.enqueue("refused")
        with pytest.raises(IntegrityError):
            session.commit()

    assert not stands(shop, 1)
    assert shop.work() == []


def test_a_commit_with_an_unknown_outcome_leaves_the_intents_and_releases_the_jobs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert shop.price(1) == 10
    commit = shop.engine.dialect.do_commit

    def cut_off(connection: Any) -> None:
        commit(connection)
        raise ConnectionError("the answer was lost")

    with shop.session() as session:
        session.get_one(Product, 1).price = 11
        shop.mail.enqueue("perhaps")
        session.flush()
        monkeypatch.setattr(shop.engine.dialect, "do_commit", cut_off)
        with pytest.raises(ConnectionError):
            session.commit()
        monkeypatch.undo()

    assert "nobody knows" in caplog.text
    assert stands(shop, 1)
    assert shop.price(1) == 11
    until(lambda: shop.work() == ["perhaps"])


def test_within_a_job_its_own_keys_stay_the_jobs(shop: Shop) -> None:
    seen: list[int] = []

    @event.listens_for(shop.engine, "commit")
    def _(_: object) -> None:
        seen.append(shop.price.key(1).explain().count("intent"))

    @shop.app.task(writes=shop.price)
    def reprice(id: int, price: int) -> None:
        with shop.session.begin() as session:
            session.get_one(Product, id).price = price
            session.get_one(Product, 2).price = price
        shop.price.key(id).put(price)

    assert (shop.price(1), shop.price(2)) == (10, 20)
    reprice.enqueue(1, 15)
    shop.app.worker(burst=True).run()
    shop.loads.clear()

    assert (shop.price(1), shop.price(2)) == (15, 15)
    assert shop.loads == [2]  # the job's put was stored: no other intent stood beside its own
    assert seen[0] == 1


def test_a_session_that_joined_a_transaction_does_not_know_its_end(shop: Shop) -> None:
    assert shop.price(1) == 10
    with shop.engine.begin() as connection:
        with shop.session(bind=connection) as session:
            session.get_one(Product, 1).price = 11
            session.commit()
        assert stands(shop, 1)  # until the outer commit must have come
        assert shop.price(1) == 10
    assert shop.price(1) == 11


def test_a_session_that_is_lost_does_not_keep_its_thread_inside(shop: Shop) -> None:
    session = shop.session()
    session.get_one(Product, 1)
    del session
    gc.collect()

    shop.mail.enqueue("outside")
    assert shop.work() == ["outside"]


def test_scoped_and_single_sessions_can_be_bound(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.fill()
    own = scoped_session(sessionmaker(shop.engine))
    bind(shop.app, own, {Product: shop.price})
    assert shop.price(1) == 10

    own.get_one(Product, 1).price = 11
    own.commit()
    own.remove()
    assert shop.price(1) == 11

    with shop.plain() as single:
        bind(shop.app, single, {Product: shop.price})
        single.get_one(Product, 1).price = 12
        single.commit()
    assert shop.price(1) == 12
    shop.close()


def test_mistakes_are_told(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="bound already"):
        bind(shop.app, shop.session, {Product: shop.price})
    with pytest.raises(ConfigurationError, match="not bound"):
        writes(shop.plain(), shop.price.key(1))
    with pytest.raises(ConfigurationError, match="no key"):
        writes(shop.session(), 42)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="neither a cached family"):
        bind(shop.app, shop.plain, {Product: 42})  # type: ignore[dict-item]


@pytest.mark.parametrize("when", ["flushed", "planted", "committed"])
def test_killed_around_its_commit_nothing_stale_is_ever_served(
    tmp_path: Path, victim: Callable[..., Victim], when: str
) -> None:
    shop = Shop(tmp_path, lease=1.0)
    shop.fill()
    assert shop.price(1) == 10
    killed = victim("tests.contrib.alchemy", tmp_path, when)
    assert killed.hear() == "here"
    committed, planted = when == "committed", when != "flushed"
    assert stands(shop, 1) is planted
    assert shop.price.key(1).get("strict") == (11 if committed else 10)
    killed.kill()

    assert shop.price.key(1).get("strict") == (11 if committed else 10)
    if planted:
        until(lambda: shop.work() == ["repriced"])  # its commit may have happened, so its jobs are released
        assert shop.price.key(1).get("strict") == (11 if committed else 10)
    else:
        assert shop.work() == []
    shop.close()


def test_strict_readers_never_see_less_than_was_committed(apart: Shop) -> None:
    shop, stop = apart, threading.Event()
    committed = [10]
    stale: list[tuple[int, int | None]] = []

    def read() -> None:
        while not stop.is_set():
            least = committed[0]
            got = shop.price.key(1).get("strict")
            if got is None or got < least:
                stale.append((least, got))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for price in range(11, 61):
            with shop.session() as session:
                session.get_one(Product, 1).price = price
                session.flush()
                if price % 5:
                    session.commit()
                    committed[0] = price
                else:
                    session.rollback()
    finally:
        stop.set()
        for reader in readers:
            reader.join()

    assert stale == []
    assert shop.price.key(1).get("strict") == 59


def test_the_bound_is_quiet(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for price in (11, 12):
        with shop.session.begin() as session:
            session.get_one(Product, 1).price = price
    assert caplog.text == ""


def test_what_is_no_model_session_or_keys_is_refused_with_what_to_give(shop: Shop) -> None:
    maker = sessionmaker(shop.engine)
    nothing: Any = None
    with pytest.raises(ConfigurationError, match=r"bind\(\.\.\., None\): say which cached values"):
        bind(shop.app, maker, nothing)
    for model in ("Product", int, Product(id=1)):
        keys: Any = {model: shop.price}
        with pytest.raises(ConfigurationError, match="give a model, the class itself"):
            bind(shop.app, maker, keys)
    for how in (shop.app.task, shop.mail):
        keys = {Product: how}
        with pytest.raises(ConfigurationError, match="neither a cached family nor a function of a row"):
            bind(shop.app, maker, keys)
    with pytest.raises(ConfigurationError, match=r"writes\(None, \.\.\.\): give the session"):
        writes(nothing, shop.price.key(1))
    keys = {Base: list}  # what all models are derived from
    bind(shop.app, maker, keys)
