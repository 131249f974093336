"""Random histories of readers and writers over one datastore: no tier ever shows anything but what is true.

The model is a datastore of counters. Whoever commits does it between a claim (or the beginning of a scope) and its
settle, or tells the store at once; loads read the datastore when they begin and fill when they please. Then a hit in
the shared tier, and a hit in a local tier that has heard the log up to now, is the datastore's value (G1-G4).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeVar

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Struct

from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.partition import Owner
from selaras._core.cache.entry import Hit, Miss
from selaras._core.jobs.job import Attempt, Claim, Put, Settlement
from selaras._core.jobs.lifecycle import SETTLING
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START, Cursor, News, Scope
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import Worker, World, job, put
from tests.stores import make_store

T = TypeVar("T")

KEYS = ("k-1", "k-2", "k-3")
TAG_OF = {"k-1": "odd", "k-2": "even", "k-3": "odd"}
FAMILY = "counters"

some = st.integers(0, 1 << 16)
keys = st.sampled_from(KEYS)


class Local:
    """A local tier by the one rule: no applied event for the key, its tag or its family lies after its position."""

    def __init__(self) -> None:
        self.applied = START
        self._entries: dict[str, tuple[bytes, int]] = {}
        self._last: dict[tuple[Scope, str], int] = {}
        self._reset_at = 0

    def hear(self, news: News) -> None:
        if news.reset:
            self._entries.clear()
            self._reset_at = news.tail.position
        for event in news.events:
            self._last[event.scope, event.name] = event.position
        self.applied: Cursor = news.tail

    def keep(self, key: str, value: bytes, position: int) -> None:
        held = self._entries.get(key)
        if position >= self._reset_at and (held is None or position >= held[1]):
            self._entries[key] = (value, position)

    def get(self, key: str) -> bytes | None:
        value, position = self._entries.get(key, (None, 0))
        names = ((Scope.KEY, key), (Scope.TAG, TAG_OF[key]), (Scope.FAMILY, FAMILY))
        return None if any(self._last.get(name, 0) > position for name in names) else value


class Writer(Struct):
    """An attempt or a scope, what it may write, and what it has committed."""

    worker: str
    attempt: Attempt
    keys: tuple[str, ...]
    committed: dict[str, bytes]
    planted: tuple[str, ...] = ()


class Coherence(RuleBasedStateMachine):
    """Readers, writers, zombies and outsiders."""

    kind: ClassVar[str] = "memory-1"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock = VirtualClock()
        self.world = World(make_store(self.kind, self.folder, self.clock, Random(3)), self.clock)
        self.datastore = dict.fromkeys(KEYS, 0)
        self.local = Local()
        self.loads: list[tuple[str, int, bytes]] = []
        self.writers: list[Writer] = []
        self.workers: dict[str, Worker] = {}
        self.writes: dict[str, tuple[str, ...]] = {}

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(verb)

    def teardown(self) -> None:
        self.world.close()
        self.run(self.world.store.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.run(self.world.store.open())
        self.run(self.world.begin())
        self.a_worker_starts()

    # -- the datastore

    def stored(self, key: str) -> bytes:
        return b"%d" % self.datastore[key]

    def commit(self, key: str) -> bytes:
        self.datastore[key] += 1
        return self.stored(key)

    def as_read(self, key: str, value: bytes) -> Put:
        return put(key, value, tags=(TAG_OF[key],), family=FAMILY)

    # -- readers

    @rule(key=keys)
    def a_reader_looks_and_a_load_begins(self, key: str) -> None:
        look = self.run(self.world.look(key, lease_us=30 * SECOND))
        match look:
            case Hit(entry=entry):
                self.local.keep(key, entry.value, entry.position)
            case Miss(token=token):
                self.loads.append((key, token, self.stored(key)))

    @rule(which=some)
    @precondition(lambda self: self.loads)
    def a_load_ends(self, which: int) -> None:
        key, token, value = self.loads.pop(which % len(self.loads))
        self.run(self.world.fill(token, self.as_read(key, value)))

    # -- writers

    @rule(writes=st.lists(keys, max_size=2, unique=True), in_line=st.booleans())
    def a_job_is_enqueued(self, writes: list[str], in_line: bool) -> None:
        name = f"job-{len(self.writes)}"
        self.writes[name] = tuple(writes)
        self.run(self.world.enqueue(job(name, writes=tuple(writes), line="line" if in_line else "", max_lost=2)))

    @rule(which=some, count=st.integers(1, 3), ended=some, event=st.sampled_from(sorted(SETTLING)), puts=st.booleans())
    def a_turn(self, which: int, count: int, ended: int, event: JobEvent, puts: bool) -> None:
        """A worker settles one of its attempts, if it has any, and claims, in one step."""
        worker = self.pick_worker(which)
        mine = [writer for writer in self.writers if writer.worker == worker.id]
        chosen = mine[ended % len(mine)] if mine else None
        settlements = [self.settlement(chosen, event, puts)] if chosen else []
        worker.cursor = self.local.applied
        reply = self.run(worker.turn(*settlements, limit=count))
        self.local.hear(reply.news)
        if chosen:
            self.writers.remove(chosen)
            for key, position, _ in reply.settled[0].stored:
                self.local.keep(key, chosen.committed[key], position)
        self.writers += [self.writer(worker, claim) for claim in reply.claims]

    def writer(self, worker: Worker, claim: Claim) -> Writer:
        for key, entry in claim.preimages:
            assert entry.value == self.stored(key)
        return Writer(worker.id, Attempt(claim.job, claim.fence), self.writes[claim.job], {})

    def settlement(self, writer: Writer, event: JobEvent, puts: bool) -> Settlement:
        values = writer.committed.items() if puts else ()
        return Settlement(
            writer.attempt.job,
            writer.attempt.fence,
            event,
            puts=tuple(self.as_read(key, value) for key, value in values),
            writes=writer.keys,
            planted=writer.planted,
            started=bool(writer.committed),
        )

    @rule(which=some, key=some)
    @precondition(lambda self: self.writers)
    def a_writer_commits(self, which: int, key: int) -> None:
        writer = self.writers[which % len(self.writers)]
        allowed = (*writer.keys, *writer.planted)
        if not allowed:
            return
        name = allowed[key % len(allowed)]
        writer.committed[name] = self.commit(name)
        if not self.is_covered(writer, name):
            # A zombie whose job has gone on without it: its body ends, and all it can do is void.
            self.writers.remove(writer)
            self.run(self.world.home.settle(writer.worker, [self.settlement(writer, JobEvent.SUCCEED, True)], START))

    def is_covered(self, writer: Writer, key: str) -> bool:
        return any(intent.job == writer.attempt.job for intent in self.run(self.world.home.intents(key)))

    @rule(which=some, key=keys)
    @precondition(lambda self: self.writers)
    def a_body_invalidates_before_it_commits(self, which: int, key: str) -> None:
        writer = self.writers[which % len(self.writers)]
        owner = Owner(0, writer.attempt.job, writer.attempt.fence)
        planted = self.run(self.world.home.plant(writer.worker, owner, (key,), START))
        if planted.refusal is None:
            writer.planted = (*writer.planted, key)

    @rule(key=keys, which=some)
    def a_scope_begins(self, key: str, which: int) -> None:
        worker, name = self.pick_worker(which), f"scope-{len(self.writes)}"
        self.writes[name] = (key,)
        attempt = self.run(self.world.scope(worker, name, key))
        self.writers.append(Writer(worker.id, attempt, (key,), {}))

    # -- outsiders

    @rule(key=keys, by=st.sampled_from(("key", "tag", "family")))
    def code_outside_commits_and_invalidates(self, key: str, by: str) -> None:
        self.commit(key)
        match by:
            case "key":
                self.run(self.world.invalidate(key))
            case "tag":
                self.run(self.world.invalidate(tags=(TAG_OF[key],)))
            case _:
                self.run(self.world.invalidate(families=(FAMILY,)))

    # -- processes

    def pick_worker(self, which: int) -> Worker:
        return list(self.workers.values())[which % len(self.workers)]

    @rule()
    @precondition(lambda self: len(self.workers) < 3)
    def a_worker_starts(self) -> None:
        worker = self.run(self.world.worker())
        self.workers[worker.id] = worker

    @rule()
    def every_worker_is_lost(self) -> None:
        self.run(self.world.lose_workers())
        self.workers.clear()
        self.a_worker_starts()

    @rule(which=some)
    @precondition(lambda self: len(self.workers) > 1)
    def a_worker_stops_in_order(self, which: int) -> None:
        worker = self.pick_worker(which)
        del self.workers[worker.id]
        self.writers = [
            writer for writer in self.writers if writer.worker != worker.id or writer.attempt.job.startswith("scope")
        ]
        self.run(self.world.home.dismiss(worker.id))

    @rule(which=some, holds=st.booleans())
    def a_heart_beats(self, which: int, holds: bool) -> None:
        worker = self.pick_worker(which)
        mine = [writer for writer in self.writers if writer.worker == worker.id]
        if not holds:  # a reply was lost: the bodies never began
            self.writers = [one for one in self.writers if one not in mine or one.attempt.job.startswith("scope")]
        worker.beat(*(writer.attempt for writer in mine if holds))

    @rule(us=st.sampled_from((1, 5 * SECOND, INTENT_GRACE_US)))
    def time_passes(self, us: int) -> None:
        self.clock.advance(us)
        for worker in self.workers.values():
            worker.beat(*(writer.attempt for writer in self.writers if writer.worker == worker.id))
        self.run(self.world.tend())

    # -- what must be true

    @invariant()
    def a_hit_is_what_the_datastore_says(self) -> None:
        if not self.workers:
            return
        for key in KEYS:
            value = self.run(self.world.value(key))
            assert value in (None, self.stored(key)), f"{key}: {value!r}, the datastore says {self.stored(key)!r}"

    @invariant()
    def a_local_hit_that_heard_the_log_is_what_the_datastore_says(self) -> None:
        if not self.workers:
            return
        self.local.hear(self.run(self.world.home.events_since(self.local.applied)))
        for key in KEYS:
            value = self.local.get(key)
            assert value in (None, self.stored(key)), f"{key}: {value!r}, the datastore says {self.stored(key)!r}"

    @invariant()
    def no_job_is_in_no_state(self) -> None:
        if not self.workers:
            return
        for name in self.writes:
            if name.startswith("job"):
                assert self.run(self.world.state(name)) in JobState


class CoherenceOnSqlite(Coherence):
    """The same on files."""

    kind = "sqlite-1"


TestMemory = Coherence.TestCase
TestSqlite = CoherenceOnSqlite.TestCase
for _case in (TestMemory, TestSqlite):
    _case.settings = settings(stateful_step_count=40)
