"""`app.warm`: many values are brought into the tiers, gently, and once for the whole fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from selaras import ConfigurationError, Selaras


class Loads:
    """Counts a loader's runs, and how many there are at a time."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.calls: list[int] = []
        self.most = self._now = 0

    async def run(self, ids: Sequence[int]) -> None:
        self.keys += ids
        self.calls.append(len(ids))
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.001)
        self._now -= 1


async def test_what_is_warm_is_read_without_a_load(app: Selaras) -> None:
    loads = Loads()

    @app.cached
    async def product(id: int) -> int:
        await loads.run([id])
        return id * 10

    await product(3)
    warmed = await app.warm((product.key(id) for id in range(40)), loads=5)
    again = await app.warm(product.key(id) for id in range(40))

    assert (warmed.asked, warmed.held, warmed.loaded, warmed.failed, warmed.error) == (40, 1, 39, 0, None)
    assert (again.asked, again.held) == (40, 40)
    assert sorted(loads.keys) == list(range(40))
    assert loads.most <= 5
    assert (await product.key(39).read()).tier == "local"
    assert len(loads.keys) == 40


async def test_a_batch_loader_is_asked_for_many_at_once(app: Selaras) -> None:
    loads = Loads()

    @app.cached
    async def product(id: int) -> int:
        raise AssertionError(f"{id} was loaded alone")

    @product.batch
    async def products(ids: list[Any]) -> list[int]:
        await loads.run(ids)
        return [id * 10 for id in ids]

    warmed = await app.warm((product.key(id) for id in range(1_200)), loads=1)

    assert warmed.loaded == 1_200
    assert loads.calls == [500, 500, 200] or sum(loads.calls) == 1_200 > max(loads.calls)
    assert loads.most == 1
    assert await product(7) == 70


async def test_families_with_and_without_a_batch_loader_share_the_budget(app: Selaras) -> None:
    loads = Loads()

    @app.cached
    async def one(id: int) -> int:
        await loads.run([id])
        return id

    @app.cached
    async def two(id: int) -> int:
        await loads.run([id])
        return id

    @two.batch
    async def twos(ids: list[Any]) -> list[int]:
        await loads.run(ids)
        return list(ids)

    keys = [key for id in range(30) for key in (one.key(id), two.key(id))]

    assert (await app.warm(keys, loads=3)).loaded == 60
    assert loads.most <= 3


async def test_several_processes_that_warm_the_same_load_each_value_once(url: str) -> None:
    loads = Loads()

    async def deployed() -> int:
        app = Selaras(url)

        @app.cached
        async def product(id: int) -> int:
            await loads.run([id])
            return id

        async with app:
            return (await app.warm(product.key(id) for id in range(50))).asked

    if url.startswith("memory"):
        pytest.skip("a memory store belongs to one app")
    assert await asyncio.gather(*(deployed() for _ in range(4))) == [50] * 4
    assert sorted(loads.keys) == list(range(50))


async def test_what_fails_is_counted_and_stops_nothing(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        if id % 3 == 0:
            raise ValueError(f"no product {id}")
        return id

    warmed = await app.warm(product.key(id) for id in range(9))

    assert (warmed.loaded, warmed.failed, warmed.asked) == (6, 3, 9)
    assert str(warmed.error) == "no product 0"


async def test_what_somebody_writes_is_not_kept(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    entered, leave = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with product.key(1).writing():
            entered.set()
            await leave.wait()

    writer = asyncio.get_running_loop().create_task(write())
    await entered.wait()
    warmed = await app.warm([product.key(1), product.key(2), product.key(2)])
    leave.set()
    await writer

    assert (warmed.unkept, warmed.loaded, warmed.asked) == (1, 1, 2)


async def test_nothing_to_warm_is_no_mistake(app: Selaras) -> None:
    assert (await app.warm([])).asked == 0


async def test_mistakes_are_told(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    with pytest.raises(ConfigurationError, match=r"warm was given 42, which is no key"):
        await app.warm([42])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="give at least 1"):
        await app.warm([product.key(1)], loads=0)


async def test_the_blocking_twin_warms(app: Selaras) -> None:
    @app.cached
    def product(id: int) -> int:
        return id

    def warm() -> int:
        return app.sync.warm(product.sync.key(id) for id in range(5)).loaded

    assert await asyncio.to_thread(warm) == 5
    assert (await product.key(4).read()).tier in {"local", "shared"}
