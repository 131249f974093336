"""The cache at its edges: what a family may be declared with, keys of any text, programs of two versions side by side."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import make_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from tests.redis.servers import shared_server
from tests.stores import KINDS

from selaras import ConfigurationError, NotEncodable, Selaras, adaptive
from selaras.blocking import Selaras as BlockingSelaras

# -- what a family is declared with

NAN, INF = float("nan"), float("inf")

WRONG: dict[str, list[Any]] = {
    "ttl": [-1, -0.001, NAN, INF, -INF, True, "soon", "", "-5m", b"5m", [5], Decimal(5), timedelta(-1), 1e30],
    "ttl_none": [-1, NAN, INF, True, "soon", timedelta(-1)],
    "replica_lag": [-1, NAN, INF, None, "soon"],
    "soft_timeout": [-1, NAN, "soon"],
    "hard_timeout": [-1, NAN, "soon"],
    "stale_if_error": [-1, NAN, None, "soon"],
    "stale_while_revalidate": [-1, NAN, None, "soon"],
    "fresh": [-1, NAN, INF, "now", True],
    "beta": [-1, NAN, INF, "1", True],
    "audit": [-0.1, 1.1, NAN, "1", True],
    "fallback_loads": [0, -1, 1.5, "8", True],
    "max_value": [-1, 1.5, "1 MiB", True],
    "compress_threshold": [-1, 1.5, "1 KiB", True],
    "during_write": ["stale", None, True],
    "tiers": ["remote", ["remote"], 5, None],
    "ignore": [["nobody"], 5, [5]],
    "tags": [5, [5], ["{id}"], ["x:{nobody}"], "x:id"],
    "version": [5, "updated_at"],
    "name": ["", "a\nb", "a\0b", "\ud800", "n" * 201, 5],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in WRONG.items() for value in values])
def test_what_an_option_cannot_be_is_told_at_the_declaration_with_its_name_and_value(option: str, value: Any) -> None:
    app = Selaras("memory://")

    async def load(id: int) -> int:
        return id

    with pytest.raises(ConfigurationError) as told:
        app.cached(**{"name": "declared", option: value})(load)

    if option != "name":
        assert "declared" in str(told.value)
        assert option in str(told.value)
    assert not app.program.registry.families


@pytest.mark.parametrize(
    "bounds",
    [
        {"min": 0, "max": 5},
        {"min": -1, "max": 5},
        {"min": 5, "max": 1},
        {"min": NAN, "max": 5},
        {"min": 1, "max": INF},
        {"min": 1, "max": 5, "k": NAN},
        {"min": 1, "max": 5, "k": 0},
        {"min": 1, "max": 5, "k": "much"},
    ],
)
def test_bounds_of_an_adaptive_ttl_are_checked(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="adaptive"):
        adaptive(**bounds)


async def test_what_a_ttl_may_be(app: Selaras) -> None:
    loads: list[str] = []

    async def load(id: int) -> int:
        loads.append("")
        return id

    said: list[tuple[Any, bool | None]] = [
        *[(0, False), (0.0, False), (timedelta(0), False), ("0s", False)],
        *[(None, True), (1e-6, None), ("1h30m", True)],
    ]
    for place, (ttl, kept) in enumerate(said):
        family = app.cached(name=f"f{place}", ttl=ttl)(load)
        loads.clear()
        assert [await family(1), await family(1)] == [1, 1]
        assert kept is None or len(loads) == (1 if kept else 2)


async def test_ttl_none_0_keeps_values_and_not_their_absence(app: Selaras) -> None:
    loads: list[int] = []

    @app.cached(ttl_none=0)
    async def name(id: int) -> str | None:
        loads.append(id)
        return None if id else "zero"

    assert [await name(0), await name(0), await name(1), await name(1)] == ["zero", "zero", None, None]
    assert loads == [0, 1, 1]


# -- keys of any text


TEXTS = {
    "empty": "",
    "NUL": "\0",
    "one": "a",
    "a NUL behind": "a\0",
    "a new line": "a\n",
    "spaces": "a ",
    "a colon": "a:b",
    "a comma": "a,b",
    "percent": "a%3Ab",
    "quotes": "'\"`",
    "braces": "{a}(b)[c]",
    "composed": unicodedata.normalize("NFC", "\u00e9"),
    "decomposed": unicodedata.normalize("NFD", "\u00e9"),
    "compatible": "\ufb01",
    "not compatible": "fi",
    "upper": "A",
    "dotless": "\u0131",
    "a lone surrogate": "\ud800",
    "another": "\udfff",
    "beyond the plane": "\U0001f600",
    "the same in two halves": "\ud83d\ude00",
    "the other direction": "\u202eabc",
    "the last": "\U0010ffff",
    "long": "x" * 1_000_000,
    "long and another": "x" * 999_999 + "y",
    "long surrogates": "\ud800" * 1_000,
    "as a digest": "x" * 80 + "!" + "0" * 40,
}


@pytest.fixture(params=[kind for kind in ("memory-1", "sqlite-1", "redis-1") if kind in KINDS])
async def any_app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Selaras]]:
    """Programs on one store of each kind."""
    apps: list[Selaras] = []
    name = f"hygiene-{abs(hash(tmp_path))}"

    def make() -> Selaras:
        urls = {"memory-1": f"memory://{name}", "sqlite-1": f"sqlite:///{tmp_path}/jobs.db"}
        url = urls.get(request.param) or f"{shared_server().url}?prefix={name}"
        apps.append(Selaras(url))
        return apps[-1]

    yield make
    for app in apps:
        await app.close()


async def test_keys_of_any_text_are_kept_apart_and_found_again(any_app: Callable[[], Selaras]) -> None:
    app = any_app()
    loads: list[str] = []

    @app.cached
    async def annotated(text: str) -> int:
        loads.append(text)
        return len(loads)

    @app.cached(tiers=["shared"])
    async def bare(text, more=None):  # type: ignore[no-untyped-def]
        loads.append(text)
        return len(loads)

    for family in (annotated, bare):
        loads.clear()
        first = [await family(text) for text in TEXTS.values()]
        assert first == list(range(1, len(TEXTS) + 1))
        assert [await family(text) for text in TEXTS.values()] == first
        assert await app.read_many(family.key(text) for text in TEXTS.values()) == first
        for name, text in TEXTS.items():
            await family.key(text).invalidate()
            loads.append("")
            assert await family(text) == len(loads), name
        assert len({family.key(text).name for text in TEXTS.values()}) == len(TEXTS)
        assert all(len(family.key(text).name) < 500 and family.key(text).name.isascii() for text in TEXTS.values())


async def test_tags_of_any_text_void_what_bears_them(any_app: Callable[[], Selaras]) -> None:
    app = any_app()

    loads: list[str] = []

    @app.cached(tags=["called:{text}"])
    async def g(text: str) -> int:
        loads.append(text)
        return len(loads)

    for name, text in TEXTS.items():
        before = await g(text)
        await app.tag("called", text).invalidate()
        assert await g(text) != before, name


async def test_texts_that_are_long_are_not_kept_for_their_keys(app: Selaras) -> None:
    @app.cached
    async def f(text: str) -> int:
        return len(text)

    for n in range(20):
        await f("x" * 1_000_000 + str(n))

    spec = f.family
    assert not spec.remembered
    assert not any(spec.signature._memos.values())


# -- what a loader may be


async def test_generators_are_no_loaders(app: Selaras) -> None:
    with pytest.raises(
        ConfigurationError, match="'rows' is a generator function: a value is returned once; return a list"
    ):

        @app.cached
        def rows(id: int) -> Iterator[int]:
            yield id

    with pytest.raises(ConfigurationError, match="'pages' is a generator function"):

        @app.cached
        async def pages(id: int) -> AsyncIterator[int]:
            yield id


async def test_partials_callable_objects_and_wrapped_functions_are_loaders(app: Selaras) -> None:
    async def row(table: str, id: int) -> str:
        return f"{table} {id}"

    def plain_row(table: str, id: int) -> str:
        return f"{table} {id}"

    class Rows:
        def __init__(self, table: str) -> None:
            self.table = table

        async def __call__(self, id: int) -> str:
            return f"{self.table} {id}"

    class PlainRows(Rows):
        def __call__(self, id: int) -> str:  # type: ignore[override]
            return f"{self.table} {id}"

    @wraps(row)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return row(*args, **kwargs)

    families: dict[str, Any] = {
        "partial": partial(row, "products"),
        "plain partial": partial(plain_row, "products"),
        "object": Rows("products"),
        "plain object": PlainRows("products"),
        "method": Rows("products").__call__,
    }
    for name, loader in families.items():
        family: Any = app.cached(name=name)(loader)
        assert [await family(7), await family(7), await family(id=7)] == ["products 7"] * 3, name
        assert family.key(7).name == f"{name}:7".replace(" ", " ")
        assert (await family.key(7).read()).tier == "local", name

    around: Any = app.cached(wrapped)
    assert await around("products", 7) == await around("products", 7) == "products 7"
    assert around.key("products", 7).name == "row:products,7"


async def test_a_loader_without_a_name_needs_one(app: Selaras) -> None:
    async def row(table: str, id: int) -> str:
        return f"{table} {id}"

    with pytest.raises(ConfigurationError, match="name="):
        app.cached(partial(row, "products"))
    with pytest.raises(ConfigurationError, match="name="):
        app.cached(lambda id: id)


async def test_a_method_says_what_of_its_object_is_part_of_the_key(app: Selaras) -> None:
    loads: list[tuple[str, int]] = []

    class Shop:
        def __init__(self, region: str) -> None:
            self.region = region

        @app.cached(self_key="region")
        async def product(self, id: int) -> str:
            """What is sold."""
            loads.append((self.region, id))
            return f"{self.region} {id}"

        @app.cached(self_key=lambda shop: (shop.region, "prices"))
        def price(self, id: int, *, factor: int = 1) -> int:
            return len(self.region) * id * factor

        @app.cached(self_key=None)
        async def name(self, id: int) -> str:
            loads.append((self.region, id))
            return f"product {id}"

        @app.cached
        @staticmethod
        async def tax(country: str) -> int:
            return len(country)

    east, west, east_again = Shop("east"), Shop("west"), Shop("east")

    assert [await east.product(1), await west.product(1), await east_again.product(id=1)] == [
        "east 1",
        "west 1",
        "east 1",
    ]
    assert loads == [("east", 1), ("west", 1)]
    assert east.product.key(1) == east_again.product.key(id=1) == Shop.product.key(east, 1)
    assert east.product.key(1).name == "Shop.product:'east,1"
    assert east.product.key(1) != west.product.key(1)
    assert Shop.product.__doc__ == "What is sold."
    await east_again.product.key(1).invalidate()
    assert await Shop.product(east, 1) == "east 1"
    assert loads == [("east", 1), ("west", 1), ("east", 1)]

    assert [await east.price(2), await east.price(2, factor=3), await Shop("far").price(2)] == [8, 24, 6]
    loads.clear()
    assert await east.name(1) == await west.name(1) == "product 1"
    assert loads == [("east", 1)]
    assert await east.tax("IDN") == await Shop.tax("IDN") == 3
    assert east.tax.key("IDN").name == "tax:IDN"
    await Shop.product.invalidate_all()
    assert await east.product(1) == "east 1"


async def test_a_family_looks_like_its_function_to_frameworks_that_ask(app: Selaras) -> None:
    class Shop:
        @app.cached(self_key=None)
        async def product(self, id: int, *, full: bool = False) -> str:
            """What is sold."""
            return f"product {id}"

    @app.cached
    async def price(id: int) -> float:
        """What it costs."""
        return id * 1.5

    shop = Shop()
    signatures = [inspect.signature(one) for one in (price, price.sync, Shop.product, shop.product, shop.product.sync)]
    assert [str(one).replace("'", "") for one in signatures] == [
        "(id: int) -> float",
        "(id: int) -> float",
        "(self, id: int, *, full: bool = False) -> str",
        "(id: int, *, full: bool = False) -> str",
        "(id: int, *, full: bool = False) -> str",
    ]
    awaited = asyncio.iscoroutinefunction if sys.version_info < (3, 12) else inspect.iscoroutinefunction
    calls = [getattr(one, "__call__") for one in (price, shop.product, price.sync, shop.product.sync)]  # noqa: B004, B009 - as they ask
    assert [awaited(call) for call in calls] == [True, True, False, False]
    assert await asyncio.to_thread(shop.product.sync, 3) == await shop.product.sync.aio(3) == "product 3"


def test_a_method_works_where_nothing_can_be_awaited() -> None:
    app = BlockingSelaras("memory://")

    class Shop:
        region = "east"

        @app.cached(self_key="region")
        def product(self, id: int) -> str:
            return f"{self.region} {id}"

    with app:
        assert Shop().product(1) == Shop().product(1) == "east 1"
        assert Shop().product.key(1).name == "Shop.product:'east,1"
        assert Shop.product(Shop(), 1) == "east 1"


async def test_what_of_an_object_cannot_be_part_of_a_key_is_told(app: Selaras) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'Shop.product' belongs to a class.*self_key=.*self_key=None.*@staticmethod"
    ):

        class Shop:
            @app.cached
            async def product(self, id: int) -> int:
                return id

    with pytest.raises(ConfigurationError, match="@staticmethod below"):

        class Static:
            @staticmethod
            @app.cached
            async def product() -> int:
                return 1

    with pytest.raises(ConfigurationError, match="of a class method make a @staticmethod"):

        class Class:
            @app.cached
            @classmethod
            async def product(cls, id: int) -> int:
                return id

    with pytest.raises(ConfigurationError, match="self_key='region' is for methods"):

        @app.cached(self_key="region")
        async def product(id: int) -> int:
            return id

    class Other:
        @app.cached(self_key=lambda other: other)
        async def product(self, id: int) -> int:
            return id

        @app.cached(self_key="id")
        async def price(self, id: int) -> int:
            return id

    with pytest.raises(NotEncodable, match="the self_key of product"):
        await Other().product(1)
    with pytest.raises(AttributeError, match="id"):
        await Other().price(1)
    with pytest.raises(ConfigurationError, match="batch loader could not know"):
        Other.product.batch(lambda ids: asyncio.sleep(0, ids))


@pytest.mark.parametrize(
    "version", ["7", 1.5, NAN, Decimal(5), datetime(2026, 1, 1, tzinfo=UTC), [1], 1 << 63, -(1 << 70)], ids=repr
)
async def test_a_version_that_is_no_whole_number_costs_nothing_but_the_keeping(
    any_app: Callable[[], Selaras], version: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app, rows = any_app(), {1: 1, 2: 2}

    @app.cached(ttl=100, version=lambda value: version)
    async def product(id: int) -> int:
        return rows[id]

    for value in (1, 5):
        rows[1] = value
        await product.key(1).put(value)
        assert (await product.key(1).read()).tier == "loader"
        assert await product.key(1).get(fresh="strict") == value
        assert await app.read_many([product.key(1), product.key(2)]) == [value, 2]
    async with product.key(1).writing():
        rows[1] = 6
        await product.key(1).put(6)
    assert await product(1) == 6

    assert len([record for record in caplog.records if "version= returned" in record.getMessage()]) == 1


@pytest.mark.parametrize("version", [(1 << 63) - 1, 1 - (1 << 63), True, None], ids=repr)
async def test_a_version_at_the_edge_is_one(any_app: Callable[[], Selaras], version: Any) -> None:
    app, rows = any_app(), {1: 1}

    @app.cached(ttl=100, version=lambda value: version)
    async def product(id: int) -> int:
        return rows[id]

    async with product.key(1).writing():
        await product.key(1).put(2)
    assert (await product.key(1).read()).value == 2
    await product.key(1).invalidate()
    assert await product.key(1).get(fresh="strict") == 1
    assert (await product.key(1).read()).tier != "loader"


# -- two versions of a program

_MEMBERS: list[tuple[Any, Any]] = [
    (Enum, ["NEW", "PAID", "SENT"]),
    (Enum, ["NEW", "CANCELLED", "PAID", "SENT"]),  # those behind it have other numbers now
    (Enum, ["PAID"]),
    (Enum, {"NEW": "n", "PAID": "p"}),
    (Enum, {"NEW": "p", "PAID": "n"}),
    (Enum, {"NEW": 1.5, "PAID": (2, 3)}),
    (IntEnum, ["NEW", "PAID"]),
    (StrEnum, ["NEW", "PAID"]),
    (Flag, ["NEW", "PAID"]),
    (Flag, ["PAID", "NEW"]),
]
STATES = [kind("State", members) for kind, members in _MEMBERS]


async def test_what_another_version_kept_is_a_miss_and_never_an_error(
    any_app: Callable[[], Selaras], caplog: pytest.LogCaptureFixture
) -> None:
    """A deploy: fields added, removed, of another type; another kind of value altogether. Both run for a while."""
    many: Any = list
    table: Any = dict
    fields: list[Any] = [
        dict,
        make_dataclass("Product", [("id", int), ("price", float)], frozen=True),
        make_dataclass("Product", [("id", int), ("price", float), ("stock", int, 0)], frozen=True),
        make_dataclass("Product", [("id", int)], frozen=True),
        make_dataclass("Product", [("id", int), ("price", Decimal)], frozen=True),
        str,
        list[int],
        int | None,
        *STATES,
        *(many[state] for state in STATES[:2]),
        *(table[state, int] for state in STATES[:2]),
    ]
    values: list[Any] = [
        {"id": 1},
        fields[1](1, 2.0),
        fields[2](1, 2.0, 3),
        fields[3](1),
        fields[4](1, Decimal(2)),
        "product",
        [1],
        None,
        *(state["PAID"] for state in STATES),
        [STATES[0]["PAID"]],
        [STATES[1]["PAID"]],
        {STATES[0]["PAID"]: 1},
        {STATES[1]["PAID"]: 1},
    ]
    versions: list[Any] = []
    for kind, value in zip(fields, values, strict=True):
        app = any_app()

        async def product(id: int, value: Any = value) -> Any:
            return value

        product.__annotations__["return"] = kind
        product.__annotations__["value"] = object
        versions.append(app.cached(ignore=["value"])(product))

    with caplog.at_level(logging.WARNING, "selaras"):
        for _ in range(3):
            for version, value in zip(versions, values, strict=True):
                got = await version.key(1).get(fresh="strict")
                assert got == value
                assert type(got) is type(value)
        for version, value in zip(versions, values, strict=True):
            await version.key(1).invalidate()
            assert await version(1) == value

    assert not caplog.records


@pytest.mark.parametrize("tags", ["goods", lambda value: [f"goods:{value % 2}"]], ids=["named", "of the value"])
async def test_a_tag_that_a_deploy_added_counts_for_what_was_kept_before(
    any_app: Callable[[], Selaras], tags: Any
) -> None:
    rows = {1: 10}
    older, newer = any_app(), any_app()

    async def product(id: int) -> int:
        return rows[id]

    async def same(id: int) -> int:
        return rows[id]

    tagged: Any = newer.cached(name="product", tags=tags)
    old, new = older.cached(product), tagged(same)
    goods = newer.tag("goods") if tags == "goods" else newer.tag("goods", 0)

    assert await old(1) == 10
    assert await new(1) == 10
    for value in (12, 14):
        rows[1] = value
        await goods.invalidate()
        assert await new.key(1).get(fresh="strict") == value
    assert (await new.key(1).read()).tier == "local"


async def test_a_family_that_was_renamed_begins_anew(any_app: Callable[[], Selaras]) -> None:
    loads: list[str] = []

    def load_as(app: Selaras, name: str) -> Any:
        @app.cached(name=name)
        async def product(id: int) -> str:
            loads.append(name)
            return name

        return product

    old, new = load_as(any_app(), "product"), load_as(any_app(), "item")
    assert [await old(1), await new(1), await old(1), await new(1)] == ["product", "item", "product", "item"]
    await old.invalidate_all()
    assert [await old(1), await new(1)] == ["product", "item"]
    assert loads == ["product", "item", "product"]


async def test_a_value_of_another_version_before_a_write_is_no_error(any_app: Callable[[], Selaras]) -> None:
    """The pre-image that a writer is given may be of the other version, too."""

    def declare(app: Selaras, kind: Any, value: Any) -> Any:
        async def product(id: int) -> Any:
            return value

        product.__annotations__["return"] = kind
        return app.cached(product)

    old, new = declare(any_app(), int, 1), declare(any_app(), str, "one")
    assert await old(1) == 1
    async with new.key(1).writing():
        assert await new(1) == "one"
        await new.key(1).put("two")
    assert await old.key(1).get(fresh="strict") == 1
    assert await new.key(1).get(fresh="strict") == "two"


# -- without any job


async def test_a_cache_needs_no_task_and_no_worker(tmp_path: Path) -> None:
    """A web service that only caches: it is right after a write, and close ends all that it began."""
    app = Selaras(f"sqlite:///{tmp_path}/cache.db")
    prices = {1: 10}

    @app.cached(ttl=60)
    async def price(id: int) -> int:
        return prices[id]

    before = asyncio.all_tasks()
    async with app:
        assert await price(1) == 10
        async with price.key(1).writing():
            prices[1] = 11
        assert await price(1) == 11
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("option", ["tags", "version"])
def test_a_function_of_a_value_is_checked_at_import(option: str) -> None:
    app = Selaras("memory://")
    wrong: Any = {option: lambda id, value: value}
    declare: Any = app.cached(**wrong)

    async def price(id: int) -> int:
        return id

    with pytest.raises(
        ConfigurationError, match=rf"family 'price': {option}= takes a function of a value, and nothing"
    ):
        declare(price)
