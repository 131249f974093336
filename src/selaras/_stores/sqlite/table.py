"""The rows of jobs, as the running transaction sees them: read once in a verb, changed in memory, and written back before a
statement that selects by what they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from selaras._core.jobs.job import JobKind
from selaras._core.jobs.states import JobState
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.connection import HELD_ON_MOST, Connection, as_list, run_each
from selaras._stores.sqlite.lanes import ENTER_LANE, LEAVE_LANE, Lanes
from selaras._stores.sqlite.lines import JOIN_LINE, LEAVE_LINE, Lines
from selaras._stores.sqlite.rows import Row
from selaras._stores.sqlite.schema import STATES

_FORGET: Final = "DELETE FROM jobs WHERE number = ?"
_FORGET_RUN: Final = "DELETE FROM runs WHERE number = ?"
_FORGET_END: Final = "DELETE FROM ends WHERE number = ?"
_COUNT: Final = (
    "INSERT INTO counts VALUES (?, ?, ?) ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs"
)

_READY: Final = STATES[JobState.READY]
_RUNNING: Final = STATES[JobState.RUNNING]


class JobTable:
    """Jobs, and in which lane and line each waits."""

    def __init__(self, con: Connection, lanes: Lanes, lines: Lines) -> None:
        self._con = con
        self._execute = con.execute
        self.lanes = lanes
        self._lines = lines
        self._rows: dict[str, Row | None] = {}
        # Claimed here or first in line, and true as long as no other connection writes:
        self._held_on: dict[str, Row] = {}
        self._changed: dict[str, Row] = {}
        self._counted: dict[tuple[str, int], int] = {}

    # -- what is known

    def get(self, id: str) -> Row | None:
        """Return a job as it stands."""
        if id in self._rows:
            return self._rows[id]
        if id in self._held_on:
            row = self._rows[id] = self._held_on[id]
            return row
        if id in self._lines.heads:
            self._lines.write()
        kept = self._execute(rows.BY_ID, (id,)).fetchone()
        found = self._rows[id] = rows.row_of(kept, self.lanes.code) if kept else None
        return found

    def read_ahead(self, ids: Sequence[str]) -> None:
        """Read jobs in one go: they are going to be asked for."""
        missing: list[str] = []
        for id in ids:
            if id in self._held_on:
                self._rows[id] = self._held_on[id]
            elif id not in self._rows:
                missing.append(id)
        if len(missing) > 1:
            if self._lines.heads:
                self._lines.write()
            lane_of = self.lanes.code
            for kept in self._execute(rows.BY_IDS, (as_list(missing),)).fetchall():
                row = rows.row_of(kept, lane_of)
                self._rows[row.id] = row

    def found(self, id: str) -> Row | None:
        """Return a job that was read ahead, if it is there."""
        return self._rows.get(id)

    def is_read(self, id: str) -> bool:
        """Say whether a job was asked for in this verb."""
        return id in self._rows

    def taken_from_lane(self, id: str) -> Row:
        """Return a job that is going to be claimed; the caller takes it out of its lane."""
        row = self.known(id)
        row.kept.ready = None
        return row

    def drop(self, ids: Iterable[str]) -> None:
        """Know these no more: they were changed behind our back. What was changed here must be written."""
        for id in ids:
            self._rows.pop(id, None)
            self._held_on.pop(id, None)

    def is_changed(self, id: str) -> bool:
        """Say whether a job was changed, and that is not written."""
        return id in self._changed

    def known(self, id: str) -> Row:
        """Return a job that must be there."""
        row = self.get(id)
        assert row is not None, id
        return row

    def touch(self, row: Row) -> None:
        """Note that a row was changed."""
        row.is_altered = True
        self.note(row)

    def note(self, row: Row) -> None:
        """Note that a row waits elsewhere, or is run by another or by nobody, and nothing else of it was changed."""
        self._changed[row.id] = row
        if row.line:
            self._lines.stir(row.line, row.id)

    def add(self, row: Row) -> None:
        """Take up a new job."""
        self._rows[row.id] = row
        self.touch(row)

    def moved(self, row: Row) -> None:
        """Note that a row has another state. One that runs, or is the first of its line, is remembered beyond the verb."""
        self.note(row)
        state = row.state
        if state is not JobState.RUNNING and (state is not JobState.READY or not row.line):
            self._held_on.pop(row.id, None)
        elif len(self._held_on) < HELD_ON_MOST:
            self._held_on[row.id] = row

    def let_go(self, id: str) -> None:
        """Remember a job beyond the verb no more."""
        self._held_on.pop(id, None)

    def take_back(self, id: str) -> Row | None:
        """Take a row out of those that are to be written; `note` puts it there again."""
        return self._changed.pop(id, None)

    def gone(self, id: str) -> None:
        """A job was deleted, with all its rows."""
        self._rows[id] = None

    # -- to the tables

    def flush(self) -> None:
        """Write what was changed: the statements that follow select by it."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._lines.at_rest()
            self._write(changed.values())
        if self._lines.changed:
            self._lines.write()

    def flush_ready(self) -> None:
        """Write what may be claimed. The rest of what has only moved in its line is written once, when it was claimed."""
        self._lines.enter_lanes()
        written: list[tuple[str, tuple[Any, ...]]] = []
        moved: dict[str, Row] = {}
        others: list[Row] = []
        for row in self._changed.values():
            if row.line and not row.is_altered and row.kept.state >= 0:
                moved[row.id] = row
                self._write_ready(row, written)
            else:
                others.append(row)
        self._changed = moved
        self._write(others)
        self._write_together(written)

    def _write(self, changed: Iterable[Row]) -> None:
        """Write what differs from what the tables have."""
        written: list[tuple[str, tuple[Any, ...]]] = []
        write = written.append
        for row in changed:
            kept, number, state = row.kept, row.number, STATES[row.state]
            waits = state <= _READY
            if kept.state < 0:
                write((rows.INSERT, rows.wide_of(row)))
            elif row.is_altered:
                write((rows.UPDATE, (*rows.wide_of(row)[2:], number)))
            elif waits:
                write((rows.MOVE, (state, row.place, row.ready_us, number)))
            elif kept.state <= _READY:
                write((rows.HAND_OUT, (number,)))
            kept.state = state if waits else _RUNNING
            row.is_altered = False
            self._write_ready(row, written)
            member = rows.member_of(row)
            if kept.member != member:
                if kept.member is not None:
                    write((LEAVE_LINE, kept.member))
                if member is not None:
                    write((JOIN_LINE, (*member, number)))
                kept.member = member
            run = rows.run_of(row) if state == _RUNNING else None
            if kept.run != run:
                kept.run = run
                write((rows.RUN, run) if run is not None else (_FORGET_RUN, (number,)))
            end = rows.end_of(row) if state > _RUNNING else None
            if kept.end != end:
                kept.end = end
                write((rows.END, end) if end is not None else (_FORGET_END, (number,)))
            counted = rows.counted_of(row)
            if kept.counted != counted:
                if kept.counted is not None:
                    self.count(*kept.counted, -1)
                if counted is not None:
                    self.count(*counted, 1)
                kept.counted = counted
        self._write_together(written)

    def _write_ready(self, row: Row, written: list[tuple[str, tuple[Any, ...]]]) -> None:
        is_ready = row.state is JobState.READY and row.kind is JobKind.TASK
        ready = (self.lanes.code(row.queue, row.lane), row.priority, row.place, row.number) if is_ready else None
        was = row.kept.ready
        if was != ready:
            if was is not None:
                written.append((LEAVE_LANE, was[:3]))
            if ready is not None:
                written.append((ENTER_LANE, ready))
            row.kept.ready = ready

    def _write_together(self, written: list[tuple[str, tuple[Any, ...]]]) -> None:
        together: dict[str, list[tuple[Any, ...]]] = {}
        for statement, values in written:
            together.setdefault(statement, []).append(values)
        for statement, many in together.items():
            run_each(self._con, statement, many)

    def count(self, queue: str, state: int, jobs: int) -> None:
        """Note that more jobs are in a state, or fewer."""
        self._counted[queue, state] = self._counted.get((queue, state), 0) + jobs

    def forget(self, row: Row) -> None:
        """Delete a job."""
        self._changed.pop(row.id, None)
        self._held_on.pop(row.id, None)
        self._rows[row.id] = None
        kept = row.kept
        if kept.state >= 0:
            self._execute(_FORGET, (row.number,))
        if kept.ready is not None:
            self._execute(LEAVE_LANE, kept.ready[:3])
        if kept.member is not None:
            self._execute(LEAVE_LINE, kept.member)
        if kept.run is not None:
            self._execute(_FORGET_RUN, (row.number,))
        if kept.end is not None:
            self._execute(_FORGET_END, (row.number,))
        if kept.counted is not None:
            self.count(*kept.counted, -1)

    def forget_ended(self, numbers: Sequence[int]) -> None:
        """Delete the rows of jobs that have ended, and are no longer kept."""
        given = [(number,) for number in numbers]
        self._con.executemany(_FORGET_END, given)
        self._con.executemany(_FORGET, given)

    def save(self) -> None:
        """The transaction is about to be committed: all is written but how many jobs are in each state."""
        if self._counted:
            changed = [(queue, state, jobs) for (queue, state), jobs in self._counted.items() if jobs]
            self._con.executemany(_COUNT, changed)
            self._counted.clear()

    def clear(self) -> None:
        """A verb has ended, and all is written."""
        if self._rows:
            self._rows.clear()

    def forget_held_on(self) -> None:
        """Another connection has written."""
        self._held_on.clear()

    def forget_all(self) -> None:
        """The transaction was rolled back: nothing that was read or changed is true."""
        self._rows.clear()
        self._held_on.clear()
        self._changed.clear()
        self._counted.clear()
        self.lanes.forget()
