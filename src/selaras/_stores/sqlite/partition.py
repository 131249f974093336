"""The verbs of a partition: what changes goes to the writer, what only looks is answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from selaras._contracts.limits import OPEN_POSITION
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
from selaras._core.cache.entry import Busy, Hit, Intent, Look
from selaras._core.jobs.job import Admission, Attempt, Fate, JobRecord, NewJob, Settlement, Standing
from selaras._core.jobs.states import JobState
from selaras._core.positions import Cursor, News
from selaras._stores.sqlite import inspection
from selaras._stores.sqlite.cells import CELL, HIT, entry_of, intents_on, look_at, tags_of
from selaras._stores.sqlite.connection import UNREADABLE, Connection
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.log import news, voided_after
from selaras._stores.sqlite.reader import Reader
from selaras._stores.sqlite.steps import Steps
from selaras._stores.sqlite.writer import Writer

T = TypeVar("T")

_NOTHING_STANDS: Final = "nothing"


class SqlitePartition:
    """A partition in a file."""

    def __init__(self, file: DatabaseFile, ring: Callable[[str], None], *, inline: bool) -> None:
        self.index = file.index
        self._file = file
        self._writer = Writer(file, ring, inline=inline)
        self._run = self._writer.run
        self._reader = Reader(file)
        self._inspector = Reader(file)  # for looks that take long, so that short ones need not wait

    # -- jobs

    async def enqueue(self, jobs: Sequence[NewJob], since: Cursor) -> Enqueued:
        """See `Partition`."""
        return await self._run(lambda steps: steps.enqueue(jobs, since))

    async def turn(self, request: TurnRequest) -> TurnReply:
        """See `Partition`."""
        return await self._run(lambda steps: steps.turn(request))

    async def peek(self, queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
        """See `Partition`."""
        return self._reader.snapshot(lambda con: inspection.waiting(con, queues, tasks, limit))

    async def settle(self, instance: str, settlements: Sequence[Settlement], since: Cursor) -> SettleReply:
        """See `Partition`."""
        return await self._run(lambda steps: steps.settle(instance, settlements, since))

    async def enroll(self, instance: Instance) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.enroll(instance))

    async def dismiss(self, instance: str) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.dismiss(instance))

    # -- cache

    async def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """See `Partition`."""
        found = self._read_one(requests[0], since) if len(requests) == 1 else None
        if isinstance(found, ReadReply):
            return found
        if found is None:
            furthest = self._file.furthest
            reply = self._reader.snapshot(lambda con: self._read(con, requests, since, furthest))
            if reply is not None:
                return reply
        return await self._run(lambda steps: steps.read(requests, since))

    def _read_one(self, request: ReadRequest, since: Cursor) -> ReadReply | Literal["nothing"] | None:
        """Look at one key in one statement; `_NOTHING_STANDS`: the writer grants a token; None: it needs another look."""
        furthest = self._file.furthest
        row = self._reader.first(HIT, (request.key,) * 4)
        if row is None:
            return None
        position, event_id, epoch, counter, last_mark, tag_floor, time_us, offset_us, at, stamp, _, until_us = row[:12]
        self._file.compare(counter, furthest)
        if at is None:
            return _NOTHING_STANDS if request.lease_us else None
        if since.position != position or since.event_id != event_id or stamp in (request.distrust, request.renews):
            return None
        if at < last_mark or at < tag_floor:
            return None  # a tag or a family was voided since: ask which
        now = self._file.now_us(time_us, offset_us)
        if 0 < until_us <= now:
            return None
        try:
            return ReadReply((Hit(entry_of(row[8:], now)),), News(since, epoch=epoch))
        except UNREADABLE:
            return None

    def _read(self, con: Connection, requests: Sequence[ReadRequest], since: Cursor, furthest: int) -> ReadReply | None:
        """Look at keys in the snapshot of `con`; None: one of them needs the writer."""
        (
            position, event_id, before_position, before_id, epoch, counter, last_mark, tag_floor, time_us, offset_us,
        ) = con.execute(
            "SELECT position, event_id, before_position, before_id, epoch, counter, last_mark, tag_floor, time_us, offset_us"
            " FROM ledger"
        ).fetchone()  # fmt: skip
        self._file.compare(counter, furthest)
        now = self._file.now_us(time_us, offset_us)
        looks: list[Look] = []
        for request in requests:
            cell: Any = con.execute(CELL, (request.key,) * 4).fetchone()

            def is_voided(cell: Any = cell) -> bool:
                at = cell[4]
                return (at < last_mark or at < tag_floor) and voided_after(
                    con, at, cell[8], tags_of(cell[10]), tag_floor
                )

            try:
                look = look_at(cell, now, is_voided, last_mark == OPEN_POSITION)
            except UNREADABLE:
                return None
            if _needs_writer(look, request):
                return None
            looks.append(look)
        return ReadReply(tuple(looks), news(con, (position, event_id, before_position, before_id, epoch), since))

    async def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """See `Partition`."""
        return await self._run(lambda steps: steps.fill(fills, since))

    async def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.extend_fills(tokens, lease_us))

    async def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.abandon_fills(tokens))

    async def invalidate(self, names: Invalidation, since: Cursor) -> News:
        """See `Partition`."""
        return await self._run(lambda steps: steps.invalidate(names, since))

    async def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """See `Partition`."""
        return await self._run(lambda steps: steps.plant(instance, owner, keys, since))

    async def events_since(self, since: Cursor) -> News:
        """See `Partition`."""
        return self._reader.snapshot(lambda con: inspection.events_since(con, since))

    def tail_now(self) -> Cursor | None:
        """See `Partition`."""
        return self._reader.tail()

    # -- scopes and locks outside jobs

    async def open_scope(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        return await self.acquire(instance, job, since)

    async def acquire(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        return await self._run(lambda steps: steps.acquire(instance, job, since))

    # -- housekeeping

    async def tend(self, limit: int) -> Tended:
        """See `Partition`."""
        return await self._run(lambda steps: steps.tend(limit), heavy=True)

    async def outbox(self, limit: int) -> Outbox:
        """See `Partition`."""
        return self._reader.at_once(lambda con: inspection.outbox(con, limit))

    async def delivered(self, ids: Sequence[int]) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.delivered(ids))

    async def accept(self, effects: Sequence[AnyEffect]) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.accept(effects))

    async def reserve(self, name: str, job: str, home: int, replacing: str) -> Reservation:
        """See `Partition`."""
        return await self._run(lambda steps: steps.reserve(name, job, home, replacing))

    async def fates(self, attempts: Sequence[Attempt]) -> tuple[Fate, ...]:
        """See `Partition`."""
        return self._reader.snapshot(lambda con: tuple(inspection.fate(con, one) for one in attempts))

    # -- inspection

    async def job(self, id: str, since: Cursor) -> tuple[JobRecord | None, News]:
        """See `Partition`."""
        return self._reader.snapshot(lambda con: (inspection.job(con, id), inspection.events_since(con, since)))

    async def jobs(self, which: JobFilter) -> JobPage:
        """See `Partition`."""
        return await self._inspect(lambda con: inspection.jobs(con, which))

    async def queues(self) -> tuple[QueueStats, ...]:
        """See `Partition`."""
        return await self._inspect(inspection.queues)

    async def instances(self) -> tuple[Instance, ...]:
        """See `Partition`."""
        return self._reader.at_once(inspection.instances)

    async def cache_stats(self) -> CacheStats:
        """See `Partition`."""
        return await self._inspect(lambda con: inspection.cache_stats(con, self._file))

    async def intents(self, key: str) -> tuple[Intent, ...]:
        """See `Partition`."""
        return self._reader.at_once(lambda con: intents_on(con, key))

    # -- by hand

    async def cancel(self, id: str, reason: str) -> tuple[JobState | None, bool]:
        """See `Partition`."""
        return await self._run(lambda steps: steps.cancel(id, reason))

    async def revive(self, id: str) -> Admission:
        """See `Partition`."""
        return await self._run(lambda steps: steps.revive(id))

    async def purge(self, states: Sequence[JobState], queue: str, limit: int) -> int:
        """See `Partition`."""
        return await self._run(lambda steps: steps.purge(states, queue, limit), heavy=True)

    async def pause(self, queue: str, *, paused: bool) -> None:
        """See `Partition`."""
        return await self._run(lambda steps: steps.pause(queue, paused=paused), heavy=True)

    # -- from store to store

    async def standing(self, ids: Sequence[str]) -> tuple[Standing | None, ...]:
        """See `Partition`."""
        return self._reader.snapshot(lambda con: inspection.standing(con, ids))

    async def adopt(self, jobs: Sequence[Standing], epoch: int) -> tuple[bool, ...]:
        """See `Partition`."""
        return await self._run(lambda steps: steps.adopt(jobs, epoch), heavy=True)

    # -- the store itself

    def prepare(self) -> None:
        """Create or check the file. Raises StoreUnavailable, StoreMismatch."""
        self._writer.open()
        self._reader.open()
        self._inspector.open()
        self._file.prepare()
        self._reader.at_once(lambda con: None)

    def close(self) -> None:
        """End what was asked, then disconnect."""
        self._writer.close()
        self._reader.close()
        self._inspector.close()

    def signs_of_news(self) -> tuple[int, int]:
        """Return numbers that differ once jobs became ready or names were voided; for a bell that may have been lost."""

        def look(con: Connection) -> tuple[int, int]:
            numbers, position = con.execute("SELECT numbers, position FROM ledger").fetchone()
            return numbers, position

        return self._reader.at_once(look)

    def pulse(self, ring: Callable[[str], None]) -> PartitionPulse:
        """Make the heartbeat's own way in."""
        return PartitionPulse(self._file, ring)

    def lose_memory(self, *, events: int) -> None:
        """Forget the last events and all entries, as a failover to a lagging replica would: a new epoch (P20)."""
        self._writer.run_blocking(lambda steps: steps.lose_memory(events=events))

    async def _inspect(self, look: Callable[[Connection], T]) -> T:
        return await asyncio.to_thread(self._inspector.snapshot, look)


class PartitionPulse:
    """Heartbeats over a connection of their own."""

    def __init__(self, file: DatabaseFile, ring: Callable[[str], None]) -> None:
        self._writer = Writer(file, ring, inline=False)

    def beat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew the lease; blocks. Raises StoreUnavailable."""

        def verb(steps: Steps) -> HeartbeatReply:
            return steps.beat(request)

        return self._writer.run_blocking(verb)

    def close(self) -> None:
        """Free the connection."""
        self._writer.close()


def _needs_writer(look: Look, request: ReadRequest) -> bool:
    if isinstance(look, Busy):
        return not look.wait_us and request.lease_us > 0
    if not isinstance(look, Hit):
        return False
    stamp = look.entry.stamp
    return stamp == request.distrust or (stamp == request.renews and request.lease_us > 0)
