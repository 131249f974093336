"""The cache's floors: `python -m benchmarks.cache_floors [ROW...]` prints each with what was measured, and exits 1 below one.

    at_hand      a hit by the fast path, `key.at_hand()`
    hit          the same through the typed API, `await product(42)`
    coalesced    reads of the shared tier, without a local one, from 64 tasks of one process that want the same value
    apart        the same, each task another one of a thousand values (no floor: hardly any two can share a look)
    invalidate   `await key.invalidate()` beside `await client.set(...)` of redis-py, if it is installed: by 64 tasks, each of
                 another key, and one after another; beside a SET through the store's own connection, which does nothing but
                 send it (no floor); on SQLite beside a bare transaction of one UPDATE, without a program around it (no floor)

It starts a Redis of its own. All but invalidations on Redis is this process's processor time: what else the machine does counts least
that way. Rounds are interleaved, and the least of them counts.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

import click
from msgspec import Struct

from benchmarks.clients import link_to
from benchmarks.peers.environment import Unusable
from benchmarks.peers.servers import redis_server
from benchmarks.shop import Product
from selaras import Selaras
from selaras._worker.loops import loop_factory

TASKS: Final = 64
ROUNDS: Final = 7


class Figure(Struct):
    """One line of the table. `floor` None: it is told, and no promise."""

    row: str
    where: str
    unit: str
    floor: float | None
    most: bool
    value: float

    @property
    def good(self) -> bool:
        """Whether it will do."""
        return self.floor is None or (self.value <= self.floor if self.most else self.value >= self.floor)


def _family(app: Selaras, tiers: Any = ("local", "host", "shared")) -> Any:
    @app.cached(ttl=3600, beta=0.0, tiers=tiers)
    async def product(id: int) -> Product:
        return Product(id, f"product {id}", id / 100)

    return product


class Least:
    """The least time of each of several ways to do something, and how two of them compare."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}

    async def take(self, way: str, work: Awaitable[object]) -> None:
        """Do it, and keep its time."""
        began = self._clock()
        await work
        self._times.setdefault(way, []).append(self._clock() - began)

    def us(self, way: str, count: int) -> float:
        """Return microseconds of one of so many."""
        return min(self._times[way]) / count * 1e6

    def ratio(self, way: str, other: str) -> float:
        """Return how many times as long one takes: the median of the rounds, each of which had both side by side.

        What waits for another process takes a third more for seconds at a time, as the machine puts the two: of two least times
        each may be of another such while.
        """
        return median(one / two for one, two in zip(self._times[way], self._times[other], strict=True))


# -- hits


async def hits(url: str) -> list[Figure]:
    """Measure hits of the local tier."""
    app = Selaras(url, namespace="floors-hits")
    product = _family(app)
    count, least = 5_000, Least()

    async def at_hand(key: Any) -> None:
        for _ in range(count):
            key.at_hand()

    async def call() -> None:
        for _ in range(count):
            await product(42)

    async with app:
        key = product.key(42)
        for _ in range(ROUNDS * 4):
            await product(42)
            await least.take("at_hand", at_hand(key))
            await least.take("hit", call())
    where = app.url.partition(":")[0]
    return [
        Figure("at_hand", where, "us", 1.0, True, least.us("at_hand", count)),
        Figure("hit", where, "us", 3.0, True, least.us("hit", count)),
    ]


# -- reads of the shared tier


async def shared(url: str) -> list[Figure]:
    """Measure reads of the shared tier from 64 tasks."""
    app = Selaras(url, namespace="floors-shared")
    product = _family(app, ("shared",))
    each, least = 50, Least()  # short rounds, and many: what else the machine does disturbs some of them less
    async with app:
        keys = [product.key(id) for id in range(1_000)]
        await app.warm(keys)

        async def reader(number: int, among: int) -> None:
            for at in range(each):
                await keys[(number * 17 + at) % among].get()

        for _ in range(ROUNDS * 4):
            for row, among in (("coalesced", 1), ("apart", len(keys))):
                await least.take(row, asyncio.gather(*(reader(number, among) for number in range(TASKS))))
        assert (await keys[7].read()).tier == "shared"
    where = app.url.partition(":")[0]
    return [
        Figure(row, where, "/s", floor, False, 1e6 / least.us(row, TASKS * each))
        for row, floor in (("coalesced", 100_000.0), ("apart", None))
    ]


# -- invalidations

VOIDS: Final = 200
VOIDS_A_TASK: Final = 10


async def _times(work: Callable[[], Awaitable[object]]) -> None:
    for _ in range(VOIDS):
        await work()


