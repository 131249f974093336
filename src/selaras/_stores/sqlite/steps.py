"""Each verb as one synchronous step over one connection, inside a transaction that its caller began."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from selaras._contracts.limits import ASIDE_AT_ONCE, DUE_PER_TURN, LAID_ASIDE_PER_TURN, ORPHAN_US, reap_grace_us
from selaras._contracts.partition import (
    Admit,
    AnyEffect,
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
    MeetTwin,
    Owner,
    Parted,
    Planted,
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
)
from selaras._core.jobs.job import Admission, Attempt, Claim, JobKind, NewJob, Refusal, Settled, Settlement, Standing
from selaras._core.jobs.reasons import Reason
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import Cursor, News
from selaras._stores.sqlite.cells import Cells
from selaras._stores.sqlite.connection import Connection
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.jobs import RUNNING, Jobs
from selaras._stores.sqlite.lanes import Lanes
from selaras._stores.sqlite.lines import Lines
from selaras._stores.sqlite.log import Log
from selaras._stores.sqlite.rows import is_plain
from selaras._stores.sqlite.schema import KINDS, OTHER, PLAIN
from selaras._stores.sqlite.short import Candidate, ShortWay, claim_again, claim_of
from selaras._stores.sqlite.table import JobTable

CANCELS: Final = """
    SELECT j.id, r.fence FROM runs AS r JOIN jobs AS j ON j.number = r.number
    WHERE r.asked = 1 AND r.instance = ? ORDER BY r.fence
"""
_VERSION: Final = "PRAGMA data_version"
_HOLDER: Final = "SELECT number, acked, told, idle FROM instances WHERE id = ?"
_SAVE_HOLDER: Final = "UPDATE instances SET acked = ?, told = ?, idle = ? WHERE number = ?"
_SLEEPS_NOT: Final = "UPDATE instances SET idle = NULL WHERE number = ?"
_ENROLL: Final = (
    "INSERT INTO instances (id, until_us, bell, instance) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
    " until_us = excluded.until_us, suspected_us = 0, bell = excluded.bell, instance = excluded.instance"
)
_EXPIRED: Final = "SELECT id, suspected_us, instance FROM instances WHERE until_us <= ? ORDER BY number"
_IDLE: Final = "SELECT number, bell, idle FROM instances WHERE idle IS NOT NULL ORDER BY number"
_BELL: Final = "SELECT bell FROM instances WHERE id = ?"

_encode: Final = msgspec.msgpack.encode
_decode_idle: Final = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_instance: Final = msgspec.msgpack.Decoder(Instance).decode


Taken = tuple[Candidate, int] | Claim
"""A plain job as its row and its fence, or the claim of another."""

Told = tuple[tuple[Settled, ...], tuple[Claim, ...]]
"""What a turn came to."""


class _Reply(Struct, frozen=True, array_like=True):
    """What is kept of an unacknowledged turn (P16): all that its repeat and the tables do not tell.

    Attributes:
        settled: None for a success of which there is nothing more to say.
        claims: (number, fence) of a plain job.
    """

    position: int
    settled: list[Settled | None]
    claims: list[tuple[int, int] | Claim]


_decode_told: Final = msgspec.msgpack.Decoder(tuple[tuple[int, msgspec.Raw], ...]).decode
_decode_reply: Final = msgspec.msgpack.Decoder(_Reply).decode


class Replies:
    """Unacknowledged turns of instances that live in this process, as they were told: a repeat is told just that.

    Whether a turn was done stands in the database: one that was undone is never looked up here.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[int, Told]] = {}

    def keep(self, instance: str, number: int, reply: Told) -> None:
        """Remember what a turn came to."""
        self._told.setdefault(instance, {})[number] = reply

    def find(self, instance: str, number: int) -> Told | None:
        """Return what a turn came to, if it was told by this process."""
        return self._told.get(instance, {}).get(number)

    def acknowledge(self, instance: str, acked: int) -> None:
        """Forget turns up to this one."""
        told = self._told.get(instance)
        if told:
            self._told[instance] = {number: reply for number, reply in told.items() if number > acked}

    def forget(self, instance: str) -> None:
        """Forget an instance."""
        self._told.pop(instance, None)


