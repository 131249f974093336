"""The verbs of a partition: each is one script, in one trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from selaras._contracts.partition import (
    AnyEffect,
    CacheStats,
    Enqueued,
    Fill,
    FillReply,
    Grant,
    HeartbeatReply,
    HeartbeatRequest,
    Instance,
    Invalidation,
    JobFilter,
    JobPage,
    Outbox,
    Owner,
    Planted,
    QueueStats,
    ReadReply,
    ReadRequest,
    Reservation,
    SettleReply,
    Tended,
    TurnReply,
    TurnRequest,
    Waiting,
)
from selaras._core.cache.entry import Entry, Intent
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import (
    Admission,
    Attempt,
    Claim,
    Fate,
    JobRecord,
    NewJob,
    Refusal,
    Settlement,
    Standing,
    fate_of,
)
from selaras._core.jobs.states import JobState
from selaras._core.positions import Cursor, News
from selaras._stores.redis.caller import Caller, raw
from selaras._stores.redis.cells import Cells, Values, decode_news, entry_of, hex_of, intents_of
from selaras._stores.redis.gathered import Call, Gathered, Replies
from selaras._stores.redis.packing import (
    Packing,
    admission_of,
    attempts_of,
    flat_attempts,
)
from selaras._stores.redis.records import DAMAGED, PAGE, STATE_OF, STATES

PAGES_A_LOOK: Final = 20
"""Pages of jobs that one call looks at: a listing or a purge of many goes on by calls, so that others get a word in."""

SWEEP_EVERY: Final = 8
"""Every so many rounds of housekeeping it is looked for evicted values; at each while there are some."""

ALONE_BYTES: Final = 1 << 16
"""An enqueue of more than this waits for nobody, and shares no call: what meets must not become too large to send."""

_log = logging.getLogger("selaras")
T = TypeVar("T")

ABSENT: Final = b"\xff"
_Told = tuple[News, bool]
_decode_instance: Final = msgspec.msgpack.Decoder(Instance).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class RedisPartition:
    """A partition on a server."""

    def __init__(self, caller: Caller, partitions: int) -> None:
        self.index = caller.index
        self._caller = caller
        self._ask = caller.ask
        self._packing = Packing(caller.index, partitions)
        self.cells = Cells(caller)
        self._enqueues = Gathered(caller, "enqueue", self._admit, self._admitted, repeats=True)
        self._rounds = 0
        self._sweeps = True

    # -- jobs

    async def enqueue(self, jobs: Sequence[NewJob], since: Cursor) -> Enqueued:
        """See `Partition`."""
        size = 0
        for job in jobs:
            size += len(job.payload) + len(job.meta)
        admissions, (news, outbox) = await self._enqueues(jobs, since, alone=size > ALONE_BYTES)
        return Enqueued(tuple(admissions), news, outbox)

    def _admit(self, jobs: Sequence[NewJob]) -> Call:
        return Call(self._packing.groups_of(jobs))

    def _admitted(
        self, jobs: Sequence[NewJob], since: Cursor, replies: Replies
    ) -> tuple[list[Admission], _Told] | Coroutine[Any, Any, tuple[list[Admission], _Told]]:
        news, told, outbox = replies.script
        admissions = self._packing.admissions_of(told, jobs)
        shared = decode_news(news, since), bool(outbox)
        if replies.first_at is None:
            return admissions, shared
        return self._told_again(jobs, admissions, replies.first_at, shared)

    async def _told_again(
        self, jobs: Sequence[NewJob], told: Sequence[Admission], first_at: float, shared: _Told
    ) -> tuple[list[Admission], _Told]:
        begun_us = await self._caller.instant_us(first_at)
        first = {job.id: number for number, job in reversed(list(enumerate(jobs)))}
        mine = [number for number, job in enumerate(jobs) if first[job.id] == number]
        found = await asyncio.gather(*(self._admission(jobs[number], told[number], begun_us) for number in mine))
        admissions = list(told)
        for number, one in zip(mine, found, strict=True):
            admissions[number] = one
        return admissions, shared

    async def _admission(self, job: NewJob, told: Admission, begun_us: int) -> Admission:
        """Tell the job that we made ourselves, when the reply was lost, from one that was there before."""
        if told.id != job.id or told.created or told.replaced or told.refusal is not None:
            return told
        record, _ = await self.job(job.id, Cursor())
        return replace(told, created=record is not None and record.created_us >= begun_us)

    async def turn(self, request: TurnRequest) -> TurnReply:
        """See `Partition`."""
        puts = Values()
        settlements = request.settlements
        asked = (
            request.instance,
            request.number,
            request.acked,
            self._packing.settlements_of(settlements, puts) if settlements else (),
            request.queues,
            tuple(request.tasks),
            request.limit,
            request.idle,
            [word for job, fence, progress in request.progress for word in (job, hex_of(fence), raw(progress))],
            tuple(request.full),
        )
        reply = await self._ask("turn", asked, request.since, repeats=True)
        self.cells.keep(puts, reply[0])
        news = decode_news(reply[0], request.since)
        settled = tuple(self._packing.settled_of(reply[2], settlements))
        if not reply[1]:
            return TurnReply(news=news, enrolled=False, settled=settled)
        _, _, _, told, position, more, next_due_us, cancels, outbox = reply
        claims: list[Claim] = []
        if told:
            claims, preimages, unreadable = self._packing.claims_of(told, position)
            if unreadable:
                await self._mend(unreadable)
            if preimages:
                await self._fetch(claims, preimages)
        return TurnReply(
            news=news,
            settled=settled,
            claims=tuple(claims),
            more=bool(more),
            next_due_us=next_due_us,
            cancels=attempts_of(cancels) if cancels else (),
            outbox=bool(outbox),
        )

    async def peek(self, queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
        """See `Partition`."""
        rows = zip(*await self._ask("peek", (queues, tuple(tasks), limit), repeats=True), strict=True)
        known = ((id.decode(), ticket, dyn) for id, ticket, dyn in rows if ticket is not None)
        found, _ = _read_each(self._packing.waiting_of, known)
        return tuple([one for one in found if one.task in tasks])

    async def _fetch(self, claims: list[Claim], preimages: list[tuple[int, list[Any]]]) -> None:
        """Give claims their pre-images; one whose value is not there any more is none."""
        rows = [(key.decode(), row) for _, its in preimages for key, _, row in its]
        try:
            values = iter(await self.cells.values(rows))
        except StoreUnavailable:
            return  # the claims are made: without pre-images they load
        for place, its in preimages:
            found: list[tuple[str, Entry]] = []
            for key, expires_in_us, row in its:
                value = next(values)
                entry = None if value is None else entry_of(expires_in_us, row, value)
                if entry is not None:
                    found.append((key.decode(), entry))
            claims[place] = replace(claims[place], preimages=tuple(found))

    async def settle(self, instance: str, settlements: Sequence[Settlement], since: Cursor) -> SettleReply:
        """See `Partition`."""
        puts = Values()
        asked = (instance, self._packing.settlements_of(settlements, puts))
        news, told, outbox = await self._ask("settle", asked, since)
        self.cells.keep(puts, news)
        settled = tuple(self._packing.settled_of(told, settlements))
        return SettleReply(settled, decode_news(news, since), bool(outbox))

    async def enroll(self, instance: Instance) -> None:
        """See `Partition`."""
        asked = (instance.id, instance.lease_us, instance.queues, instance.bell, raw(_encode(instance)))
        await self._ask("enroll", asked, repeats=True)

    async def dismiss(self, instance: str) -> None:
        """See `Partition`."""
        holds_more = True
        while holds_more:
            _, holds_more = await self._ask("dismiss", (instance,), repeats=True)

    async def beat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew a lease; see `Pulse`."""
        puts = Values()
        asked = (
            request.instance,
            request.last_turn,
            flat_attempts(request.held),
            [word for one in request.abandoned for word in (one.job, hex_of(one.fence), one.reason)],
            self._packing.settlements_of(request.settlements, puts),
            flat_attempts(request.scopes),
            request.names_scopes,
        )
        reply = await self._ask("beat", asked)
        await self.cells.kept(puts, reply[0])
        enrolled, told, cancels = reply[1], reply[2], reply[4]
        lost: list[int] = reply[3]
        settled = tuple(self._packing.settled_of(told, request.settlements))
        if not enrolled:
            return HeartbeatReply(enrolled=False, lost=request.held, settled=settled)
        return HeartbeatReply(
            enrolled=True,
            lost=tuple([request.held[place] for place in lost]),
            cancels=attempts_of(cancels),
            settled=settled,
        )

    # -- cache

    async def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """See `Partition`."""
        return await self.cells.read(requests, since)

    async def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """See `Partition`."""
        return await self.cells.fill(fills, since)

    async def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """See `Partition`."""
        await self.cells.extend_fills(tokens, lease_us)

    async def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """See `Partition`."""
        await self.cells.abandon_fills(tokens)

    def invalidate(self, names: Invalidation, since: Cursor) -> Coroutine[Any, Any, News]:
        """See `Partition`."""
        return self.cells.invalidate(names, since)

    async def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """See `Partition`."""
        return await self.cells.plant(instance, owner, keys, since)

    async def events_since(self, since: Cursor) -> News:
        """See `Partition`."""
        return await self.cells.events_since(since)

    def tail_now(self) -> Cursor | None:
        """See `Partition`."""
        return None

    # -- scopes and locks outside jobs

    async def open_scope(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        return await self.acquire(instance, job, since)

    async def acquire(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        asked = (instance, job.id, raw(self._packing.blob_of(job)))
        news, fence, refusal = await self._ask("acquire", asked, since, repeats=True)
        return Grant(int(fence or b"0", 16), decode_news(news, since), Refusal(refusal.decode()) if refusal else None)

    # -- housekeeping

    async def tend(self, limit: int) -> Tended:
        """See `Partition`."""
        self._rounds += 1
        if self._sweeps or self._rounds % SWEEP_EVERY == 0:
            self._sweeps = await self.cells.sweep()
        reply = await self._ask("tend", (limit,), repeats=True)
        _, promoted, suspected, lost, expired, purged, unroutable, trimmed, again, orphans, outbox = reply
        return Tended(
            promoted=promoted,
            suspected=suspected,
            lost=lost,
            expired=expired,
            purged=purged,
            unroutable=unroutable,
            trimmed=trimmed,
            again=bool(again),
            orphans=intents_of(orphans),
            outbox=bool(outbox),
        )

    async def outbox(self, limit: int) -> Outbox:
        """See `Partition`."""
        (members,) = await self._ask("outbox", (limit,), repeats=True)
        effects: list[AnyEffect] = []
        for member in members:
            try:
                effects.append(self._packing.effect_of(member))
            except DAMAGED:
                _log.error(
                    "partition %d: an effect for another partition cannot be read, and goes: %r", self.index, member
                )
                await self._caller.link.pipeline(self.index, [("ZREM", self._caller.key("outbox"), member)])
        return Outbox(tuple(effects))

    async def delivered(self, ids: Sequence[int]) -> None:
        """See `Partition`."""
        if ids:
            await self._ask("delivered", [hex_of(one) for one in ids], repeats=True)

    async def accept(self, effects: Sequence[AnyEffect]) -> None:
        """See `Partition`."""
        puts = Values()
        asked = [self._packing.effect_for(effect, puts) for effect in effects]
        (news,) = await self._ask("accept", asked, repeats=True)
        await self.cells.kept(puts, news)

    async def reserve(self, name: str, job: str, home: int, replacing: str) -> Reservation:
        """See `Partition`."""
        holder, its_home = await self._ask("reserve", (name, job, home, replacing), repeats=True)
        return Reservation(holder.decode(), its_home, mine=holder.decode() == job)

    async def fates(self, attempts: Sequence[Attempt]) -> tuple[Fate, ...]:
        """See `Partition`."""
        records = await self._each([attempt.job for attempt in attempts], self._record_of)
        return tuple(map(self._fate_of, attempts, records))

    def _fate_of(self, attempt: Attempt, record: JobRecord | None) -> Fate:
        if record is None:
            return Fate.GONE
        return fate_of(attempt.fence, state=record.state, fence=record.fence, history=record.history)

    def _record_of(self, id: str, ticket: bytes | None, dyn: bytes | None) -> JobRecord | None:
        return None if ticket is None else self._packing.record_of(id, ticket, dyn)

    async def _each(self, ids: Sequence[str], read: Callable[[str, bytes | None, bytes | None], T]) -> list[T]:
        """Read jobs. Those that were written over are dead-lettered, and read then."""
        found, unreadable = _read_each(read, zip(ids, *await self._ask("fates", ids, repeats=True), strict=True))
        if unreadable:
            await self._mend(unreadable)
            found, _ = _read_each(read, zip(ids, *await self._ask("fates", ids, repeats=True), strict=True))
        return found

    async def _mend(self, ids: Sequence[str | bytes]) -> None:
        """Let jobs that cannot be read be dead-lettered."""
        _log.error("partition %d: jobs that were written over are dead-lettered: %r", self.index, ids)
        await self._ask("mend", [one if isinstance(one, str) else raw(one) for one in ids], repeats=True)

    # -- inspection

    async def job(self, id: str, since: Cursor) -> tuple[JobRecord | None, News]:
        """See `Partition`."""
        news, ticket, dyn = await self._ask("job", (id,), since, repeats=True)
        try:
            record = self._record_of(id, ticket, dyn)
        except DAMAGED:
            await self._mend([id])
            news, ticket, dyn = await self._ask("job", (id,), since, repeats=True)
            record = self._record_of(id, ticket, dyn)
        return record, decode_news(news, since)

    async def jobs(self, which: JobFilter) -> JobPage:
        """See `Partition`."""
        packing = self._packing
        found: list[tuple[int, JobRecord]] = []
        page = which.before // PAGE + 1 if which.before else -1
        while len(found) <= which.limit:
            page, rows = await self._ask("listing", (page, PAGES_A_LOOK), repeats=True)
            some, unreadable = _read_each(packing.numbered, [(id.decode(), ticket, dyn) for id, ticket, dyn in rows])
            if unreadable:
                await self._mend(unreadable)  # each is the newest then, and listed anew by who asks again
            some.sort(key=lambda one: -one[0])
            found += [one for one in some if _is_wanted(which, *one)]
            if page < 0:
                break
        shown = found[: which.limit]
        more = shown and len(found) > len(shown)
        return JobPage(tuple([record for _, record in shown]), shown[-1][0] if more else 0)

    async def queues(self) -> tuple[QueueStats, ...]:
        """See `Partition`."""
        counted, lanes, served = await self._ask("queues", None, repeats=True)
        counts: dict[str, dict[JobState, int]] = {}
        for field, jobs in _pairs(counted):
            state = STATE_OF.get(_number(field[:1]))
            if state is not None and (many := _number(jobs)):
                counts.setdefault(field[1:].decode(errors="replace"), {})[state] = many
        oldest: dict[str, int] = {}
        apart: dict[str, int] = {}
        for queue_, task, jobs, ready_us in lanes:
            queue = queue_.decode(errors="replace")
            oldest[queue] = min(ready_us, oldest.get(queue, ready_us))
            apart[queue] = apart.get(queue, 0) + (jobs if task else 0)
        workers: dict[str, int] = {}
        paused: set[str] = set()
        for field, value in _pairs(served):
            queue = field[1:].decode(errors="replace")
            if field[:1] == b"p":
                paused.add(queue)
            else:
                workers[queue] = _number(value)
        return tuple(
            [
                QueueStats(
                    name=name,
                    counts={
                        state.value: mine[state] for state in JobState if (mine := counts.get(name, {})).get(state)
                    },
                    paused=name in paused,
                    workers=workers.get(name, 0),
                    oldest_ready_us=oldest.get(name, 0),
                    apart=apart.get(name, 0),
                )
                for name in sorted(counts.keys() | paused | workers.keys())
            ]
        )

    async def instances(self) -> tuple[Instance, ...]:
        """See `Partition`."""
        (rows,) = await self._ask("instances", None, repeats=True)
        instances: list[Instance] = []
        for _, blob in sorted(rows):
            with suppress(*DAMAGED):
                instances.append(_decode_instance(blob))
        return tuple(instances)

    async def cache_stats(self) -> CacheStats:
        """See `Partition`."""
        return await self.cells.cache_stats()

    async def intents(self, key: str) -> tuple[Intent, ...]:
        """See `Partition`."""
        return await self.cells.intents(key)

    # -- by hand

    async def cancel(self, id: str, reason: str) -> tuple[JobState | None, bool]:
        """See `Partition`."""
        _, state, did = await self._ask("cancel", (id, reason))
        return STATE_OF.get(state), bool(did)

    async def revive(self, id: str) -> Admission:
        """See `Partition`."""
        _, told = await self._ask("revive", (id,))
        return admission_of(told)

    async def purge(self, states: Sequence[JobState], queue: str, limit: int) -> int:
        """See `Partition`. Many are deleted step by step."""
        purged, page = 0, -1
        codes = [STATES[state] for state in states]
        while purged < limit:
            _, more, page = await self._ask("purge", (codes, queue, limit - purged, page, PAGES_A_LOOK))
            purged += more
            if page < 0:
                break
        return purged

    async def pause(self, queue: str, *, paused: bool) -> None:
        """See `Partition`."""
        await self._ask("pause", (queue, paused), repeats=True)

    # -- from store to store

    async def standing(self, ids: Sequence[str]) -> tuple[Standing | None, ...]:
        """See `Partition`."""
        return tuple(await self._each(ids, self._packing.standing_of))

    async def adopt(self, jobs: Sequence[Standing], epoch: int) -> tuple[bool, ...]:
        """See `Partition`."""
        packed = [self._packing.adopted(one) for one in jobs]
        _, adopted = await self._ask("adopt", (epoch, packed))
        return tuple(map(bool, adopted))


def _read_each(read: Callable[..., T], rows: Iterable[tuple[str, Any, Any]]) -> tuple[list[T], list[str]]:
    """Read rows. Returns them, and the ids of those that were written over."""
    found: list[T] = []
    unreadable: list[str] = []
    for row in rows:
        try:
            found.append(read(*row))
        except DAMAGED:
            unreadable.append(row[0])
    return found, unreadable


def _is_wanted(which: JobFilter, number: int, record: JobRecord) -> bool:
    return (
        record.kind is which.kind
        and (not which.states or record.state in which.states)
        and (not which.queue or record.queue == which.queue)
        and (not which.task or record.task == which.task)
        and (not which.before or number < which.before)
    )


def _number(text: bytes) -> int:
    """Read a number that may have been written over: 0 then."""
    return int(text) if text.isdigit() else 0


def _pairs(told: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return [(told[i], told[i + 1]) for i in range(0, len(told), 2) if told[i] != ABSENT]
