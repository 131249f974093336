"""What a hit in the local tier costs: `python -m benchmarks.l1_hit` prints microseconds, the best of several runs.

The best, not the mean: whatever else the machine does only ever adds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from msgspec import Struct

from selaras._cache.cache import Cache
from selaras._cache.family import Family, Slot
from selaras._cache.session import SESSION, Session, SessionKind
from selaras._contracts.store import Store
from selaras._core.cache.freshness import Level
from selaras._core.codec import codec_of
from selaras._stores.memory import MemoryStore
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import system_clock, system_entropy

RUNS = 15


class Product(Struct, frozen=True):
    """A small frozen value: it is shared."""

    id: int
    name: str
    price: float


class Basket(Struct):
    """One that can be changed: it is decoded at each hit."""

    id: int
    items: list[str]


async def product(id: int) -> Product:
    """Load one."""
    return Product(id, "chair", 49.9)


async def basket(id: int) -> Basket:
    """Load one."""
    return Basket(id, ["chair", "table"])


def best_us(work: Callable[[], Any], times: int) -> float:
    """Return microseconds a call, the best of several runs."""

    def run() -> float:
        started = perf_counter_ns()
        for _ in range(times):
            work()
        return (perf_counter_ns() - started) / times / 1_000

    return min(run() for _ in range(RUNS))


async def best_awaited_us(cache: Cache, slot: Slot, fresh: Level | None, times: int) -> float:
    """The same for `await cache.get(...)`."""
    figures: list[float] = []
    for _ in range(RUNS):
        started = perf_counter_ns()
        for _ in range(times):
            await cache.get(slot, fresh)
        figures.append((perf_counter_ns() - started) / times / 1_000)
    return min(figures)


async def measure(name: str, store: Store) -> None:
    """Print the figures of one store."""
    await store.open()
    cache = Cache(store, system_clock())
    frozen = Slot(Family("product", codec_of(Product), product), "product:42", 0, 42)
    mutable = Slot(Family("basket", codec_of(Basket), basket), "basket:42", 0, 42)
    for slot in (frozen, mutable):
        await cache.get(slot)
    print(f"{name}: hit, frozen             {best_us(lambda: cache.hit(frozen), 20_000):6.2f} us")
    print(f"{name}: hit, decoded afresh     {best_us(lambda: cache.hit(mutable), 20_000):6.2f} us")
    print(f"{name}: await get, frozen       {await best_awaited_us(cache, frozen, None, 20_000):6.2f} us")
    print(f"{name}: strict, frozen          {best_us(lambda: cache.hit(frozen, 'strict'), 5_000):6.2f} us")
    token = SESSION.set(Session(SessionKind.JOB, cache.instant(), 0, 0))
    await cache.get(frozen)
    print(f"{name}: hit inside a job        {best_us(lambda: cache.hit(frozen), 5_000):6.2f} us")
    SESSION.reset(token)
    await cache.close()
    await store.close()


async def main() -> None:
    """Measure each kind of store."""
    await measure("memory", MemoryStore(system_clock()))
    with tempfile.TemporaryDirectory() as folder:
        await measure(
            "sqlite", SqliteStore(Path(folder) / "l1.db", system_clock(), partitions=1, entropy=system_entropy())
        )


if __name__ == "__main__":
    asyncio.run(main())
