"""Random histories: both stores, given the same verbs under the same clock, say the same at every step."""

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
from msgspec.structs import replace
from tests.clock import SECOND, VirtualClock
from tests.conformance import invariants
from tests.conformance.world import GRACE, LEASE, LOAD
from tests.stores import make_store

from selaras._contracts.limits import INTENT_GRACE_US, LOCK_ACCEPT_US, UNROUTABLE_US
from selaras._contracts.partition import (
    AnyEffect,
    Fill,
    HeartbeatRequest,
    Instance,
    Invalidation,
    JobFilter,
    Owner,
    Partition,
    ReadRequest,
    TurnRequest,
)
from selaras._contracts.store import Pulse, Store
from selaras._core.cache.entry import Hit, Miss
from selaras._core.cache.opening import open_name, opened_by
from selaras._core.jobs.job import (
    Abandoned,
    Attempt,
    Claim,
    Edge,
    JobKind,
    NewJob,
    OnConflict,
    Parent,
    Put,
    Settlement,
    UniqueUntil,
)
from selaras._core.jobs.lifecycle import SETTLING
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START, Cursor, News, Scope
from selaras._core.routing import home_of, partition_of
from selaras._stores.memory.partition import MemoryPartition

T = TypeVar("T")

IDS = tuple(f"job-{number}" for number in range(7))
ELSEWHERE = ("job-elsewhere-1", "job-elsewhere-2")
SCOPES = ("scope-1", "scope-2")
LOCKS = ("lock-1", "lock-2")
KEYS = tuple(f"product({number})" for number in range(4))
LINES = ("", "", "line-1", "line-2")
UNIQUES = ("", "", "unique-1", "unique-2")
QUEUES = ("default", "mail")
TASKS = ("work", "other")
TAGS = ("t", "u")
FAMILIES = ("", "product")
OPENINGS = tuple(
    open_name(scope, name, index)
    for scope, name in ((Scope.TAG, "t"), (Scope.TAG, "u"), (Scope.FAMILY, "product"))
    for index in (0, 1)
)
WRITTEN = KEYS + OPENINGS
WORKERS = ("worker-1", "worker-2", "worker-3")
STEPS_US = (1, SECOND, LOCK_ACCEPT_US, LEASE, GRACE, INTENT_GRACE_US, 30 * SECOND, UNROUTABLE_US)

some = st.integers(0, 1 << 16)
"""An index into whatever there is by now."""


def few(of: tuple[T, ...], most: int = 2) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(st.sampled_from(of), max_size=most, unique=True).map(tuple)


