"""A store, a clock and workers, in the words of a test.

Unless a test says otherwise everything happens in partition 0, so that the same test runs on a store of one
partition, of four and of sixteen: `local` makes names that live there, `remote` names that live in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.clock import SECOND, VirtualClock

from selaras._contracts.limits import reap_grace_us
from selaras._contracts.partition import (
    Fill,
    HeartbeatReply,
    HeartbeatRequest,
    Instance,
    Invalidation,
    Partition,
    ReadRequest,
    Tended,
    TurnReply,
    TurnRequest,
)
from selaras._contracts.store import Pulse, Store
from selaras._core.cache.entry import Entry, Hit, Look, Miss
from selaras._core.jobs.job import (
    Admission,
    Attempt,
    Claim,
    Edge,
    JobKind,
    JobRecord,
    NewJob,
    Parent,
    Put,
    Settled,
    Settlement,
)
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START, Cursor, News
from selaras._core.routing import partition_of

WIDEST = 16  # what lives in partition 1 of sixteen lives in partition 1 of four, too
LEASE = 15 * SECOND
GRACE = reap_grace_us(LEASE)
LOAD = 5 * SECOND  # how long a load may take


def local(name: str, home: int = 0) -> str:
    """Make a name that lives in partition `home`, and in the only one of one."""
    candidate, number = name, 0
    while partition_of(candidate, WIDEST) != home:
        candidate, number = f"{name}.{number}", number + 1
    return candidate


def remote(name: str, home: int = 1) -> str:
    """Make a name that lives in another partition, where there are several."""
    return local(name, home)


A, B, C, D, E = (local(name) for name in ("job-a", "job-b", "job-c", "job-d", "job-e"))
K, K2, K3 = (local(name) for name in ("product(42)", "product(43)", "product(44)"))
LINE, LINE2 = local("line-1"), local("line-2")


def job(id: str, /, **options: Any) -> NewJob:
    """Make a job of the task `work`."""
    return NewJob(id=id, **{"task": "work", **options})


def after(parent: str, edge: Edge = Edge.AFTER, home: int = 0) -> tuple[Parent, ...]:
    return (Parent(parent, edge, home),)


def put(key: str, value: bytes = b"v1", **options: Any) -> Put:
    return Put(key, value, hash(value) & 0xFFFF, **options)


@dataclass
class World:
    """A store under a virtual clock."""

    store: Store
    clock: VirtualClock
    _pulse: Pulse | None = None
    _workers: int = 0

    @property
    def home(self) -> Partition:
        return self.store.partitions[0]

    @property
    def pulse(self) -> Pulse:
        self._pulse = self._pulse or self.store.pulse()
        return self._pulse

    async def begin(self) -> None:
        """Let each log begin with an event, so that its tail is a cursor that news can be told from."""
        for partition in self.store.partitions:
            await partition.invalidate(Invalidation(("the beginning",)), START)

    def close(self) -> None:
        if self._pulse:
            self._pulse.close()

    # -- jobs

    async def enqueue(self, *jobs: NewJob) -> tuple[Admission, ...]:
        return (await self.home.enqueue(jobs, START)).admissions

    async def enqueue_one(self, id: str, /, **options: Any) -> Admission:
        (admission,) = await self.enqueue(job(id, **options))
        return admission

    async def worker(self, id: str = "", **options: Any) -> Worker:
        """Enroll a process instance in every partition."""
        self._workers += 1
        given: dict[str, Any] = {"lease_us": LEASE, "queues": ("default",), "tasks": ("work",), "bell": ""} | options
        instance = Instance(id=id or f"worker-{self._workers}", **given)
        for partition in self.store.partitions:
            await partition.enroll(instance)
        return Worker(self, instance.id, queues=instance.queues, tasks=frozenset(instance.tasks))

    async def record(self, id: str) -> JobRecord:
        record, _ = await self.home.job(id, START)
        assert record is not None, f"no job {id}"
        return record

    async def knows(self, id: str) -> bool:
        record, _ = await self.home.job(id, START)
        return record is not None

    async def state(self, id: str) -> JobState:
        return (await self.record(id)).state

    async def states(self, *ids: str) -> list[JobState]:
        return [await self.state(one) for one in ids]

    async def hold(self, worker: Worker, id: str, line: str, **options: Any) -> int:
        """Ask for a lock once; returns its fence, or 0."""
        asked = NewJob(id=id, task="lock", kind=JobKind.LOCK, line=line, **options)
        return (await self.home.acquire(worker.id, asked, START)).fence

    async def scope(self, worker: Worker, id: str, *writes: str) -> Attempt:
        """Begin a writing() scope."""
        asked = NewJob(id=id, task="writing", kind=JobKind.WRITING, writes=writes)
        grant = await self.home.open_scope(worker.id, asked, START)
        assert grant.fence
        return Attempt(id, grant.fence)

    # -- cache

    async def look(self, key: str, *, lease_us: int = LOAD, distrust: int = 0, renews: int = 0) -> Look:
        reply = await self.home.read([ReadRequest(key, "", lease_us, distrust, renews)], START)
        (look,) = reply.looks
        return look

    async def hit(self, key: str) -> Entry:
        """Look at a key where an entry stands."""
        look = await self.look(key, lease_us=0)
        assert isinstance(look, Hit), look
        return look.entry

    async def renew(self, key: str, stamp: int) -> int:
        """Ask to load an entry anew; returns the token."""
        look = await self.look(key, renews=stamp)
        assert isinstance(look, Hit), look
        assert look.token, look
        return look.token

    async def miss(self, key: str, *, lease_us: int = LOAD) -> int:
        """Look at a key where nothing stands; returns the token."""
        look = await self.look(key, lease_us=lease_us)
        assert isinstance(look, Miss), look
        return look.token

    async def value(self, key: str) -> bytes | None:
        """Return what a reader would be served from the shared tier."""
        look = await self.look(key, lease_us=0)
        return look.entry.value if isinstance(look, Hit) else None

    async def fill(self, token: int, filled: Put) -> bool:
        reply = await self.home.fill([Fill(filled, token)], START)
        return reply.stored[0] is not None

    async def cache(self, key: str, value: bytes = b"v0", **options: Any) -> None:
        """Store a value as a reader does: a miss, a load, a fill."""
        assert await self.fill(await self.miss(key), put(key, value, **options))

    async def invalidate(self, *keys: str, **names: Any) -> News:
        return await self.home.invalidate(Invalidation(keys, **names), START)

    async def tail(self) -> Cursor:
        return (await self.home.events_since(START)).tail

    async def events(self, since: Cursor) -> list[str]:
        """Return the names voided after `since`, in order."""
        news = await self.home.events_since(since)
        assert not news.reset
        return [event.name for event in news.events]

    # -- housekeeping

    async def tend(self, limit: int = 1_000) -> Tended:
        return await self.home.tend(limit)

    async def pass_time(self, us: int) -> Tended:
        """Let time pass, then tend."""
        self.clock.advance(us)
        return await self.tend()

    async def lose_workers(self, lease_us: int = LEASE) -> Tended:
        """Let every lease run out and be looked at twice."""
        await self.pass_time(lease_us)
        return await self.pass_time(reap_grace_us(lease_us))


@dataclass
class Worker:
    """A process instance: it numbers its turns."""

    world: World
    id: str
    queues: tuple[str, ...] = ("default",)
    tasks: frozenset[str] = frozenset({"work"})
    number: int = 0
    acked: int = 0
    cursor: Cursor = START

    async def turn(self, *settlements: Settlement, partition: int = 0, **options: Any) -> TurnReply:
        """Take a turn; its reply is received."""
        reply = await self.send(*settlements, partition=partition, **options)
        self.acked = self.number
        if partition == 0:
            self.cursor = reply.news.tail
        return reply

    async def send(self, *settlements: Settlement, partition: int = 0, **options: Any) -> TurnReply:
        """Take a turn without acknowledging it later."""
        self.number += 1
        return await self.repeat(self.number, *settlements, partition=partition, **options)

    async def repeat(self, number: int, *settlements: Settlement, partition: int = 0, **options: Any) -> TurnReply:
        request = TurnRequest(
            instance=self.id,
            number=number,
            settlements=settlements,
            **{
                "since": self.cursor,
                "acked": self.acked,
                "queues": self.queues,
                "tasks": self.tasks,
                "limit": 100,
                **options,
            },
        )
        return await self.world.store.partitions[partition].turn(request)

    async def claims(self, limit: int = 100, **options: Any) -> tuple[Claim, ...]:
        return (await self.turn(limit=limit, **options)).claims

    async def claim(self, **options: Any) -> Claim:
        """Claim the one next job."""
        claims = await self.claims(limit=1, **options)
        assert claims, "nothing to claim"
        return claims[0]

    async def end(self, claim: Claim | Attempt, event: JobEvent = JobEvent.SUCCEED, **effects: Any) -> Settled:
        """Settle an attempt, and claim nothing."""
        reply = await self.turn(Settlement(claim.job, claim.fence, event, **effects), queues=(), limit=0)
        (settled,) = reply.settled
        return settled

    async def run(self, event: JobEvent = JobEvent.SUCCEED, **effects: Any) -> Settled:
        """Claim the next job and settle it."""
        return await self.end(await self.claim(), event, **effects)

    def beat(self, *held: Claim | Attempt, partition: int = 0, **options: Any) -> HeartbeatReply:
        request = HeartbeatRequest(
            instance=self.id,
            held=tuple(Attempt(one.job, one.fence) for one in held),
            **{"last_turn": self.number, **options},
        )
        return self.world.pulse.beat(partition, request)
