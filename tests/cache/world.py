"""Processes, a datastore and jobs, in the words of a test.

A value in the datastore is a number; a key is `product:<n>`. Loaders read the datastore at once, and can be held after
they did. Each process has a cache of its own and, where the store is a file, a store of its own on that file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Self

from tests.cache.slow import Held, SlowPartition, SlowStore
from tests.clock import SECOND, VirtualClock
from tests.stores import make_store

from selaras._cache.cache import Cache
from selaras._cache.family import Family, Slot
from selaras._cache.session import SESSION, Session, SessionKind
from selaras._contracts.partition import Instance, Invalidation, Owner, TurnRequest
from selaras._contracts.store import Store
from selaras._core.cache.events import CacheEvent
from selaras._core.cache.opening import Opening, open_names
from selaras._core.codec import codec_of
from selaras._core.jobs.job import Claim, JobKind, NewJob, Settled, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START
from selaras._core.routing import partition_of
from selaras._stores.sqlite.store import SqliteStore

LEASE_US = 15 * SECOND


class Datastore:
    """What the loaders read: numbers by number. `loads` counts, `hold()` keeps the next load after it has read."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.loads = 0
        self.error: Exception | None = None
        self._holds: list[Held] = []

    def hold(self) -> Held:
        held = Held()
        self._holds.append(held)
        return held

    async def load(self, row: Any) -> Any:
        self.loads += 1
        value = self.rows.get(row, 0)
        error = self.error
        if self._holds:
            await self._holds.pop(0).pause()
        if error:
            raise error
        return value


class Process:
    """One process: a cache, a way to the store, and an instance that can hold jobs."""

    def __init__(self, world: World, store: Store, name: str) -> None:
        self.world = world
        self.name = name
        self.store = world.reach(store)
        self.events: list[CacheEvent] = []
        self.cache = Cache(self.store, world.clock, observer=self.events.append, **world.options)
        self._turns: dict[int, int] = {}
        self._turning = asyncio.Lock()

    def partition(self, index: int = 0) -> SlowPartition:
        part: SlowPartition = self.store.partitions[index]
        return part

    @property
    def calls(self) -> list[str]:
        """The verbs this process has called since this was last asked."""
        calls = [verb for partition in self.store.partitions for verb in partition.calls]
        for partition in self.store.partitions:
            partition.calls.clear()
        return calls

    async def enroll(self) -> None:
        for partition in self.store.partitions:
            await partition.inner.enroll(
                Instance(id=self.name, lease_us=LEASE_US, queues=("default",), tasks=("work",))
            )

    async def catch_up(self) -> None:
        """Hear the news of all partitions."""
        for index, partition in enumerate(self.store.partitions):
            sent = self.world.clock.instant_ns()
            self.cache.heard(index, await partition.events_since(self.cursor(index)), sent)
        _ = self.calls

    # -- reads

    async def get(self, row: Any = 42, fresh: Any = None, session: Session | None = None) -> Any:
        """Read a product, in a session if one is given."""
        return await self.within(session, self.cache.get(self.world.slot(row), fresh))

    async def read(self, row: Any = 42, fresh: Any = None, session: Session | None = None) -> Any:
        return await self.within(session, self.cache.read(self.world.slot(row), fresh))

    async def get_on_another_loop(self, row: Any = 42, fresh: Any = None) -> Any:
        """Read in a thread that has a loop of its own, as a blocking program does."""

        async def read() -> Any:
            return await self.cache.get(self.world.slot(row), fresh)

        return await asyncio.to_thread(lambda: asyncio.run(read()))

    async def within(self, session: Session | None, work: Awaitable[Any]) -> Any:
        before = SESSION.set(session)
        try:
            return await work
        finally:
            SESSION.reset(before)

    async def tier(self, row: Any = 42, fresh: Any = None, session: Session | None = None) -> str:
        """Say where a read was answered."""
        return str((await self.read(row, fresh, session)).tier)

    # -- jobs

    async def turn(
        self, index: int = 0, *settlements: Settlement, limit: int = 0
    ) -> tuple[tuple[Settled, ...], tuple[Claim, ...], int, int]:
        """Settle and claim, one turn at a time. Returns what the store said, and the instants of sending and receipt."""
        async with self._turning:
            return await self._turn(index, settlements, limit)

    async def _turn(
        self, index: int, settlements: Sequence[Settlement], limit: int
    ) -> tuple[tuple[Settled, ...], tuple[Claim, ...], int, int]:
        number = self._turns[index] = self._turns.get(index, 0) + 1
        sent = self.world.clock.instant_ns()
        reply = await self.partition(index).turn(
            TurnRequest(
                instance=self.name,
                number=number,
                since=self.cursor(index),
                acked=number - 1,
                settlements=tuple(settlements),
                queues=("default",) if limit else (),
                tasks=frozenset({"work"}),
                limit=limit,
            )
        )
        assert reply.enrolled
        self.world.clock.advance(1)  # a reply takes its time
        self.cache.heard(index, reply.news, sent)
        return reply.settled, reply.claims, sent, self.world.clock.instant_ns()

    def cursor(self, index: int) -> Any:
        return self.cache.cursor(index)

    async def claim(
        self,
        job: str,
        index: int = 0,
        writes: Sequence[Slot] = (),
        opens: Sequence[Opening] = (),
        **options: Any,
    ) -> Session:
        """Enqueue a job and claim it."""
        opened = tuple(name for what in opens for name in open_names(*what, len(self.store.partitions)))
        keys = (*(slot.key for slot in writes), *opened)
        await self.world.store.partitions[index].enqueue(
            [NewJob(id=job, task="work", writes=keys, wants_preimage=True, **options)],
            self.cursor(index),
        )
        _, claims, _, received = await self.turn(index, limit=1)
        assert [claim.job for claim in claims] == [job]
        session = self.session(claims[0], index, received, writes)
        session.own |= dict.fromkeys(opened)
        session.opens, session.late = frozenset(opens), self.cache.closing(opens)
        return session

    def session(
        self, claim: Claim, index: int, received_ns: int, writes: Sequence[Slot] = (), *, asked_ns: int = 0
    ) -> Session:
        return Session(
            SessionKind.JOB,
            received_ns,
            index,
            claim.position,
            self.name,
            Owner(index, claim.job, claim.fence),
            own={slot.key: slot for slot in writes},
            preimages=dict(claim.preimages),
            asked_ns=asked_ns,
        )

    async def settle(self, session: Session, event: JobEvent = JobEvent.SUCCEED) -> Settled:
        """End a job, and hear what became of it."""
        settled, _, sent, _ = await self.turn(session.home, self.settlement(session, event))
        self.cache.settles.heard(session, settled[0], partition=session.home, sent_ns=sent)
        return settled[0]

    def settlement(self, session: Session, event: JobEvent = JobEvent.SUCCEED) -> Settlement:
        effects = session.effects(success=event is JobEvent.SUCCEED)
        assert session.owner is not None
        return Settlement(
            session.owner.job,
            session.owner.fence,
            event,
            puts=effects.puts,
            tags=effects.tags,
            families=effects.families,
            versions=effects.versions,
            closes=effects.closes,
            planted=effects.planted,
            writes=tuple(session.own),
        )

    async def writing(self, name: str, *slots: Slot) -> Session:
        """Begin a `writing()` scope."""
        sent = self.world.clock.instant_ns()
        scope = NewJob(id=name, task="", kind=JobKind.WRITING, writes=tuple(slot.key for slot in slots))
        grant = await self.partition().open_scope(self.name, scope, self.cursor(0))
        self.world.clock.advance(1)
        self.cache.heard(0, grant.news, sent)
        return Session(
            SessionKind.WRITING,
            self.world.clock.instant_ns(),
            0,
            grant.news.tail.position,
            self.name,
            Owner(0, name, grant.fence),
            own={slot.key: slot for slot in slots},
            started=True,
        )

    async def leave(self, session: Session, event: JobEvent = JobEvent.SUCCEED) -> None:
        """End a `writing()` scope."""
        sent = self.world.clock.instant_ns()
        reply = await self.partition().settle(self.name, [self.settlement(session, event)], self.cursor(0))
        self.cache.heard(0, reply.news, sent)
        self.cache.settles.heard(session, reply.settled[0], partition=0, sent_ns=sent)