names = st.builds(
    Invalidation,
    keys=few(KEYS),
    tags=few(TAGS, 1),
    families=few(FAMILIES[1:], 1),
    versions=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), max_size=1).map(tuple),
    closes=st.lists(st.tuples(st.sampled_from(WRITTEN), st.sampled_from((SECOND, LEASE))), max_size=1).map(tuple),
)
puts = st.builds(
    Put,
    key=st.sampled_from(KEYS),
    value=st.sampled_from((b"", b"v1", b"v2")),
    checksum=st.just(7),
    expires_in_us=st.sampled_from((0, 0, SECOND, LEASE)),
    tags=few(TAGS),
    family=st.sampled_from(FAMILIES),
    version=st.sampled_from((None, 1, 2)),
    note=st.sampled_from((b"", b"\xff\x00")),
)
parents = st.lists(
    st.tuples(st.sampled_from(IDS + SCOPES), st.sampled_from(Edge)), max_size=2, unique_by=lambda pair: pair[0]
)
any_jobs = st.fixed_dictionaries(
    {"id": st.sampled_from(IDS)},
    optional={
        "task": st.sampled_from(TASKS),
        "payload": st.sampled_from((b"", b"p")),
        "meta": st.just(b"m"),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from((-1, 1)),
        "delay_us": st.sampled_from((SECOND, LEASE)),
        "due_us": st.sampled_from((1, 2**62)),
        "expires_in_us": st.sampled_from((LEASE, 60 * SECOND)),
        "line": st.sampled_from(LINES),
        "ordered": st.booleans(),
        "writes": few(WRITTEN),
        "serves": few(KEYS, 1),
        "wants_preimage": st.booleans(),
        "unique": st.sampled_from(UNIQUES),
        "unique_until": st.sampled_from(UniqueUntil),
        "on_conflict": st.sampled_from(OnConflict),
        "parents": parents,
        "positions": st.just(((1, 5),)),
        "max_lost": st.sampled_from((1, 2)),
        "result_ttl_us": st.sampled_from((0, LEASE)),
        "failed_ttl_us": st.sampled_from((0, LEASE)),
    },
)
common_jobs = st.fixed_dictionaries(
    {"id": st.sampled_from(IDS), "line": st.sampled_from(LINES)},
    optional={
        "task": st.sampled_from(TASKS),
        "payload": st.sampled_from((b"", b"p")),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from((-1, 1)),
        "ordered": st.booleans(),
        "writes": few(KEYS, 1),
        "wants_preimage": st.booleans(),
        "result_ttl_us": st.sampled_from((0, LEASE)),
    },
)
"""Of the kinds for which stores have short ways."""
jobs = st.one_of(any_jobs, common_jobs)
any_effects = st.fixed_dictionaries(
    {"event": st.sampled_from(sorted(SETTLING) + [JobEvent.SUCCEED] * 6 + [JobEvent.LOSE])},
    optional={
        "result": st.just(b"result"),
        "error": st.just(b"error"),
        "reason": st.just("because"),
        "delay_us": st.sampled_from((0, SECOND)),
        "puts": st.lists(puts, max_size=2, unique_by=lambda put: put.key).map(tuple),
        "keys": few(KEYS, 1),
        "tags": few(TAGS, 1),
        "families": few(FAMILIES[1:], 1),
        "versions": st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), max_size=1).map(tuple),
        "closes": st.lists(st.tuples(st.sampled_from(WRITTEN), st.just(SECOND)), max_size=1).map(tuple),
        "children": st.lists(jobs, max_size=1),
        "planted": few(WRITTEN, 1),
        "writes": few(WRITTEN, 1),
        "serves": few(KEYS, 1),
        "started": st.booleans(),
        "unsure": st.booleans(),
    },
)
common_effects = st.fixed_dictionaries(
    {"event": st.just(JobEvent.SUCCEED)},
    optional={
        "result": st.just(b"result"),
        "puts": st.lists(puts, max_size=1).map(tuple),
        "writes": few(KEYS, 1),
    },
)
effects = st.one_of(any_effects, common_effects)


class Pair(Struct, frozen=True):
    """What the two stores answered, each in its own cursors."""

    memory: Any
    sqlite: Any