class Steps:
    """The verbs that change a partition. `rings`: bells to ring once the transaction is committed."""

    def __init__(self, con: Connection, file: DatabaseFile, replies: Replies) -> None:
        self.con = con
        self._execute = con.execute
        self._file = file
        self._replies = replies
        self._index = file.index
        self._log = Log(con, file.entropy)
        self._cells = Cells(con, self._log, file.index)
        lanes = Lanes(con, self._log)
        lines = Lines(con, lanes)
        self._table = JobTable(con, lanes, lines)
        self._jobs = Jobs(con, self._log, self._cells, self._table, lines, file.index, file.partitions)
        self._short = ShortWay(con, self._log, self._cells, self._table, lines, self._jobs)
        self._version = -1  # tells whether another connection has written
        self._aside = 0  # jobs that this turn has laid aside
        self.rings: list[str] = []

    # -- the transaction

    def load(self) -> None:
        """The transaction has begun. What this connection knows is still true, unless another one has written."""
        version = self._execute(_VERSION).fetchone()[0]
        if version != self._version:
            self._version = version
            self._jobs.forget_held_on()
            furthest = self._file.furthest
            self._log.load()
            self._file.compare(self._log.counter, furthest)

    @property
    def counter(self) -> int:
        """The partition's counter, as it was saved."""
        return self._log.counter

    def save(self) -> None:
        """The transaction is about to be committed."""
        self._jobs.save()
        self._log.save()

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._version = -1
        self._jobs.forget_all()
        self._log.forget()
        self.rings.clear()

    def _now(self) -> int:
        """Return the store's time at the beginning of a verb: it never goes back."""
        self._jobs.clear()
        log = self._log
        log.slew(self._file.instant_us(), self._file.clock.wall_us())
        log.time_us = self._file.now_us(log.time_us, log.offset_us)
        return log.time_us

    # -- jobs

    def enqueue(self, jobs: Sequence[NewJob], since: Cursor) -> Enqueued:
        """See `Partition`."""
        now = self._now()
        admissions: list[Admission] = []
        for plain, some in groupby(jobs, is_plain):
            if plain:
                admissions += self._short.admit(list(some), now)
            else:
                admissions += [self._jobs.admit(job, now) for job in some]
        self._wake()
        return Enqueued(tuple(admissions), self._log.news(since), self._log.effects_waiting > 0)

    def turn(self, request: TurnRequest) -> TurnReply:
        """See `Partition`."""
        now = self._now()
        instance = request.instance
        known = self._execute(_HOLDER, (instance,)).fetchone()
        if known is None:
            refused = tuple(self._short.settle(instance, 0, request.settlements, now))
            return TurnReply(news=self._log.news(request.since), enrolled=False, settled=refused)
        holder, acked, was_told, was_idle = known
        told = dict(_decode_told(was_told)) if was_told is not None else {}
        if request.acked > acked:
            acked = request.acked
            told = {number: reply for number, reply in told.items() if number > acked}
            self._replies.acknowledge(instance, acked)
        settled: tuple[Settled, ...] = ()
        claims: tuple[Claim, ...] = ()
        if request.number in told:
            settled, claims = self._tell_again(request, told[request.number])
            more = self._claim(request, holder, now, limit=0)[1]
        elif request.number > acked:
            settled = tuple(self._short.settle(instance, holder, request.settlements, now))
            self._note_progress(request)
            self._jobs.promote(now, DUE_PER_TURN)
            self._jobs.tell(now, goes_on=True)
            taken, more = self._claim(request, holder, now, limit=request.limit)
            position = self._log.position
            claims = tuple([_claim(one, position) for one in taken])
            told[request.number] = msgspec.Raw(_encode(_reply(position, settled, taken, claims)))
            self._replies.keep(instance, request.number, (settled, claims))
        else:
            more = self._claim(request, holder, now, limit=0)[1]
        more = more or self._log.tellings > 0
        if more:
            self._jobs.woken.extend(request.queues)
        if was_idle is not None:
            self._execute(_SLEEPS_NOT, (holder,))
        self._wake()
        idle = _encode(request.queues) if request.idle and not claims and not more and request.queues else None
        self._execute(_SAVE_HOLDER, (acked, _encode(tuple(told.items())) if told else None, idle, holder))
        return TurnReply(
            news=self._log.news(request.since),
            settled=settled,
            claims=claims,
            more=more,
            next_due_us=self._next_due(now),
            cancels=self._cancels(holder),
            outbox=self._log.effects_waiting > 0,
        )

    def _claim(self, request: TurnRequest, holder: int, now: int, *, limit: int) -> tuple[list[Taken], bool]:
        """Claim up to `limit` jobs: plain ones as (row, fence). Returns them, and whether more could be claimed."""
        taken: list[Taken] = []
        self._aside = 0
        self._table.flush_ready()
        lanes = self._short.lanes(request.queues, request.tasks)
        while lanes:
            most = max(limit - len(taken) + 1, ASIDE_AT_ONCE if request.full else 0)
            found = self._short.candidates(lanes, most)
            done = self._take(found, taken, request, holder, now, limit=limit)
            if done or self._aside >= LAID_ASIDE_PER_TURN:
                return taken, True
            if len(found) < most and done is not None:
                return taken, False
            self._table.flush_ready()
        return taken, False

    def _take(
        self,
        found: list[Candidate],
        taken: list[Taken],
        request: TurnRequest,
        holder: int,
        now: int,
        *,
        limit: int,
    ) -> bool | None:
        """Take what was found, in order. Returns True: more is left; None: what comes next must be looked up again."""
        jobs, instance, turn, tasks = self._jobs, request.instance, request.number, request.tasks
        short: list[tuple[Candidate, int]] = []
        others: list[Candidate] = []
        up_to: dict[tuple[int, int], int] = {}  # (lane, priority) -> the last place that was taken
        late: Candidate | None = None
        left = False
        room = limit - len(taken)
        jobs.read_ahead_claims([row[1] for row in found[:room] if row[3] == OTHER])
        lined = self._short.lined(found[:room])
        for row in found:
            if row[2] not in tasks:
                others.append(row)
                continue
            if not room:
                left = True
                break
            if 0 < row[7] <= now:
                late = row
                break
            room -= 1
            up_to[row[6], row[4]] = row[5]
            if row[3] == PLAIN:
                one = (row, self._log.next_stamp(now))
                short.append(one)
                taken.append(one)
            elif row[0] in lined:
                claim = self._short.claim(row, lined[row[0]], now)
                short.append((row, claim.fence))
                taken.append(claim)
            else:
                taken.append(jobs.claim(self._table.taken_from_lane(row[1]), instance, holder, turn, now))
        if others:
            self._aside += len(others)
            self._short.lay_aside(others, request.full)
        if short:
            self._short.take(short, holder, turn, now)
        self._short.clear_lanes(up_to)
        if late is not None:
            jobs.expire_one(self._table.known(late[1]), now)  # its line goes on with another
            return None
        return left

    def _tell_again(self, request: TurnRequest, kept: msgspec.Raw) -> Told:
        told = self._replies.find(request.instance, request.number) or self._read_again(request, kept)
        settled, claims = told
        self._table.read_ahead([one.job for one in claims])
        return settled, tuple(one for one in claims if self._jobs.holds(request.instance, one.job, one.fence))

    def _read_again(self, request: TurnRequest, kept: msgspec.Raw) -> Told:
        reply = _decode_reply(kept)
        settled = tuple(
            Settled(one.job, one.fence, JobState.SUCCEEDED) if it is None else it
            for one, it in zip(request.settlements, reply.settled, strict=False)
        )
        again = (one if isinstance(one, Claim) else claim_again(self.con, *one, reply.position) for one in reply.claims)
        return settled, tuple(claim for claim in again if claim is not None)

    def settle(self, instance: str, settlements: Sequence[Settlement], since: Cursor) -> SettleReply:
        """See `Partition`."""
        now = self._now()
        settled = tuple(self._short.settle(instance, self._number_of(instance), settlements, now))
        self._wake()
        return SettleReply(settled, self._log.news(since), self._log.effects_waiting > 0)

    def enroll(self, instance: Instance) -> None:
        """See `Partition`."""
        until_us = self._now() + instance.lease_us
        self._execute(_ENROLL, (instance.id, until_us, instance.bell, _encode(instance)))
        self._log.serving += 1

    def dismiss(self, instance: str) -> None:
        """See `Partition`."""
        now = self._now()
        running = self._jobs.running(instance)
        if not self._strike(instance):
            return
        for row in running:
            if row.kind is JobKind.TASK:
                release = Settlement(row.id, row.fence, JobEvent.RELEASE, reason=Reason.STOPPED)
                self._jobs.settle(instance, release, now)
            else:
                self._jobs.lose(row, now)
        self._wake()

    def _strike(self, instance: str) -> bool:
        """Strike an instance off, with its turns. Returns whether it was known."""
        known = self._execute("DELETE FROM instances WHERE id = ?", (instance,)).rowcount > 0
        if known:
            self._replies.forget(instance)
            self._log.serving += 1
        return known

    def beat(self, request: HeartbeatRequest) -> HeartbeatReply:
        """See `Pulse`."""
        now = self._now()
        instance = request.instance
        known = self._execute("SELECT instance, number, until_us FROM instances WHERE id = ?", (instance,)).fetchone()
        settled = tuple(self._short.settle(instance, self._number_of(instance), request.settlements, now))
        if known is None:
            return HeartbeatReply(enrolled=False, lost=request.held, settled=settled)
        lease_us = _decode_instance(known[0]).lease_us
        until_us, renewed_us = now + lease_us, known[2] - lease_us
        self._execute("UPDATE instances SET until_us = ?, suspected_us = 0 WHERE id = ?", (until_us, instance))
        held = {(attempt.job, attempt.fence) for attempt in request.held}
        abandoned = {(one.job, one.fence): one.reason for one in request.abandoned}
        running = self._running_briefly(instance)
        for job, fence, kind, turn in running:
            reason = abandoned.get((job, fence))
            if reason is not None:
                self._jobs.lose(self._table.known(job), now, reason)
            elif kind == KINDS[JobKind.TASK] and turn <= request.last_turn and (job, fence) not in held:
                self._jobs.release(self._table.known(job), now)
        if request.names_scopes:
            self._end_scopes(request, renewed_us, now)
        self._table.flush()
        still = {(job, fence) for job, fence, _, _ in self._running_briefly(instance)}
        lost = tuple(one for one in request.held if (one.job, one.fence) not in still)
        self._wake()
        return HeartbeatReply(enrolled=True, lost=lost, cancels=self._cancels(known[1]), settled=settled)

    def _end_scopes(self, request: HeartbeatRequest, renewed_us: int, now: int) -> None:
        """End scopes and locks that nobody answers for. One asked for since the last beat may be younger than this one."""
        for row in self._jobs.unnamed_scopes(request.instance, request.scopes, renewed_us):
            if row.state is JobState.RUNNING:
                self._jobs.lose(row, now)
            else:
                self._jobs.cancel(row, Reason.UNWANTED, now)

    def _running_briefly(self, instance: str) -> list[Any]:
        self._table.flush()
        return self._execute(RUNNING, (instance,)).fetchall()

    # -- cache

    def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """See `Partition`."""
        now = self._now()
        return ReadReply(tuple([self._cells.look(request, now) for request in requests]), self._log.news(since))

    def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """See `Partition`."""
        now = self._now()
        return FillReply(tuple([self._cells.fill(fill, now) for fill in fills]), self._log.news(since))

    def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """See `Partition`."""
        now = self._now()
        for key, token in tokens:
            self._cells.extend(key, token, now + lease_us, now)

    def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """See `Partition`."""
        for key, token in tokens:
            self._cells.abandon(key, token)

    def invalidate(self, names: Invalidation, since: Cursor) -> News:
        """See `Partition`."""
        self._cells.invalidate(names, self._now())
        return self._log.news(since)

    def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """See `Partition`."""
        now = self._now()
        if owner.home == self._index:
            row = self._jobs.holds(instance, owner.job, owner.fence)
            if row is None:
                return Planted(self._log.news(since), Refusal.LEASE_LOST)
            self._table.touch(row)  # it is not on the short way from here on: its end touches more
        if any(self._cells.outlived(owner, key) for key in keys):
            return Planted(self._log.news(since), Refusal.LEASE_LOST)
        for key in keys:
            self._cells.plant(owner, key, now)
        return Planted(self._log.news(since))

    # -- scopes and locks outside jobs

    def acquire(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """See `Partition`."""
        now = self._now()
        holder = self._number_of(instance)
        if not holder:
            return Grant(0, self._log.news(since), Refusal.LEASE_LOST)
        fence, refusal = self._jobs.open_scope(job, instance, holder, now)
        self._wake()
        return Grant(fence, self._log.news(since), refusal)

    # -- housekeeping

    def tend(self, limit: int) -> Tended:
        """See `Partition`."""
        now = self._now()
        promoted = self._jobs.promote(now, limit)
        suspected, lost = self._reap(now)
        expired = self._jobs.expire(now, limit)
        purged = self._jobs.forget_ended(now, limit)
        for row in self._jobs.unfetched_locks(now):
            self._jobs.cancel(row, "the lock was not fetched", now)
        self._jobs.arrange_all(now)
        fallen = self._cells.drop_fallen(now, limit)
        are_dead_left = self._cells.drop_dead(now, limit)
        self._jobs.tell(now, goes_on=True)
        registered = self._jobs.register_again(now, limit)
        unroutable = self._jobs.unroutable(now)
        for row in unroutable:
            row.reason = Reason.UNROUTABLE % row.task
            self._table.touch(row)
        self._table.lanes.drop_empty()
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
            again=limit in (promoted, expired, purged, fallen, registered) or are_dead_left or self._log.tellings > 0,
            orphans=self._cells.orphans(now - ORPHAN_US),
            outbox=self._log.effects_waiting > 0,
        )

    def _reap(self, now: int) -> tuple[int, int]:
        """Look at expired leases: the first look suspects, the second, a grace later, settles as lost (P19)."""
        suspected = lost = 0
        for instance, suspected_us, kept in self._execute(_EXPIRED, (now,)).fetchall():
            if not suspected_us:
                self._execute("UPDATE instances SET suspected_us = ? WHERE id = ?", (now, instance))
                suspected += 1
            elif now - suspected_us >= reap_grace_us(_decode_instance(kept).lease_us):
                running = self._jobs.running(instance)
                self._strike(instance)
                for row in running:
                    self._jobs.lose(row, now)
                lost += len(running)
        return suspected, lost

    def delivered(self, ids: Sequence[int]) -> None:
        """See `Partition`."""
        dropped = self.con.executemany("DELETE FROM outbox WHERE id = ?", [(effect,) for effect in ids]).rowcount
        self._log.effects_waiting -= max(0, dropped)

    def accept(self, effects: Sequence[AnyEffect]) -> None:
        """See `Partition`."""
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

    def reserve(self, name: str, job: str, home: int, replacing: str) -> Reservation:
        """See `Partition`."""
        holder, its_home = self._jobs.reserve(name, job, home, replacing)
        return Reservation(holder, its_home, mine=holder == job)

    # -- by hand

    def cancel(self, id: str, reason: str) -> tuple[JobState | None, bool]:
        """See `Partition`."""
        now = self._now()
        row = self._table.get(id)
        if row is None:
            return None, False
        did = self._jobs.cancel(row, reason, now)
        self._wake()
        return row.state, did

    def revive(self, id: str) -> Admission:
        """See `Partition`."""
        now = self._now()
        row = self._table.get(id)
        if row is None:
            return Admission(id, JobState.FAILED, created=False, refusal=Refusal.UNKNOWN_JOB)
        admission = self._jobs.revive(row, now)
        self._wake()
        return admission

    def purge(self, states: Sequence[JobState], queue: str, limit: int) -> int:
        """See `Partition`."""
        purged = self._jobs.purge(states, queue, limit, self._now())
        self._wake()
        return purged

    def pause(self, queue: str, *, paused: bool) -> None:
        """See `Partition`."""
        now = self._now()
        if paused:
            self._execute("INSERT OR IGNORE INTO paused VALUES (?)", (queue,))
        else:
            self._execute("DELETE FROM paused WHERE queue = ?", (queue,))
            self._jobs.woken.append(queue)
        self._log.serving += 1
        self._jobs.arrange_all(now)
        self._wake()

    # -- from store to store

    def adopt(self, jobs: Sequence[Standing], epoch: int) -> tuple[bool, ...]:
        """See `Partition`."""
        now = self._now()
        if self._log.epoch < epoch:
            self._log.begin_epoch(epoch)
            self._cells.forget()
        adopted = tuple([self._jobs.adopt(one, now) for one in jobs])
        self._wake()
        return adopted

    def lose_memory(self, *, events: int) -> None:
        """Forget the last events and all entries, as a failover to a lagging replica would: a new epoch."""
        self._log.lose(events)
        self._cells.forget()

    # -- inside

    def _note_progress(self, request: TurnRequest) -> None:
        for job, fence, progress in request.progress:
            row = self._jobs.holds(request.instance, job, fence)
            if row:
                row.progress = progress
                self._table.touch(row)

    def _next_due(self, now: int) -> int:
        due_us = self._jobs.next_due_us()
        return -1 if due_us is None else max(0, due_us - now)

    def _number_of(self, instance: str) -> int:
        """Return the number by which the tables know an instance; 0: they do not."""
        known = self._execute(_HOLDER, (instance,)).fetchone()
        return known[0] if known else 0

    def _cancels(self, holder: int) -> tuple[Attempt, ...]:
        self._table.flush()
        asked = self._execute(CANCELS, (holder,)).fetchall()
        return tuple([Attempt(job, fence) for job, fence in asked])

    def _wake(self) -> None:
        """Ring one idle instance for each queue that has news, and those that were asked to cancel."""
        woken, called = self._jobs.woken, self._jobs.called
        if woken:
            idle = [(row, bell, _decode_idle(queues)) for row, bell, queues in self._execute(_IDLE)]
            for queue in dict.fromkeys(woken) if idle else ():
                one = next((one for one in idle if queue in one[2]), None)
                if one:
                    idle.remove(one)
                    self._execute("UPDATE instances SET idle = NULL WHERE number = ?", (one[0],))
                    self.rings.append(one[1])
            woken.clear()
        for instance in called:
            row = self._execute(_BELL, (instance,)).fetchone()
            if row:
                self.rings.append(row[0])
        called.clear()


def _claim(one: Taken, position: int) -> Claim:
    if isinstance(one, Claim):
        return structs.replace(one, position=position)
    return claim_of(*one, position)


def _reply(position: int, settled: Sequence[Settled], taken: Sequence[Taken], claims: Sequence[Claim]) -> _Reply:
    return _Reply(
        position,
        [None if one.state is JobState.SUCCEEDED and not one.stored and not one.children else one for one in settled],
        [claim if isinstance(one, Claim) else (one[0][0], one[1]) for one, claim in zip(taken, claims, strict=True)],
    )
