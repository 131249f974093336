"""Random histories of readers and writers over one datastore: no tier ever shows anything but what is true.

The model is a datastore of counters. Whoever commits does it between a claim (or the beginning of a scope) and its
settle, or tells the store at once; loads read the datastore when they begin, and fill when they please. Then a hit in
the shared tier, and a hit in a local tier that has heard the log up to now, is the datastore's value (G1-G4).

A history is short and made from its seed alone: what fails is run again by `HISTORY=<seed>`, and becomes a test with a name.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.clock import SECOND, VirtualClock
from tests.conformance import invariants
from tests.conformance.world import Worker, World, job, put
from tests.stores import KINDS, clear_servers, make_store

from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.partition import Owner
from selaras._core.cache.entry import Hit, Miss
from selaras._core.cache.opening import open_name
from selaras._core.jobs.job import Attempt, Claim, Put, Settled, Settlement
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START, Cursor, News, Scope
from selaras._stores.memory.partition import MemoryPartition

KEYS = ("k-1", "k-2")
TAG_OF = {"k-1": "odd", "k-2": "even"}
FAMILY = "counters"
OPENS = {open_name(Scope.TAG, tag, 0): (key,) for key, tag in TAG_OF.items()} | {
    open_name(Scope.FAMILY, FAMILY, 0): KEYS
}
"""What can be written as a whole, and the keys that bear it."""
STEPS = 60
SEEDS = {"memory-1": 400, "sqlite-1": 60, "redis-1": 12}


class Local:
    """A local tier by the one rule: no applied event for the key, its tag or its family lies after its position."""

    def __init__(self) -> None:
        self.applied: Cursor = START
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._last: dict[tuple[Scope, str], int] = {}

    def hear(self, news: News) -> None:
        if news.reset:
            self._entries.clear()
        for event in news.events:
            self._last[event.scope, event.name] = event.position
        self.applied = news.tail

    def keep(self, key: str, value: bytes, position: int) -> None:
        if position >= self._entries.get(key, (b"", 0))[1]:
            self._entries[key] = (value, position)

    def get(self, key: str) -> bytes | None:
        value, position = self._entries.get(key, (None, 0))
        names = ((Scope.KEY, key), (Scope.TAG, TAG_OF[key]), (Scope.FAMILY, FAMILY))
        return None if any(self._last.get(name, 0) > position for name in names) else value


@dataclass
class Writer:
    """An attempt or a scope: the keys that it may write, and what it has committed."""

    worker: Worker
    attempt: Attempt
    names: tuple[str, ...]
    committed: dict[str, bytes] = field(default_factory=dict[str, bytes])
    planted: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Those that it may write."""
        return tuple(key for name in (*self.names, *self.planted) for key in OPENS.get(name, (name,)))