def plain(value: Any) -> Any:
    """Say a reply in plain values; a cursor is its position, since ids of events are random."""
    if isinstance(value, Cursor):
        return value.position
    if isinstance(value, News):
        value = replace(value, ids=(0,) * len(value.ids))
    if isinstance(value, Struct):
        return type(value).__name__, {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


VERB_MOST_S = 30.0


class Histories(RuleBasedStateMachine):
    """The memory store and another, side by side."""

    partitions: ClassVar[int] = 1
    kinds: ClassVar[tuple[str, ...]] = ("memory", "sqlite")

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.stores: list[Store] = [
            make_store(f"{kind}-{self.partitions}", self.folder, self.clock, Random(seed))
            for seed, kind in enumerate(self.kinds)
        ]
        self.pulses: list[Pulse] = []
        self.homes: dict[str, int] = {}
        self.admitted: set[str] = set()
        self.attempts: list[tuple[str, int, Attempt]] = []  # (instance, partition, attempt), the latest last
        self.tokens: list[tuple[str, int]] = []
        self.stamps = [0]
        self.numbers: dict[tuple[str, int], int] = {}
        self.acked: dict[tuple[str, int], int] = {}
        self.reported: dict[
            tuple[str, int, int], tuple[Settlement, ...]
        ] = {}  # by instance, partition, number of the turn
        self.readers: list[list[list[Cursor]]] = [[[START] * self.partitions for _ in self.stores]]
        self.fence = 0
        self.common = 0  # jobs of `work_through` so far

    def teardown(self) -> None:
        try:
            self.inspect()
        finally:
            for pulse in self.pulses:
                pulse.close()
            for store in self.stores:
                self.run(store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    # -- both at once

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        # A server that went away is waited for on the clock of the history, which nobody turns meanwhile.
        return self.runner.run(asyncio.wait_for(verb, VERB_MOST_S))

    def both(self, partition: int, verb: Any) -> Any:
        """Do a verb on each store, compare what they say, and return the memory store's reply."""
        replies = [self.run(verb(store.partitions[partition])) for store in self.stores]
        self.compare(replies)
        return replies[0]

    def told(self, partition: int, reader: int, verb: Any) -> Any:
        """Do a verb that carries news, from where a reader stands; it hears them."""
        cursors = self.readers[reader % len(self.readers)]
        replies = [
            self.run(verb(store.partitions[partition], cursors[index][partition]))
            for index, store in enumerate(self.stores)
        ]
        self.compare(replies)
        for index, reply in enumerate(replies):
            news = reply[1] if isinstance(reply, tuple) else getattr(reply, "news", reply)
            cursors[index][partition] = news.tail
        return replies[0]

    def compare(self, replies: list[Any]) -> None:
        said = [plain(reply) for reply in replies]
        assert said[0] == said[-1]

    def pick(self, values: list[T], index: int) -> T:
        """Choose among what there is, preferring the latest."""
        return values[-1 - index % min(len(values), 6)]

    # -- what verbs need

    def job(self, given: dict[str, Any], kind: JobKind = JobKind.TASK) -> NewJob:
        listed = given.get("parents", ())
        waits = tuple(
            Parent(id, edge, self.homes.get(id, partition_of(id, self.partitions)))
            for id, edge in listed
            if id != given["id"]
        )
        return NewJob(kind=kind, **{"task": "work", **self.placed(given), "parents": waits})

    def settlement(self, attempt: Attempt, given: dict[str, Any]) -> Settlement:
        made = {**self.placed(given), "children": tuple(self.job(child) for child in given.get("children", ()))}
        return Settlement(attempt.job, attempt.fence, **made)

    def placed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Let what is opened be opened in a partition that there is."""
        return given | {field: self.keys_here(given[field]) for field in ("writes", "planted") if field in given}

    def keys_here(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        opened = {key: opened_by(key) for key in keys}
        return tuple(
            dict.fromkeys(
                key if what is None else open_name(*what, partition_of(key, self.partitions))
                for key, what in opened.items()
            )
        )

    # -- rules: processes

    @initialize()
    def begin(self) -> None:
        for store in self.stores:
            self.run(store.open())
            self.pulses.append(store.pulse())
        for partition in range(self.partitions):
            self.both(partition, lambda one: one.invalidate(Invalidation(("the beginning",)), START))
            for worker in WORKERS[:2]:
                self._enroll(worker, partition)

    def _enroll(self, worker: str, partition: int) -> None:
        instance = Instance(id=worker, lease_us=LEASE, queues=QUEUES if worker == WORKERS[0] else QUEUES[:1])
        self.both(partition, lambda one: one.enroll(instance))

    @rule(worker=st.sampled_from(WORKERS), index=some)
    def enroll(self, worker: str, index: int) -> None:
        self._enroll(worker, index % self.partitions)

    @rule(worker=st.sampled_from(WORKERS), index=some)
    def dismiss(self, worker: str, index: int) -> None:
        self.both(index % self.partitions, lambda one: one.dismiss(worker))

    @rule(step=st.sampled_from(STEPS_US))
    def pass_time(self, step: int) -> None:
        self.clock.advance(step)

    @rule(limit=st.sampled_from((1, 2, 1_000, 1_000, 1_000)), index=some)
    def tend(self, limit: int, index: int) -> None:
        self.both(index % self.partitions, lambda one: one.tend(limit))

    @rule()
    def lose_workers(self) -> None:
        for step in (LEASE, GRACE):
            self.clock.advance(step)
            for partition in range(self.partitions):
                self.both(partition, lambda one: one.tend(1_000))

    # -- rules: jobs

    @rule(given=st.lists(jobs, min_size=1, max_size=3), reader=some)
    def enqueue(self, given: list[dict[str, Any]], reader: int) -> None:
        made = [self.job(one) for one in given]
        for home in sorted({home_of(new, self.partitions) for new in made}):
            here = [new for new in made if home_of(new, self.partitions) == home]
            reply = self.told(home, reader, lambda one, since, here=here: one.enqueue(here, since))
            for admission in reply.admissions:
                if admission.created:
                    self.homes[admission.id] = home

    @rule(
        worker=st.sampled_from((*WORKERS, "stranger")),
        index=some,
        reader=some,
        limit=st.sampled_from((0, 1, 3)),
        queues=st.sampled_from((QUEUES, QUEUES, QUEUES[:1], ())),
        tasks=st.sampled_from((frozenset(TASKS), frozenset(TASKS), frozenset(TASKS[:1]))),
        ended=st.lists(st.tuples(some, effects), max_size=2),
        full=st.sampled_from((frozenset(), frozenset(), frozenset(TASKS[1:]), frozenset(TASKS))),
        repeats=st.sampled_from((0, 0, 0, 0, 1, 2)),
        received=st.booleans(),
        idle=st.booleans(),
        progresses=st.booleans(),
    )
    def turn(
        self,
        worker: str,
        index: int,
        reader: int,
        limit: int,
        queues: tuple[str, ...],
        tasks: frozenset[str],
        ended: list[tuple[int, dict[str, Any]]],
        full: frozenset[str],
        repeats: int,
        received: bool,
        idle: bool,
        progresses: bool,
    ) -> None:
        partition = index % self.partitions
        at = (worker, partition)
        number = max(1, self.numbers.get(at, 0) + 1 - repeats)
        self.numbers[at] = max(number, self.numbers.get(at, 0))
        there = [attempt for _, home, attempt in self.attempts if home == partition]
        made = tuple(self.settlement(self.pick(there, which), given) for which, given in ended if there)
        settlements = self.reported.setdefault((*at, number), made)  # what repeats a turn reports what it reported
        progress = tuple((attempt.job, attempt.fence, b"half") for attempt in there[-1:]) if progresses else ()

        def take(one: Partition, since: Cursor) -> Coroutine[Any, Any, Any]:
            return one.turn(
                TurnRequest(
                    instance=worker,
                    number=number,
                    since=since,
                    acked=self.acked.get(at, 0),
                    settlements=settlements,
                    queues=queues,
                    tasks=tasks - full,
                    full=full,
                    limit=limit,
                    idle=idle,
                    progress=progress,
                )
            )

        reply = self.told(partition, reader, take)
        if received:
            self.acked[at] = self.numbers[at]
        self.attempts += [(worker, partition, Attempt(claim.job, claim.fence)) for claim in reply.claims]

    @rule(
        worker=st.sampled_from(WORKERS[:2]),
        given=st.lists(common_jobs, min_size=1, max_size=3),
        result=st.sampled_from((None, b"result")),
        puts=st.booleans(),
        keeps=st.integers(0, 1),
        reader=some,
    )
    def work_through(
        self, worker: str, given: list[dict[str, Any]], result: bytes | None, puts: bool, keeps: int, reader: int
    ) -> None:
        """A worker claims what has just come, and all of it succeeds, but for so many: most jobs have such a life."""
        first = self.common
        self.common += len(given)
        self.enqueue([one | {"id": f"common-{first + number}"} for number, one in enumerate(given)], reader)
        partition = self.homes[f"common-{first}"]
        at = (worker, partition)

        def take(settlements: tuple[Settlement, ...], limit: int) -> tuple[Claim, ...]:
            number = self.numbers[at] = self.numbers.get(at, 0) + 1
            asked = TurnRequest(
                instance=worker,
                number=number,
                since=START,
                acked=self.acked.get(at, 0),
                settlements=settlements,
                queues=QUEUES,
                tasks=frozenset(TASKS),
                limit=limit,
            )
            self.reported[(*at, number)] = settlements
            reply = self.told(partition, reader, lambda one, since: one.turn(replace(asked, since=since)))
            self.acked[at] = number
            return tuple(reply.claims)

        claims = take((), 5)
        self.attempts += [(worker, partition, Attempt(claim.job, claim.fence)) for claim in claims]
        ends = [
            Settlement(
                claim.job,
                claim.fence,
                JobEvent.SUCCEED,
                result=result,
                puts=tuple(Put(key, b"v1", 7) for key in claim.writes) if puts else (),
                writes=claim.writes,
            )
            for claim in claims
        ]
        take(tuple(ends[keeps:]), 0)

    @rule(which=some, given=effects, reader=some)
    @precondition(lambda self: self.attempts)
    def settle(self, which: int, given: dict[str, Any], reader: int) -> None:
        worker, partition, attempt = self.pick(self.attempts, which)
        settlement = self.settlement(attempt, given)
        self.told(partition, reader, lambda one, since: one.settle(worker, [settlement], since))

    @rule(
        worker=st.sampled_from(WORKERS),
        index=some,
        behind=st.sampled_from((0, 0, 1)),
        forgets=st.booleans(),
        abandons=st.booleans(),
        names_scopes=st.booleans(),
        ended=st.lists(st.tuples(some, effects), max_size=1),
    )
    def beat(
        self,
        worker: str,
        index: int,
        behind: int,
        forgets: bool,
        abandons: bool,
        names_scopes: bool,
        ended: list[tuple[int, dict[str, Any]]],
    ) -> None:
        partition = index % self.partitions
        mine = [attempt for holder, home, attempt in self.attempts if (holder, home) == (worker, partition)]
        request = HeartbeatRequest(
            instance=worker,
            last_turn=max(0, self.numbers.get((worker, partition), 0) - behind),
            held=tuple(mine[1:] if forgets else mine),
            abandoned=tuple(Abandoned(one.job, one.fence, "its process died") for one in mine[-1:]) if abandons else (),
            scopes=(*mine[forgets:], Attempt(LOCKS[behind], 0)),
            names_scopes=names_scopes,
            settlements=tuple(self.settlement(self.pick(mine, which), given) for which, given in ended if mine),
        )
        self.compare([pulse.beat(partition, request) for pulse in self.pulses])

    @rule(
        queues=few(QUEUES),
        tasks=st.sampled_from((frozenset(TASKS), frozenset(TASKS[:1]))),
        limit=st.sampled_from((1, 2, 100)),
        index=some,
    )
    def peek(self, queues: tuple[str, ...], tasks: frozenset[str], limit: int, index: int) -> None:
        self.both(index % self.partitions, lambda one: one.peek(queues, tasks, limit))

    @rule(id=st.sampled_from(IDS + LOCKS))
    def cancel(self, id: str) -> None:
        self.both(self._home(id), lambda one: one.cancel(id, "by hand"))

    @rule(id=st.sampled_from(IDS))
    def revive(self, id: str) -> None:
        self.both(self._home(id), lambda one: one.revive(id))

    @rule(
        states=few(tuple(JobState), 3), queue=st.sampled_from(("", *QUEUES)), limit=st.sampled_from((1, 9)), index=some
    )
    def purge(self, states: tuple[JobState, ...], queue: str, limit: int, index: int) -> None:
        self.both(index % self.partitions, lambda one: one.purge(states, queue, limit))

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans(), index=some)
    def pause(self, queue: str, paused: bool, index: int) -> None:
        self.both(index % self.partitions, lambda one: one.pause(queue, paused=paused))

    def _home(self, id: str) -> int:
        return self.homes.get(id, partition_of(id, self.partitions))

    # -- rules: scopes and locks

    @rule(worker=st.sampled_from(WORKERS), id=st.sampled_from(SCOPES), writes=few(WRITTEN), reader=some)
    def open_scope(self, worker: str, id: str, writes: tuple[str, ...], reader: int) -> None:
        asked = self.job({"id": id, "writes": writes, "result_ttl_us": LEASE}, JobKind.WRITING)
        home = home_of(asked, self.partitions)
        grant = self.told(home, reader, lambda one, since: one.open_scope(worker, asked, since))
        if grant.fence:
            self.attempts.append((worker, home, Attempt(id, grant.fence)))

    @rule(worker=st.sampled_from(WORKERS), id=st.sampled_from(LOCKS), line=st.sampled_from(LINES[2:]), reader=some)
    def acquire(self, worker: str, id: str, line: str, reader: int) -> None:
        asked = self.job({"id": id, "line": line}, JobKind.LOCK)
        home = home_of(asked, self.partitions)
        grant = self.told(home, reader, lambda one, since: one.acquire(worker, asked, since))
        if not grant.refusal:
            self.homes[id] = home
        if grant.fence:
            self.attempts.append((worker, home, Attempt(id, grant.fence)))

    # -- rules: cache

    @rule(
        key=st.sampled_from(KEYS),
        family=st.sampled_from(FAMILIES),
        wants=st.booleans(),
        sight=st.sampled_from(("fresh", "distrusts", "renews")),
        reader=some,
    )
    def read(self, key: str, family: str, wants: bool, sight: str, reader: int) -> None:
        stamp = self.stamps[-1]
        request = ReadRequest(
            key,
            family,
            LOAD if wants else 0,
            distrust=stamp if sight == "distrusts" else 0,
            renews=stamp if sight == "renews" else 0,
        )
        reply = self.told(partition_of(key, self.partitions), reader, lambda one, since: one.read([request], since))
        look = reply.looks[0]
        if isinstance(look, Miss):
            self.tokens.append((key, look.token))
        elif isinstance(look, Hit):
            self.stamps.append(look.entry.stamp)
            if look.token:
                self.tokens.append((key, look.token))

    @rule(which=some, put=puts, reader=some)
    @precondition(lambda self: self.tokens)
    def fill(self, which: int, put: Put, reader: int) -> None:
        key, token = self.pick(self.tokens, which)
        filled = Fill(Put(key, *(getattr(put, name) for name in put.__struct_fields__[1:])), token)
        self.told(partition_of(key, self.partitions), reader, lambda one, since: one.fill([filled], since))

    @rule(which=some, abandons=st.booleans())
    @precondition(lambda self: self.tokens)
    def keep_or_give_back_a_token(self, which: int, abandons: bool) -> None:
        held = self.pick(self.tokens, which)
        home = partition_of(held[0], self.partitions)
        if abandons:
            self.both(home, lambda one: one.abandon_fills([held]))
        else:
            self.both(home, lambda one: one.extend_fills([held], LOAD))

    @rule(names=names, index=some, reader=some)
    def invalidate(self, names: Invalidation, index: int, reader: int) -> None:
        self.told(index % self.partitions, reader, lambda one, since: one.invalidate(names, since))

    @rule(which=some, keys=few(WRITTEN), index=some, reader=some)
    @precondition(lambda self: self.attempts)
    def plant(self, which: int, keys: tuple[str, ...], index: int, reader: int) -> None:
        worker, home, attempt = self.pick(self.attempts, which)
        owner, partition = Owner(home, attempt.job, attempt.fence), index % self.partitions
        here = [key for key in self.keys_here(keys) if partition_of(key, self.partitions) == partition]
        self.told(partition, reader, lambda one, since: one.plant(worker, owner, here, since))

    # -- rules: other partitions

    @rule(index=some, most=st.sampled_from((1, 100)), times=st.sampled_from((1, 1, 2)))
    def deliver(self, index: int, most: int, times: int) -> None:
        partition = index % self.partitions
        carried: tuple[AnyEffect, ...] = self.both(partition, lambda one: one.outbox(most)).effects
        for effect in carried:
            for _ in range(times):
                self.both(effect.to, lambda one, effect=effect: one.accept([effect]))
        self.both(partition, lambda one: one.delivered([effect.id for effect in carried]))

    @rule(
        name=st.sampled_from(UNIQUES[2:]),
        id=st.sampled_from(ELSEWHERE),
        replacing=st.sampled_from(("", *ELSEWHERE)),
        index=some,
    )
    def reserve(self, name: str, id: str, replacing: str, index: int) -> None:
        home = index % self.partitions
        self.both(partition_of(name, self.partitions), lambda one: one.reserve(name, id, home, replacing))

    @rule()
    def ask_for_fates(self) -> None:
        for partition in range(self.partitions):
            asked = [attempt for _, _, attempt in self.attempts[-4:]]
            self.both(partition, lambda one, asked=asked: one.fates(asked))

    # -- rules: readers

    @rule(index=some, reader=some, lost=st.booleans())
    def follow(self, index: int, reader: int, lost: bool) -> None:
        partition = index % self.partitions
        if lost:
            for cursors in self.readers[reader % len(self.readers)]:
                at = cursors[partition]
                cursors[partition] = Cursor(at.position, at.event_id ^ 1)
        self.told(partition, reader, lambda one, since: one.events_since(since))

    @rule()
    @precondition(lambda self: len(self.readers) < 4)
    def leave_a_reader_behind(self) -> None:
        self.readers.append([list(cursors) for cursors in self.readers[0]])

    # -- inspection

    @rule(
        states=few(tuple(JobState), 2),
        queue=st.sampled_from(("", *QUEUES)),
        task=st.sampled_from(("", *TASKS)),
        index=some,
    )
    def list_jobs(self, states: tuple[JobState, ...], queue: str, task: str, index: int) -> None:
        partition = index % self.partitions
        cursors = [0 for _ in self.stores]  # each store's own: they count jobs and joinings as they like
        while True:
            pages = [
                self.run(
                    store.partitions[partition].jobs(
                        JobFilter(states=states, queue=queue, task=task, before=before, limit=2)
                    )
                )
                for store, before in zip(self.stores, cursors, strict=True)
            ]
            self.compare([page.jobs for page in pages])
            cursors = [page.cursor for page in pages]
            self.compare([bool(cursor) for cursor in cursors])
            if not cursors[0]:
                break

    def inspect(self) -> None:
        """Compare everything that can be seen."""
        if not self.pulses:
            return
        for partition in range(self.partitions):
            self.both(partition, lambda one: one.queues())
            self.both(partition, lambda one: one.instances())
            self.both(partition, lambda one: one.outbox(1_000))
            for key in self.keys_here(WRITTEN):
                self.both(partition, lambda one, key=key: one.intents(key))
            for id in SCOPES + LOCKS:
                self.told(partition, 0, lambda one, since, id=id: one.job(id, since))

    @invariant()
    def all_jobs_and_counts_agree(self) -> None:
        for partition in range(self.partitions if self.pulses else 0):
            self.both(partition, lambda one: one.jobs(JobFilter(limit=100)))
            self.both(partition, lambda one: one.queues())
            self.both(partition, lambda one: one.cache_stats())

    @invariant()
    def the_memory_store_does_not_contradict_itself(self) -> None:
        for partition in self.stores[0].partitions:
            assert isinstance(partition, MemoryPartition)
            invariants.check(partition)
            invariants.check_openings(partition)

    @invariant()
    def the_counter_of_fences_only_grows(self) -> None:
        counters = [one._counter for one in self.stores[0].partitions if isinstance(one, MemoryPartition)]
        assert sum(counters) >= self.fence
        self.fence = sum(counters)


class HistoriesOfTwoPartitions(Histories):
    """Effects cross from one to the other."""

    partitions = 2


class MemoryAlone(Histories):
    """The reference against itself: many more histories in the same time."""

    partitions = 2
    kinds: ClassVar[tuple[str, ...]] = ("memory",)


TestMemoryAlone = MemoryAlone.TestCase
TestOnePartition = Histories.TestCase
TestTwoPartitions = HistoriesOfTwoPartitions.TestCase
TestMemoryAlone.settings = TestOnePartition.settings = TestTwoPartitions.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=40
)
