"""The short way for jobs that were never tried, and for whose end nobody waits: `PLAIN` and `LINED` ones.

A plain one stands in no line and writes nothing. Nothing but its own row changes when it is enqueued, claimed or
succeeds, so a batch of them is a statement repeated, with no row read into memory. A lined one is claimed and succeeds
in the same statements; besides, it holds its line and has intents on its keys. Each statement says itself which rows it
may touch; whatever it does not touch goes the long way, through `Jobs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from selaras._contracts.partition import Owner
from selaras._core.jobs.job import Admission, Claim, JobKind, NewJob, Settled, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.cells import Cells
from selaras._stores.sqlite.connection import Connection, as_list
from selaras._stores.sqlite.jobs import Jobs
from selaras._stores.sqlite.lanes import ENTER_LANE, LEAVE_LANE
from selaras._stores.sqlite.lines import LEAVE_LINE, Lines
from selaras._stores.sqlite.log import Log
from selaras._stores.sqlite.rows import Rest
from selaras._stores.sqlite.schema import KINDS, LINED, OTHER, PLAIN, STATES
from selaras._stores.sqlite.table import JobTable

CLAIMABLE: Final = """
    SELECT w.number, j.id, j.task, j.way, w.priority, w.place, w.lane, j.expires_us, j.payload, j.meta, j.queue,
        j.created_us, j.line, j.more
    FROM ready AS w CROSS JOIN jobs AS j ON j.number = w.number WHERE w.lane = ? ORDER BY w.priority DESC, w.place LIMIT ?
"""
ENTER: Final = f"""
    INSERT INTO ready SELECT l.code, j.priority, j.place, j.number
    FROM jobs AS j CROSS JOIN lanes AS l ON l.queue = j.queue AND l.task = ''
    WHERE j.number > ? AND j.state = {STATES[JobState.READY]}
"""
TAKE: Final = f"""
    INSERT INTO runs (number, instance, fence, turn, started_us, way)
    SELECT abs(value), ?, ? + key, ?, ?, iif(value > 0, {PLAIN}, {LINED}) FROM json_each(?) WHERE value IS NOT NULL
"""
"""Numbers in the order of their fences, which follow each other from the given one on; null: another has that fence. Those
of lined jobs are below 0.
"""

CLEAR_LANE: Final = "DELETE FROM ready WHERE lane = ? AND priority = ? AND place <= ?"
LAY_ASIDE: Final = f"""
    UPDATE jobs SET lane = task, way = {OTHER}, strayed_us = iif(strayed_us > 0, strayed_us, coalesce(
        (SELECT ready_us FROM lines WHERE name = jobs.line AND head = jobs.id), ready_us
    )) WHERE number = ?
"""
LAY_ASIDE_KNOWN: Final = f"UPDATE jobs SET lane = task, way = {OTHER} WHERE number = ?"
SUCCEED: Final = f"""
    INSERT INTO ends (number, fence, started_us, ended_us, keep_until_us, reason, error, result)
    SELECT r.number, r.fence, r.started_us, ?, ? + j.result_ttl_us, ?, ?, ?
    FROM runs AS r CROSS JOIN jobs AS j ON j.number = r.number
    WHERE r.number IN (SELECT value FROM json_each(?)) AND r.fence IN (SELECT value FROM json_each(?))
        AND r.instance = ? AND r.way <> {OTHER}
