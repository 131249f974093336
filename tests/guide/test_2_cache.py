"""The cache: functions whose values are remembered. Read these tests from top to bottom."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from selaras import NotModified, Old, Selaras, adaptive
from selaras.testing import harness


@dataclass(frozen=True)
class Product:
    """A frozen value is shared; a mutable one is a new object at each read."""

    id: int
    price: float


async def test_the_body_is_the_datastore_read_and_runs_on_a_miss_only() -> None:
    app = Selaras("memory://")
    reads: list[int] = []

    @app.cached(ttl="10m")
    async def product(id: int) -> Product:
        reads.append(id)
        return Product(id, 9.90)

    async with app:
        assert await product(42) == await product(id=42) == Product(42, 9.90)
        assert reads == [42]  # every spelling of a call is one key


async def test_a_key_is_a_handle_on_one_value() -> None:
    app = Selaras("memory://")

    @app.cached
    async def product(id: int) -> Product:
        return Product(id, 9.90)

    async with app:
        key = product.key(42)
        reading = await key.read()
        assert (reading.tier, reading.value) == ("loader", Product(42, 9.90))
        assert (await key.read()).tier == "local"
        await key.invalidate()
        assert (await key.read()).tier == "loader"


async def test_a_reader_says_how_fresh_the_value_must_be() -> None:
    app = Selaras("memory://")

    @app.cached
    async def product(id: int) -> Product:
        return Product(id, 9.90)

    async with app:
        await product.key(42).get()  # at most a second behind the log, outside of jobs
        await product.key(42).get(30)  # at most 30 seconds
        await product.key(42).get("strict")  # as of now: one look at the log's tail, shared by all who ask


async def test_many_keys_are_one_trip() -> None:
    app = Selaras("memory://")

    @app.cached
    async def product(id: int) -> Product:
        return Product(id, 9.90)

    @product.batch
    async def products(ids: list[int]) -> list[Product]:
        return [Product(id, 1.0) for id in ids]  # select ... where id in (...)

    async with app:
        several = await app.read_many(product.key(id) for id in range(100))
        assert [one.id for one in several] == list(range(100))
    assert products is not None


async def test_a_write_outside_of_jobs_is_wrapped_in_writing() -> None:
    app = Selaras("memory://")
    table = {42: 9.90}

    @app.cached
    async def product(id: int) -> Product:
        return Product(id, table[id])

    async with app:
        await product(42)
        async with product.key(42).writing():  # from here to the end nothing is stored for this key
            table[42] = 5.0  # begin; update ...; commit
        assert (await product(42)).price == 5.0


async def test_values_that_belong_together_bear_a_tag() -> None:
    app = Selaras("memory://")
    rate = 1.0

    @app.cached(tags=["prices"])
    async def price(id: int, currency: str) -> float:
        return id * rate

    async with app:
        assert await price(2, "EUR") == 2.0
        rate = 3.0
        await app.tag("prices").invalidate()
        assert await price(2, "EUR") == 6.0


async def test_a_ttl_may_follow_how_often_a_key_changes() -> None:
    app = Selaras("memory://")

    @app.cached(ttl=adaptive(min=5, max="1h"))  # a tenth of the time since the key last changed
    async def product(id: int) -> Product:
        return Product(id, 9.90)

    async with app:
        assert (await product(42)).price == 9.90


async def test_a_value_past_its_ttl_is_better_than_none_where_you_say_so() -> None:
    app, up = Selaras(), True

    @app.cached(ttl=60, stale_if_error="1h", hard_timeout=5)
    async def weather(city: str) -> str:
        if not up:
            raise ConnectionError("the service is down")
        return "sunny"

    async with harness(app) as test:
        assert await weather("Bandung") == "sunny"
        up = False
        await test.clock.elapse("10m")
        reading = await weather.key("Bandung").read()
        assert (reading.value, reading.tier) == ("sunny", "stale")
        with pytest.raises(ConnectionError):
            await weather.key("Bandung").get("strict")  # nor inside a job, nor after an invalidation


async def test_a_loader_may_say_that_nothing_has_changed() -> None:
    app = Selaras("memory://")

    @app.cached(ttl=60)
    async def page(url: str, *, old: str | None = Old()) -> str:
        if old is not None:  # ask with If-None-Match, say
            raise NotModified
        return "<html>"

    async with app:
        assert await page("/") == "<html>"
