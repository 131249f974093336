"""The jobs of one partition: admission, lines, and what the end of an attempt sets in motion.

This decides; what it decides about is kept by `JobTable`, `Lines` and `Cells`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from selaras._contracts.limits import (
    HISTORY_MOST,
    INTENT_GRACE_US,
    LOCK_ACCEPT_US,
    ORPHAN_US,
    TOLD_PER_STEP,
    UNROUTABLE_US,
)
from selaras._contracts.partition import (
    Admit,
    AnyEffect,
    FreeUnique,
    HoldUnique,
    Invalidation,
    MeetTwin,
    Owner,
    Parted,
    Register,
    Resolve,
    Supersede,
    Void,
)
from selaras._core.cache.floors import VersionFloors, closing
from selaras._core.jobs.job import (
    Admission,
    Attempt,
    Claim,
    Edge,
    Ended,
    JobKind,
    NewJob,
    OnConflict,
    Refusal,
    Settled,
    Settlement,
    Standing,
    UniqueUntil,
    carry_over,
)
from selaras._core.jobs.lifecycle import FINAL, SETTLING, UNCOUNTED, WAITING, allowed, ending
from selaras._core.jobs.reasons import Reason, exhausted, parent_ended
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.routing import home_of, id_entry, partition_of
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.cells import Cells
from selaras._stores.sqlite.connection import Connection
from selaras._stores.sqlite.lanes import ENTER_LANE
from selaras._stores.sqlite.lines import Lines
from selaras._stores.sqlite.log import Log
from selaras._stores.sqlite.rows import Row
from selaras._stores.sqlite.schema import (
    IS_LOCK_OFFER,
    IS_SCHEDULED,
    IS_TASK,
    IS_WAITING,
    KINDS,
    PLAIN,
    STATES,
    among,
)
from selaras._stores.sqlite.table import JobTable

DUE: Final = f"SELECT number, id, way, queue, priority FROM jobs WHERE {IS_SCHEDULED} AND due_us <= ? ORDER BY due_us, number LIMIT ?"
NEXT_DUE: Final = f"SELECT due_us FROM jobs WHERE {IS_SCHEDULED} ORDER BY due_us LIMIT 1"
PROMOTE_PLAIN: Final = f"UPDATE jobs SET state = {STATES[JobState.READY]}, place = ?, ready_us = ? WHERE number = ?"
LATE: Final = (
    f"SELECT id FROM jobs WHERE expires_us > 0 AND {IS_WAITING} AND expires_us <= ? ORDER BY expires_us, number LIMIT ?"
)
OVER: Final = """
    SELECT e.number, e.state, j.id, j.kind, j.queue, j.awaited FROM ends AS e JOIN jobs AS j ON j.number = e.number
    WHERE e.keep_until_us <= ? AND j.id NOT IN (SELECT job FROM tellings) ORDER BY e.keep_until_us, e.number LIMIT ?
"""
RUNNING: Final = (
    "SELECT j.id, r.fence, j.kind, r.turn FROM runs AS r JOIN jobs AS j ON j.number = r.number"
    " JOIN instances AS i ON i.number = r.instance WHERE i.id = ? ORDER BY r.fence"
)
OFFERS: Final = f"SELECT id FROM jobs WHERE {IS_LOCK_OFFER} AND ready_us <= ? ORDER BY number"
UNROUTABLE: Final = """
    SELECT j.id FROM lanes AS l CROSS JOIN ready AS w ON w.lane = l.code CROSS JOIN jobs AS j ON j.number = w.number
    WHERE l.task <> '' AND j.strayed_us > 0 AND j.strayed_us <= ? AND substr(j.reason, 1, 10) <> 'unroutable'
