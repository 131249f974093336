"""Cached families through the public face: keys, reads, tags, batches, Read parameters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from tests.app.work import work, working

from selaras import ConfigurationError, JobFailed, NotEncodable, Read, Selaras


async def test_every_spelling_of_a_call_is_one_key(app: Selaras) -> None:
    """BR-031."""
    loads: list[tuple[int, int | None]] = []

    @app.cached
    async def f(a: int, b: int | None = 0) -> int:
        loads.append((a, b))
        return len(loads)

    spellings = [f(1), f(1, 0), f(1, b=0), f(b=0, a=1)]
    assert [await call for call in spellings] == [1, 1, 1, 1]
    assert f.key(1) == f.key(b=0, a=1)
    assert f.key(1) != f.key(1, None)
    assert await f(1, None) == 2

    await f.key(b=0, a=1).invalidate()
    assert await f(1) == 3


async def test_positional_keyword_and_variable_parameters(app: Selaras) -> None:
    """BR-031."""

    @app.cached
    async def f(a: int, /, *rest: int, k: int = 1, **more: int) -> str:
        return f"{a} {rest} {k} {sorted(more.items())}"

    assert f.key(1, x=1, y=2) == f.key(1, y=2, x=1)
    assert f.key(1) == f.key(1, k=1)
    assert f.key(1, 2) != f.key(1)
    assert await f(1, 2, 3, k=4, z=5) == "1 (2, 3) 4 [('z', 5)]"


async def test_1_true_and_text_are_distinct_without_annotations(app: Selaras) -> None:
    @app.cached
    async def f(x):  # type: ignore[no-untyped-def]
        return repr(x)

    assert [await f(x) for x in (1, True, "1", 1.0)] == ["1", "True", "'1'", "1.0"]
    assert [await f(x) for x in (1, True, "1", 1.0)] == ["1", "True", "'1'", "1.0"]


async def test_a_type_that_cannot_be_stored_is_refused_at_import(app: Selaras) -> None:
    with pytest.raises(ConfigurationError, match="product"):

        @app.cached
        async def product(id: int) -> asyncio.Lock:
            return asyncio.Lock()


async def test_plain_functions_are_loaders_too(app: Selaras) -> None:
    @app.cached
    def product(id: int) -> str:
        return f"product {id}"

    assert await product(1) == "product 1"
    assert await product(1) == "product 1"


async def test_none_is_a_value(app: Selaras) -> None:
    loads: list[int] = []

    @app.cached
    async def product(id: int) -> str | None:
        loads.append(id)
        return None

    assert await product(1) is None
    assert await product(1) is None
    assert loads == [1]


async def test_ttl_0_stores_nothing_and_negative_ones_are_refused(app: Selaras) -> None:
    loads: list[int] = []

    @app.cached(ttl=0)
    async def product(id: int) -> int:
        loads.append(id)
        return id

    await product(1)
    await product(1)
    assert loads == [1, 1]
    for ttl in (-1, float("nan"), "soon"):
        with pytest.raises(ConfigurationError, match="ttl"):
            app.cached(ttl=ttl)(product.fn)


async def test_mutable_values_are_never_shared(app: Selaras) -> None:
    @app.cached
    async def basket(id: int) -> list[int]:
        return [1, 2]

    (await basket(1)).append(3)
    (await basket(1)).append(4)
    assert await basket(1) == [1, 2]


async def test_frozen_values_are_shared(app: Selaras) -> None:
    @dataclass(frozen=True)
    class Product:
        id: int

    @app.cached
    async def product(id: int) -> Product:
        return Product(id)

    await product(1)
    assert await product(1) is await product(1)


async def test_ignored_parameters_are_no_part_of_the_key(app: Selaras) -> None:
    @app.cached(ignore=["db"])
    async def product(id: int, db: object) -> int:
        return id

    assert product.key(1, object()) == product.key(1, "other")
    assert await product(1, object()) == 1


async def test_many_keys_are_read_in_one_batch(app: Selaras) -> None:
    batches: list[list[int]] = []

    @app.cached
    async def product(id: int) -> str:
        batches.append([id])
        return f"product {id}"

    @product.batch
    async def products(ids: list[int]) -> list[str]:
        batches.append(sorted(ids))
        return [f"product {id}" for id in ids]

    assert await app.read_many(product.key(id) for id in (3, 1, 2)) == ["product 3", "product 1", "product 2"]
    assert await app.read_many(product.key(id) for id in (1, 4)) == ["product 1", "product 4"]
    assert sorted(id for batch in batches for id in batch) == [1, 2, 3, 4]
    assert products is not None


async def test_tags_and_families_void_together(app: Selaras) -> None:
    prices = {1: 1, 2: 2, 3: 3}

    @app.cached(tags=lambda price: [app.tag("odd" if price % 2 else "even")])
    async def price(id: int) -> int:
        return prices[id]

    @app.cached(tags=["shop", "product:{id}"])
    async def name(id: int) -> str:
        return f"product {id} at {prices[id]}"

    assert await app.read_many(price.key(id) for id in prices) == [1, 2, 3]
    assert await name(1) == "product 1 at 1"
    prices.update({1: 11, 2: 12, 3: 13})
    await app.tag("odd").invalidate()
    assert await app.read_many(price.key(id) for id in prices) == [11, 2, 13]
    await price.invalidate_all()
    assert await price(2) == 12
    assert await name(1) == "product 1 at 1"
    await app.tag("product", 1).invalidate()
    assert await name(1) == "product 1 at 11"


_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
_ELSEWHERE = _AT.astimezone(timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("kind", "borne", "named"),
    [(float, 2.0, 2), (float, 2, 2.0), (Decimal, Decimal("1.10"), Decimal("1.1")), (datetime, _AT, _ELSEWHERE)],
)
async def test_equal_values_are_one_tag_whoever_names_it(app: Selaras, kind: type, borne: Any, named: Any) -> None:
    loads: list[str] = []

    async def by_parameter(x: Any) -> Any:
        loads.append("parameter")
        return x

    async def by_value(id: int) -> Any:
        loads.append("value")
        return borne

    async def by_text(id: int) -> Any:
        loads.append("text")
        return borne

    by_parameter.__annotations__["x"] = kind
    for function in by_value, by_text:
        function.__annotations__["return"] = kind
    read = app.cached(tags=["x:{x}"])(by_parameter)
    tagged = app.cached(tags=lambda value: [app.tag("x", value)])(by_value)
    written = app.cached(tags=lambda value: [f"x:{value}"])(by_text)

    async def read_all() -> list[str]:
        loads.clear()
        await read(borne), await tagged(1), await written(1)
        return loads

    await read_all()
    assert await read_all() == []
    await app.tag("x", borne).invalidate()
    assert await read_all() == ["parameter", "value", "text"]
    await app.tag("x", named).invalidate()
    assert await read_all() == ["parameter", "value", "text"]


async def test_what_cannot_be_a_tag_is_refused_where_it_is_named(app: Selaras) -> None:
    with pytest.raises(NotEncodable, match=r"the value of the tag 'cat' is an? object"):
        app.tag("cat", object())


async def test_what_is_at_hand_is_returned_without_waiting_and_nothing_else(app: Selaras) -> None:
    @app.cached(ttl=60)
    async def name(id: int) -> str | None:
        return None if id else "zero"

    await name.key(2).invalidate()  # a log without any event has no place to go on from
    assert name.key(0).at_hand() is None
    assert [await name(0), await name(1)] == ["zero", None]
    assert name.key(0).at_hand() == ("zero",)
    assert name.key(1).at_hand(fresh=30) == name.at_hand(1) == (None,)
    assert await asyncio.to_thread(name.key(0).at_hand) == ("zero",)
    assert name.key(0).sync.at_hand() == ("zero",)
    await name.key(0).invalidate()
    assert name.key(0).at_hand() is None
    assert name.key(1).at_hand() == (None,)


async def test_a_reading_says_where_it_came_from(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    first = await product.key(1).read()
    again = await product.key(1).read()

    assert (first.tier, again.tier) == ("loader", "local")
    assert again.value == 1
    assert again.why
    assert "product:1" in await product.key(1).explain()


async def test_fresh_is_checked(app: Selaras) -> None:
    @app.cached(fresh=0.5)
    async def product(id: int) -> int:
        return id

    assert await product.key(1).get("strict") == 1
    assert await product.key(1).get("causal") == 1
    assert await product.key(1).get(10) == 1
    with pytest.raises(ConfigurationError, match="strictly"):
        await product.key(1).get("strictly")  # type: ignore[arg-type]


async def test_a_read_parameter_is_the_value_from_before_the_body(app: Selaras) -> None:
    prices = {1: 10}
    loads: list[int] = []

    @app.cached
    async def price(id: int) -> int:
        loads.append(id)
        return prices[id]

    @app.task(writes=price)
    async def raise_price(id: int, by: int, *, old: int = Read(price)) -> tuple[int, int]:
        prices[id] = old + by
        await price.key(id).put(old + by)
        return old, await price(id)

    await price(1)
    loads.clear()
    for n in range(5):
        job = await raise_price.enqueue(1, by=1)
        await work(app)
        assert await job.result(timeout=10) == (10 + n, 11 + n)
    assert loads == []  # a read-modify-write that never asked the datastore


async def test_the_body_never_sees_the_value_before_its_own_write(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached
    async def price(id: int) -> int:
        return prices[id]

    @app.task(writes=price)
    async def raise_price(id: int) -> int:
        prices[id] += 1
        return await price(id)

    await price(1)
    for n in range(5):
        job = await raise_price.enqueue(1)
        await work(app)
        assert await job.result(timeout=10) == 11 + n
        assert await price(1) == 11 + n


async def test_read_parameters_are_matched_renamed_and_skipped_by_callers(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> str:
        return f"product {id}"

    @app.task(reads=product.by(id="sku"))
    async def show(sku: int, *, p: str = Read(product.by(id="sku")), other: str = Read(product.by(id="sku"))) -> str:
        return p + await product(sku) + other

    job = await show.enqueue(3)
    await work(app)

    assert await job.result(timeout=10) == "product 3" * 3
    assert await show(3) == "product 3" * 3
    with pytest.raises(TypeError):
        await show.enqueue(3, p="mine")
    with pytest.raises(ConfigurationError, match="'id'"):

        @app.task
        async def unmatched(sku: int, *, p: str = Read(product)) -> None: ...


async def test_declared_reads_of_a_whole_batch_are_warmed_together(app: Selaras) -> None:
    batches: list[int] = []

    @app.cached
    async def product(id: int) -> str:
        batches.append(1)
        return f"product {id}"

    @product.batch
    async def products(ids: list[int]) -> list[str]:
        batches.append(len(ids))
        return [f"product {id}" for id in ids]

    @app.task
    async def show(id: int, *, p: str = Read(product)) -> str:
        return p

    jobs = await app.enqueue_many(show.call(id) for id in range(40))
    await work(app)

    assert [await job.result(timeout=10) for job in jobs] == [f"product {id}" for id in range(40)]
    assert len(batches) <= 12
    assert products is not None


async def test_a_family_that_serves_while_it_is_written(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached(during_write="serve")
    async def price(id: int) -> int:
        return prices[id]

    wrote, go = asyncio.Event(), asyncio.Event()

    @app.task(writes=price)
    async def change(id: int) -> None:
        prices[id] = 20
        wrote.set()
        await go.wait()

    assert await price(1) == 10
    job = await change.enqueue(1)
    async with working(app):
        await wrote.wait()
        assert await price(1) == 10
        go.set()
        await job.result(timeout=10)
        assert await price(1) == 20


async def test_a_value_that_cannot_be_stored_is_served(app: Selaras) -> None:
    @app.cached
    async def odd(id: int):  # type: ignore[no-untyped-def]
        return lambda: id

    assert (await odd(1))() == 1
    assert (await odd(1))() == 1


async def test_a_put_that_cannot_be_stored_voids(app: Selaras) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    with pytest.raises(NotEncodable, match="price:1"):
        async with price.key(1).writing():
            await price.key(1).put("text")  # type: ignore[arg-type]
    assert await price(1) == 1


async def test_a_value_that_is_none_of_the_familys_is_refused_and_the_key_is_void(app: Selaras) -> None:
    table = {1: 1}

    @app.cached(fresh="strict")
    async def price(id: int) -> int:
        return table[id]

    @app.task(writes=price, retries=0)
    async def reprice(id: int, value: object) -> None:
        table[id] = 3
        await price.key(id).put(value)  # type: ignore[arg-type]

    assert await price(1) == 1
    table[1] = 2
    for value in (object(), "two"):
        with pytest.raises(NotEncodable, match="price:1"):
            await price.key(1).put(value)  # type: ignore[arg-type]
    assert await price(1) == 2

    job = await reprice.enqueue(1, "three")
    await work(app)
    with pytest.raises(JobFailed, match="NotEncodable: price:1"):
        await job.result(timeout=10)
    assert await price(1) == 3
