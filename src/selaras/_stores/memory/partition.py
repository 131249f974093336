"""The verbs of a partition in memory: each is one synchronous step, so each is atomic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock

from msgspec.structs import replace

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.limits import DUE_PER_TURN, EPOCH_SHIFT, ORPHAN_US, reap_grace_us
from selaras._contracts.partition import (
    Admit,
    AnyEffect,
    CacheStats,
    Enqueued,
    Fill,
    FillReply,
    FreeUnique,
    Grant,
    HeartbeatReply,
    HeartbeatRequest,
    HoldUnique,
    Instance,
    Invalidation,
    JobFilter,
    JobPage,
    MeetTwin,
    Outbox,
    Owner,
    Parted,
    Planted,
    QueueStats,
    ReadReply,
    ReadRequest,
    Register,
    Reservation,
    Resolve,
    SettleReply,
    Supersede,
    Tended,
    TurnReply,
    TurnRequest,
    Void,
    Waiting,
)
from selaras._core.cache.entry import Intent
from selaras._core.jobs.job import (
    Admission,
    Attempt,
    Claim,
    Fate,
    JobKind,
    JobRecord,
    NewJob,
    Refusal,
    Settled,
    Settlement,
    Standing,
    fate_of,
)
from selaras._core.jobs.reasons import Reason
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import Cursor, News
from selaras._stores.memory.cells import Cells
from selaras._stores.memory.jobs import Jobs, Leaseholder, Row, record_of, standing_of
from selaras._stores.memory.log import Log


class MemoryPartition:
    """A partition whose state is a few dicts. `ring` wakes an instance, by the address of its bell."""

    def __init__(
        self, index: int, partitions: int, clock: Clock, entropy: Entropy, ring: Callable[[str], None]
    ) -> None:
        self.index = index
        self._clock = clock
        self._ring = ring
        self._counter = 0
        self._time_us = 0
        self._lock = RLock()  # the heartbeat comes from a thread of its own
        self._log = Log(entropy)
        self._cells = Cells(index, self._log, self._next)
        self._jobs = Jobs(index, partitions, self._cells, self._next)

    # -- jobs

    async def enqueue(self, jobs: Sequence[NewJob], since: Cursor) -> Enqueued:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            admissions = tuple(self._jobs.admit(job, now) for job in jobs)
            self._wake()
            return Enqueued(admissions, self._log.news(since), bool(self._jobs.effects))

    async def turn(self, request: TurnRequest) -> TurnReply:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            holder = self._jobs.holders.get(request.instance)
            if holder is None:
                settled = self._settle(request.instance, request.settlements, now)
                return TurnReply(news=self._log.news(request.since), enrolled=False, settled=settled)
            self._jobs.begin_turn()
            holder.acked = max(holder.acked, request.acked)
            holder.replies = {number: reply for number, reply in holder.replies.items() if number > holder.acked}
            if request.number > holder.acked and request.number not in holder.replies:
                settled = self._settle(request.instance, request.settlements, now)
                self._note_progress(request)
                self._jobs.promote(now, DUE_PER_TURN)
                self._jobs.tell(now, goes_on=True)
                holder.replies[request.number] = settled, self._claim(request, now)
            settled, claimed = holder.replies.get(request.number, ((), ()))
            claims = tuple(one for one in claimed if self._jobs.holds(request.instance, one.job, one.fence))
            more = self._jobs.claimable(request.queues, request.tasks, request.full) is not None
            more = more or self._jobs.is_telling_left or self._jobs.is_passing_by
            if more:
                self._jobs.woken.extend(request.queues)
            holder.idle = ()
            self._wake()
            holder.idle = request.queues if request.idle and not claims and not more else ()
            return TurnReply(
                news=self._log.news(request.since),
                settled=settled,
                claims=claims,
                more=more,
                next_due_us=self._next_due(now),
                cancels=self._cancels(request.instance),
                outbox=bool(self._jobs.effects),
            )

    def _claim(self, request: TurnRequest, now: int) -> tuple[Claim, ...]:
        claims: list[Claim] = []
        while len(claims) < request.limit:
            row = self._jobs.claimable(request.queues, request.tasks, request.full)
            if row is None:
                break
            if 0 < row.expires_us <= now:
                self._jobs.expire_one(row, now)
                continue
            claims.append(self._jobs.claim(row, request.instance, request.number, now))
        return tuple(replace(claim, position=self._log.tail.position) for claim in claims)

    async def peek(self, queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
        """See `Partition`."""
        with self._lock:
            return tuple(self._jobs.peek(queues, tasks, limit))

    async def settle(self, instance: str, settlements: Sequence[Settlement], since: Cursor) -> SettleReply:
        """See `Partition`."""
        with self._lock:
            settled = self._settle(instance, settlements, self._now())
            self._wake()
            return SettleReply(settled, self._log.news(since), bool(self._jobs.effects))

    async def enroll(self, instance: Instance) -> None:
        """See `Partition`."""
        with self._lock:
            holder = self._jobs.holders.setdefault(instance.id, Leaseholder(instance, 0))
            holder.instance, holder.until_us, holder.suspected_us = instance, self._now() + instance.lease_us, 0

    async def dismiss(self, instance: str) -> None:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            if self._jobs.holders.pop(instance, None) is None:
                return
            for row in self._jobs.running(instance):
                if row.new.kind is JobKind.TASK:
                    self._jobs.settle(
                        instance, Settlement(row.id, row.fence, JobEvent.RELEASE, reason=Reason.STOPPED), now
                    )
                else:
                    self._jobs.lose(row, now)
            self._wake()

    def beat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Renew a lease; see `Pulse`."""
        with self._lock:
            now = self._now()
            holder = self._jobs.holders.get(request.instance)
            settled = self._settle(request.instance, request.settlements, now)
            if holder is None:
                return HeartbeatReply(enrolled=False, lost=request.held, settled=settled)
            renewed_us = holder.until_us - holder.instance.lease_us
            holder.until_us, holder.suspected_us = now + holder.instance.lease_us, 0
            held = {(attempt.job, attempt.fence) for attempt in request.held}
            abandoned = {(one.job, one.fence): one.reason for one in request.abandoned}
            for row in self._jobs.running(request.instance):
                reason = abandoned.get((row.id, row.fence))
                if reason is not None:
                    self._jobs.lose(row, now, reason)
                elif row.new.kind is JobKind.TASK and row.turn <= request.last_turn and (row.id, row.fence) not in held:
                    self._jobs.release(row, now)
            if request.names_scopes:
                self._end_scopes(request, renewed_us, now)
            lost = tuple(a for a in request.held if not self._jobs.holds(request.instance, a.job, a.fence))
            self._wake()
            return HeartbeatReply(enrolled=True, lost=lost, cancels=self._cancels(request.instance), settled=settled)

    def _end_scopes(self, request: HeartbeatRequest, renewed_us: int, now: int) -> None:
        """End scopes and locks that nobody answers for. One asked for since the last beat may be younger than this one."""
        for row in self._jobs.unnamed_scopes(request.instance, request.scopes, renewed_us):
            if row.state is JobState.RUNNING:
                self._jobs.lose(row, now)
            else:
                self._jobs.cancel(row, Reason.UNWANTED, now)

    # -- cache

    async def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            return ReadReply(tuple(self._cells.look(request, now) for request in requests), self._log.news(since))

    async def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            return FillReply(tuple(self._cells.fill(fill, now) for fill in fills), self._log.news(since))

    async def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            for key, token in tokens:
                held = self._cells.tokens.get(key)
                if held and held.token == token and held.until_us > now:
                    held.until_us = now + lease_us

    async def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """See `Partition`."""
        with self._lock:
            for key, token in tokens:
                held = self._cells.tokens.get(key)
                if held and held.token == token:
                    del self._cells.tokens[key]

    async def invalidate(self, names: Invalidation, since: Cursor) -> News:
        """See `Partition`."""
        with self._lock:
            self._cells.invalidate(names, self._now())
            return self._log.news(since)

    async def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """See `Partition`."""
        with self._lock:
            if owner.home == self.index and not self._jobs.holds(instance, owner.job, owner.fence):
                return Planted(self._log.news(since), Refusal.LEASE_LOST)
            if any(self._cells.outlived(owner, key) for key in keys):
                return Planted(self._log.news(since), Refusal.LEASE_LOST)
            now = self._now()
            for key in keys:
                self._cells.plant(owner, key, now)
            return Planted(self._log.news(since))

    async def events_since(self, since: Cursor) -> News:
        """See `Partition`."""
        with self._lock:
            return self._log.news(since)

    def tail_now(self) -> Cursor | None:
        """See `Partition`."""
        return self._log.tail

    # -- scopes and locks outside jobs

    async def open_scope(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        return await self.acquire(instance, job, since)

    async def acquire(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        with self._lock:
            if instance not in self._jobs.holders:
                return Grant(0, self._log.news(since), Refusal.LEASE_LOST)
            fence, refusal = self._jobs.open_scope(job, instance, self._now())
            self._wake()
            return Grant(fence, self._log.news(since), refusal)

    # -- housekeeping

    async def tend(self, limit: int) -> Tended:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            promoted = self._jobs.promote(now, limit)
            suspected, lost = self._reap(now)
            expired = self._jobs.expire(now, limit)
            purged = self._jobs.forget_ended(now, limit)
            for row in self._jobs.unfetched_locks(now):
                self._jobs.cancel(row, "the lock was not fetched", now)
            for name in sorted(self._jobs.lines):
                self._jobs.arrange(name, now)
            fallen = self._cells.drop_fallen(now, limit)
            self._cells.drop_dead(now)
            self._jobs.tell(now, goes_on=True)
            registered = self._jobs.register_again(now, limit)
            unroutable = self._jobs.unroutable(now)
            for row in unroutable:
                row.reason = Reason.UNROUTABLE % row.new.task
            trimmed = self._log.trim()
            self._wake()
            return Tended(
                promoted=promoted,
                suspected=suspected,
                lost=lost,
                expired=expired,
                purged=purged,
                unroutable=len(unroutable),
                trimmed=trimmed,
                again=limit in (promoted, expired, purged, fallen, registered) or self._jobs.is_telling_left,
                orphans=self._cells.orphans(now - ORPHAN_US),
                outbox=bool(self._jobs.effects),
            )

    def _reap(self, now: int) -> tuple[int, int]:
        """Look at expired leases: the first look suspects, the second, a grace later, settles as lost (P19)."""
        suspected = lost = 0
        for name, holder in list(self._jobs.holders.items()):
            if holder.until_us > now:
                continue
            if not holder.suspected_us:
                holder.suspected_us = now
                suspected += 1
            elif now - holder.suspected_us >= reap_grace_us(holder.instance.lease_us):
                del self._jobs.holders[name]
                lost += self._jobs.lose_all(name, now)
        return suspected, lost

    async def outbox(self, limit: int) -> Outbox:
        """See `Partition`."""
        with self._lock:
            return Outbox(tuple(self._jobs.effects[:limit]))

    async def delivered(self, ids: Sequence[int]) -> None:
        """See `Partition`."""
        with self._lock:
            self._jobs.effects = [effect for effect in self._jobs.effects if effect.id not in set(ids)]

    async def accept(self, effects: Sequence[AnyEffect]) -> None:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            for effect in effects:
                if self._jobs.is_news(effect):
                    self._accept(effect, now)
            self._wake()

    def _accept(self, effect: AnyEffect, now: int) -> None:
        match effect:
            case Register():
                self._jobs.register(effect, now)
            case Parted():
                self._jobs.part(effect, now)
            case Resolve(stand_us=0):
                self._cells.set_floors(effect.versions, effect.closes, now)
                puts = {put.key: put for put in effect.puts}
                for key in effect.keys:
                    self._cells.resolve(effect.owner, key, puts.get(key), now)
            case Resolve():
                self._cells.let_stand(effect.owner, now + effect.stand_us)
            case Void():
                self._cells.invalidate(effect.names, now)
            case Admit():
                self._jobs.admit(effect.job, now)
            case FreeUnique():
                self._jobs.free_unique(effect)
            case HoldUnique():
                self._jobs.hold_unique(effect, now)
            case MeetTwin():
                self._jobs.meet_twin(effect, now)
            case Supersede():
                self._jobs.supersede(effect, now)

    async def reserve(self, name: str, job: str, home: int, replacing: str) -> Reservation:
        """See `Partition`."""
        with self._lock:
            holder, its_home = self._jobs.reserve(name, job, home, replacing)
            return Reservation(holder, its_home, mine=holder == job)

    async def fates(self, attempts: Sequence[Attempt]) -> tuple[Fate, ...]:
        """See `Partition`."""
        with self._lock:
            rows = self._jobs.rows
            return tuple(_fate(rows.get(attempt.job), attempt.fence) for attempt in attempts)

    # -- inspection

    async def job(self, id: str, since: Cursor) -> tuple[JobRecord | None, News]:
        """See `Partition`."""
        with self._lock:
            row = self._jobs.rows.get(id)
            return record_of(row) if row else None, self._log.news(since)

    async def jobs(self, which: JobFilter) -> JobPage:
        """See `Partition`."""
        with self._lock:
            rows = [
                row
                for row in sorted(self._jobs.rows.values(), key=lambda row: -row.number)
                if row.new.kind is which.kind
                and (not which.states or row.state in which.states)
                and (not which.queue or row.new.queue == which.queue)
                and (not which.task or row.new.task == which.task)
                and (not which.before or row.number < which.before)
            ]
            page = rows[: which.limit]
            return JobPage(tuple(map(record_of, page)), page[-1].number if page and len(rows) > len(page) else 0)

    async def queues(self) -> tuple[QueueStats, ...]:
        """See `Partition`."""
        with self._lock:
            rows = [row for row in self._jobs.rows.values() if row.new.kind is JobKind.TASK]
            holders = [holder.instance for holder in self._jobs.holders.values()]
            names = {row.new.queue for row in rows} | self._jobs.paused | {q for one in holders for q in one.queues}
            return tuple(self._queue(name, rows, holders) for name in sorted(names))

    def _queue(self, name: str, rows: list[Row], instances: list[Instance]) -> QueueStats:
        mine = [row for row in rows if row.new.queue == name]
        ready = [row for row in mine if row.state is JobState.READY]
        first: dict[tuple[str, str], Row] = {}  # of each lane
        for row in sorted(ready, key=lambda row: row.place):
            first.setdefault(row.lane, row)
        counts = {state.value: sum(row.state is state for row in mine) for state in JobState}
        return QueueStats(
            name=name,
            counts={state: count for state, count in counts.items() if count},
            paused=name in self._jobs.paused,
            workers=sum(name in instance.queues for instance in instances),
            oldest_ready_us=min((row.ready_us for row in first.values()), default=0),
            apart=sum(row.is_apart for row in ready),
        )

    async def instances(self) -> tuple[Instance, ...]:
        """See `Partition`."""
        with self._lock:
            return tuple(holder.instance for holder in self._jobs.holders.values())

    async def cache_stats(self) -> CacheStats:
        """See `Partition`."""
        with self._lock:
            now = self._now()
            live = (stored for stored in self._cells.entries.values() if not 0 < stored.until_us <= now)
            values = [stored.entry.value for stored in live]
            return CacheStats(
                entries=len(values),
                bytes=sum(map(len, values)),
                intents=sum(map(len, self._cells.standing.values())),
                tokens=sum(token.token > 0 and token.until_us > now for token in self._cells.tokens.values()),
                position=self._log.tail.position,
                log_length=len(self._log),
                epoch=self._log.epoch,
            )

    async def intents(self, key: str) -> tuple[Intent, ...]:
        """See `Partition`."""
        with self._lock:
            return self._cells.intents(key)

    # -- by hand

    async def cancel(self, id: str, reason: str) -> tuple[JobState | None, bool]:
        """See `Partition`."""
        with self._lock:
            row = self._jobs.rows.get(id)
            if row is None:
                return None, False
            did = self._jobs.cancel(row, reason, self._now())
            self._wake()
            return row.state, did

    async def revive(self, id: str) -> Admission:
        """See `Partition`."""
        with self._lock:
            row = self._jobs.rows.get(id)
            if row is None:
                return Admission(id, JobState.FAILED, created=False, refusal=Refusal.UNKNOWN_JOB)
            admission = self._jobs.revive(row, self._now())
            self._wake()
            return admission

    async def purge(self, states: Sequence[JobState], queue: str, limit: int) -> int:
        """See `Partition`."""
        with self._lock:
            purged = self._jobs.purge(states, queue, limit, self._now())
            self._wake()
            return purged

    async def pause(self, queue: str, *, paused: bool) -> None:
        """See `Partition`."""
        with self._lock:
            (self._jobs.paused.add if paused else self._jobs.paused.discard)(queue)
            now = self._now()
            for name in sorted(self._jobs.lines):
                self._jobs.arrange(name, now)
            if not paused:
                self._jobs.woken.append(queue)
            self._wake()

    # -- from store to store

    async def standing(self, ids: Sequence[str]) -> tuple[Standing | None, ...]:
        """See `Partition`."""
        with self._lock:
            return tuple(standing_of(row) if (row := self._jobs.rows.get(id)) else None for id in ids)

    async def adopt(self, jobs: Sequence[Standing], epoch: int) -> tuple[bool, ...]:
        """See `Partition`."""
        with self._lock:
            if self._log.epoch < epoch:
                self._log.begin_epoch(epoch)
                self._cells.forget()
            now = self._now()
            adopted = tuple(self._jobs.adopt(one, now) for one in jobs)
            self._wake()
            return adopted

    # -- the store forgets: for tests of P20

    def lose_memory(self, *, events: int) -> None:
        """Forget the last `events` events and all entries, as a failover to a lagging replica would: a new epoch."""
        with self._lock:
            self._log.lose(events)
            self._cells.forget()

    # -- inside

    def _now(self) -> int:
        """Return the store's time, which never goes back (L8)."""
        self._time_us = max(self._time_us, self._clock.wall_us())
        return self._time_us

    def _next(self) -> int:
        """Return the next fence, token or stamp (P15)."""
        self._counter = max(self._counter + 1, (self._log.epoch << EPOCH_SHIFT) + self._now())
        return self._counter

    def _settle(self, instance: str, settlements: Sequence[Settlement], now: int) -> tuple[Settled, ...]:
        return tuple(self._jobs.settle(instance, settlement, now) for settlement in settlements)

    def _note_progress(self, request: TurnRequest) -> None:
        for job, fence, progress in request.progress:
            row = self._jobs.holds(request.instance, job, fence)
            if row:
                row.progress = progress

    def _cancels(self, instance: str) -> tuple[Attempt, ...]:
        return tuple(Attempt(row.id, row.fence) for row in self._jobs.running(instance) if row.cancel_requested)

    def _next_due(self, now: int) -> int:
        due = [row.due_us for row in self._jobs.open.values() if row.state is JobState.SCHEDULED]
        return max(0, min(due) - now) if due else -1

    def _wake(self) -> None:
        """End a verb: ring one idle instance for each queue that has news, and those that were asked to cancel."""
        self._jobs.put_off()
        for queue in dict.fromkeys(self._jobs.woken):
            for holder in self._jobs.holders.values():
                if queue in holder.idle:
                    holder.idle = ()
                    self._ring(holder.instance.bell)
                    break
        for instance in self._jobs.called:
            if instance in self._jobs.holders:
                self._ring(self._jobs.holders[instance].instance.bell)
        self._jobs.woken.clear()
        self._jobs.called.clear()


def _fate(row: Row | None, fence: int) -> Fate:
    if row is None:
        return Fate.GONE
    return fate_of(fence, state=row.state, fence=row.fence, history=row.history)