"""
"""Of numbers and fences that belong together: fences are unique, so as many rows as there are numbers mean that all do."""

DIFFER: Final = "UPDATE ends SET reason = ?, error = ?, result = ? WHERE number = ?"
LEAVE: Final = "DELETE FROM runs WHERE number IN (SELECT value FROM json_each(?))"
CLAIMED: Final = "SELECT id, task, payload, meta, queue, priority, created_us FROM jobs WHERE number = ?"
_TASK: Final = KINDS[JobKind.TASK]
_SUCCEEDED: Final = STATES[JobState.SUCCEEDED]
_SCHEDULED: Final = STATES[JobState.SCHEDULED]

_KNOWN_MOST: Final = 100_000

Candidate = Any
"""A row of `CLAIMABLE`."""


class ShortWay:
    """Batches of plain and of lined jobs, as the running transaction sees them."""

    def __init__(self, con: Connection, log: Log, cells: Cells, table: JobTable, lines: Lines, jobs: Jobs) -> None:
        self._con = con
        self._log = log
        self._cells = cells
        self._table = table
        self._lines = lines
        self._jobs = jobs
        # Claimed here, by their fences: hints, checked by `SUCCEED`.
        self._known: dict[int, Candidate] = {}
        self._writes: dict[int, tuple[str, ...]] = {}  # of the lined ones among them

    def admit(self, news: Sequence[NewJob], now: int) -> list[Admission]:
        """Enqueue plain jobs."""
        self._jobs.clear()
        log = self._log
        before = number = log.numbers
        at_once: list[tuple[Any, ...]] = []
        later: list[tuple[Any, ...]] = []
        admissions: list[Admission] = []
        queues: dict[str, int] = {}  # with how many of them that wait for their time
        ready, scheduled = JobState.READY, JobState.SCHEDULED
        for new in news:
            number += 1
            queue = new.queue
            if new.due_us <= now and new.delay_us <= 0 and not new.expires_in_us:
                due_us = new.due_us or now
                at_once.append((
                    number, new.id, new.priority, number + 1, now, now, due_us, new.result_ttl_us, queue, new.task,
                    new.payload, new.meta, rows.more_of(new),
                ))  # fmt: skip
                number += 1
                queues.setdefault(queue, 0)
                admissions.append(Admission(new.id, ready))
                continue
            first = number
            due_us = new.due_us or now + new.delay_us
            if due_us <= now:
                number += 1
                state, place, ready_us = ready, number, now
            else:
                state, place, ready_us = scheduled, 0, 0
            queues[queue] = queues.get(queue, 0) + (state is scheduled)
            expires_us = now + new.expires_in_us if new.expires_in_us else 0
            later.append((
                first, new.id, STATES[state], new.priority, place, ready_us, now, due_us, OTHER if expires_us else PLAIN, expires_us,
                new.result_ttl_us, queue, new.task, new.payload, new.meta, rows.more_of(new),
            ))  # fmt: skip
            admissions.append(Admission(new.id, state))
        inserted = self._insert(rows.INSERT_READY, at_once) + self._insert(rows.INSERT_PLAIN, later)
        if inserted == len(news):
            log.numbers = number
            self._jobs.woken.extend(queues)
            lane = 0
            for queue, count in queues.items():
                lane = self._table.lanes.code(queue)  # there must be one
                if count:
                    self._table.count(queue, _SCHEDULED, count)
                    self._jobs.scheduled()
            if len(at_once) == 1 and not later:
                [(first, _, priority, place, *_)] = at_once
                self._con.execute(ENTER_LANE, (lane, priority, place, first))
            else:
                self._con.execute(ENTER, (before,))
            return admissions
        # Some ids are known already: all of this batch goes the long way.
        if inserted:
            self._con.execute("DELETE FROM jobs WHERE number > ?", (before,))
        return [self._jobs.admit(new, now) for new in news]

    def _insert(self, statement: str, values: list[tuple[Any, ...]]) -> int:
        """Insert rows. Returns how many were not there."""
        if len(values) == 1:
            return self._con.execute(statement, values[0]).rowcount
        return self._con.executemany(statement, values).rowcount if values else 0

    def lanes(self, queues: Iterable[str], tasks: frozenset[str]) -> list[int]:
        """Return where jobs may lie that a worker of these queues and tasks may have."""
        paused, lanes = self._jobs.paused(), self._table.lanes
        return [code for queue in dict.fromkeys(queues) if queue not in paused for code in lanes.of(queue, tasks)]

    def candidates(self, lanes: Sequence[int], most: int) -> list[Candidate]:
        """Return the next jobs of these lanes, in the order in which they are claimed."""
        if len(lanes) == 1:
            return self._con.execute(CLAIMABLE, (lanes[0], most)).fetchall()
        found = [row for lane in lanes for row in self._con.execute(CLAIMABLE, (lane, most))]
        found.sort(key=lambda row: (-row[4], row[5]))
        return found[:most]

    def lay_aside(self, others: Sequence[Candidate], full: frozenset[str]) -> None:
        """This worker does not know their tasks, or, if they are among the `full`, has no room: they wait apart."""
        self._table.flush()
        lane = self._table.lanes.code
        self._table.drop([row[1] for row in others])
        self._con.executemany(LAY_ASIDE, [(row[0],) for row in others if row[2] not in full])
        self._con.executemany(LAY_ASIDE_KNOWN, [(row[0],) for row in others if row[2] in full])
        self._con.executemany(LEAVE_LANE, [(row[6], row[4], row[5]) for row in others])
        self._con.executemany(ENTER_LANE, [(lane(row[10], row[2]), row[4], row[5], row[0]) for row in others])

    def lined(self, found: Sequence[Candidate]) -> dict[int, Rest]:
        """Return, by their numbers, what the lined ones of those found write, if they may be claimed the short way.

        What stands in the places of their keys is read ahead.
        """
        rests: dict[int, Rest] = {}
        keys: list[str] = []
        for row in found:
            if row[3] != LINED or self._table.is_changed(row[1]):
                continue
            rest = rows.rest_kept(row[13])
            if rest is not None and all(map(self._jobs.is_here, rest.writes)):
                rests[row[0]] = rest
                keys += rest.writes
        if keys:
            self._cells.read_ahead(dict.fromkeys(keys))
        return rests

    def claim(self, row: Candidate, rest: Rest, now: int) -> Claim:
        """Claim a lined job; it is to be handed out with others (`take`). The caller sets the claim's position."""
        _, job, task, _, priority, _, _, _, payload, meta, queue, created_us, line, _ = row
        fence = self._log.next_stamp(now)
        owner, plant, writes = Owner(self._jobs.index, job, fence), self._cells.plant, rest.writes
        preimages = [(key, plant(owner, key, now)) for key in writes]
        self._lines.hold(line, job)
        self._writes[fence] = writes
        return Claim(
            job, fence, 1, task, payload, meta, queue, priority, 0, created_us, 0, line, writes=writes,
            preimages=tuple([(key, entry) for key, entry in preimages if entry]) if rest.wants_preimage else (),
        )  # fmt: skip

    def take(self, taken: Sequence[tuple[Candidate, int]], holder: int, turn: int, now: int) -> None:
        """Hand out plain and lined jobs, each with its fence, in the order of these."""
        first = taken[0][1]
        numbers: list[int | None] = []
        for row, fence in taken:
            if fence - first > len(numbers):
                numbers.extend([None] * (fence - first - len(numbers)))
            numbers.append(row[0] if row[3] == PLAIN else -row[0])
        self._con.execute(TAKE, (holder, first, turn, now, as_list(numbers)))
        lined = [row for row, _ in taken if row[3] == LINED]
        if lined:
            # Whoever is the head of a line has its place from where it joined.
            leaving = [(row[12], _TASK, row[10], row[4], row[5], row[1]) for row in lined]
            self._con.executemany(LEAVE_LINE, leaving)
        if len(self._known) > _KNOWN_MOST:
            self._known.clear()
            self._writes.clear()
        self._table.drop([row[1] for row, _ in taken])
        self._known.update([(fence, row) for row, fence in taken])

    def clear_lanes(self, up_to: dict[tuple[int, int], int]) -> None:
        """Take out of lanes, at these priorities, all places up to these: what stood there was taken or laid aside."""
        for (lane, priority), place in up_to.items():
            self._con.execute(CLEAR_LANE, (lane, priority, place))

    def settle(self, instance: str, holder: int, settlements: Sequence[Settlement], now: int) -> list[Settled]:
        """End attempts. `holder`: the number of the instance.

        Plain successes are one batch, before the others: the end of a plain job changes nothing that the end of another
        one asks for. But a child may wait for a job that ends after its parent; so those keep their order.
        """
        known, succeed = self._known, JobEvent.SUCCEED
        settled: list[Settled] = []
        some: list[Settlement] = []
        claimed: list[Candidate | None] = []  # of `some`: those that succeed the short way
        self._read_ahead(settlements)
        for one in settlements:
            if one.children and some:
                settled += self._settle_some(instance, holder, some, claimed, now)
                some, claimed = [], []
            row = known.pop(one.fence, None)
            some.append(one)
            is_short = (
                row is not None
                and one.event is succeed
                and one.job == row[1]
                and not _has_effects(one)
                and (not one.puts or self._may_put(one))
            )
            claimed.append(row if is_short else None)
            if one.children:
                settled += self._settle_some(instance, holder, some, claimed, now)
                some, claimed = [], []
        return settled + self._settle_some(instance, holder, some, claimed, now)

    def _settle_some(
        self,
        instance: str,
        holder: int,
        settlements: list[Settlement],
        claimed: list[Candidate | None],
        now: int,
    ) -> list[Settled]:
        run = [(one, row) for one, row in zip(settlements, claimed, strict=True) if row is not None]
        if run and not self._succeed(holder, run, now):
            claimed = [None] * len(settlements)
        state = JobState.SUCCEEDED
        return [
            self._settle_long(instance, one, now)
            if row is None
            else Settled(one.job, one.fence, state)
            if row[3] == PLAIN
            else self._let_go(one, row, now)
            for one, row in zip(settlements, claimed, strict=True)
        ]

    def _read_ahead(self, settlements: Sequence[Settlement]) -> None:
        """Read what these ends are going to ask for."""
        known, writes = self._known, self._writes
        self._jobs.read_ahead_of([one for one in settlements if one.fence not in known])
        lined = [one.fence for one in settlements if one.fence in writes] if writes else []
        if lined:
            self._lines.read_ahead([known[fence][12] for fence in lined])
            self._cells.read_ahead(dict.fromkeys([key for fence in lined for key in writes[fence]]))

    def _may_put(self, one: Settlement) -> bool:
        """Say whether these are values of no other keys than a lined job writes."""
        writes = self._writes.get(one.fence, ())
        return all(put.key in writes for put in one.puts)

    def _settle_long(self, instance: str, one: Settlement, now: int) -> Settled:
        self._writes.pop(one.fence, None)
        return self._jobs.settle(instance, one, now)

    def _let_go(self, one: Settlement, claimed: Candidate, now: int) -> Settled:
        """Take back the intents of a lined job that has succeeded, and let its line go on."""
        owner, resolve = Owner(self._jobs.index, one.job, one.fence), self._cells.resolve
        puts = {put.key: put for put in one.puts}
        stored: list[tuple[str, int, int]] = []
        for key in self._writes.pop(one.fence):
            at = resolve(owner, key, puts.get(key), now)
            if at:
                stored.append((key, *at))
        self._jobs.pass_on_line(claimed[12], one.job, now)
        return Settled(one.job, one.fence, JobState.SUCCEEDED, stored=tuple(stored))

    def _succeed(self, holder: int, run: list[tuple[Settlement, Candidate]], now: int) -> bool:
        """Write that jobs succeeded. Returns False, and then nothing was done, if one of them is not to go the short way."""
        self._table.flush()
        execute = self._con.execute
        numbers = as_list([row[0] for _, row in run])
        fences = as_list([one.fence for one, _ in run])
        alike = _told(run[0][0])
        execute("SAVEPOINT plain")
        succeeded = execute(SUCCEED, (now, now, *alike, numbers, fences, holder)).rowcount
        if succeeded < len(run):
            execute("ROLLBACK TO plain")
        execute("RELEASE plain")
        if succeeded < len(run):
            return False
        execute(LEAVE, (numbers,))
        self._table.drop([one.job for one, _ in run])
        others = [(*_told(one), row[0]) for one, row in run if _told(one) != alike]
        if others:
            self._con.executemany(DIFFER, others)
        for queue, many in Counter([row[10] for _, row in run]).items():
            self._table.count(queue, _SUCCEEDED, many)
        return True


def _told(one: Settlement) -> tuple[str, bytes | None, bytes | None]:
    return one.reason, one.error, one.result


def claim_of(row: Candidate, fence: int, position: int) -> Claim:
    """Make the claim of a plain job: its first."""
    _, job, task, _, priority, _, _, _, payload, meta, queue, created_us, _, _ = row
    return Claim(job, fence, 1, task, payload, meta, queue, priority, 0, created_us, position)


def claim_again(con: Connection, number: int, fence: int, position: int) -> Claim | None:
    """Make a plain claim once more, for a turn whose reply was lost. None: the job is no longer kept."""
    row = con.execute(CLAIMED, (number,)).fetchone()
    if row is None:
        return None
    job, task, payload, meta, queue, priority, created_us = row
    return Claim(job, fence, 1, task, payload, meta, queue, priority, 0, created_us, position)


def _has_effects(one: Settlement) -> bool:
    return bool(one.keys or one.tags or one.families or one.versions or one.closes or one.children or one.planted)