"""
ASKED: Final = "SELECT id FROM jobs WHERE asker = ? AND asker <> '' AND created_us < ? ORDER BY number"
FAR: Final = "SELECT id FROM jobs WHERE registered_us > 0 AND registered_us <= ? ORDER BY registered_us, number LIMIT ?"
_TAKEN: Final = "SELECT 1 FROM ready WHERE lane = ? AND priority = ? AND place = ?"
_DEPEND: Final = (
    "INSERT INTO dependents (parent, child, edge, home) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (parent, child, edge) DO UPDATE SET home = excluded.home"
)
_DEPENDENTS: Final = "SELECT child, edge, home, number FROM dependents WHERE parent = ? ORDER BY number LIMIT ?"
_TELL: Final = "INSERT INTO tellings (job, dependents, is_gone) VALUES (?, ?, ?)"
_NEXT_TELLING: Final = "SELECT job, dependents, is_gone FROM tellings ORDER BY number LIMIT 1"
_TELL_FEWER: Final = "UPDATE tellings SET dependents = ? WHERE job = ?"
_TOLD: Final = "DELETE FROM tellings WHERE job = ?"
_HOLDER: Final = "SELECT job, home FROM directory WHERE name = ?"
_HOLD: Final = "INSERT OR REPLACE INTO directory VALUES (?, ?, ?)"
_FREE: Final = "DELETE FROM directory WHERE name = ? AND job = ? AND ? IN (home, -1)"
_POST: Final = "INSERT INTO outbox VALUES (?, ?)"
_ACCEPT: Final = (
    "INSERT INTO accepted VALUES (?, ?) ON CONFLICT (sender) DO UPDATE SET id = excluded.id WHERE id < excluded.id"
)
_TASK: Final = KINDS[JobKind.TASK]
_EDGES: Final = {edge.value: edge for edge in Edge}
_encode: Final = msgspec.msgpack.encode


class _Telling(Struct, eq=False):
    """Dependents of a job that are to be told how it stands: the first `left` of them. `is_gone`: it is not known any more."""

    job: str
    left: int
    is_gone: bool
    is_kept: bool = False  # in the table: an earlier verb has left it


class Jobs:
    """Every job of the partition and what orders them, as the running transaction sees it."""

    def __init__(
        self, con: Connection, log: Log, cells: Cells, table: JobTable, lines: Lines, index: int, partitions: int
    ) -> None:
        self._con = con
        self._execute = con.execute
        self._log = log
        self._cells = cells
        self.index = index
        self._partitions = partitions
        self._table = table
        self._lines = lines
        self._begun: list[_Telling] = []  # by this verb
        self._told = 0  # dependents, by this verb
        self._is_telling = False
        self._due_us: int | None = None  # when the next scheduled job is due, if that is known
        self._is_due_known = False
        self._served_at = -1
        self._paused: frozenset[str] = frozenset()
        self._served: frozenset[str] = frozenset()
        self.woken: list[str] = []  # queues in which something became ready or is due sooner
        self.called: list[str] = []  # instances that should look at their cancels

    # -- rows

    def read_ahead_of(self, settlements: Sequence[Settlement]) -> None:
        """Read what ends of attempts are going to ask for: jobs, their lines and who comes next there, their keys."""
        if len(settlements) < 2:
            return
        jobs = [one.job for one in settlements]
        self._table.read_ahead(jobs)
        lines: dict[str, None] = {}
        keys: dict[str, None] = {}
        for one in settlements:
            row = self._table.found(one.job)
            if row is not None:
                if row.line:
                    lines[row.line] = None
                keys.update(dict.fromkeys(row.rest.writes))
        self._lines.read_ahead(lines)
        self._table.read_ahead(self._lines.next_heads(lines))
        keys.update(dict.fromkeys(self._cells.read_ahead_of(jobs)))
        self._cells.read_ahead([key for key in keys if self.is_here(key)])

    def read_ahead_claims(self, ids: Sequence[str]) -> None:
        """Read jobs that are going to be claimed, and what stands in the places of their keys."""
        if len(ids) < 2:
            return
        self._table.read_ahead(ids)
        found = map(self._table.found, ids)
        self._cells.read_ahead({key: None for row in found if row for key in row.rest.writes if self.is_here(key)})

    def forget_held_on(self) -> None:
        """Another connection has written."""
        self._table.forget_held_on()
        self._lines.forget_held_on()
        self._cells.forget_held_on()
        self._is_due_known = False

    def save(self) -> None:
        """The transaction is about to be committed."""
        self.clear()
        self._table.save()

    def clear(self) -> None:
        """A verb has ended: nothing that was read is known any more, and what it could not tell is left to others."""
        self._table.flush()
        self._put_off()
        self._told = 0
        self._cells.clear()
        self._table.clear()
        self._lines.clear()

    def forget_all(self) -> None:
        """The transaction was rolled back: nothing that was read or changed is true."""
        self._table.forget_all()
        self._lines.forget_all()
        self._begun.clear()
        self._told, self._is_telling = 0, False
        self._cells.forget_all()
        self._is_due_known = False
        self.woken.clear()
        self.called.clear()
        self._served_at = -1

    # -- coming in

    def admit(self, new: NewJob, now: int) -> Admission:
        """Enqueue one job."""
        twin = self._table.get(new.id)
        if twin:
            same = (twin.task, twin.payload) == (new.task, new.payload)
            return Admission(twin.id, twin.state, created=False, refusal=None if same else Refusal.ID_CONFLICT)
        holder, home = self._holder(new.unique, new.id)
        twin = self._table.get(holder) if holder != new.id else None
        if twin:
            return self._meet(twin, new, now)
        if home != self.index:
            return Admission(holder, JobState.BLOCKED, created=False)
        row = Row(self._log.next_number(), new.id, now)
        row.renew(new)
        self._table.add(row)
        self._hold_unique(row)
        self._begin(row, new, now)
        return Admission(row.id, row.state)

    def _begin(self, row: Row, new: NewJob, now: int) -> None:
        """Let a blocked job wait for its parents, or for whatever comes next."""
        row.due_us = new.due_us or now + new.delay_us
        row.expires_us = now + new.expires_in_us if new.expires_in_us else 0
        _merge(row.positions, new.positions)
        self._wait_for_parents(row, new, now)

    def _wait_for_parents(self, row: Row, new: NewJob, now: int) -> None:
        row.waits.update({(parent.job, parent.edge): parent for parent in new.parents})
        row.registered_us = now if any(parent.home != self.index for parent in row.waits.values()) else 0
        for parent in new.parents:
            self.register(
                Register(parent=parent.job, child=row.id, edge=parent.edge, home=self.index, to=parent.home), now
            )
        if row.state is JobState.BLOCKED and not row.waits:
            self._enter(row, JobEvent.UNBLOCK, now)

    def _meet(self, twin: Row, new: NewJob, now: int) -> Admission:
        """The unique key is taken: keep the twin, or let the latest arguments win."""
        if new.on_conflict is OnConflict.KEEP or twin.state not in WAITING:
            return Admission(twin.id, twin.state, created=False)
        self._leave(twin, now)
        self._table.touch(twin)
        twin.renew(new)
        self._is_due_known = False
        self._table.let_go(twin.id)
        twin.state, twin.joined, twin.lane, twin.strayed_us = JobState.BLOCKED, 0, "", 0
        self._begin(twin, new, now)
        return Admission(twin.id, twin.state, created=False, replaced=True)

    def _enter(self, row: Row, event: JobEvent, now: int) -> None:
        """Let a job wait where it belongs: for its time, for its line, or for a worker."""
        if row.due_us > now:
            self._move(row, event, JobState.SCHEDULED)
            self.woken.append(row.queue)
            return
        if not row.line:
            self._ready(row, event, now)
            return
        line = self._lines.line(row.line)
        if line.holder == row.id:  # an ordered retry kept it
            self._ready(row, event, now)
            return
        row.joined = row.joined or self._log.next_number()
        self._table.touch(row)
        self._move(row, event, JobState.HELD)
        line.next = None
        if line.is_fresh and not line.holder and not line.head:  # it stands there alone
            line.head, line.ready_us = row.id, now
            self._lines.changed.add(row.line)
            self._ready(row, JobEvent.PROMOTE, now)
        elif not line.holder and not (line.head and self._is_behind(row, line.head)):
            self.arrange(row.line, now)

    def _is_behind(self, row: Row, head: str) -> bool:
        """Say whether a job that joins a line changes nothing of who is its head."""
        if self._log.arranged != self._log.serving:
            return False  # other queues are served than when it became that
        first, other = (
            self._rank(KINDS[it.kind], it.queue, it.priority, it.joined, it.id) for it in (self._table.known(head), row)
        )
        return first < other

    def _rank(self, kind: int, queue: str, priority: int, joined: int, job: str) -> tuple[bool, int, int, str]:
        """Return the order in a line: those that may run come first (P21)."""
        paused = self.paused()
        may_run = kind != _TASK or (queue in self._served and queue not in paused)
        return (not may_run, -priority, joined, job)

    def _ready(self, row: Row, event: JobEvent, now: int) -> None:
        self._move(row, event, JobState.READY)
        row.place, row.ready_us = row.joined or self._log.next_number(), now
        self.woken.append(row.queue)

    def promote(self, now: int, limit: int) -> int:
        """Let jobs whose time has come go on. Returns how many."""
        if self._is_due_known and (self._due_us is None or self._due_us > now):
            return 0
        self._table.flush()
        due = self._execute(DUE, (now, limit)).fetchall()
        self._is_due_known = False
        for number, job, way, queue, priority in due:
            if way == PLAIN and not self._table.is_read(job):
                place = self._log.next_number()
                self._execute(PROMOTE_PLAIN, (place, now, number))
                self._execute(ENTER_LANE, (self._table.lanes.code(queue), priority, place, number))
                self._table.count(queue, STATES[JobState.SCHEDULED], -1)
                self.woken.append(queue)
            else:
                self._enter(self._table.known(job), JobEvent.DUE, now)
        return len(due)

    def next_due_us(self) -> int | None:
        """Return when the next scheduled job is due."""
        if not self._is_due_known:
            self._table.flush()
            row = self._execute(NEXT_DUE).fetchone()
            self._due_us, self._is_due_known = row[0] if row else None, True
        return self._due_us

    def scheduled(self) -> None:
        """What is due next may be another job."""
        self._is_due_known = False

    def adopt(self, standing: Standing, now: int) -> bool:
        """Take a job over as it stood in another store. Returns whether it was not here yet."""
        new = standing.job
        if self._table.get(new.id):
            return False
        self._log.numbers = max(self._log.numbers, standing.place, standing.joined)
        row = Row(self._log.next_number(), new.id, standing.created_us)
        row.renew(new)
        carry_over(row, standing)
        self._table.add(row)
        if standing.state is JobState.FAILED:
            row.state, row.ended_us, row.keep_until_us = JobState.FAILED, standing.ended_us, standing.keep_until_us
            return True
        if new.unique and self._execute(_HOLDER, (new.unique,)).fetchone() is None:
            self._hold_unique(row)
        if standing.keeps_line and not self._lines.line(row.line).holder:
            self._lines.line(row.line).holder = row.id
            self.arrange(row.line, now)
        self._wait_for_parents(row, new, now)
        # The head of a line stands where it joined, whatever its store had it do (see `jobs` in the schema).
        if row.state is JobState.READY and standing.place and not row.line:
            self._table.flush()
            at = self._table.lanes.code(row.queue, row.lane), row.priority, standing.place
            if self._execute(_TAKEN, at).fetchone() is None:  # else it stays behind all others
                row.place = standing.place
                self._table.touch(row)
        return True

    # -- lines

    def arrange(self, name: str, now: int, *, leaving: str = "") -> None:
        """Give the head's place to the first member that may run, if nobody holds the line (P21)."""
        line = self._lines.line(name)
        first = "" if line.holder else self._first(name, leaving)
        self._lines.changed.add(name)
        if line.head and line.head != first:
            head = self._table.known(line.head)
            self._move(head, JobEvent.HOLD, JobState.HELD)
            line.head = ""
        if first and line.head != first:
            line.head, line.ready_us = first, now
            self._ready(self._table.known(first), JobEvent.PROMOTE, now)
        if not line.holder and not first:
            self._lines.drop(name)

    def _first(self, name: str, leaving: str) -> str:
        # Whoever leaves is left out by name, as it is about to change again; of the line's others all must be written.
        first = self._lines.line(name).first(leaving)
        if first is not None:
            return first
        if self._lines.is_stirred(name, but=leaving):
            unwritten = self._table.take_back(leaving)
            self._table.flush()
            if unwritten:
                self._table.note(unwritten)
        ranks = [self._rank(*member) for member in self._lines.firsts(name, leaving)]
        return min(ranks)[3] if ranks else ""

    def pass_on_line(self, name: str, job: str, now: int) -> None:
        """Let a line go on: its holder has succeeded the short way."""
        line = self._lines.line(name)
        line.holder = ""
        ahead = line.next[-1] if line.next else None
        if ahead is None or ahead.kind != _TASK or self._table.is_changed(ahead.id):
            self.arrange(name, now, leaving=job)
            return
        self._lines.pass_on(name, line, ahead, now)
        self._table.drop((ahead.id,))
        self._table.count(ahead.queue, STATES[JobState.HELD], -1)
        self.woken.append(ahead.queue)

    def arrange_all(self, now: int) -> None:
        """The served queues have changed: heads of lines in which several queues wait may change too."""
        if self._log.arranged == self._log.serving:
            return
        self._table.flush()
        for name in self._lines.mixed():
            self.arrange(name, now)
        self._log.arranged = self._log.serving

    def paused(self) -> frozenset[str]:
        """Return the paused queues."""
        if self._served_at != self._log.serving:
            self._paused = frozenset(queue for (queue,) in self._execute("SELECT queue FROM paused"))
            served = self._execute("SELECT instance FROM instances")
            self._served = frozenset(queue for (kept,) in served for queue in _decode_queues(kept))
            self._served_at = self._log.serving
        return self._paused

    def _leave(self, row: Row, now: int) -> None:
        """Take a job out of its line, which goes on without it."""
        if not row.line:
            return
        line = self._lines.line(row.line)
        if line.is_fresh and not line.holder and not line.head:
            self._lines.drop(row.line)
            return
        if line.holder == row.id:
            line.holder = ""
        else:
            line.next = None
        if line.head == row.id:
            line.head = ""
        self.arrange(row.line, now, leaving=row.id)

    # -- claims

    def claim(self, row: Row, instance: str, holder: int, turn: int, now: int) -> Claim:
        """Hand a job out: next fence, attempt + 1, intents (L3). The caller sets the claim's position."""
        self._take(row, instance, holder, turn, now)
        rest = row.rest
        owner = Owner(self.index, row.id, row.fence)
        if row.attempt == 1 and not (row.lost or row.unsure):
            self._cells.has_none(row.id)
        preimages = [(key, self._cells.plant(owner, key, now)) for key in rest.writes if self.is_here(key)]
        return Claim(
            row.id,
            row.fence,
            row.attempt,
            row.task,
            row.payload,
            row.meta,
            row.queue,
            row.priority,
            row.lost,
            row.created_us,
            0,
            row.line,
            rest.ordered,
            rest.writes,
            rest.serves,
            tuple(key for key in rest.writes if not self.is_here(key)),
            tuple((key, entry) for key, entry in preimages if entry) if rest.wants_preimage else (),
            row.input,
            tuple(sorted(row.positions.items())),
            row.strayed_us,
        )

    def _take(self, row: Row, instance: str, holder: int, turn: int, now: int) -> None:
        self._move(row, JobEvent.CLAIM, JobState.RUNNING)
        row.attempt += 1
        row.fence, row.instance, row.holder, row.turn = self._log.next_stamp(now), instance, holder, turn
        row.started_us, row.progress = now, None
        row.lane = ""
        if row.line:
            self._lines.hold(row.line, row.id)
        if row.rest.unique_until is UniqueUntil.STARTED:
            self._free_unique(row, now)

    def open_scope(self, new: NewJob, instance: str, holder: int, now: int) -> tuple[int, Refusal | None]:
        """Begin a writing() scope, or a lock whose line is free. Returns its fence; 0: it stands in line."""
        admission = self.admit(new, now)
        row = self._table.known(admission.id)
        if admission.refusal or row.kind is not new.kind:
            return 0, Refusal.ID_CONFLICT
        if row.state in FINAL or row.instance not in ("", instance):
            return 0, Refusal.LEASE_LOST
        if row.asker != instance:
            row.asker = instance
            self._table.touch(row)
        if row.state is JobState.READY:
            self._take(row, instance, holder, 0, now)
            for key in row.rest.writes:
                if self.is_here(key):
                    self._cells.plant(Owner(self.index, row.id, row.fence), key, now)
        return (row.fence if row.state is JobState.RUNNING else 0), None

    # -- ends of attempts

    def holds(self, instance: str, job: str, fence: int) -> Row | None:
        """Return the running job if (instance, job, fence) is its attempt (P15)."""
        row = self._table.get(job)
        if row and row.state is JobState.RUNNING and row.fence == fence and row.instance == instance:
            return row
        return None

    def running(self, instance: str) -> list[Row]:
        """Return what an instance runs, the oldest claim first."""
        self._table.flush()
        return [self._table.known(job) for job, _, _, _ in self._execute(RUNNING, (instance,)).fetchall()]

    def settle(self, instance: str, settlement: Settlement, now: int) -> Settled:
        """End an attempt and apply its effects (L4, L5)."""
        row = self.holds(instance, settlement.job, settlement.fence)
        if row is None:
            self._void_late(settlement, now)
            return Settled(settlement.job, settlement.fence, refusal=Refusal.LEASE_LOST)
        if settlement.event not in SETTLING:
            return Settled(settlement.job, settlement.fence, refusal=Refusal.WRONG_STATE)
        success = settlement.event is JobEvent.SUCCEED
        if settlement.event in (JobEvent.RELEASE, JobEvent.GIVE_BACK) and (row.lost or row.unsure):
            settlement = structs.replace(settlement, unsure=True)  # it did nothing; one before it may write yet (P18)
        stored = self._settle_cells(row, settlement, now)
        row.instance = ""
        self._apply(row, settlement, now)
        children = tuple(self._send(child, row, now) for child in settlement.children) if success else ()
        return Settled(settlement.job, settlement.fence, row.state, stored=stored, children=children)

    def _void_late(self, settlement: Settlement, now: int) -> None:
        """The lease was lost: what the attempt may have written is voided once more (G4)."""
        closes = settlement.closes
        if settlement.unsure:
            closes += closing(settlement.serves, INTENT_GRACE_US)
        names = Invalidation((), settlement.tags, settlement.families, closes=closes)
        self._void(settlement.may_have_written, names, now)

    def _settle_cells(self, row: Row, settlement: Settlement, now: int) -> tuple[tuple[str, int, int], ...]:
        owner = Owner(self.index, row.id, row.fence)
        success = settlement.event is JobEvent.SUCCEED
        unsure = settlement.unsure and not success
        unstarted = settlement.event is JobEvent.RELEASE and not settlement.started
        puts = {put.key: put for put in settlement.puts}
        cells, stored = self._cells, list[tuple[str, int, int]]()
        if success and not (puts or settlement.names_more or row.rest.serves) and self._partitions == 1:
            for key in row.rest.writes:
                cells.resolve(owner, key, None, now)
            for key in cells.keys_of(owner):
                if key not in row.rest.writes:
                    cells.resolve(owner, key, None, now)
            return ()
        own = tuple(dict.fromkeys((*row.rest.writes, *settlement.planted, *cells.keys_of(owner))))
        closed = closing(row.rest.serves, INTENT_GRACE_US) if unsure else ()  # no intent stands there for it
        floors = VersionFloors(settlement.versions, settlement.closes + closed)
        cells.set_floors(*floors.of(self.is_here), now)
        for key in own:
            if not self.is_here(key):
                continue
            if unsure:
                cells.leave(owner, key)
            elif unstarted:
                cells.restore(owner, key, now)
            else:
                at = cells.resolve(owner, key, puts.get(key) if success else None, now)
                if at:
                    stored.append((key, *at))
        elsewhere = () if self._partitions == 1 else tuple(key for key in own if not self.is_here(key))
        if unsure:
            row.unsure = row.unsure or bool(own)
            row.left = tuple(dict.fromkeys((*row.left, *elsewhere)))
            elsewhere = ()
        for to, keys in self._by_partition(elsewhere) if elsewhere else ():
            there = tuple(puts[key] for key in keys if key in puts) if success else ()
            versions, closes = floors.of(keys.__contains__)
            self._post(Resolve(to=to, owner=owner, keys=keys, puts=there, versions=versions, closes=closes), now)
        undeclared = tuple(key for key in puts if key not in own)
        names = (*undeclared, *settlement.keys, *row.rest.serves)
        if names or settlement.tags or settlement.families or settlement.versions or settlement.closes:
            versions, closes = floors.of(lambda key: not self.is_here(key) and key not in elsewhere)
            self._void(names, Invalidation((), settlement.tags, settlement.families, versions, closes), now)
        return tuple(stored)

    def _void(self, keys: tuple[str, ...], names: Invalidation, now: int) -> None:
        """Void keys and set floors, each in the partition that has the key; tags and families here."""
        floors = VersionFloors(names.versions, names.closes)
        here = tuple(key for key in dict.fromkeys(keys) if self.is_here(key))
        self._cells.invalidate(Invalidation(here, names.tags, names.families, *floors.of(self.is_here)), now)
        if self._partitions == 1:
            return
        elsewhere = tuple(key for key in dict.fromkeys((*keys, *floors.keys)) if not self.is_here(key))
        for to, those in self._by_partition(elsewhere):
            voided = tuple(key for key in those if key in keys)
            versions, closes = floors.of(those.__contains__)
            self._post(Void(to=to, names=Invalidation(voided, versions=versions, closes=closes)), now)

    def _apply(self, row: Row, settlement: Settlement, now: int) -> None:
        said = settlement.event
        self._table.note(row)
        if said is not JobEvent.SUCCEED:
            row.is_altered = True
            ended = Ended(row.attempt, row.fence, said, now, settlement.reason, settlement.unsure)
            row.history = [*row.history, ended][-HISTORY_MOST:]
        if said in UNCOUNTED:
            row.attempt -= 1
        asked = row.reason if row.cancel_requested else ""
        row.reason, row.error = settlement.reason, settlement.error
        event, final = ending(
            said, scope=_is_scope(row), asked=row.cancel_requested, spent=row.lost >= row.rest.max_lost
        )
        if event is JobEvent.SUCCEED:
            row.result = settlement.result
        elif event is JobEvent.CANCEL:
            row.reason = (row.reason or asked) if said in (JobEvent.CANCEL, JobEvent.FAIL) else asked
        elif event is JobEvent.EXHAUST:
            row.reason = exhausted(row.lost, settlement.reason)
        if final is not None:
            self._end(row, event, final, now)
        else:
            self._again(row, event, now + (0 if event is JobEvent.RELEASE else settlement.delay_us), now)

    def _again(self, row: Row, event: JobEvent, due_us: int, now: int) -> None:
        """Back to waiting: for its back-off, at the line's tail or in its old place (P21)."""
        newer, home = self._holder(row.unique, row.id)
        if newer != row.id and home == self.index and self._has_right(newer, row.unique):
            row.reason = Reason.SUPERSEDED % newer
            self._end(row, JobEvent.SUPERSEDE, JobState.CANCELLED, now)
            return
        self._hold_again(row, now)
        row.due_us = due_us
        if event is JobEvent.GIVE_BACK:
            row.strayed_us = row.strayed_us or now
        if event not in (JobEvent.GIVE_BACK, JobEvent.RELEASE):
            row.expires_us = 0  # it has started
        if event in (JobEvent.RETRY, JobEvent.SNOOZE) and not row.rest.ordered:
            row.joined = 0
        keeps = event is JobEvent.RETRY and row.rest.ordered and row.line
        if row.line and not keeps:
            self._lines.line(row.line).holder = ""
            self._lines.changed.add(row.line)
        self._enter(row, event, now)
        if row.line and not keeps:
            self.arrange(row.line, now)

    def lose(self, row: Row, now: int, reason: str = Reason.LOST) -> None:
        """Settle one attempt as lost. Its intents pass to the next attempt, or stand a grace (P18)."""
        self._void(row.rest.serves, Invalidation(closes=closing(row.rest.serves, INTENT_GRACE_US)), now)
        self._cells.pass_on(Owner(self.index, row.id, row.fence))
        row.instance = ""
        row.lost += 1
        self._apply(row, Settlement(row.id, row.fence, JobEvent.LOSE, reason=reason), now)

    def release(self, row: Row, now: int) -> None:
        """Take back what was claimed in a reply that never arrived (P16)."""
        release = Settlement(row.id, row.fence, JobEvent.RELEASE, reason=Reason.UNHEARD)
        self.settle(row.instance, release, now)

    # -- ends of jobs

    def _end(self, row: Row, event: JobEvent, state: JobState, now: int) -> None:
        self._leave(row, now)
        if event is not JobEvent.SUCCEED or row.stuck:
            self._table.touch(row)
        self._move(row, event, state)
        row.ended_us, row.stuck = now, []
        failed = state is JobState.FAILED and not _is_scope(row)
        row.keep_until_us = now + (row.rest.failed_ttl_us if failed else row.result_ttl_us)
        self._let_go(row, now)
        if row.awaited:
            self._begin_telling(row.id, now)
        if row.kind is JobKind.LOCK:  # nothing can wait for it
            self._forget(row, now)

    def _let_go(self, row: Row, now: int) -> None:
        """Free what a job leaves behind: its unique key, and intents of attempts that were lost or unsure (P18)."""
        self._free_unique(row, now)
        if not (row.lost or row.unsure):
            return
        owner = Owner(self.index, row.id, row.fence)
        self._cells.let_stand(owner, now + INTENT_GRACE_US)
        own = dict.fromkeys((*row.rest.writes, *row.left))
        for to, keys in self._by_partition(tuple(key for key in own if not self.is_here(key))):
            self._post(Resolve(to=to, owner=owner, keys=keys, stand_us=INTENT_GRACE_US), now)

    def cancel(self, row: Row, reason: str, now: int) -> bool:
        """Cancel a job; ask, if it runs. Returns whether this did anything."""
        if row.state in WAITING:
            row.reason = reason
            self._end(row, JobEvent.CANCEL, JobState.CANCELLED, now)
            return True
        if row.state is JobState.RUNNING and not row.cancel_requested:
            row.cancel_requested, row.reason = True, reason
            self._table.touch(row)
            self.called.append(row.instance)
            return True
        return False

    def expire(self, now: int, limit: int) -> int:
        """End jobs that waited longer than they were allowed to. Returns how many."""
        self._table.flush()
        late = [self._table.known(job) for (job,) in self._execute(LATE, (now, limit)).fetchall()]
        return sum(self.expire_one(row, now) for row in late)

    def expire_one(self, row: Row, now: int) -> bool:
        """End a job that waited too long, unless the end of another has ended it. Returns whether it did."""
        if row.state not in WAITING:
            return False
        row.reason = Reason.LATE
        self._end(row, JobEvent.EXPIRE, JobState.EXPIRED, now)
        return True

    def revive(self, row: Row, now: int) -> Admission:
        """Retry a failed job by hand: fresh budget, history kept."""
        if row.state is not JobState.FAILED:
            return Admission(row.id, row.state, created=False, refusal=Refusal.WRONG_STATE)
        holder, _ = self._holder(row.unique, row.id)
        if holder != row.id:
            return Admission(holder, row.state, created=False, refusal=Refusal.WRONG_STATE)
        self._hold_again(row, now)
        row.attempt = row.lost = 0
        row.unsure, row.left = False, ()
        row.due_us, row.joined, row.keep_until_us, row.ended_us = now, 0, 0, 0
        row.reason, row.error, row.cancel_requested, row.strayed_us = "", None, False, 0
        self._table.touch(row)
        row.expires_us = now + row.rest.expires_in_us if row.rest.expires_in_us else 0
        self._enter(row, JobEvent.REVIVE, now)
        self._begin_telling(row.id, now)
        return Admission(row.id, row.state, created=False)

    def forget_ended(self, now: int, limit: int) -> int:
        """Delete jobs whose retention is over, the longest ended first. Returns how many."""
        self._table.flush()
        self._put_off()
        over = self._execute(OVER, (now, limit)).fetchall()
        self._table.forget_ended([number for number, _, _, _, _, _ in over])
        for _, state, job, kind, queue, _ in over:
            self._table.gone(job)
            if kind == _TASK:
                self._table.count(queue, state, -1)
                self._free_id(job, now)
        for _, _, job, _, _, awaited in over:
            if awaited:
                self._begin_telling(job, now, is_gone=True)
        return len(over)

    def purge(self, states: Iterable[JobState], queue: str, limit: int, now: int) -> int:
        """Delete jobs that nobody runs, oldest first. Returns how many."""
        self._table.flush()
        wanted = self._execute(
            f"SELECT j.id {rows.FROM} WHERE {rows.STATE} IN ({among(tuple(set(states) - {JobState.RUNNING}))}) AND {IS_TASK}"
            " AND (? = '' OR queue = ?) AND j.id NOT IN (SELECT job FROM tellings) ORDER BY j.number LIMIT ?",
            (queue, queue, limit),
        ).fetchall()
        for row in [self._table.known(job) for (job,) in wanted]:
            if row.state in WAITING:
                self._leave(row, now)
                self._let_go(row, now)
            self._forget(row, now)
            self._begin_telling(row.id, now, is_gone=True)
        return len(wanted)

    def _forget(self, row: Row, now: int) -> None:
        self._is_due_known = False
        self._table.forget(row)
        if row.kind is JobKind.TASK:
            self._free_id(row.id, now)

    # -- parents and children

    def _send(self, child: NewJob, parent: Row, now: int) -> Admission:
        """Enqueue a child of a successful attempt, here or at its home; there it must have seen its parent's effects."""
        home = home_of(child, self._partitions)
        if home == self.index:
            return self.admit(child, now)
        positions = dict(child.positions)
        _merge(positions, self._seen(parent))
        self._post(Admit(to=home, job=structs.replace(child, positions=tuple(sorted(positions.items())))), now)
        return Admission(child.id, JobState.BLOCKED)

    def register(self, effect: Register, now: int) -> None:
        """Note a dependent at its parent; if the parent has ended, it is told at once (P22)."""
        if effect.to != self.index:
            self._post(effect, now)
            return
        parent = self._table.get(effect.parent)
        if parent is None or parent.state in FINAL:
            if parent and parent.state is JobState.FAILED and effect.edge in (Edge.AFTER, Edge.VALUE):
                self._depend(parent, effect)
            self._part(self._parted(effect.parent, parent, effect.child, effect.edge, effect.home), now)
            return
        self._depend(parent, effect)

    def _depend(self, parent: Row, effect: Register) -> None:
        self._execute(_DEPEND, (effect.parent, effect.child, effect.edge.value, effect.home))
        if not parent.awaited:
            parent.awaited = True
            self._table.touch(parent)

    def _begin_telling(self, job: str, now: int, *, is_gone: bool = False) -> None:
        """Tell those who wait for a job how it stands, as many as this verb may (L13)."""
        if self._log.tellings:
            self._log.tellings -= self._execute(_TOLD, (job,)).rowcount
        (left,) = self._execute("SELECT count(*) FROM dependents WHERE parent = ?", (job,)).fetchone()
        if left:
            self._begun.append(_Telling(job, left, is_gone))
            self._log.tellings += 1
            self.tell(now)

    def tell(self, now: int, *, goes_on: bool = False) -> None:
        """Tell what was begun; with `goes_on` what earlier verbs have left, too. Ends that follow from it wait for their turn."""
        if self._is_telling or not self._log.tellings:
            return
        self._is_telling = True
        while self._told < TOLD_PER_STEP and (telling := self._next_telling(goes_on=goes_on)):
            most = min(telling.left, TOLD_PER_STEP - self._told)
            self._tell_some(telling, most, now)
            if not telling.left:
                self._log.tellings -= 1
            if not telling.left and not telling.is_kept:
                self._begun.remove(telling)
        self._is_telling = False

    def _next_telling(self, *, goes_on: bool) -> _Telling | None:
        if self._begun:
            return self._begun[0]
        kept = self._execute(_NEXT_TELLING).fetchone() if goes_on else None
        return _Telling(kept[0], kept[1], bool(kept[2]), is_kept=True) if kept else None

    def _tell_some(self, telling: _Telling, most: int, now: int) -> None:
        job = telling.job
        parent = None if telling.is_gone else self._table.get(job)
        telling.left -= most
        self._told += most
        if telling.is_kept:
            self._execute(*((_TELL_FEWER, (telling.left, job)) if telling.left else (_TOLD, (job,))))
        some = self._execute(_DEPENDENTS, (job, most)).fetchall()
        self._execute("DELETE FROM dependents WHERE parent = ? AND number <= ?", (job, some[-1][3]))
        waiting = [(child, _EDGES[edge], home) for child, edge, home, _ in some]
        if parent:
            again = [(job, child, edge.value, home) for child, edge, home in waiting if _waits_on(parent.state, edge)]
            self._con.executemany(_DEPEND, again)
        self._table.read_ahead([child for child, _, home in waiting if home == self.index])
        for child, edge, home in waiting:
            self._part(self._parted(job, parent, child, edge, home), now)

    def _put_off(self) -> None:
        """Leave to others what this verb could not tell."""
        if self._begun:
            self._con.executemany(_TELL, [(one.job, one.left, one.is_gone) for one in self._begun])
            self._begun.clear()

    def _parted(self, job: str, parent: Row | None, child: str, edge: Edge, home: int) -> Parted:
        return Parted(
            to=home,
            parent=job,
            child=child,
            edge=edge,
            state=parent.state if parent else None,
            value=parent.result if parent and edge is Edge.VALUE else None,
            positions=self._seen(parent) if parent else (),
        )

    def _seen(self, parent: Row) -> tuple[tuple[int, int], ...]:
        """Per partition, the position that a parent's effects reached."""
        return tuple(sorted({**parent.positions, self.index: self._log.position}.items()))

    def _part(self, effect: Parted, now: int) -> None:
        if effect.to != self.index:
            self._post(effect, now)
        else:
            self.part(effect, now)

    def part(self, effect: Parted, now: int) -> None:
        """A parent's end reaches its dependent."""
        row = self._table.get(effect.child)
        if row is None or row.state is not JobState.BLOCKED or (effect.parent, effect.edge) not in row.waits:
            return
        self._table.touch(row)
        row.stuck = [parent for parent in row.stuck if parent != effect.parent]
        match effect.state:
            case JobState.SUCCEEDED:
                released = True
            case JobState.FAILED:
                released = effect.edge in (Edge.FINISHED, Edge.SCOPE)
                if not released:
                    row.stuck.append(effect.parent)
            case JobState.CANCELLED | JobState.EXPIRED | None:
                released = effect.edge is Edge.FINISHED
                if not released:
                    row.reason = parent_ended(effect.parent, effect.state, is_scope=effect.edge is Edge.SCOPE)
                    self._end(row, JobEvent.CANCEL, JobState.CANCELLED, now)
                    return
            case _:  # it was retried by hand
                released = False
        row.reason = Reason.PARENT_FAILED % row.stuck[0] if row.stuck else ""
        if not released:
            return
        del row.waits[effect.parent, effect.edge]
        if all(parent.home == self.index for parent in row.waits.values()):
            row.registered_us = 0
        row.input = effect.value if effect.edge is Edge.VALUE else row.input
        _merge(row.positions, effect.positions)
        if not row.waits:
            self._enter(row, JobEvent.UNBLOCK, now)

    # -- elsewhere

    def free_unique(self, effect: FreeUnique) -> None:
        """The directory entry is free again, if that job still has it."""
        self._execute(_FREE, (effect.unique, effect.job, effect.sender))

    def reserve(self, name: str, job: str, home: int, replacing: str) -> tuple[str, int]:
        """Take the directory entry if it is free or held by `replacing`. Returns its holder, and the holder's home."""
        held: tuple[str, int] | None = self._execute(_HOLDER, (name,)).fetchone()
        if held is None or (replacing and held[0] == replacing):
            held = (job, home)
            self._execute(_HOLD, (name, *held))
        return held

    def _holder(self, unique: str, otherwise: str) -> tuple[str, int]:
        held = self._execute(_HOLDER, (unique,)).fetchone() if unique else None
        return held or (otherwise, self.index)

    def _hold_unique(self, row: Row) -> None:
        if row.unique and self.is_here(row.unique):
            self._execute(_HOLD, (row.unique, row.id, self.index))

    def _hold_again(self, row: Row, now: int) -> None:
        """It waits again: have its unique key, unless a newer twin turns out to have a right to it."""
        if row.unique:
            to = partition_of(row.unique, self._partitions)
            self._tell(HoldUnique(to=to, unique=row.unique, job=row.id, home=self.index), now)

    def hold_unique(self, effect: HoldUnique, now: int) -> None:
        """Let a job that waits again have its unique key, or ask whoever has it."""
        holder, home = self._holder(effect.unique, effect.job)
        if holder in (effect.job, effect.replacing):
            self._execute(_HOLD, (effect.unique, effect.job, effect.home))
        else:
            self._tell(MeetTwin(to=home, unique=effect.unique, job=effect.job, home=effect.home, twin=holder), now)

    def meet_twin(self, effect: MeetTwin, now: int) -> None:
        """Say whether a job here has a right to the unique key that another one would have again."""
        unique, job, twin = effect.unique, effect.job, effect.twin
        if self._has_right(twin, unique):
            self._tell(Supersede(to=effect.home, job=job, by=twin), now)
        elif self._table.get(twin):
            to = partition_of(unique, self._partitions)
            self._tell(HoldUnique(to=to, unique=unique, job=job, home=effect.home, replacing=twin), now)

    def supersede(self, effect: Supersede, now: int) -> None:
        """A job gives way to a newer twin."""
        row = self._table.get(effect.job)
        if row and row.state in WAITING:
            self.cancel(row, Reason.SUPERSEDED % effect.by, now)

    def _has_right(self, job: str, unique: str) -> bool:
        row = self._table.get(job)
        if row is None or row.unique != unique:
            return False
        return row.state in WAITING or (row.rest.unique_until is UniqueUntil.FINISHED and row.state not in FINAL)

    def _tell(self, effect: HoldUnique | MeetTwin | Supersede, now: int) -> None:
        if effect.to != self.index:
            self._post(effect, now)
            return
        match effect:
            case HoldUnique():
                self.hold_unique(effect, now)
            case MeetTwin():
                self.meet_twin(effect, now)
            case Supersede():
                self.supersede(effect, now)

    def _free_unique(self, row: Row, now: int) -> None:
        if row.unique:
            self._free(row.unique, row.id, partition_of(row.unique, self._partitions), now)

    def _free_id(self, job: str, now: int) -> None:
        """A job is forgotten: whoever is given its id is a new one."""
        if self._partitions > 1:
            self._free(id_entry(job), job, partition_of(job, self._partitions), now)

    def _free(self, name: str, job: str, to: int, now: int) -> None:
        if to == self.index:
            self.free_unique(FreeUnique(to=to, sender=self.index, unique=name, job=job))
        else:
            self._post(FreeUnique(to=to, unique=name, job=job), now)

    def is_news(self, effect: AnyEffect) -> bool:
        """Say whether an effect was not accepted before, and note that it is. They come in the order of their ids."""
        if effect.sender < 0:
            return True
        return self._execute(_ACCEPT, (effect.sender, effect.id)).rowcount > 0

    def register_again(self, now: int, limit: int) -> int:
        """Tell parents elsewhere once more of jobs that have long waited for them (P22). Returns how many jobs."""
        self._table.flush()
        old = [self._table.known(job) for (job,) in self._execute(FAR, (now - ORPHAN_US, limit)).fetchall()]
        for row in old:
            row.registered_us = now
            self._table.touch(row)
            for parent in row.waits.values():
                if parent.home != self.index and parent.job not in row.stuck:  # it has told us that it failed
                    edge = parent.edge
                    again = Register(to=parent.home, parent=parent.job, child=row.id, edge=edge, home=self.index)
                    self._post(again, now)
        return len(old)

    def _post(self, effect: AnyEffect, now: int) -> None:
        id = self._log.next_stamp(now)
        self._log.effects_waiting += 1
        self._execute(_POST, (id, _encode(structs.replace(effect, id=id, sender=self.index))))

    def _by_partition(self, keys: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
        there: dict[int, list[str]] = {}
        for key in keys:
            there.setdefault(partition_of(key, self._partitions), []).append(key)
        return [(to, tuple(there[to])) for to in sorted(there)]

    def is_here(self, name: str) -> bool:
        """Say whether a key, tag or id has its place in this partition."""
        return self._partitions == 1 or partition_of(name, self._partitions) == self.index

    # -- small things

    def _move(self, row: Row, event: JobEvent, state: JobState) -> None:
        assert allowed(row.state, event, state), (row.state, event, state)
        if row.state is JobState.SCHEDULED or state is JobState.SCHEDULED:
            self._is_due_known = False
        row.state = state
        self._table.moved(row)

    def unnamed_scopes(self, instance: str, named: Iterable[Attempt], asked_before_us: int) -> list[Row]:
        """Scopes and locks of an instance which it does not name any more, of those that it asked for so early."""
        fences: dict[str, set[int]] = {}
        for one in named:
            fences.setdefault(one.job, set()).add(one.fence)
        self._table.flush()
        asked = [self._table.known(job) for (job,) in self._execute(ASKED, (instance, asked_before_us)).fetchall()]
        return [
            row
            for row in asked
            if (row.state is JobState.RUNNING or (row.kind is JobKind.LOCK and row.state in WAITING))
            and not fences.get(row.id, set()) & {0, row.fence}
        ]

    def unfetched_locks(self, now: int) -> list[Row]:
        """Locks that were granted and not fetched in time (P21)."""
        self._table.flush()
        return [self._table.known(job) for (job,) in self._execute(OFFERS, (now - LOCK_ACCEPT_US,)).fetchall()]

    def unroutable(self, now: int) -> list[Row]:
        """Jobs that no worker has known for long, and of which this was not said yet."""
        self._table.flush()
        return [self._table.known(job) for (job,) in self._execute(UNROUTABLE, (now - UNROUTABLE_US,)).fetchall()]


class _Queues(Struct, frozen=True):
    queues: tuple[str, ...] = ()


_queues_decoder: Final = msgspec.msgpack.Decoder(_Queues)


def _decode_queues(instance: Any) -> tuple[str, ...]:
    return _queues_decoder.decode(instance).queues


def _waits_on(state: JobState, edge: Edge) -> bool:
    """Say whether a dependent goes on waiting for a parent in this state: one that failed may be retried by hand."""
    return state not in FINAL or (state is JobState.FAILED and edge in (Edge.AFTER, Edge.VALUE))


def _is_scope(row: Row) -> bool:
    return row.kind is not JobKind.TASK


def _merge(positions: dict[int, int], more: Iterable[tuple[int, int]]) -> None:
    for partition, position in more:
        positions[partition] = max(position, positions.get(partition, 0))
