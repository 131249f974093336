"""The jobs of one partition: admission, lines, claims, and what the end of an attempt sets in motion."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec import structs

from selaras._contracts.limits import (
    HISTORY_MOST,
    INTENT_GRACE_US,
    LAID_ASIDE_PER_TURN,
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
    Instance,
    Invalidation,
    MeetTwin,
    Owner,
    Parted,
    Register,
    Resolve,
    Supersede,
    Void,
    Waiting,
)
from selaras._core.cache.floors import VersionFloors, closing
from selaras._core.jobs.job import (
    MOVING,
    Admission,
    Attempt,
    Claim,
    Edge,
    Ended,
    JobKind,
    JobRecord,
    NewJob,
    OnConflict,
    Parent,
    Refusal,
    Settled,
    Settlement,
    Standing,
    UniqueUntil,
    carry_over,
    standing,
)
from selaras._core.jobs.lifecycle import FINAL, SETTLING, UNCOUNTED, WAITING, allowed, ending
from selaras._core.jobs.reasons import Reason, exhausted, parent_ended
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.routing import home_of, id_entry, partition_of
from selaras._stores.memory.cells import Cells

Rank = tuple[int, int, str]
"""Where a job stands among others: (-priority, number, id)."""


@dataclass(slots=True)
class Row:
    """A job, as it changes."""

    new: NewJob
    number: int  # order of enqueueing
    created_us: int
    state: JobState = JobState.BLOCKED
    due_us: int = 0
    expires_us: int = 0
    waits: dict[tuple[str, Edge], Parent] = field(default_factory=dict[tuple[str, Edge], Parent])
    positions: dict[int, int] = field(default_factory=dict[int, int])
    input: bytes | None = None
    stuck: list[str] = field(default_factory=list[str])  # parents that ended `failed`
    place: int = 0  # order of becoming ready
    ready_us: int = 0
    joined: int = 0  # order in its line; 0: it will join at the tail
    is_apart: bool = False
    strayed_us: int = 0
    attempt: int = 0
    lost: int = 0
    fence: int = 0
    instance: str = ""
    asker: str = ""  # the instance that asked for this scope or lock
    turn: int = 0  # the turn that claimed it
    started_us: int = 0
    ended_us: int = 0
    keep_until_us: int = 0
    result: bytes | None = None
    error: bytes | None = None
    reason: str = ""
    progress: bytes | None = None
    cancel_requested: bool = False
    unsure: bool = False  # an attempt ended so that a write of it may still land
    left: tuple[str, ...] = ()  # keys elsewhere on which such attempts left their intents
    registered_us: int = 0  # when its parents elsewhere were last told of it
    history: list[Ended] = field(default_factory=list[Ended])

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def lane(self) -> tuple[str, str]:
        """Where it lies while it is ready: its queue, and its task once it was laid aside."""
        return self.new.queue, self.new.task if self.is_apart else ""


@dataclass(slots=True)
class Line:
    """`holder` has it; `members` wait for it, the head among them (P21)."""

    holder: str = ""
    head: str = ""
    members: list[Rank] = field(default_factory=list[Rank])


@dataclass(slots=True)
class Leaseholder:
    """An instance, its lease and its unacknowledged turns."""

    instance: Instance
    until_us: int
    suspected_us: int = 0
    acked: int = 0
    replies: dict[int, tuple[tuple[Settled, ...], tuple[Claim, ...]]] = field(
        default_factory=dict[int, tuple[tuple[Settled, ...], tuple[Claim, ...]]]
    )
    idle: tuple[str, ...] = ()


@dataclass(slots=True)
class Telling:
    """Dependents of a job that are to be told how it stands: the first `left` of them. `is_gone`: it is not known any more."""

    job: str
    left: int
    is_gone: bool


class Jobs:
    """Every job of the partition and what orders them. Each method is one step of a verb."""

    def __init__(self, index: int, partitions: int, cells: Cells, next_fence: Callable[[], int]) -> None:
        self.index = index
        self._partitions = partitions
        self._cells = cells
        self._next_fence = next_fence
        self._numbers = 0
        self.rows: dict[str, Row] = {}
        self.open: dict[str, Row] = {}  # those that have not ended: what is looked through at each turn
        self.lanes: dict[tuple[str, str], list[Rank]] = {}
        self.lines: dict[str, Line] = {}
        self.dependents: dict[str, dict[tuple[str, Edge], int]] = {}  # parent -> (child, edge) -> home
        self.tellings: list[Telling] = []  # those that earlier verbs have left
        self._begun: list[Telling] = []  # by this verb
        self._told = 0  # dependents, by this verb
        self._is_telling = False
        self.directory: dict[str, tuple[str, int]] = {}  # name -> the job that holds it, and its home (P22)
        self._laid_aside = 0  # by this turn
        self.paused: set[str] = set()
        self.holders: dict[str, Leaseholder] = {}
        self.effects: list[AnyEffect] = []
        self.accepted: dict[int, int] = {}  # sender -> the highest id of its effects that was accepted
        self.woken: list[str] = []  # queues in which something became ready or is due sooner
        self.called: list[str] = []  # instances that should look at their cancels

    # -- coming in

    def admit(self, new: NewJob, now: int) -> Admission:
        """Enqueue one job."""
        twin = self.rows.get(new.id)
        if twin:
            same = (twin.new.task, twin.new.payload) == (new.task, new.payload)
            return Admission(twin.id, twin.state, created=False, refusal=None if same else Refusal.ID_CONFLICT)
        holder, home = self.directory.get(new.unique, (new.id, self.index))
        twin = self.rows.get(holder)
        if twin:
            return self._meet(twin, new, now)
        if home != self.index:
            return Admission(holder, JobState.BLOCKED, created=False)
        row = Row(new, self._next_number(), now)
        self.rows[row.id] = self.open[row.id] = row
        self._hold_unique(row)
        self._begin(row, now)
        return Admission(row.id, row.state)

    def _begin(self, row: Row, now: int) -> None:
        """Let a blocked job wait for its parents, or for whatever comes next."""
        new = row.new
        row.due_us = new.due_us or now + new.delay_us
        row.expires_us = now + new.expires_in_us if new.expires_in_us else 0
        _merge(row.positions, new.positions)
        self._wait_for_parents(row, now)

    def _wait_for_parents(self, row: Row, now: int) -> None:
        row.waits.update({(parent.job, parent.edge): parent for parent in row.new.parents})
        row.registered_us = now
        for parent in row.new.parents:
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
        twin.new = structs.replace(new, id=twin.id)
        twin.state, twin.joined, twin.is_apart, twin.strayed_us = JobState.BLOCKED, 0, False, 0
        self._begin(twin, now)
        return Admission(twin.id, twin.state, created=False, replaced=True)

    def _enter(self, row: Row, event: JobEvent, now: int) -> None:
        """Let a job wait where it belongs: for its time, for its line, or for a worker."""
        if row.due_us > now:
            self._move(row, event, JobState.SCHEDULED)
            self.woken.append(row.new.queue)
            return
        line = row.new.line
        if not line:
            self._ready(row, event, now)
            return
        if self.line(line).holder == row.id:  # an ordered retry kept it
            self._ready(row, event, now)
            return
        row.joined = row.joined or self._next_number()
        self._move(row, event, JobState.HELD)
        insort(self.line(line).members, _in_line(row))
        self.arrange(line, now)

    def _ready(self, row: Row, event: JobEvent, now: int) -> None:
        self._move(row, event, JobState.READY)
        row.place, row.ready_us = row.joined or self._next_number(), now
        if not _is_scope(row):  # a lock is fetched by name
            insort(self.lanes.setdefault(row.lane, []), _in_lane(row))
        self.woken.append(row.new.queue)

    def promote(self, now: int, limit: int) -> int:
        """Let jobs whose time has come go on. Returns how many."""
        due = sorted(
            (row.due_us, row.number, row.id)
            for row in self.open.values()
            if row.state is JobState.SCHEDULED and row.due_us <= now
        )[:limit]
        for _, _, job in due:
            self._enter(self.rows[job], JobEvent.DUE, now)
        return len(due)

    def adopt(self, standing: Standing, now: int) -> bool:
        """Take a job over as it stood in another store. Returns whether it was not here yet."""
        new = standing.job
        if new.id in self.rows:
            return False
        self._numbers = max(self._numbers, standing.place, standing.joined)
        row = self.rows[new.id] = Row(new, self._next_number(), standing.created_us)
        carry_over(row, standing)
        if standing.state is JobState.FAILED:
            row.state, row.ended_us, row.keep_until_us = JobState.FAILED, standing.ended_us, standing.keep_until_us
            return True
        self.open[row.id] = row
        if new.unique not in self.directory:
            self._hold_unique(row)
        if standing.keeps_line and not self.line(new.line).holder:
            self.line(new.line).holder = row.id
            self.arrange(new.line, now)
        self._wait_for_parents(row, now)
        if row.state is JobState.READY and standing.place:
            self._unready(row)
            row.place = standing.place
            insort(self.lanes.setdefault(row.lane, []), _in_lane(row))
        return True

    # -- lines

    def line(self, name: str) -> Line:
        """Return a line; one that nobody stands in is empty."""
        return self.lines.setdefault(name, Line())

    def arrange(self, name: str, now: int) -> None:
        """Give the head's place to the first member that may run, if nobody holds the line (P21)."""
        line = self.line(name)
        first = None
        if not line.holder and line.members:
            first = next((rank for rank in line.members if self._served(rank[2])), line.members[0])[2]
        if line.head and line.head != first:
            head = self.rows[line.head]
            self._unready(head)
            self._move(head, JobEvent.HOLD, JobState.HELD)
            line.head = ""
        if first and line.head != first:
            line.head = first
            self._ready(self.rows[first], JobEvent.PROMOTE, now)
        if not line.holder and not line.members:
            del self.lines[name]

    def _served(self, job: str) -> bool:
        row = self.rows[job]
        return row.new.kind is not JobKind.TASK or (
            row.new.queue not in self.paused
            and any(row.new.queue in holder.instance.queues for holder in self.holders.values())
        )

    def _leave(self, row: Row, now: int) -> None:
        """Take a job out of its lane and its line; the line goes on without it."""
        if row.state is JobState.READY:
            self._unready(row)
        name = row.new.line
        line = self.lines.get(name) if name else None
        if line is None:
            return
        if line.holder == row.id:
            line.holder = ""
        if _in_line(row) in line.members:
            line.members.remove(_in_line(row))
        if line.head == row.id:
            line.head = ""
        self.arrange(name, now)

    def _unready(self, row: Row) -> None:
        lane = self.lanes.get(row.lane, [])
        if _in_lane(row) in lane:
            lane.remove(_in_lane(row))
        if not lane:
            self.lanes.pop(row.lane, None)

    # -- claims

    def begin_turn(self) -> None:
        """Lay aside anew."""
        self._laid_aside = 0

    @property
    def is_passing_by(self) -> bool:
        """This turn has laid aside as many jobs as it may: there may be others behind."""
        return self._laid_aside == LAID_ASIDE_PER_TURN

    def claimable(self, queues: Iterable[str], tasks: frozenset[str], full: frozenset[str]) -> Row | None:
        """Return the next job a worker may have; lay aside those of other tasks, as many as one turn may."""
        lanes = self._lanes_of(queues, tasks)
        while True:
            heads = [self.lanes[lane][0] for lane in lanes if lane in self.lanes]
            if not heads:
                return None
            row = self.rows[min(heads)[2]]
            if row.new.task in tasks:
                return row
            if self.is_passing_by:
                return None
            self._laid_aside += 1
            self._lay_aside(row, is_known=row.new.task in full)

    def peek(self, queues: Iterable[str], tasks: frozenset[str], limit: int) -> list[Waiting]:
        """Look at the jobs that a worker may have next."""
        ranks = sorted(rank for lane in self._lanes_of(queues, tasks) for rank in self.lanes.get(lane, ()))
        rows = (self.rows[job] for _, _, job in ranks[:limit])
        return [
            Waiting(row.id, row.new.task, row.new.payload, row.new.meta, row.new.writes, row.new.serves, row.input)
            for row in rows
            if row.new.task in tasks
        ]

    def _lanes_of(self, queues: Iterable[str], tasks: frozenset[str]) -> list[tuple[str, str]]:
        return [
            (queue, task)
            for queue in dict.fromkeys(queues)
            if queue not in self.paused
            for task in ("", *sorted(tasks))
        ]

    def _lay_aside(self, row: Row, *, is_known: bool) -> None:
        self._unready(row)
        row.is_apart = True
        if not is_known:
            row.strayed_us = row.strayed_us or row.ready_us
        insort(self.lanes.setdefault(row.lane, []), _in_lane(row))

    def claim(self, row: Row, instance: str, turn: int, now: int) -> Claim:
        """Hand a job out: next fence, attempt + 1, intents (L3). The caller sets the claim's position."""
        self._take(row, instance, turn, now)
        new = row.new
        owner = Owner(self.index, row.id, row.fence)
        preimages = [(key, self._cells.plant(owner, key, now)) for key in new.writes if self._is_here(key)]
        return Claim(
            row.id,
            row.fence,
            row.attempt,
            new.task,
            new.payload,
            new.meta,
            new.queue,
            new.priority,
            row.lost,
            row.created_us,
            0,
            new.line,
            new.ordered,
            new.writes,
            new.serves,
            tuple(key for key in new.writes if not self._is_here(key)),
            tuple((key, entry) for key, entry in preimages if entry) if new.wants_preimage else (),
            row.input,
            tuple(sorted(row.positions.items())),
            row.strayed_us,
        )

    def _take(self, row: Row, instance: str, turn: int, now: int) -> None:
        self._unready(row)
        self._move(row, JobEvent.CLAIM, JobState.RUNNING)
        row.attempt += 1
        row.fence, row.instance, row.turn = self._next_fence(), instance, turn
        row.started_us, row.progress = now, None
        row.is_apart = False
        if row.new.line:
            line = self.line(row.new.line)
            if _in_line(row) in line.members:
                line.members.remove(_in_line(row))
            line.holder, line.head = row.id, ""
        if row.new.unique_until is UniqueUntil.STARTED:
            self._free_unique(row)

    def open_scope(self, new: NewJob, instance: str, now: int) -> tuple[int, Refusal | None]:
        """Begin a writing() scope, or a lock whose line is free. Returns its fence; 0: it stands in line."""
        admission = self.admit(new, now)
        row = self.rows[admission.id]
        if admission.refusal or row.new.kind is not new.kind:
            return 0, Refusal.ID_CONFLICT
        if row.state in FINAL or row.instance not in ("", instance):
            return 0, Refusal.LEASE_LOST
        row.asker = instance
        if row.state is JobState.READY:
            self._take(row, instance, 0, now)
            for key in row.new.writes:
                if self._is_here(key):
                    self._cells.plant(Owner(self.index, row.id, row.fence), key, now)
        return (row.fence if row.state is JobState.RUNNING else 0), None

    # -- ends of attempts

    def holds(self, instance: str, job: str, fence: int) -> Row | None:
        """Return the running job if (instance, job, fence) is its attempt (P15)."""
        row = self.rows.get(job)
        if row and row.state is JobState.RUNNING and row.fence == fence and row.instance == instance:
            return row
        return None

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
        puts = {put.key: put for put in settlement.puts}
        own = tuple(dict.fromkeys((*row.new.writes, *settlement.planted, *self._cells.keys_of(owner))))
        stored: list[tuple[str, int, int]] = []
        closed = closing(row.new.serves, INTENT_GRACE_US) if unsure else ()  # no intent stands there for it
        floors = VersionFloors(settlement.versions, settlement.closes + closed)
        self._cells.set_floors(*floors.of(self._is_here), now)
        for key in own:
            if not self._is_here(key):
                continue
            if unsure:
                self._cells.leave(owner, key)
                continue
            if settlement.event is JobEvent.RELEASE and not settlement.started:
                self._cells.restore(owner, key, now)
                continue
            at = self._cells.resolve(owner, key, puts.get(key) if success else None, now)
            if at:
                stored.append((key, *at))
        elsewhere = tuple(key for key in own if not self._is_here(key))
        if unsure:
            row.unsure = row.unsure or bool(own)
            row.left = tuple(dict.fromkeys((*row.left, *elsewhere)))
            elsewhere = ()
        for to, keys in self._by_partition(elsewhere):
            there = tuple(puts[key] for key in keys if key in puts) if success else ()
            versions, closes = floors.of(keys.__contains__)
            self._post(Resolve(to=to, owner=owner, keys=keys, puts=there, versions=versions, closes=closes))
        undeclared = tuple(key for key in puts if key not in own)
        names = (*undeclared, *settlement.keys, *row.new.serves)
        versions, closes = floors.of(lambda key: not self._is_here(key) and key not in elsewhere)
        self._void(names, Invalidation((), settlement.tags, settlement.families, versions, closes), now)
        return tuple(stored)

    def _void(self, keys: tuple[str, ...], names: Invalidation, now: int) -> None:
        """Void keys and set floors, each in the partition that has the key; tags and families here."""
        floors = VersionFloors(names.versions, names.closes)
        here = tuple(key for key in dict.fromkeys(keys) if self._is_here(key))
        self._cells.invalidate(Invalidation(here, names.tags, names.families, *floors.of(self._is_here)), now)
        elsewhere = tuple(key for key in dict.fromkeys((*keys, *floors.keys)) if not self._is_here(key))
        for to, those in self._by_partition(elsewhere):
            voided = tuple(key for key in those if key in keys)
            versions, closes = floors.of(those.__contains__)
            self._post(Void(to=to, names=Invalidation(voided, versions=versions, closes=closes)))

    def _apply(self, row: Row, settlement: Settlement, now: int) -> None:
        said = settlement.event
        if said is not JobEvent.SUCCEED:
            ended = Ended(row.attempt, row.fence, said, now, settlement.reason, settlement.unsure)
            row.history = [*row.history, ended][-HISTORY_MOST:]
        if said in UNCOUNTED:
            row.attempt -= 1
        asked = row.reason if row.cancel_requested else ""
        row.reason, row.error = settlement.reason, settlement.error
        event, final = ending(
            said, scope=_is_scope(row), asked=row.cancel_requested, spent=row.lost >= row.new.max_lost
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
        newer, home = self.directory.get(row.new.unique, (row.id, self.index))
        if newer != row.id and home == self.index and self._has_right(newer, row.new.unique):
            row.reason = Reason.SUPERSEDED % newer
            self._end(row, JobEvent.SUPERSEDE, JobState.CANCELLED, now)
            return
        self._hold_again(row, now)
        row.due_us = due_us
        if event is JobEvent.GIVE_BACK:
            row.strayed_us = row.strayed_us or now
        if event not in (JobEvent.GIVE_BACK, JobEvent.RELEASE):
            row.expires_us = 0  # it has started
        if event in (JobEvent.RETRY, JobEvent.SNOOZE) and not row.new.ordered:
            row.joined = 0
        keeps = event is JobEvent.RETRY and row.new.ordered and row.new.line
        if row.new.line and not keeps:
            self.line(row.new.line).holder = ""
        self._enter(row, event, now)
        if row.new.line and not keeps:
            self.arrange(row.new.line, now)

    def lose_all(self, instance: str, now: int) -> int:
        """The instance's lease ran out: settle what it held as lost, oldest claim first. Returns how many."""
        lost = self.running(instance)
        for row in lost:
            self.lose(row, now)
        return len(lost)

    def running(self, instance: str) -> list[Row]:
        """Return what an instance holds, oldest claim first."""
        held = [row for row in self.open.values() if row.state is JobState.RUNNING and row.instance == instance]
        return sorted(held, key=lambda row: row.fence)

    def lose(self, row: Row, now: int, reason: str = Reason.LOST) -> None:
        """Settle one attempt as lost. Its intents pass to the next attempt, or stand a grace (P18)."""
        self._void(row.new.serves, Invalidation(closes=closing(row.new.serves, INTENT_GRACE_US)), now)
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
        self._move(row, event, state)
        row.ended_us, row.stuck = now, []
        failed = state is JobState.FAILED and not _is_scope(row)
        row.keep_until_us = now + (row.new.failed_ttl_us if failed else row.new.result_ttl_us)
        self._let_go(row, now)
        self._begin_telling(row.id, now)
        if row.new.kind is JobKind.LOCK:  # nothing can wait for it
            self._forget(row)

    def _let_go(self, row: Row, now: int) -> None:
        """Free what a job leaves behind: its unique key, and intents of attempts that were lost or unsure (P18)."""
        self._free_unique(row)
        if not (row.lost or row.unsure):
            return
        owner = Owner(self.index, row.id, row.fence)
        self._cells.let_stand(owner, now + INTENT_GRACE_US)
        own = dict.fromkeys((*row.new.writes, *row.left))
        for to, keys in self._by_partition(tuple(key for key in own if not self._is_here(key))):
            self._post(Resolve(to=to, owner=owner, keys=keys, stand_us=INTENT_GRACE_US))

    def cancel(self, row: Row, reason: str, now: int) -> bool:
        """Cancel a job; ask, if it runs. Returns whether this did anything."""
        if row.state in WAITING:
            row.reason = reason
            self._end(row, JobEvent.CANCEL, JobState.CANCELLED, now)
            return True
        if row.state is JobState.RUNNING and not row.cancel_requested:
            row.cancel_requested, row.reason = True, reason
            self.called.append(row.instance)
            return True
        return False

    def expire(self, now: int, limit: int) -> int:
        """End jobs that waited longer than they were allowed to. Returns how many."""
        waiting = [row for row in self.open.values() if row.state in WAITING and 0 < row.expires_us <= now]
        late = sorted(waiting, key=lambda row: (row.expires_us, row.number))[:limit]
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
        holder, _ = self.directory.get(row.new.unique, (row.id, self.index))
        if row.new.unique and holder != row.id:
            return Admission(holder, row.state, created=False, refusal=Refusal.WRONG_STATE)
        self._hold_again(row, now)
        row.attempt = row.lost = 0
        row.unsure, row.left = False, ()
        row.due_us, row.joined, row.keep_until_us, row.ended_us = now, 0, 0, 0
        row.reason, row.error, row.cancel_requested, row.strayed_us = "", None, False, 0
        row.expires_us = now + row.new.expires_in_us if row.new.expires_in_us else 0
        self._enter(row, JobEvent.REVIVE, now)
        self._begin_telling(row.id, now)
        return Admission(row.id, row.state, created=False)

    def forget_ended(self, now: int, limit: int) -> int:
        """Delete jobs whose retention is over, the longest ended first. Returns how many."""
        over = sorted(
            (row.keep_until_us, row.number, row.id)
            for row in self.rows.values()
            if row.state in FINAL and row.keep_until_us <= now and not self._is_told_of(row.id)
        )
        for _, _, job in over[:limit]:
            self._forget(self.rows[job])
            self._begin_telling(job, now, is_gone=True)
        return len(over[:limit])

    def purge(self, states: Iterable[JobState], queue: str, limit: int, now: int) -> int:
        """Delete jobs that nobody runs, oldest first. Returns how many."""
        wanted = [
            row
            for row in sorted(self.rows.values(), key=lambda row: row.number)
            if row.state in states
            and row.state is not JobState.RUNNING
            and row.new.kind is JobKind.TASK
            and (not queue or row.new.queue == queue)
            and not self._is_told_of(row.id)
        ][:limit]
        for row in wanted:
            if row.state in WAITING:
                self._leave(row, now)
                self._let_go(row, now)
            self._forget(row)
            self._begin_telling(row.id, now, is_gone=True)
        return len(wanted)

    def _forget(self, row: Row) -> None:
        del self.rows[row.id]
        self.open.pop(row.id, None)
        if self._partitions > 1 and row.new.kind is JobKind.TASK:
            self._free(id_entry(row.id), row.id, partition_of(row.id, self._partitions))

    # -- parents and children

    def _send(self, child: NewJob, parent: Row, now: int) -> Admission:
        """Enqueue a child of a successful attempt, here or at its home; there it must have seen its parent's effects."""
        home = home_of(child, self._partitions)
        if home == self.index:
            return self.admit(child, now)
        positions = dict(child.positions)
        _merge(positions, self._seen(parent))
        self._post(Admit(to=home, job=structs.replace(child, positions=tuple(sorted(positions.items())))))
        return Admission(child.id, JobState.BLOCKED)

    def register(self, effect: Register, now: int) -> None:
        """Note a dependent at its parent; if the parent has ended, it is told at once (P22)."""
        if effect.to != self.index:
            self._post(effect)
            return
        parent = self.rows.get(effect.parent)
        if parent is None or parent.state in FINAL:
            state = parent.state if parent else None
            if parent and state is JobState.FAILED and effect.edge in (Edge.AFTER, Edge.VALUE):
                self.dependents.setdefault(effect.parent, {})[effect.child, effect.edge] = effect.home
            self._part(self._parted(effect.parent, parent, effect.child, effect.edge, effect.home), now)
            return
        self.dependents.setdefault(effect.parent, {})[effect.child, effect.edge] = effect.home

    def _begin_telling(self, job: str, now: int, *, is_gone: bool = False) -> None:
        """Tell those who wait for a job how it stands, as many as this verb may (L13)."""
        self.tellings[:] = [one for one in self.tellings if one.job != job]
        if job in self.dependents:
            self._begun.append(Telling(job, len(self.dependents[job]), is_gone))
            self.tell(now)

    def tell(self, now: int, *, goes_on: bool = False) -> None:
        """Tell what was begun; with `goes_on` what earlier verbs have left, too. Ends that follow from it wait for their turn."""
        if self._is_telling:
            return
        self._is_telling = True
        while self._told < TOLD_PER_STEP and (waiting := self._begun or (self.tellings if goes_on else [])):
            telling = waiting[0]
            self._tell_some(telling, min(telling.left, TOLD_PER_STEP - self._told), now)
            if not telling.left:
                waiting.remove(telling)
        self._is_telling = False

    def _tell_some(self, telling: Telling, most: int, now: int) -> None:
        job, waiting = telling.job, self.dependents[telling.job]
        parent = None if telling.is_gone else self.rows.get(job)
        telling.left -= most
        self._told += most
        some = [(child, edge, waiting.pop((child, edge))) for child, edge in list(waiting)[:most]]
        for child, edge, home in some:
            if parent and _waits_on(parent.state, edge):
                waiting[child, edge] = home
        if not waiting:
            del self.dependents[job]
        for child, edge, home in some:
            self._part(self._parted(job, parent, child, edge, home), now)

    def put_off(self) -> None:
        """The verb has ended: what it could not tell is left to others."""
        self.tellings += self._begun
        self._begun.clear()
        self._told = 0

    @property
    def is_telling_left(self) -> bool:
        """Whether somebody is to be told yet."""
        return bool(self._begun or self.tellings)

    def _is_told_of(self, job: str) -> bool:
        return any(one.job == job for one in (*self._begun, *self.tellings))

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
        return tuple(sorted({**parent.positions, self.index: self._cells.log.tail.position}.items()))

    def _part(self, effect: Parted, now: int) -> None:
        if effect.to != self.index:
            self._post(effect)
        else:
            self.part(effect, now)

    def part(self, effect: Parted, now: int) -> None:
        """A parent's end reaches its dependent."""
        row = self.rows.get(effect.child)
        if row is None or row.state is not JobState.BLOCKED or (effect.parent, effect.edge) not in row.waits:
            return
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
        row.input = effect.value if effect.edge is Edge.VALUE else row.input
        _merge(row.positions, effect.positions)
        if not row.waits:
            self._enter(row, JobEvent.UNBLOCK, now)

    # -- elsewhere

    def free_unique(self, effect: FreeUnique) -> None:
        """The directory entry is free again, if that job still has it."""
        holder, home = self.directory.get(effect.unique, ("", -1))
        if holder == effect.job and effect.sender in (home, -1):
            del self.directory[effect.unique]

    def reserve(self, name: str, job: str, home: int, replacing: str) -> tuple[str, int]:
        """Take the directory entry if it is free or held by `replacing`. Returns its holder, and the holder's home."""
        if name not in self.directory or (replacing and self.directory[name][0] == replacing):
            self.directory[name] = (job, home)
        return self.directory[name]

    def _hold_unique(self, row: Row) -> None:
        if row.new.unique and self._is_here(row.new.unique):
            self.directory[row.new.unique] = (row.id, self.index)

    def _hold_again(self, row: Row, now: int) -> None:
        """It waits again: have its unique key, unless a newer twin turns out to have a right to it."""
        unique = row.new.unique
        if unique:
            to = partition_of(unique, self._partitions)
            self._tell(HoldUnique(to=to, unique=unique, job=row.id, home=self.index), now)

    def hold_unique(self, effect: HoldUnique, now: int) -> None:
        """Let a job that waits again have its unique key, or ask whoever has it."""
        holder, home = self.directory.get(effect.unique, (effect.job, -1))
        if holder in (effect.job, effect.replacing):
            self.directory[effect.unique] = (effect.job, effect.home)
        else:
            self._tell(MeetTwin(to=home, unique=effect.unique, job=effect.job, home=effect.home, twin=holder), now)

    def meet_twin(self, effect: MeetTwin, now: int) -> None:
        """Say whether a job here has a right to the unique key that another one would have again."""
        unique, job, twin = effect.unique, effect.job, effect.twin
        if self._has_right(twin, unique):
            self._tell(Supersede(to=effect.home, job=job, by=twin), now)
        elif twin in self.rows:
            to = partition_of(unique, self._partitions)
            self._tell(HoldUnique(to=to, unique=unique, job=job, home=effect.home, replacing=twin), now)

    def supersede(self, effect: Supersede, now: int) -> None:
        """A job gives way to a newer twin."""
        row = self.rows.get(effect.job)
        if row and row.state in WAITING:
            self.cancel(row, Reason.SUPERSEDED % effect.by, now)

    def _has_right(self, job: str, unique: str) -> bool:
        row = self.rows.get(job)
        if row is None or row.new.unique != unique:
            return False
        return row.state in WAITING or (row.new.unique_until is UniqueUntil.FINISHED and row.state not in FINAL)

    def _tell(self, effect: HoldUnique | MeetTwin | Supersede, now: int) -> None:
        if effect.to != self.index:
            self._post(effect)
            return
        match effect:
            case HoldUnique():
                self.hold_unique(effect, now)
            case MeetTwin():
                self.meet_twin(effect, now)
            case Supersede():
                self.supersede(effect, now)

    def _free_unique(self, row: Row) -> None:
        if row.new.unique:
            self._free(row.new.unique, row.id, partition_of(row.new.unique, self._partitions))

    def _free(self, name: str, job: str, to: int) -> None:
        if to == self.index:
            self.free_unique(FreeUnique(to=to, sender=self.index, unique=name, job=job))
        else:
            self._post(FreeUnique(to=to, unique=name, job=job))

    def is_news(self, effect: AnyEffect) -> bool:
        """Say whether an effect was not accepted before, and note that it is. They come in the order of their ids."""
        if effect.sender < 0:
            return True
        last = self.accepted.get(effect.sender, 0)
        self.accepted[effect.sender] = max(last, effect.id)
        return effect.id > last

    def register_again(self, now: int, limit: int) -> int:
        """Tell parents elsewhere once more of jobs that have long waited for them (P22). Returns how many jobs."""
        old = sorted(
            (row.registered_us, row.number, row.id)
            for row in self.open.values()
            if row.state is JobState.BLOCKED
            and row.registered_us + ORPHAN_US <= now
            and any(parent.home != self.index for parent in row.waits.values())
        )[:limit]
        for _, _, job in old:
            row = self.rows[job]
            row.registered_us = now
            for parent in row.waits.values():
                if parent.home != self.index and parent.job not in row.stuck:  # it has told us that it failed
                    edge = parent.edge
                    self._post(Register(to=parent.home, parent=parent.job, child=job, edge=edge, home=self.index))
        return len(old)

    def _post(self, effect: AnyEffect) -> None:
        self.effects.append(structs.replace(effect, id=self._next_fence(), sender=self.index))

    def _by_partition(self, keys: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
        there: dict[int, list[str]] = {}
        for key in keys:
            there.setdefault(partition_of(key, self._partitions), []).append(key)
        return [(to, tuple(there[to])) for to in sorted(there)]

    def _is_here(self, name: str) -> bool:
        return partition_of(name, self._partitions) == self.index

    # -- small things

    def _move(self, row: Row, event: JobEvent, state: JobState) -> None:
        assert allowed(row.state, event, state), (row.state, event, state)
        row.state = state
        if state in FINAL:
            self.open.pop(row.id, None)
        else:
            self.open[row.id] = row

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def unnamed_scopes(self, instance: str, named: Iterable[Attempt], asked_before_us: int) -> list[Row]:
        """Scopes and locks of an instance which it does not name any more, of those that it asked for so early."""
        fences: dict[str, set[int]] = {}
        for one in named:
            fences.setdefault(one.job, set()).add(one.fence)
        return [
            row
            for row in self.open.values()
            if _is_scope(row)
            and row.asker == instance
            and row.created_us < asked_before_us
            and (row.state is JobState.RUNNING or (row.new.kind is JobKind.LOCK and row.state in WAITING))
            and not fences.get(row.id, set()) & {0, row.fence}
        ]

    def unfetched_locks(self, now: int) -> list[Row]:
        """Locks that were granted and not fetched in time (P21)."""
        return [
            row
            for row in self.open.values()
            if row.new.kind is JobKind.LOCK and row.state is JobState.READY and row.ready_us + LOCK_ACCEPT_US <= now
        ]

    def unroutable(self, now: int) -> list[Row]:
        """Jobs that no worker has known for long, and of which this was not said yet."""
        return [
            row
            for row in self.open.values()
            if row.is_apart
            and row.strayed_us
            and row.state is JobState.READY
            and row.strayed_us + UNROUTABLE_US <= now
            and not row.reason.startswith("unroutable")
        ]


def record_of(row: Row) -> JobRecord:
    """Show a row."""
    new = row.new
    return JobRecord(
        id=row.id,
        task=new.task,
        queue=new.queue,
        kind=new.kind,
        state=row.state,
        priority=new.priority,
        payload=new.payload,
        meta=new.meta,
        attempt=row.attempt,
        lost=row.lost,
        fence=row.fence,
        instance=row.instance,
        created_us=row.created_us,
        due_us=row.due_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        keep_until_us=row.keep_until_us,
        line=new.line,
        unique=new.unique,
        writes=new.writes,
        parents=tuple(row.waits.values()),
        result=row.result,
        error=row.error,
        reason=row.reason,
        progress=row.progress,
        cancel_requested=row.cancel_requested,
        stuck_on=row.stuck[0] if row.stuck else "",
        strayed_us=row.strayed_us,
        history=tuple(row.history),
    )


def standing_of(row: Row) -> Standing | None:
    """Return a job whole, if it can be taken over."""
    if row.state not in MOVING or row.new.kind is not JobKind.TASK:
        return None
    asked = NewJob(id=row.id, task=row.new.task)
    return standing(
        job=structs.replace(
            row.new,
            parents=tuple(row.waits.values()),
            **{name: getattr(asked, name) for name in ("due_us", "delay_us", "on_conflict", "positions")},
        ),
        row=row,
    )


def _in_line(row: Row) -> Rank:
    return (-row.new.priority, row.joined, row.id)


def _in_lane(row: Row) -> Rank:
    return (-row.new.priority, row.place, row.id)


def _waits_on(state: JobState, edge: Edge) -> bool:
    """Say whether a dependent goes on waiting for a parent in this state: one that failed may be retried by hand."""
    return state not in FINAL or (state is JobState.FAILED and edge in (Edge.AFTER, Edge.VALUE))


def _is_scope(row: Row) -> bool:
    return row.new.kind is not JobKind.TASK


def _merge(positions: dict[int, int], more: Iterable[tuple[int, int]]) -> None:
    for partition, position in more:
        positions[partition] = max(position, positions.get(partition, 0))
