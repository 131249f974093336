"""The SQLite store does, step by step, what the memory store does: replies, refusals, positions, claims, rings."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock import SECOND, VirtualClock

from selaras._contracts.partition import (
    Fill,
    HeartbeatRequest,
    Instance,
    Invalidation,
    JobFilter,
    Owner,
    ReadRequest,
    TurnRequest,
)
from selaras._core.cache.entry import Miss
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
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START, Cursor
from selaras._stores.memory import MemoryStore
from selaras._stores.sqlite.partition import SqlitePartition
from selaras._stores.sqlite.steps import Steps
from selaras._stores.sqlite.store import SqliteStore

IDS = [f"job-{n}" for n in range(14)]
KEYS = [f"key-{n}" for n in range(4)]
LINES = ["", "", "line-a", "line-b"]
QUEUES = ["default", "mail"]
TASKS = ["work", "send", "rare"]
TAGS = ["red", "blue"]
STEPS = int(os.environ.get("SELARAS_AGREE_STEPS", "250"))
SEEDS = range(int(os.environ.get("SELARAS_AGREE_SEEDS", "6")))


_STATE = "coalesce(e.state, iif(r.number IS NULL, j.state, -1))"
_JOBS = "jobs AS j LEFT JOIN runs AS r USING (number) LEFT JOIN ends AS e USING (number)"
_ALL_BUT = "SELECT number FROM {} WHERE number NOT IN (SELECT number FROM jobs)"
SOUND = {
    "an attempt of no job": _ALL_BUT.format("runs"),
    "an end of no job": _ALL_BUT.format("ends"),
    "no job may be claimed": _ALL_BUT.format("ready"),
    "no job stands in line": _ALL_BUT.format("members"),
    "a job that has ended runs": "SELECT number FROM runs JOIN ends USING (number)",
    "a job may be claimed twice": "SELECT number FROM ready GROUP BY number HAVING count(*) > 1",
    "a job stands in line twice": "SELECT number FROM members GROUP BY number HAVING count(*) > 1",
    "one that runs or has ended may be claimed": "SELECT number FROM ready JOIN ends USING (number)"
    " UNION SELECT number FROM ready JOIN runs USING (number)",
    "one that runs or has ended waits in line": "SELECT number FROM members JOIN ends USING (number)"
    " UNION SELECT number FROM members JOIN runs USING (number)",
    "a head that does not stand in its line": "SELECT name FROM lines WHERE head <> ''"
    " AND head NOT IN (SELECT id FROM members WHERE line = name)",
    "a line of nobody": "SELECT name FROM lines WHERE holder = '' AND name NOT IN (SELECT line FROM members)",
    "fewer or more than are counted": "SELECT queue, state, sum(jobs) FROM (SELECT * FROM counts UNION ALL"
    f" SELECT j.queue, {_STATE} AS s, -1 FROM {_JOBS} WHERE j.kind = 0 AND r.number IS NULL"
    " AND j.number NOT IN (SELECT number FROM ready)) GROUP BY queue, state HAVING sum(jobs) <> 0",
}


class RolledBack(Exception):
    """The disk was full, say."""


class Pair:
    """Both stores, told the same things; the file by any of several processes, as it were, each worker in one of them."""

    def __init__(
        self, memory: MemoryStore, opened: Sequence[SqliteStore], clock: VirtualClock, dice: Random, entropy: Random
    ) -> None:
        self.memory, self.opened = memory, opened
        self.entropy = entropy  # of the file
        self.clock = clock
        self.dice = dice
        self.cursors = [START] * len(memory.partitions)
        self.instances = ["one", "two"]
        self.turns = dict.fromkeys(self.instances, 0)
        self.claims: list[tuple[int, str, Claim]] = []
        self.tokens: list[tuple[int, str, int]] = []
        self.requests: list[tuple[int, TurnRequest]] = []
        self.rung: tuple[list[str], list[str]] = ([], [])
        self.said: list[str] = []

    async def ask(self, at: int, verb: str, *args: Any, **options: Any) -> Any:
        self.said.append(f"{at} {verb} {args} {options}")
        speaker = self.speaker(verb, args).partitions[at]
        if self.dice.random() < 0.1:
            with suppress(RolledBack), self.rolled_back(speaker):
                await getattr(speaker, verb)(*args, **options)
        replies = [
            await getattr(partition, verb)(*args, **options) for partition in (self.memory.partitions[at], speaker)
        ]
        if verb == "tend" and not replies[0].again:  # memory frees at once what the file frees in pieces
            replies[1] = replace(replies[1], again=False)
        assert replies[0] == replies[1], "\n".join([*self.said[-3:], f"memory {replies[0]}", f"sqlite {replies[1]}"])
        assert self.rung[0] == self.rung[1], "\n".join([*self.said[-3:], f"{self.rung}"])
        return replies[0]

    @contextmanager
    def rolled_back(self, partition: SqlitePartition) -> Iterator[None]:
        """Let what is asked meanwhile be done, and not be committed: then it has not happened."""
        run, before = partition._run, self.entropy.getstate()

        async def undone(verb: Callable[[Steps], Any], *, heavy: bool = False) -> Any:
            def fail(steps: Steps) -> None:
                verb(steps)
                raise RolledBack

            await run(fail, heavy=heavy)

        partition._run = undone
        try:
            yield
        finally:
            partition._run = run
            self.entropy.setstate(before)

    def speaker(self, verb: str, args: tuple[Any, ...]) -> SqliteStore:
        """Who asks: a turn comes from the process of its worker."""
        if verb == "turn":
            return self.opened[self.instances.index(args[0].instance) % len(self.opened)]
        return self.dice.choice(self.opened)

    def cursor(self, at: int) -> Cursor:
        return self.cursors[at] if self.dice.random() < 0.9 else START

    def new_job(self) -> NewJob:
        dice = self.dice
        options: dict[str, Any] = {}
        if dice.random() < 0.3:
            options["delay_us"] = dice.choice([0, SECOND, 20 * SECOND])
        if dice.random() < 0.2:
            options["expires_in_us"] = dice.choice([SECOND, 30 * SECOND])
        if dice.random() < 0.3:
            options["writes"] = tuple(dice.sample(KEYS, dice.choice([1, 1, 2])))
            options["wants_preimage"] = dice.random() < 0.5
        if dice.random() < 0.1:
            options["serves"] = (dice.choice(KEYS),)
        if dice.random() < 0.2:
            options["unique"] = dice.choice(["u1", "u2"])
            options["unique_until"] = dice.choice(list(UniqueUntil))
            options["on_conflict"] = dice.choice(list(OnConflict))
        if dice.random() < 0.2:
            home = dice.randrange(len(self.cursors))
            edges = [edge for edge in Edge if edge is not Edge.SCOPE]
            options["parents"] = tuple(
                Parent(job, dice.choice(edges), home) for job in dice.sample(IDS, dice.choice([1, 2]))
            )
        if dice.random() < 0.1:
            options["positions"] = ((0, dice.randrange(9)),)
        return NewJob(
            id=dice.choice(IDS),
            task=dice.choice(TASKS),
            payload=dice.choice([b"", b"p"]),
            queue=dice.choice(QUEUES),
            priority=dice.choice([0, 0, 0, 5, -1]),
            line=dice.choice(LINES),
            ordered=dice.random() < 0.2,
            result_ttl_us=dice.choice([0, SECOND, 3_600 * SECOND]),
            failed_ttl_us=dice.choice([SECOND, 3_600 * SECOND]),
            max_lost=dice.choice([1, 3]),
            **options,
        )

    def put(self) -> Put:
        dice = self.dice
        return Put(
            dice.choice(KEYS),
            dice.choice([b"v", b"w"]),
            dice.choice([1, (1 << 64) - 1]),
            expires_in_us=dice.choice([0, SECOND, 60 * SECOND]),
            tags=tuple(dice.sample(TAGS, dice.choice([0, 0, 1, 2]))),
            family=dice.choice(["", "product"]),
            version=dice.choice([None, None, 3, 5]),
        )

    def settlement(self, claim: Claim) -> Settlement:
        dice = self.dice
        events = [JobEvent.SUCCEED] * 4 + [event for event in JobEvent if event is not JobEvent.HOLD]
        options: dict[str, Any] = {}
        if dice.random() < 0.4:
            written = [claim.writes[0]] if claim.writes else []
            options["puts"] = tuple({put.key: put for put in (self.put(), self.put())}.values())
            options["puts"] += tuple(
                Put(key, b"own", 7) for key in written if key not in [p.key for p in options["puts"]]
            )
        if dice.random() < 0.1:
            options["keys"] = (dice.choice(KEYS),)
        if dice.random() < 0.1:
            options["tags"] = (dice.choice(TAGS),)
        if dice.random() < 0.05:
            options["families"] = ("product",)
        if dice.random() < 0.1:
            options["versions"] = ((dice.choice(KEYS), dice.choice([3, 4])),)
        if dice.random() < 0.05:
            options["closes"] = ((dice.choice(KEYS), SECOND),)
        if dice.random() < 0.2:
            options["children"] = (self.new_job(),)
        if dice.random() < 0.1:
            options["planted"] = (dice.choice(KEYS),)
        event = dice.choice(events)
        return Settlement(
            claim.job,
            claim.fence if dice.random() < 0.95 else claim.fence - 1,
            event,
            result=dice.choice([None, b"r"]),
            error=dice.choice([None, b"e"]),
            reason=dice.choice(["", "why"]),
            delay_us=dice.choice([0, SECOND]) if event in (JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.GIVE_BACK) else 0,
            started=dice.random() < 0.7,
            unsure=dice.random() < 0.3,
            serves=tuple(dice.sample(KEYS, dice.choice([0, 0, 1]))),
            writes=claim.writes,
            **options,
        )

    async def step(self) -> None:
        dice, at = self.dice, self.dice.randrange(len(self.cursors))
        instance = dice.choice(self.instances)
        match dice.choice(
            ["enqueue"] * 4 + ["turn"] * 6 + ["read"] * 3 + ["fill"] * 2 + ["time"] * 2 + ["tend"] * 2
            + ["again", "settle", "invalidate", "plant", "scope", "beat", "cancel", "revive", "purge", "pause", "enroll",
               "dismiss", "relay", "tokens", "reserve", "fates", "forget", "undone"]
        ):  # fmt: skip
            case "enqueue":
                jobs = [self.new_job() for _ in range(dice.choice([1, 1, 3]))]
                if dice.random() < 0.4:
                    jobs += [NewJob(id=f"plain-{dice.randrange(30)}", task="work") for _ in range(4)]
                reply = await self.ask(at, "enqueue", jobs, self.cursor(at))
                self.cursors[at] = reply.news.tail
            case "turn":
                mine = [one for one in self.claims if one[:2] == (at, instance)]
                ended = dice.sample(mine, dice.randint(0, len(mine)))
                self.claims = [one for one in self.claims if one not in ended or dice.random() < 0.1]
                self.turns[instance] += 1
                request = TurnRequest(
                    instance=instance,
                    number=self.turns[instance],
                    acked=self.turns[instance] - dice.choice([1, 1, 2]),
                    since=self.cursor(at),
                    settlements=tuple(
                        self.settlement(claim)
                        if dice.random() < 0.6
                        else Settlement(claim.job, claim.fence, JobEvent.SUCCEED, result=b"r", writes=claim.writes)
                        for _, _, claim in ended
                    ),
                    queues=dice.choice([("default",), ("default", "mail"), ()]),
                    tasks=frozenset(dice.sample(TASKS, dice.choice([1, 2, 3]))),
                    limit=dice.choice([0, 1, 5]),
                    idle=dice.random() < 0.5,
                    progress=tuple((claim.job, claim.fence, b"half") for _, _, claim in mine[:1]),
                )
                self.requests.append((at, request))
                reply = await self.ask(at, "turn", request)
                self.cursors[at] = reply.news.tail
                self.claims += [(at, instance, claim) for claim in reply.claims]
            case "again" if self.requests:
                there, request = self.requests[-3:][0]
                await self.ask(there, "turn", request)
            case "settle":
                mine = [one for one in self.claims if one[:2] == (at, instance)][:2]
                await self.ask(
                    at, "settle", instance, [self.settlement(claim) for _, _, claim in mine], self.cursor(at)
                )
            case "undone":
                ends = [
                    Settlement(claim.job, claim.fence, JobEvent.SUCCEED, writes=claim.writes)
                    for there, whose, claim in self.claims
                    if (there, whose) == (at, instance)
                ]
                partition = dice.choice(self.opened).partitions[at]
                with suppress(RolledBack), self.rolled_back(partition):
                    await partition.settle(instance, ends, self.cursor(at))
            case "read":
                lease_us = dice.choice([0, SECOND, 30 * SECOND])
                wanted = [ReadRequest(key, "product", lease_us) for key in dice.choices(KEYS, k=dice.choice([1, 1, 3]))]
                reply = await self.ask(at, "read", wanted, self.cursor(at))
                for one, look in zip(wanted, reply.looks, strict=True):
                    if isinstance(look, Miss):
                        self.tokens.append((at, one.key, look.token))
                    elif dice.random() < 0.1 and hasattr(look, "entry"):
                        await self.ask(at, "read", [ReadRequest(one.key, "", lease_us, look.entry.stamp)], START)
            case "fill" if self.tokens:
                there, key, token = dice.choice(self.tokens[-4:])
                made = self.put()
                put = Put(key, made.value, made.checksum, made.expires_in_us, made.tags, made.family, made.version)
                await self.ask(there, "fill", [Fill(put, token)], self.cursor(there))
            case "tokens" if self.tokens:
                there, key, token = dice.choice(self.tokens[-4:])
                if dice.random() < 0.5:
                    await self.ask(there, "extend_fills", [(key, token)], 10 * SECOND)
                else:
                    await self.ask(there, "abandon_fills", [(key, token)])
            case "invalidate":
                names = Invalidation(
                    tuple(dice.sample(KEYS, dice.choice([0, 1, 2]))),
                    tuple(dice.sample(TAGS, dice.choice([0, 1]))),
                    dice.choice([(), ("product",)]),
                    dice.choice([(), ((KEYS[0], 4),)]),
                    dice.choice([(), ((KEYS[1], SECOND),)]),
                )
                self.cursors[at] = (await self.ask(at, "invalidate", names, self.cursor(at))).tail
            case "plant" if self.claims:
                there, whose, claim = dice.choice(self.claims)
                owner = Owner(there, claim.job, claim.fence)
                await self.ask(at, "plant", whose, owner, [dice.choice(KEYS)], self.cursor(at))
            case "scope":
                kind = dice.choice([JobKind.LOCK, JobKind.WRITING])
                line = dice.choice(LINES[2:]) if kind is JobKind.LOCK else ""
                writes = (dice.choice(KEYS),) if kind is JobKind.WRITING else ()
                scope = NewJob(id=f"scope-{dice.randrange(4)}", task="", kind=kind, line=line, writes=writes)
                grant = await self.ask(at, "acquire", instance, scope, self.cursor(at))
                if grant.fence:
                    self.claims.append((at, instance, Claim(scope.id, grant.fence, 1, "", b"", writes=writes)))
            case "time":
                self.clock.advance(dice.choice([1, SECOND, 3 * SECOND, 40 * SECOND]))
            case "tend":
                await self.ask(at, "tend", dice.choice([2, 100]))
            case "beat":
                kept = tuple(
                    Attempt(claim.job, claim.fence)
                    for there, whose, claim in self.claims
                    if (there, whose) == (at, instance) and dice.random() < 0.8
                )
                gone = tuple(Abandoned(one.job, one.fence) for one in kept[:1]) if dice.random() < 0.2 else ()
                beat = HeartbeatRequest(
                    instance=instance,
                    last_turn=self.turns[instance],
                    held=kept,
                    abandoned=gone,
                    scopes=(*kept, Attempt("scope-0", 0)),
                    names_scopes=dice.random() < 0.5,
                )
                self.said.append(f"{at} beat {beat}")
                replies = [store.pulse().beat(at, beat) for store in (self.memory, self.dice.choice(self.opened))]
                assert replies[0] == replies[1], "\n".join([*self.said[-3:], *map(repr, replies)])
            case "cancel":
                await self.ask(at, "cancel", dice.choice(IDS), "by hand")
            case "revive":
                await self.ask(at, "revive", dice.choice(IDS))
            case "purge":
                states = dice.sample(list(JobState), 3)
                await self.ask(at, "purge", states, dice.choice(["", *QUEUES]), dice.choice([1, 3]))
            case "pause":
                await self.ask(at, "pause", dice.choice(QUEUES), paused=dice.random() < 0.4)
            case "enroll":
                queues = dice.choice([("default",), ("default", "mail"), ("mail",)])
                await self.ask(at, "enroll", Instance(id=instance, lease_us=15 * SECOND, queues=queues, bell=instance))
            case "dismiss" if dice.random() < 0.3:
                await self.ask(at, "dismiss", instance)
            case "relay":
                effects = (await self.ask(at, "outbox", 5)).effects
                for effect in effects:
                    await self.ask(effect.to, "accept", [effect])
                await self.ask(at, "delivered", [effect.id for effect in effects])
            case "reserve":
                await self.ask(at, "reserve", dice.choice(["u1", "u3"]), dice.choice(IDS), 0, dice.choice(["", IDS[0]]))
            case "fates":
                await self.ask(at, "fates", [Attempt(claim.job, claim.fence) for _, _, claim in self.claims])
            case "forget" if dice.random() < 0.1:
                for store in (self.memory, self.opened[0]):
                    store.partitions[at].lose_memory(events=2)

    async def look_around(self) -> None:
        for at in range(len(self.cursors)):
            await self.ask(at, "jobs", JobFilter(limit=1_000))
            await self.ask(at, "jobs", JobFilter(limit=3, queue="mail"))
            await self.ask(at, "queues")
            await self.ask(at, "instances")
            await self.ask(at, "cache_stats")
            await self.ask(at, "events_since", self.cursor(at))
            for key in KEYS:
                await self.ask(at, "intents", key)
            for id in (*IDS, "scope-0", "plain-1"):
                await self.ask(at, "job", id, self.cursor(at))
            await self.ask(at, "outbox", 1_000)


@pytest.mark.parametrize(("partitions", "processes"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("seed", SEEDS)
async def test_any_sequence_of_verbs_gives_the_same_in_both_stores(
    folder: Path, seed: int, partitions: int, processes: int
) -> None:
    clock = VirtualClock()
    memory = MemoryStore(clock, partitions=partitions, entropy=Random(seed))
    entropy = Random(seed)
    opened = [SqliteStore(folder / "agree.db", clock, partitions=partitions, entropy=entropy) for _ in range(processes)]
    pair = Pair(memory, opened, clock, Random(seed), entropy)
    for one in memory.partitions:
        one._ring = pair.rung[0].append
    for sqlite in opened:
        await sqlite.open()
        for other in sqlite.partitions:
            other._writer._ring = pair.rung[1].append
        sqlite._ringer.ring = lambda _, address: pair.rung[1].append(address)  # type: ignore[method-assign, assignment]
    for at in range(partitions):
        for instance in pair.instances:
            await pair.ask(
                at, "enroll", Instance(id=instance, lease_us=15 * SECOND, queues=("default", "mail"), bell=instance)
            )

    try:
        for number in range(STEPS):
            await pair.step()
            if number % 25 == 0:
                await pair.look_around()
                look_into(folder)
        await pair.look_around()
    finally:
        for sqlite in opened:
            await sqlite.close()
    look_into(folder)


def look_into(folder: Path) -> None:
    """Hold the tables against each other: nothing stands in one that another one knows nothing of."""
    for path in folder.glob("*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as con:
            for what, rows in SOUND.items():
                assert con.execute(rows).fetchall() == [], what
