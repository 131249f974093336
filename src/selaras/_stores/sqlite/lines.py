"""The lines of one partition, as the running transaction sees them: who has each, and who waits in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from selaras._stores.sqlite.connection import HELD_ON_MOST, Connection, as_list, run_each
from selaras._stores.sqlite.lanes import ENTER_LANE, Lanes

JOIN_LINE: Final = "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?)"
LEAVE_LINE: Final = (
    "DELETE FROM members WHERE line = ? AND kind = ? AND queue = ? AND priority = ? AND joined = ? AND id = ?"
)
_IN_ORDER: Final = "ORDER BY kind, queue, priority DESC, joined, id"
_FIRST: Final = "SELECT kind, queue, priority, joined, id FROM members WHERE line = ?"
NEXT_QUEUE: Final = f"{_FIRST} AND kind = ? AND queue > ? AND id <> ? {_IN_ORDER} LIMIT 1"
NEXT_KIND: Final = f"{_FIRST} AND kind > ? AND id <> ? {_IN_ORDER} LIMIT 1"
"""The head of those of one line that wait in the next queue, of the same kind or of the next: a seek, however long the line
is.
"""

_QUEUE_IN_LINE: Final = "SELECT kind || queue FROM members WHERE line = l.name ORDER BY"
_IS_MIXED: Final = f"(({_QUEUE_IN_LINE} kind, queue LIMIT 1) IS NOT ({_QUEUE_IN_LINE} kind DESC, queue DESC LIMIT 1))"
NEXT_MOST: Final = 8
"""So many of those that come next in a line are read ahead."""

LINES_AHEAD: Final = f"""
    SELECT l.name, l.holder, l.head, l.ready_us, {_IS_MIXED}, (
        SELECT json_group_array(json_array(id, number, kind, queue, lane, priority, joined)) FROM (
            SELECT *, (SELECT lane FROM jobs WHERE number = members.number) AS lane
            FROM members WHERE line = l.name {_IN_ORDER} LIMIT {NEXT_MOST}
        )
    )
    FROM json_each(?) AS k CROSS JOIN lines AS l ON l.name = k.value
"""
"""Lines, each with the first of those that wait, and whether they wait in several queues."""

MIXED_LINES: Final = f"""
    SELECT l.name FROM lines AS l WHERE l.holder = '' AND l.head <> '' AND {_IS_MIXED} ORDER BY l.name
