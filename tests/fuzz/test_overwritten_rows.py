"""Rows of a Redis store that somebody else has written over: what they belonged to is lost, and nothing beside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.fuzz.test_overwritten import junk
from tests.redis.servers import RedisServer, shared_server

from selaras import Selaras
from selaras._contracts.partition import JobFilter

JOBS: Final = 6
KINDS: Final = ("note", "reprice", "line", "later", "child")
HASHES: Final = (
    *("jobs", "dyn", "lines", "entries", "tokens", "floors", "intents", "queues", "turns", "holders", "counts", "left"),
    *("edges", "pages", "directory", "accepted"),
)
SETS: Final = (
    *("ready", "due", "expiry", "ended", "members", "mixed", "dependents", "tellings", "asked", "cancels", "batches"),
    *("owners", "falls", "strays", "offers", "far", "idle", "outbox", "page_order", "marks"),
)
ABSENT: Final = "\udcff"
"""What lets a key exist."""


class Store:
    """One on a server, from the side."""

    def __init__(self, server: RedisServer, stem: str) -> None:
        self.call = server.call
        self.stem = stem

    def members(self, name: str) -> list[str]:
        """Return fields of a hash, members of a set, places of a list, or what follows a prefix in the names of keys."""
        key = self.stem + name
        match self.call("TYPE", key):
            case "hash":
                found = self.call("HKEYS", key)
            case "zset":
                found = self.call("ZRANGE", key, 0, -1)
            case "list":
                length = self.call("LLEN", key)
                assert isinstance(length, int)
                found = [str(place) for place in range(length)]
            case _:
                keys = self.call("KEYS", f"{self.stem}v:*")
                assert isinstance(keys, list)
                found = [str(each)[len(self.stem) :] for each in keys] if name == "v:" else []
        assert isinstance(found, list)
        return sorted(str(one) for one in found if one != ABSENT)

    def overwrite(self, name: str, member: str, chance: Random) -> None:
        """Write over one of them."""
        key = self.stem + name
        match self.call("TYPE", key):
            case "hash":
                row = str(self.call("HGET", key, member)).encode(errors="surrogateescape")
                self.call("HSET", key, member, damaged(row, chance))
            case "zset":
                score = str(self.call("ZSCORE", key, member))
                self.call("ZREM", key, member)
                self.call("ZADD", key, score, damaged(member.encode(errors="surrogateescape"), chance))
            case "list":
                self.call("LSET", key, member, damaged(b"0" * 20, chance))
            case _ if chance.random() < 0.2:
                self.call("DEL", self.stem + member)
                self.call("RPUSH", self.stem + member, "of another type")
            case _:
                value = str(self.call("GET", self.stem + member)).encode(errors="surrogateescape")
                self.call("SET", self.stem + member, damaged(value, chance))


def damaged(good: bytes, chance: Random) -> bytes:
    """Bytes of any kind, or what was there with a few bytes changed, or cut."""
    match chance.randrange(4):
        case 0 if good:
            return good[: chance.randrange(len(good))]
        case 1 if good:
            changed = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)
        case 2:
            return chance.randbytes(chance.randrange(1, 3_000))
        case _:
            return junk(chance)


class Shop:
    """An app with jobs of every kind: plain, in lines, later, with parents, writing; and with values that are cached."""

    def __init__(self, url: str) -> None:
        self.app = Selaras(url, retries=0, lease=2, heartbeat=0.5, namespace="fuzz")
        self.ran: list[str] = []
        self.gate: asyncio.Event | None = None

        @self.app.cached
        async def price(id: int) -> float:
            return id * 1.5

        async def run(name: str) -> str:
            self.ran.append(name)
            if self.gate is not None:
                await self.gate.wait()
            return name

        @self.app.task
        async def note(name: str, n: int) -> str:
            assert await price(n) == n * 1.5
            return await run(name)

        @self.app.task(writes=price)
        async def reprice(id: int, name: str) -> str:
            return await run(name)

        @self.app.task(queue="other", lock="one")
        async def line(name: str) -> str:
            return await run(name)

        self.price, self.note, self.reprice, self.line = price, note, reprice, line

    async def fill(self) -> None:
        await self.price.invalidate_all()
        for n in range(JOBS):
            assert await self.price(n) == n * 1.5
            await self.note.options(id=f"note-{n}").enqueue(f"note-{n}", n)
            parent = await self.reprice.options(id=f"reprice-{n}").enqueue(n % 4, f"reprice-{n}")
            await self.line.options(id=f"line-{n}").enqueue(f"line-{n}")
            await self.note.options(id=f"later-{n}", delay=0.2, expires=60).enqueue(f"later-{n}", n)
            await self.note.options(id=f"child-{n}", after_finished=parent).enqueue(f"child-{n}", n)

    async def look(self) -> dict[str, str]:
        """Return how all jobs stand; and ask whatever else can be asked."""
        names = [f"{kind}-{n}" for kind in KINDS for n in range(JOBS)]
        states = {name: str((await self.app.job(name).info()).state) for name in names}
        (partition,) = self.app.program.process().store.partitions
        await partition.jobs(JobFilter(limit=100))
        await partition.queues()
        await partition.instances()
        await partition.cache_stats()
        assert [await self.price(n) for n in range(JOBS)] == [n * 1.5 for n in range(JOBS)]
        return states


def victims_of(damage: Sequence[tuple[str, str]]) -> set[str]:
    """Return the jobs whose own bytes were written over, and what waits for them."""
    names = [f"{kind}-{n}" for kind in KINDS for n in range(JOBS)]
    victims: set[str] = set()
    for name, member in damage:
        if name in ("jobs", "dyn"):
            victims.update(one for one in names if one == member)
    return victims | {f"child{one[7:]}" for one in victims if one.startswith("reprice")}


def harm(store: Store, chance: Random, times: int, names: Sequence[str]) -> list[tuple[str, str]]:
    """Write over rows of these keys. Returns what and which."""
    damage: list[tuple[str, str]] = []
    for _ in range(times):
        name = chance.choice([name for name in names if store.members(name)])
        member = chance.choice(store.members(name))
        store.overwrite(name, member, chance)
        damage.append((name, member))
    return damage


async def until_all_have_ended(shop: Shop, victims: set[str], damage: Any) -> None:
    states: dict[str, str] = {}
    try:
        async with asyncio.timeout(25):
            while True:
                states = await shop.look()
                if {state for name, state in states.items() if name not in victims} == {"succeeded"}:
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        left = {name: state for name, state in states.items() if name not in victims and state != "succeeded"}
        raise AssertionError(f"{left} after {damage}") from None


@pytest.mark.parametrize("ledger", [b"", b"x" * 7, b"\xff" * 144, b"x" * 5_000])
def test_a_ledger_that_was_written_over_is_reckoned_anew(ledger: bytes) -> None:
    async def holds() -> None:
        server = shared_server()
        server.clear()
        shop = Shop(server.url)
        async with shop.app, Working(shop):
            await shop.fill()
            server.call("HSET", f"{_stem(server)}meta", "ledger", ledger)
            await until_all_have_ended(shop, set(), "the ledger")
            server.call("HSET", f"{_stem(server)}meta", "ledger", ledger)
            job = await shop.note.enqueue("last", 1)
            assert await job.result(timeout=20) == "last"

    asyncio.run(holds())


async def at_rest(seed: int, names: Sequence[str] = (*HASHES, *SETS, "v:", "log")) -> None:
    """Jobs wait, values are cached, and nobody is there."""
    server, chance = shared_server(), Random(seed)
    server.clear()
    shop = Shop(server.url)
    async with shop.app:
        await shop.fill()
    damage = harm(Store(server, _stem(server)), chance, 4, names)
    shop = Shop(server.url)
    async with shop.app, Working(shop):
        await until_all_have_ended(shop, victims_of(damage), damage)
    assert len(shop.ran) == len(set(shop.ran)), damage


async def at_work(seed: int, names: Sequence[str] = (*HASHES, *SETS, "v:", "log")) -> None:
    """A worker has claimed what it can, and its jobs are under way."""
    server, chance = shared_server(), Random(seed)
    server.clear()
    shop = Shop(server.url)
    shop.gate = asyncio.Event()
    async with shop.app, Working(shop):
        await shop.fill()
        while len(shop.ran) < JOBS:
            await asyncio.sleep(0.01)
        damage = harm(Store(server, _stem(server)), chance, 4, names)
        shop.gate.set()
        await until_all_have_ended(shop, victims_of(damage), damage)


class Working:
    """A worker that works in this loop, and must not end by itself."""

    def __init__(self, shop: Shop) -> None:
        self._worker = shop.app.worker(queues=["default", "other"])

    async def __aenter__(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._worker.run())

    async def __aexit__(self, *_: object) -> None:
        assert not self._running.done(), self._running
        self._worker.stop()
        async with asyncio.timeout(20):
            assert await self._running == 0


def _stem(server: RedisServer) -> str:
    keys = server.call("KEYS", "*:meta")
    assert isinstance(keys, list)
    return str(keys[0]).removesuffix("meta")


@pytest.fixture(autouse=True)
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELARAS_BOMB", str(tmp_path / "exploded"))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32))
@example(1)
def test_rows_that_were_written_over_while_all_waits_cost_no_neighbour(seed: int) -> None:
    asyncio.run(at_rest(seed))
    assert not Path(os.environ["SELARAS_BOMB"]).exists()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32))
@example(1)
def test_rows_that_were_written_over_while_a_worker_is_at_work_cost_no_neighbour(seed: int) -> None:
    asyncio.run(at_work(seed))
    assert not Path(os.environ["SELARAS_BOMB"]).exists()
