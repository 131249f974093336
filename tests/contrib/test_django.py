"""Connections of Django as scopes, on real SQLite files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.models import F
from tests.contrib.conftest import Victim, until
from tests.contrib.djangoed import Marked, Product, Shop, Special

from selaras import ConfigurationError, StoreUnavailable
from selaras.contrib.django import bind, writes


@pytest.fixture(scope="module")
def only(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(f"sqlite:///{tmp_path_factory.mktemp('store') / 'store.db'}", lease=1.0)


@pytest.fixture
def shop(only: Shop, tmp_path: Path) -> Iterator[Shop]:
    only.use(tmp_path)
    only.fill()
    with only.app:
        for family in (only.price, only.listed, only.marked):
            family.invalidate_all()
        yield only
    connections.close_all()


def reprice(id: int, price: int) -> None:
    row = Product.objects.get(pk=id)
    row.price = price
    row.save()


@transaction.atomic
def _fail(shop: Shop, word: str) -> None:
    reprice(1, 11)
    shop.mail.enqueue(word)
    raise ValueError(word)


@transaction.atomic
def _perhaps(shop: Shop) -> None:
    reprice(6, 61)
    shop.mail.enqueue("perhaps")


def test_a_commit_voids_what_its_rows_were_and_are(shop: Shop) -> None:
    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (10, [1, 2], [])

    with transaction.atomic():
        row = Product.objects.get(pk=1)
        row.price, row.category = 11, 8
        row.save()
        assert not shop.stands(1)

    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (11, [2], [1])
    assert not shop.stands(1)


def test_new_deleted_and_derived_rows(shop: Shop) -> None:
    assert (shop.price(3), shop.price(2), shop.listed(7)) == (None, 20, [1, 2])

    with transaction.atomic():
        Special.objects.create(id=3, price=30, category=7)
        Product.objects.get(pk=2).delete()

    assert (shop.price(3), shop.price(2), shop.listed(7)) == (30, None, [1, 3])


@pytest.mark.parametrize("model", [Product, Special])
def test_a_new_object_over_a_row_that_is_there(shop: Shop, model: type[Product]) -> None:
    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (10, [1, 2], [])

    with transaction.atomic():
        model(pk=1, price=11, category=8).save()

    assert (shop.price(1), shop.listed(7), shop.listed(8)) == (11, [2], [1])


class Room(IntEnum):
    EIGHT = 8


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("category", [F("category") + 1, "8", Room.EIGHT], ids=["expression", "text", "enum"])
def test_the_row_as_it_is_is_what_the_database_made_of_it(shop: Shop, category: Any, alone: bool) -> None:
    assert (shop.listed(7), shop.listed(8)) == ([1, 2], [])

    with nullcontext() if alone else transaction.atomic():
        row = Product.objects.get(pk=1)
        row.category = category
        row.save()

    assert (shop.listed(7), shop.listed(8)) == ([2], [1])


def test_a_primary_key_may_be_given_as_another_type(shop: Shop) -> None:
    assert shop.marked("7") is False
    named: Any = 7
    Marked(name=named).save()
    assert shop.marked("7") is True


def test_a_rollback_drops_jobs_and_never_asked_the_store(shop: Shop) -> None:
    assert shop.price(1) == 10
    position = shop.app.aio.process().since(0).position

    with pytest.raises(ValueError, match="no"):
        _fail(shop, "no")

    assert shop.price.key(1).get("strict") == 10
    assert shop.app.aio.process().since(0).position == position
    assert shop.work() == []


def test_jobs_are_released_by_the_commit_and_hooks_of_django_run_outside(shop: Shop) -> None:
    seen: list[bool] = []
    with transaction.atomic():
        reprice(1, 11)
        shop.mail.enqueue("within")
        transaction.on_commit(lambda: seen.append(shop.stands(1)))
        transaction.on_commit(lambda: bool(shop.mail.enqueue("from a hook")))
        assert shop.work() == []

    assert seen == [False]
    assert sorted(shop.work()) == ["from a hook", "within"]


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(shop: Shop) -> None:
    shop.price(1)
    with transaction.atomic():
        shop.mail.enqueue("outer")
        with pytest.raises(ValueError, match="inner"):
            _fail(shop, "inner")
        with transaction.atomic():
            reprice(2, 21)

    assert (shop.price(1), shop.price(2)) == (10, 21)
    assert shop.work() == ["outer"]


def test_a_save_outside_of_transactions_is_one(shop: Shop) -> None:
    assert (shop.price(1), shop.listed(8), shop.marked("a")) == (10, [], False)
    seen: list[tuple[bool, str]] = []

    def look(execute: Callable[..., object], sql: str, params: object, many: bool, context: object) -> object:
        if sql.startswith("UPDATE"):
            seen.append((shop.stands(1), sql))
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(look):
        row = Product.objects.get(pk=1)
        row.price, row.category = 11, 8
        row.save()
    Marked(name="a").save()

    assert [stood for stood, _ in seen] == [True]
    assert (shop.price(1), shop.listed(8), shop.marked("a")) == (11, [1], True)
    shop.mail.enqueue("outside")
    assert shop.work() == ["outside"]


def test_a_save_of_a_model_with_parents_outside_of_transactions_is_one(shop: Shop) -> None:
    Special.objects.create(id=3, price=30, category=7)
    row = Special.objects.get(pk=3)
    assert (shop.price(3), shop.listed(7), shop.listed(8)) == (30, [1, 2, 3], [])

    row.price, row.category = 31, 8
    row.save()

    assert (shop.price(3), shop.listed(7), shop.listed(8)) == (31, [1, 2], [3])
    assert not shop.stands(3)


def test_the_row_as_it_was_is_locked_until_it_is_written(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look(execute: Callable[..., object], sql: str, params: object, many: bool, context: object) -> object:
        asked.append(sql)
        return execute(sql.removesuffix(" FOR NO KEY UPDATE"), params, many, context)

    one = connections["default"]
    monkeypatch.setattr(one.features, "has_select_for_update", True)
    monkeypatch.setattr(one.features, "has_select_for_no_key_update", True)
    row = Product.objects.get(pk=1)
    with one.execute_wrapper(look):
        row.save()
        with transaction.atomic():
            row.save()

    assert [sql.endswith(" FOR NO KEY UPDATE") for sql in asked if sql.startswith("SELECT")] == [False, True]


def test_fields_that_a_save_leaves_out_are_what_the_database_has(shop: Shop) -> None:
    ids: dict[tuple[int, int], list[int]] = {}

    @shop.app.cached(ttl="1h")
    def those(category: int, price: int) -> list[int]:
        return ids.setdefault((category, price), [])

    keys = shop.keys
    shop.keys = lambda row: [*keys(row), those.key(row.category, row.price)]
    try:
        row = Product.objects.get(pk=1)
        Product.objects.filter(pk=1).update(category=8)
        assert those(8, 11) == []
        ids[8, 11] = [1]
        with transaction.atomic():
            row.price = 11
            row.save(update_fields=["price"])
        assert those(8, 11) == [1]
    finally:
        shop.keys = keys


def test_bulk_updates_say_their_keys(shop: Shop) -> None:
    assert (shop.price(1), shop.price(2)) == (10, 20)
    with transaction.atomic():
        Product.objects.update(price=F("price") + 1)
        writes(shop.price.key(1), shop.price.key(2))
    assert (shop.price(1), shop.price(2)) == (11, 21)

    with pytest.raises(ConfigurationError, match="no transaction is open"):
        writes(shop.price.key(1))


def test_manual_transactions(shop: Shop) -> None:
    assert (shop.price(1), shop.price(2)) == (10, 20)
    transaction.set_autocommit(False)
    try:
        reprice(1, 11)
        shop.mail.enqueue("first")
        transaction.commit()
        reprice(2, 21)
        shop.mail.enqueue("second")
        transaction.rollback()
        with transaction.atomic():
            reprice(2, 22)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)

    assert (shop.price(1), shop.price(2)) == (11, 22)
    assert shop.work() == ["first"]


def test_without_a_store_nothing_is_committed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    assert shop.price(1) == 10
    monkeypatch.setattr(shop.app.aio.process().store.partitions[0], "open_scope", away)
    with pytest.raises(StoreUnavailable, match="away"), transaction.atomic():
        reprice(1, 11)
    with pytest.raises(StoreUnavailable, match="away"):
        reprice(1, 11)
    monkeypatch.undo()

    assert not shop.stands(1)
    assert Product.objects.get(pk=1).price == 10
    assert connections["default"].get_autocommit()
    with transaction.atomic():  # what failed has left nothing behind that this would plant
        shop.mail.enqueue("alone")
    assert shop.work() == ["alone"]
    reprice(1, 12)
    assert shop.price(1) == 12


def test_a_store_that_goes_away_after_the_commit_leaves_the_intents(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("the store is away")

    assert shop.price(5) == 50
    monkeypatch.setattr(shop.app.aio.process().store.partitions[0], "settle", away)
    with transaction.atomic():
        reprice(5, 51)

    assert "its lease will end it" in caplog.text
    assert shop.stands(5)
    assert shop.price(5) == 51


def test_a_commit_with_an_unknown_outcome_leaves_the_intents_and_releases_the_jobs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert shop.price(6) == 60
    connection: Any = connections["default"]
    commit = connection._commit

    def cut_off() -> None:
        commit()
        raise DatabaseError("the answer was lost")

    monkeypatch.setattr(connection, "_commit", cut_off)
    with pytest.raises(DatabaseError):
        _perhaps(shop)
    monkeypatch.undo()

    assert "nobody knows" in caplog.text
    assert shop.stands(6)
    assert shop.price(6) == 61
    until(lambda: shop.work() == ["perhaps"])


def test_mistakes_are_told(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="bound already"):
        bind(shop.app, {Product: shop.price})
    with pytest.raises(ConfigurationError, match="apart"):
        bind(shop.app, {}, apart=True)


@pytest.mark.parametrize("when", ["saved", "committed"])
def test_killed_between_commit_and_resolve_nothing_stale_is_ever_served(
    tmp_path: Path, victim: Callable[..., Victim], shop: Shop, when: str
) -> None:
    assert shop.price(1) == 10
    killed = victim("tests.contrib.djangoed", tmp_path, when, shop.app.url)
    assert killed.hear() == "here"
    committed = when == "committed"
    assert shop.stands(1) is committed, shop.price.key(1).explain()
    assert shop.price.key(1).get("strict") == (11 if committed else 10)
    killed.kill()

    assert shop.price.key(1).get("strict") == (11 if committed else 10)
    if committed:
        until(lambda: shop.work() == ["repriced"])  # its commit may have happened, so its jobs are released
        assert shop.price.key(1).get("strict") == 11
    else:
        assert shop.work() == []


def test_strict_readers_never_see_less_than_was_committed(shop: Shop) -> None:
    stop = threading.Event()
    committed = [10]
    stale: list[tuple[int, int | None]] = []

    def read() -> None:
        while not stop.is_set():
            least = committed[0]
            got = shop.price.key(1).get("strict")
            if got is None or got < least:
                stale.append((least, got))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for price in range(11, 41):
            try:
                with transaction.atomic():
                    reprice(1, price)
                    if price % 5 == 0:
                        raise ValueError("rolled back")
                committed[0] = price
            except ValueError:
                pass
    finally:
        stop.set()
        for reader in readers:
            reader.join()

    assert stale == []
    assert shop.price.key(1).get("strict") == 39