"""
"""Lines whose head depends on which queues are served; in all others it is the first, whoever serves it."""

_LINE: Final = "SELECT holder, head, ready_us FROM lines WHERE name = ?"
_SAVE_LINE: Final = "INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?)"
_DROP_LINE: Final = "DELETE FROM lines WHERE name = ?"

_NOBODY: Final[frozenset[str]] = frozenset()


class Member(Struct, frozen=True, array_like=True):
    """One who waits in a line, as `LINES_AHEAD` tells of it."""

    id: str
    number: int
    kind: int
    queue: str
    lane: str
    priority: int
    joined: int


class Line(Struct, eq=False):
    """`holder` has it; of those that wait, `head` may be claimed (P21), since `ready_us`.

    `is_fresh`: nobody stood in it before. `next`: the first of those that wait, all in one queue, the next one last; `is_all`:
    there are no others. None: not known.
    """

    holder: str = ""
    head: str = ""
    ready_us: int = 0
    is_fresh: bool = True
    next: list[Member] | None = None
    is_all: bool = False

    def first(self, leaving: str) -> str | None:
        """Return the first of those that wait, but for one that leaves; "": nobody does; None: that is not known."""
        if self.next is None:
            return None
        first = next((one.id for one in reversed(self.next) if one.id != leaving), "")
        return first if first or self.is_all else None


_decode_members: Final = msgspec.json.Decoder(list[Member]).decode


class Lines:
    """Lines, read once in a verb, changed in memory, and written together.

    Attributes:
        changed: those that are not written yet.
        heads: jobs that were passed their lines the short way: they are not to be read before that is written.
    """

    def __init__(self, con: Connection, lanes: Lanes) -> None:
        self._con = con
        self._lanes = lanes
        self._lines: dict[str, Line] = {}
        self._held_on: dict[str, Line] = {}  # the same beyond the verb: true as long as no other connection writes
        self._stirred: dict[str, set[str]] = {}  # of a line, those whose rows were changed and are not written yet
        self.changed: set[str] = set()
        self.heads: set[str] = set()
        self._entering: list[tuple[int, int, int, int]] = []

    # -- what is known

    def known(self, name: str) -> Line | None:
        """Return a line if it was read."""
        line = self._lines.get(name)
        if line is None and (line := self._held_on.pop(name, None)) is not None:
            self._lines[name] = line
        return line

    def line(self, name: str) -> Line:
        """Return a line; one that nobody stands in is empty."""
        line = self.known(name)
        if line is None:
            kept = self._con.execute(_LINE, (name,)).fetchone() if name not in self.changed else None
            line = self._lines[name] = Line(kept[0], kept[1], kept[2], is_fresh=False) if kept else Line()
        return line

    def read_ahead(self, names: Iterable[str]) -> None:
        """Read who comes next in lines whose holders are going to end."""
        unknown: list[str] = []
        for name in names:
            if name not in self.changed:
                line = self.known(name)
                if line is None or line.next is None or not (line.next or line.is_all):
                    unknown.append(name)
        if not unknown:
            return
        found = self._con.execute(LINES_AHEAD, (as_list(unknown),)).fetchall()
        for name, holder, head, ready_us, is_mixed, waiting in found:
            line = self._lines[name] = Line(holder, head, ready_us, is_fresh=False)
            if not is_mixed and name not in self._stirred:
                line.next = _decode_members(waiting)[::-1]
                line.is_all = len(line.next) < NEXT_MOST

    def next_heads(self, names: Iterable[str]) -> list[str]:
        """Return who is going to be the head of each of these lines that has none, as far as that is known."""
        known = [line for name in names if (line := self._lines.get(name)) is not None]
        return [line.next[-1].id for line in known if line.next and not line.head]

    def firsts(self, name: str, leaving: str) -> Iterator[tuple[int, str, int, int, str]]:
        """Read the first of each queue that waits in a line, but for one that leaves: kind, queue, priority, joined, id."""
        kind, queue = -1, ""
        while True:
            first = (
                self._con.execute(NEXT_QUEUE, (name, kind, queue, leaving)).fetchone()
                or self._con.execute(NEXT_KIND, (name, kind, leaving)).fetchone()
            )
            if first is None:
                return
            kind, queue = first[:2]
            yield first

    def mixed(self) -> list[str]:
        """Return the lines in which jobs of several queues wait, and nobody has them."""
        return [name for (name,) in self._con.execute(MIXED_LINES).fetchall()]

    # -- what changes

    def stir(self, name: str, job: str) -> None:
        """Note that the row of one who stands there was changed."""
        self._stirred.setdefault(name, set()).add(job)

    def is_stirred(self, name: str, but: str) -> bool:
        """Say whether rows of others who stand there are not written yet."""
        return bool(self._stirred.get(name, _NOBODY) - {but})

    def at_rest(self) -> None:
        """All rows are written."""
        self._stirred.clear()

    def drop(self, name: str) -> None:
        """Nobody stands there any more."""
        del self._lines[name]

    def hold(self, name: str, job: str) -> None:
        """Let a job that is claimed have its line: it was its head, or held it already."""
        line = self.known(name)
        after = self._lines[name] = Line(job, is_fresh=False)
        if line is not None and line.next and line.next[-1].id == job:
            line.next.pop()
            after.next, after.is_all = line.next, line.is_all
        self.changed.add(name)
        self.heads.discard(job)

    def pass_on(self, name: str, line: Line, ahead: Member, now: int) -> None:
        """Let the next one be the head of a line, and ready."""
        line.head, line.ready_us = ahead.id, now
        self.changed.add(name)
        self.heads.add(ahead.id)
        self._entering.append((self._lanes.code(ahead.queue, ahead.lane), ahead.priority, ahead.joined, ahead.number))

    # -- to the tables

    def enter_lanes(self) -> None:
        """Write that heads may be claimed."""
        run_each(self._con, ENTER_LANE, self._entering)
        self._entering = []

    def write(self) -> None:
        """Write what was changed."""
        self.enter_lanes()
        self.heads.clear()
        lines = [(name, self._lines.get(name)) for name in self.changed]
        self.changed.clear()
        run_each(self._con, _DROP_LINE, [(name,) for name, line in lines if line is None])
        run_each(self._con, _SAVE_LINE, [(name, line.holder, line.head, line.ready_us) for name, line in lines if line])
        for _, line in lines:
            if line:
                line.is_fresh = False

    def clear(self) -> None:
        """A verb has ended, and all is written."""
        if self._lines:
            if len(self._held_on) > HELD_ON_MOST:
                self._held_on.clear()
            self._held_on.update({name: line for name, line in self._lines.items() if line.holder or line.head})
            self._lines.clear()

    def forget_held_on(self) -> None:
        """Another connection has written."""
        self._held_on.clear()

    def forget_all(self) -> None:
        """The transaction was rolled back: nothing that was read or changed is true."""
        self._lines.clear()
        self._held_on.clear()
        self._stirred.clear()
        self.changed.clear()
        self.heads.clear()
        self._entering = []