@dataclass
class History:
    """One world, made from a seed."""

    world: World
    chance: Random
    datastore: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))
    local: Local = field(default_factory=Local)
    loads: list[tuple[str, int, bytes]] = field(default_factory=list[tuple[str, int, bytes]])
    writers: list[Writer] = field(default_factory=list[Writer])
    workers: list[Worker] = field(default_factory=list[Worker])
    writes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    settled: dict[str, int] = field(default_factory=dict[str, int])  # job -> above the fence of its last settle
    said: list[str] = field(default_factory=list[str])
    written: tuple[str, ...] = KEYS
    looks_inside: bool = True

    async def run(self) -> None:
        await self.a_worker_starts()
        self.written = self.chance.choice((KEYS, KEYS, (*KEYS, *OPENS), tuple(OPENS)))
        steps = {
            self.a_reader_looks: 6,
            self.a_load_ends: 4,
            self.a_job_is_enqueued: 3,
            self.a_worker_claims: 4,
            self.a_writer_commits: 4,
            self.a_writer_settles: 4,
            self.a_worker_settles_and_claims: 2,
            self.a_body_invalidates: 1,
            self.a_scope_begins: 1,
            self.code_outside_commits: 2,
            self.workers_are_lost: 1,
            self.a_worker_stops: 0.3,
            self.a_reply_is_lost: 0.5,
            self.time_passes: 1,
        }
        for step in self.chance.choices(list(steps), list(steps.values()), k=STEPS):
            await step()
            await self.check(step.__name__)

    async def check(self, step: str) -> None:
        self.said.append(step)
        self.local.hear(await self.world.home.events_since(self.local.applied))
        for key in KEYS:
            for tier, value in (("shared", await self.world.value(key)), ("local", self.local.get(key))):
                assert value in (None, self.stored(key)), (
                    f"the {tier} tier says {key} = {value!r}, the datastore {self.stored(key)!r}, after {self.said}"
                )
        if self.looks_inside and isinstance(self.world.home, MemoryPartition):
            invariants.check(self.world.home)

    # -- the datastore

    def stored(self, key: str) -> bytes:
        return b"%d" % self.datastore[key]

    def commit(self, key: str) -> bytes:
        self.datastore[key] += 1
        return self.stored(key)

    def as_read(self, key: str, value: bytes) -> Put:
        return put(key, value, tags=(TAG_OF[key],), family=FAMILY)

    # -- readers

    async def a_reader_looks(self) -> None:
        """It serves what it finds, or begins a load."""
        key = self.chance.choice(KEYS)
        look = await self.world.look(key, lease_us=30 * SECOND)
        if isinstance(look, Hit):
            self.local.keep(key, look.entry.value, look.entry.position)
        elif isinstance(look, Miss):
            self.loads.append((key, look.token, self.stored(key)))

    async def a_load_ends(self) -> None:
        if self.loads:
            key, token, value = self.loads.pop(self.chance.randrange(len(self.loads)))
            await self.world.fill(token, self.as_read(key, value))

    # -- writers

    async def a_job_is_enqueued(self) -> None:
        name = f"job-{len(self.writes)}"
        self.writes[name] = tuple(self.chance.sample(self.written, self.chance.choice((0, 1, 1, 1, 2))))
        line, wants = self.chance.choice(("", "", "line")), self.chance.random() < 0.5
        await self.world.enqueue(
            job(name, writes=self.writes[name], line=line, wants_preimage=wants, max_lost=self.chance.choice((1, 3)))
        )

    async def a_worker_claims(self) -> None:
        worker = self.chance.choice(self.workers)
        self._take(worker, await worker.claims(limit=self.chance.choice((1, 2))))

    def _take(self, worker: Worker, claims: tuple[Claim, ...]) -> None:
        for claim in claims:
            for key, entry in claim.preimages:
                assert entry.value == self.stored(key), f"the pre-image of {key} is {entry.value!r}"
            self.writers.append(Writer(worker, Attempt(claim.job, claim.fence), self.writes[claim.job]))

    async def a_writer_commits(self) -> None:
        if not self.writers:
            return
        writer = self.chance.choice(self.writers)
        if not writer.keys:
            return
        key = self.chance.choice(writer.keys)
        writer.committed[key] = self.commit(key)
        if not await self._is_covered(writer):  # its body ends, and all that it can do is void
            await self._settle(writer, JobEvent.SUCCEED)

    async def _is_covered(self, writer: Writer) -> bool:
        """Say whether its intents must stand: it holds its lease, or no attempt has settled since, and no grace is over."""
        job, fence = writer.attempt.job, writer.attempt.fence
        if self.settled.get(job, 0) > fence:
            return False
        record = await self.world.record(job)
        return record.state not in FINAL or self.world.clock.wall_us() < record.ended_us + INTENT_GRACE_US

    async def a_writer_settles(self) -> None:
        if self.writers:
            await self._settle(self.chance.choice(self.writers), self._event())

    async def _settle(self, writer: Writer, event: JobEvent) -> None:
        self.writers.remove(writer)
        settlement = self._settlement(writer, event)
        reply = await self.world.home.settle(writer.worker.id, [settlement], self.local.applied)
        self.local.hear(reply.news)
        self._settled(writer, settlement, reply.settled[0])

    def _settled(self, writer: Writer, settlement: Settlement, settled: Settled) -> None:
        if settled.refusal is None and settlement.event not in (JobEvent.RELEASE, JobEvent.GIVE_BACK):
            self.settled[settled.job] = settled.fence + 1
        for key, position, _ in settled.stored:
            self.local.keep(key, writer.committed.get(key, b"rolled back"), position)

    def _event(self) -> JobEvent:
        others = (JobEvent.FAIL, JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.CANCEL, JobEvent.RELEASE, JobEvent.GIVE_BACK)
        return self.chance.choice((JobEvent.SUCCEED,) * 6 + others)

    def _settlement(self, writer: Writer, event: JobEvent) -> Settlement:
        values = writer.committed if self.chance.random() < 0.7 else {}
        if event is not JobEvent.SUCCEED:
            values = dict.fromkeys(writer.keys, b"rolled back")
        return Settlement(
            writer.attempt.job,
            writer.attempt.fence,
            event,
            puts=tuple(self.as_read(key, value) for key, value in values.items()),
            writes=writer.names,
            planted=writer.planted,
            started=bool(writer.committed),
        )

    async def a_worker_settles_and_claims(self) -> None:
        """Both in one turn: what is stored by the settle must not hide what the claim is about to write."""
        worker = self.chance.choice(self.workers)
        writer = next((writer for writer in self.writers if writer.worker is worker), None)
        if writer is None:
            return
        self.writers.remove(writer)
        worker.cursor = self.local.applied
        settlement = self._settlement(writer, self._event())
        reply = await worker.turn(settlement)
        self.local.hear(reply.news)
        self._settled(writer, settlement, reply.settled[0])
        self._take(worker, reply.claims)
        if reply.claims and self.chance.random() < 0.8:
            await self.a_writer_commits()

    async def a_body_invalidates(self) -> None:
        """It does so before it commits: an intent is planted now."""
        if not self.writers:
            return
        writer, key = self.chance.choice(self.writers), self.chance.choice(self.written)
        owner = Owner(0, writer.attempt.job, writer.attempt.fence)
        planted = await self.world.home.plant(writer.worker.id, owner, (key,), START)
        if planted.refusal is None:
            writer.planted = (*writer.planted, key)
            for one in OPENS.get(key, (key,)):
                writer.committed.pop(one, None)  # what it put before is not the latest any more

    async def a_scope_begins(self) -> None:
        worker, name = self.chance.choice(self.workers), f"scope-{len(self.writes)}"
        key = self.chance.choice(self.written)
        self.writes[name] = (key,)
        self.writers.append(Writer(worker, await self.world.scope(worker, name, key), (key,)))

    async def code_outside_commits(self) -> None:
        """It invalidates in the same moment, by key, by tag or the whole family."""
        key = self.chance.choice(KEYS)
        self.commit(key)
        names = self.chance.choice(({"keys": (key,)}, {"tags": (TAG_OF[key],)}, {"families": (FAMILY,)}))
        await self.world.invalidate(*names.pop("keys", ()), **names)

    # -- processes

    async def a_worker_starts(self) -> None:
        self.workers.append(await self.world.worker())

    async def workers_are_lost(self) -> None:
        """Some of their bodies go on, as zombies."""
        await self.world.lose_workers()
        self.writers = [writer for writer in self.writers if self.chance.random() < 0.7]
        self.workers.clear()
        for _ in range(self.chance.choice((1, 2))):
            await self.a_worker_starts()

    async def a_worker_stops(self) -> None:
        """In order: its bodies have ended."""
        worker = self.workers.pop()
        self.writers = [writer for writer in self.writers if writer.worker in self.workers]
        await self.world.home.dismiss(worker.id)
        await self.a_worker_starts()

    async def a_reply_is_lost(self) -> None:
        """What it claimed is released by the next heartbeat."""
        worker = self.chance.choice(self.workers)
        await worker.send(limit=1)
        worker.beat(*(writer.attempt for writer in self.writers if writer.worker is worker))

    async def time_passes(self) -> None:
        self.world.clock.advance(self.chance.choice((1, 5 * SECOND, 10 * SECOND)))
        for worker in self.workers:
            worker.beat(*(writer.attempt for writer in self.writers if writer.worker is worker))
        await self.world.tend()


@asynccontextmanager
async def history(kind: str, folder: Path, seed: int) -> AsyncIterator[History]:
    clock = VirtualClock()
    world = World(make_store(kind, folder / str(seed), clock, Random(seed)), clock)
    if kind != "memory-1":
        (folder / str(seed)).mkdir()
    await world.store.open()
    await world.begin()
    try:
        yield History(world, Random(seed))
    finally:
        world.close()
        await world.store.close()


async def run_histories(kind: str, folder: Path, *, looks_inside: bool = True) -> None:
    """Run them all, or the one that the environment names; fails with the seed of the first that shows a fault.

    Args:
        looks_inside: a memory store that contradicts itself is a fault, whether a tier shows it or not.
    """
    seeds = [int(os.environ["HISTORY"])] if "HISTORY" in os.environ else range(SEEDS[kind])
    for seed in seeds:
        async with history(kind, folder, seed) as one:
            one.looks_inside = looks_inside
            try:
                await one.run()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("kind", [kind for kind in SEEDS if kind in KINDS])
async def test_no_tier_shows_what_is_not_true(kind: str, folder: Path) -> None:
    await run_histories(kind, folder)
    clear_servers()