class World:
    """A store, a datastore, a clock, and one family of cached products."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        reach: Callable[[Store], SlowStore] = SlowStore,
        seed: int = 1,
        **options: Any,
    ) -> None:
        self.kind = kind
        self._seed = seed
        self.reach = reach  # how a process reaches its store
        self.options = options
        self.clock = VirtualClock()
        self._folder = folder
        self._stores: list[Store] = []
        self.data = Datastore()
        self.family = Family("product", codec_of(int), self.data.load)
        self.processes: list[Process] = []

    @property
    def store(self) -> Store:
        return self._stores[0]

    async def __aenter__(self) -> Self:
        store = await self._open_store()
        for partition in store.partitions:
            # One event: an empty log has no cursor but that of a newcomer, whom any news resets.
            await partition.invalidate(Invalidation(keys=("first",)), START)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in self.processes:
            await process.cache.close()
        for store in self._stores:
            await store.close()

    async def _open_store(self) -> Store:
        if self._stores and not self.kind.startswith("sqlite"):
            return self._stores[0]
        store = self._new_store()
        await store.open()
        self._stores.append(store)
        return store

    def _new_store(self) -> Store:
        name, _, count = self.kind.partition("-")
        chance = Random(len(self._stores) + self._seed)
        if name == "sqlite":
            return SqliteStore(self._folder / "selaras.db", self.clock, partitions=int(count), entropy=chance)
        return make_store(self.kind, self._folder, self.clock, chance)

    async def process(self, name: str) -> Process:
        process = Process(self, await self._open_store(), name)
        await process.enroll()
        self.processes.append(process)
        await process.catch_up()
        return process

    # -- names

    def slot(self, row: Any = 42, family: Family | None = None) -> Slot:
        family = family or self.family
        key = f"{family.name}:{row}"
        return Slot(family, key, partition_of(key, len(self.store.partitions)), row)

    def row_in(self, partition: int, start: int = 0) -> int:
        """Return a row whose key lives in that partition."""
        return next(row for row in range(start, start + 1000) if self.slot(row).partition == partition)

    def like(self, **changes: Any) -> Family:
        """Let products be cached in another way from here on."""
        self.family = replace(self.family, counts=type(self.family.counts)(), **changes)
        return self.family

    # -- time

    def advance(self, seconds: float) -> None:
        self.clock.advance(round(seconds * SECOND))

    async def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass in steps, with everybody awake in between."""
        passed = 0.0
        while passed < seconds:
            self.advance(step)
            passed += step
            await self.idle()

    async def idle(self) -> None:
        """Let everything go on that can."""
        for _ in range(20):
            await asyncio.sleep(0)
        if not self.kind.startswith("memory"):
            await asyncio.sleep(0.004)  # real threads work for this store

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0 if self.kind.startswith("memory") else 0.001)


def begin(work: Awaitable[Any]) -> asyncio.Task[Any]:
    """Begin something that runs beside the test."""

    async def run() -> Any:
        return await work

    return asyncio.get_running_loop().create_task(run())