async def _at_once(work: Callable[[int], Awaitable[object]]) -> None:
    async def task(number: int) -> None:
        for _ in range(VOIDS_A_TASK):
            await work(number)

    await asyncio.gather(*map(task, range(TASKS)))


async def invalidations_redis(url: str) -> list[Figure]:
    """Measure an invalidation beside plain SETs, one after another and by many tasks."""
    app = Selaras(url, namespace="floors-voids")
    product = _family(app)
    alone, together = Least(time.perf_counter), Least(time.perf_counter)
    async with app:
        link = link_to(url)
        keys = [product.key(number) for number in range(TASKS)]
        ways: dict[str, Callable[[int], Awaitable[object]]] = {
            "ours": lambda number: keys[number].invalidate(),
            "own connection": lambda number: link.pipeline(0, [("SET", f"floors-plain-{number}", "x" * 40)]),
        }
        if find_spec("redis") is not None:
            client = importlib.import_module("redis.asyncio").from_url(url)
            ways["redis-py"] = lambda number: client.set(f"floors-plain-{number}", "x" * 40)
        for _ in range(ROUNDS * 3):
            for way, work in ways.items():
                await alone.take(way, _times(partial(work, 42)))
                await together.take(way, _at_once(work))
    figures: list[Figure] = []
    for row, least, count in (
        ("invalidate", alone, VOIDS),
        (f"invalidate by {TASKS}", together, TASKS * VOIDS_A_TASK),
    ):
        us = {way: least.us(way, count) for way in ways}
        click.echo(f"{row} redis: " + ", ".join(f"{way} {one:.0f} us" for way, one in us.items()), err=True)
        figures += [
            Figure(f"{row}, {way}", "redis", "x", 1.3 if way == "redis-py" else None, True, least.ratio("ours", way))
            for way in ways
            if way != "ours"
        ]
    return figures


async def invalidations_sqlite(url: str, folder: str) -> list[Figure]:
    """Measure an invalidation beside a transaction of one UPDATE."""
    app = Selaras(url, namespace="floors-voids")
    product = _family(app)
    con = sqlite3.connect(f"{folder}/plain.db", isolation_level=None)
    con.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER) WITHOUT ROWID;"
        "INSERT INTO t VALUES ('product:42', 0);"
    )
    least = Least()

    async def plain() -> None:
        con.execute("BEGIN IMMEDIATE")
        con.execute("UPDATE t SET v = v + 1 WHERE k = 'product:42'")
        con.execute("COMMIT")

    async with app:
        key = product.key(42)
        for _ in range(ROUNDS * 3):
            await least.take("ours", _times(key.invalidate))
            await least.take("plain", _times(plain))
    con.close()
    ours, bare = least.us("ours", VOIDS), least.us("plain", VOIDS)
    click.echo(f"invalidate sqlite: {ours:.0f} us, bare transaction {bare:.0f} us", err=True)
    return [Figure("invalidate, UPDATE", "sqlite", "x", None, True, ours / bare)]


# -- all


@click.command()
@click.argument("rows", nargs=-1)
def floors(rows: tuple[str, ...]) -> None:
    """Measure the cache against its floors."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="selaras-floors-"))
        sqlite = f"sqlite:///{folder}/selaras.db"
        runs: list[tuple[set[str], Callable[[], Awaitable[list[Figure]]]]] = [
            ({"at_hand", "hit"}, lambda: hits(sqlite)),
            ({"coalesced", "apart"}, lambda: shared(sqlite)),
            ({"invalidate"}, lambda: invalidations_sqlite(sqlite, folder)),
        ]
        try:
            redis = stack.enter_context(redis_server()).url()
            runs += [
                ({"coalesced", "apart"}, lambda: shared(redis)),
                ({"invalidate"}, lambda: invalidations_redis(redis)),
            ]
        except Unusable as error:
            click.echo(f"without Redis: {error}", err=True)
        figures: list[Figure] = []
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            for names, run in runs:
                if not rows or names & set(rows):

                    async def measured(run: Callable[[], Awaitable[list[Figure]]] = run) -> None:
                        figures.extend(await run())

                    runner.run(measured())
    for one in figures:
        floor = "" if one.floor is None else f"{'at most' if one.most else 'at least'} {one.floor:,g} {one.unit}"
        verdict = "ok" if one.good else "BELOW"
        value = f"{one.value:,.2f}" if one.most else f"{one.value:,.0f}"
        click.echo(f"{one.row:32} {one.where:7} {value:>10} {one.unit:3} {floor:20} {verdict if floor else ''}")
    sys.exit(0 if all(one.good for one in figures) else 1)


if __name__ == "__main__":
    floors(prog_name="python -m benchmarks.cache_floors")
