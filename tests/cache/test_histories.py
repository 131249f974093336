"""Random histories of two processes, each repeatable by its seed, against what the guarantee says of every read.

Replies are late or lost, loads are slow, readers are cancelled, writers fail. All writers declare what they write, so
that each read has a version of the datastore below which it must not answer:

    strict      what was committed when it was called                            (G2)
    in a job    what was committed when the job was claimed                      (G1, G2)
    bounded     what was committed so long before it was called                  (G7)
    any         what an earlier read of the same process had answered by then    (G5)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cache import test_mutations as mutations
from tests.cache.slow import SlowStore
from tests.cache.world import Process, World, begin
from tests.stores import KINDS, clear_servers

from selaras._cache.session import Session
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import NewJob
from selaras._core.jobs.states import JobEvent

KEYS = 2
STEPS = 150


class ErraticPartition:
    """Verbs that take their time before and after, and sometimes are lost on either way."""

    def __init__(self, inner: Any, chance: Random) -> None:
        self.inner = inner
        self.index = inner.index
        self.chance = chance
        self.calls: list[str] = []
        self.lossy = True

    def tail_now(self) -> Any:
        return None if self.chance.random() < 0.5 else self.inner.tail_now()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        execute = getattr(self.inner, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await some_time(self.chance)
            self.lose(0.02)
            reply = await execute(*args, **kwargs)
            await some_time(self.chance)
            self.lose(0.02)
            return reply

        return call

    def lose(self, share: float) -> None:
        if self.lossy and self.chance.random() < share:
            raise StoreUnavailable("lost")


async def some_time(chance: Random) -> None:
    """Let others go on: mostly a little, sometimes a lot."""
    for _ in range(chance.randrange(150) if chance.random() < 0.3 else chance.randrange(4)):
        await asyncio.sleep(0)


@dataclass
class History:
    """What happened: (instant, version) of each commit, and the greatest version each process has answered."""

    world: World
    chance: Random
    commits: dict[int, list[tuple[int, int]]] = field(default_factory=dict[int, list[tuple[int, int]]])
    answered: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    tasks: list[asyncio.Task[Any]] = field(default_factory=list[asyncio.Task[Any]])
    faults: list[str] = field(default_factory=list[str])
    reads: int = 0
    jobs: int = 0

    def committed(self, row: int, until_ns: int | None = None) -> int:
        return max(
            (version for at, version in self.commits.get(row, []) if until_ns is None or at <= until_ns), default=0
        )

    async def load(self, row: int) -> int:
        await some_time(self.chance)
        value = self.committed(row)
        await some_time(self.chance)
        return value

    async def read(self, process: Process, row: int, level: Any, session: Session | None, least: int) -> None:
        least = max(least, self.answered.get((process.name, row), 0))
        called = self.world.clock.instant_ns()
        if level == "strict":
            least = max(least, self.committed(row))
        elif session is None:
            lag_ns = 1_000_000_000 if level is None else min(level * 1_000, 1_000_000_000)
            least = max(least, self.committed(row, called - lag_ns - 1_000))
        value = await process.get(row, level, session)
        self.reads += 1
        if not least <= value <= self.committed(row):
            self.faults.append(
                f"{process.name} read {value} of {row} at level {level}{' in a job' if session else ''}:"
                f" at least {least}, at most {self.committed(row)}; called at {called}"
            )
        key = process.name, row
        self.answered[key] = max(value, self.answered.get(key, 0))

    async def job(self, process: Process, name: str, row: int, other: int) -> None:
        """One job that writes a row and reads it and another: before its body, in it, and after its commit."""
        partition: Any = process.partition()
        partition.lossy = False  # the worker's turns are repeated until they arrive; that is not tested here
        least = {n: self.committed(n) for n in range(KEYS)}
        slots = [self.world.slot(row)]
        await partition.inner.enqueue(
            [NewJob(id=name, task="work", writes=(slots[0].key,), wants_preimage=True)], process.cursor(0)
        )
        _, claims, sent, received = await process.turn(0, limit=1)
        partition.lossy = True
        for claim in claims:
            self.jobs += 1
            await self.body(
                process,
                process.session(claim, 0, received, [self.world.slot(self.row_of(claim.writes[0]))], asked_ns=sent),
                other,
                least,
            )

    def row_of(self, key: str) -> int:
        return int(key.rpartition(":")[2])

    async def body(self, process: Process, session: Session, other: int, least: dict[int, int]) -> None:
        row = self.row_of(next(iter(session.own)))
        event = JobEvent.SUCCEED
        if self.chance.random() < 0.5:
            await self.read(process, row, None, session, least[row])
        session.started = True
        await self.read(process, other, self.chance.choice([None, "strict"]), session, least[other])
        await some_time(self.chance)
        dice = self.chance.random()
        if dice < 0.8:
            version = self.committed(row) + 1
            self.commits.setdefault(row, []).append((self.world.clock.instant_ns(), version))
            if dice < 0.5 and len(await self.world.store.partitions[0].intents(self.world.slot(row).key)) == 1:
                await process.within(session, process.cache.put(self.world.slot(row), version))
            await self.read(process, row, None, session, version)
            if self.chance.random() < 0.2:
                event = JobEvent.FAIL
        elif dice < 0.9:
            event = JobEvent.FAIL
        await some_time(self.chance)
        partition: Any = process.partition()
        partition.lossy = False
        try:
            await process.settle(session, event)
        finally:
            partition.lossy = True


async def run(seed: int, folder: Path, kind: str = "memory-1") -> History:
    """One history."""
    chance = Random(seed)

    def reach(store: Store) -> SlowStore:
        slow = SlowStore(store)
        slow.partitions = [ErraticPartition(partition, chance) for partition in store.partitions]
        return slow

    async with World(kind, folder, reach=reach, local_entries=chance.choice([2, 1000])) as world:
        history = History(world, chance)
        world.like(load=history.load, ttl_us=chance.choice([None, 3_000_000]))
        processes = []
        for name in "pq":
            process = Process(world, world.store, name)
            await process.enroll()
            world.processes.append(process)
            processes.append(process)
        for step in range(STEPS):
            process, row = chance.choice(processes), chance.randrange(KEYS)
            match chance.choices(["read", "job", "time", "cancel", "news", "on"], [10, 4, 2, 1, 2, 6])[0]:
                case "read":
                    level = chance.choice(["strict", "strict", None, 200_000])
                    history.tasks.append(begin(history.read(process, row, level, None, 0)))
                case "job":
                    history.tasks.append(begin(history.job(process, f"job-{step}", row, chance.randrange(KEYS))))
                case "time":
                    world.advance(chance.choice([0.001, 0.01, 0.05, 0.4, 1.2]))
                case "cancel" if history.tasks:
                    task = chance.choice(history.tasks)
                    if "read" in repr(task.get_coro()):
                        task.cancel()
                case "news":
                    history.tasks.append(begin(process.catch_up()))
                case _:
                    await some_time(chance)
        for _ in range(400):
            if all(task.done() for task in history.tasks):
                break
            world.advance(0.05)
            for _ in range(40):
                await asyncio.sleep(0)
            if kind != "memory-1":
                await world.idle()
        ends = await asyncio.gather(*history.tasks, return_exceptions=True)
        strange = [end for end in ends if isinstance(end, Exception) and not isinstance(end, StoreUnavailable)]
        assert not strange, strange
        return history


@pytest.mark.parametrize("block", range(5))
async def test_no_read_of_a_random_history_breaks_the_guarantee(block: int, tmp_path: Path) -> None:
    reads = 0
    for seed in range(block * 16, block * 16 + 16):
        history = await run(seed, tmp_path)
        reads += history.reads
        assert not history.faults, (seed, history.faults)
        assert history.jobs

    assert reads > 300


async def test_a_claim_counts_from_when_it_was_asked_for(tmp_path: Path) -> None:
    """In this one an answer is given out between the sending of a turn and its reply, which carries a pre-image."""
    history = await run(5_003_415, tmp_path)

    assert not history.faults
    assert history.jobs


@pytest.mark.skipif("redis-1" not in KINDS, reason="no server is wanted, or none is there")
async def test_nor_does_one_on_a_real_server(tmp_path: Path) -> None:
    reads = jobs = 0
    for seed in range(1_000, 1_008):
        history = await run(seed, tmp_path, "redis-1")
        reads, jobs = reads + history.reads, jobs + history.jobs
        assert not history.faults, (seed, history.faults)
    clear_servers()

    assert reads > 50
    assert jobs > 10


@pytest.mark.parametrize(
    "rule",
    [
        mutations.answers_leave_no_floor,
        mutations.replies_under_way_are_believed,
        mutations.refused_fills_are_kept,
        mutations.owners_load_like_all,
        mutations.what_runs_may_always_be_joined,
        mutations.the_body_sees_the_pre_image,
    ],
    ids=lambda rule: rule.__name__,
)
async def test_histories_find_a_rule_that_is_taken_out(
    rule: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(monkeypatch)

    for seed in range(240):
        if (await run(seed, tmp_path)).faults:
            return

    pytest.fail("no history noticed")
