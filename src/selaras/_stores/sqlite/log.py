"""The log of one partition, and the row of counters that a transaction reads first and writes last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter
from typing import Final

from selaras._contracts.clock import Entropy
from selaras._contracts.limits import EPOCH_SHIFT, LOG_LENGTH, NEWS_MOST, OPEN_POSITION
from selaras._core.cache.opening import OPENING, opened_by
from selaras._core.positions import START, Cursor, Event, News, Scope
from selaras._stores.sqlite.connection import Connection

_FIELDS: Final = (
    "position", "event_id", "before_position", "before_id", "last_mark", "tag_floor", "epoch", "counter",
    "numbers", "effects_waiting", "tellings", "serving", "arranged", "lanes", "time_us", "offset_us", "slewed_us",
)  # fmt: skip

_LOAD: Final = f"SELECT {', '.join(_FIELDS)} FROM ledger"
_SAVE: Final = f"UPDATE ledger SET {', '.join(f'{name} = ?' for name in _FIELDS)}"
TAIL: Final = "SELECT position, event_id, before_position, before_id, epoch FROM ledger"
_APPEND: Final = "INSERT INTO events VALUES (?, ?, ?, ?)"
_SET_MARK: Final = "INSERT OR REPLACE INTO marks VALUES (?, ?, ?)"
_MARK: Final = (
    "INSERT INTO marks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET position = excluded.position"
    f" WHERE position <> {OPEN_POSITION}"
)
_IS_ANY_OPEN: Final = f"SELECT 1 FROM intents WHERE key >= '{OPENING}' AND key < '{chr(ord(OPENING) + 1)}' LIMIT 1"
_MARK_OF: Final = "SELECT position FROM marks WHERE scope = ? AND name = ?"
_ID_AT: Final = "SELECT event_id FROM events WHERE position = ?"
_AFTER: Final = "SELECT position, event_id, scope, name FROM events WHERE position > ? ORDER BY position"

_SLEW_LOOK_US: Final = 1_000_000
"""Time in which nothing was written counts as this much at most: readers do not slew, and shall not be far off."""

_SCOPES: Final = {scope.value: scope for scope in Scope}
_position_of: Final = attrgetter("position")


class _Told:
    """What came after a cursor, of one name only the last. Verbs of one transaction ask from much the same one on: what one
    was told, and what came since, tells the next.
    """

    __slots__ = ("_at", "_events", "_ids", "_since")

    def __init__(self, since: Cursor, rows: Iterable[tuple[int, int, int, str]]) -> None:
        self._since = since
        self._events: dict[tuple[int, str], Event] = {}
        self._ids: dict[tuple[int, str], int] = {}
        self._at = {since.position: since.event_id}
        for row in rows:
            self.add(*row)

    def add(self, position: int, event_id: int, scope: int, name: str) -> None:
        of = scope, name
        if self._events.pop(of, None) is not None:
            del self._ids[of]
        self._events[of] = Event(position, _SCOPES[scope], name)
        self._ids[of] = self._at[position] = event_id

    def knows(self, since: Cursor) -> bool:
        """Say whether that cursor, or one before it, was asked for."""
        return self._at.get(since.position) == since.event_id

    def news(self, since: Cursor, tail: Cursor, epoch: int) -> News:
        events = list(self._events.values())
        first = bisect_right(events, since.position, key=_position_of) if since.position > self._since.position else 0
        ids = islice(self._ids.values(), first, None)
        return News(tail, tuple(events[first:]), epoch=epoch, ids=tuple(ids))


class Log:
    """Events and counters, as the running transaction sees them.

    Attributes:
        last_mark: where the last event of a tag or family stands: what is younger needs no look at the marks. While
            one is open that lies behind every position.
        tellings: ends that not all who wait for them were told of.
        numbers: counts jobs, places and joinings, so that one order covers them all.
        lanes: grows when a lane was added or dropped.
        serving: grows when the set of served queues may have changed; `arranged`: up to where lines know it.
        time_us: the latest time ever told.
        offset_us: the store's time is this and the time since boot; `slewed_us`: when it was last looked at.
    """

    __slots__ = (*_FIELDS, "_con", "_entropy", "_loaded", "_told", "_unwritten")

    position: int
    event_id: int
    before_position: int
    before_id: int
    last_mark: int
    tag_floor: int
    epoch: int
    counter: int
    numbers: int
    effects_waiting: int
    tellings: int
    serving: int
    arranged: int
    lanes: int
    time_us: int
    offset_us: int
    slewed_us: int

    def __init__(self, con: Connection, entropy: Entropy) -> None:
        self._con = con
        self._entropy = entropy
        self._loaded: tuple[int, ...] = ()
        self._unwritten: list[tuple[int, int, int, str]] = []
        self._told: _Told | None = None

    def load(self) -> None:
        """Read the row, at the beginning of a transaction, if another connection may have changed it."""
        (
            self.position, self.event_id, self.before_position, self.before_id, self.last_mark, self.tag_floor,
            self.epoch, self.counter, self.numbers, self.effects_waiting, self.tellings, self.serving,
            self.arranged, self.lanes, self.time_us, self.offset_us, self.slewed_us,
        ) = self._loaded = self._con.execute(_LOAD).fetchone()  # fmt: skip

    def save(self) -> None:
        """Write the row if it changed, at the end of a transaction."""
        self.flush()
        self._told = None
        row = (
            self.position, self.event_id, self.before_position, self.before_id, self.last_mark, self.tag_floor,
            self.epoch, self.counter, self.numbers, self.effects_waiting, self.tellings, self.serving,
            self.arranged, self.lanes, self.time_us, self.offset_us, self.slewed_us,
        )  # fmt: skip
        if row != self._loaded:
            self._con.execute(_SAVE, row)
            self._loaded = row

    def flush(self) -> None:
        """Write new events: the statements that follow read them."""
        if self._unwritten:
            self._con.executemany(_APPEND, self._unwritten)
            self._unwritten.clear()

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._unwritten.clear()
        self._told = None

    def slew(self, instant_us: int, wall_us: int) -> None:
        """Let the store's time come nearer to civil time: it runs up to a tenth faster or slower, and never jumps."""
        most = min(max(0, instant_us - self.slewed_us), _SLEW_LOOK_US) // 10
        if most:
            self.offset_us += max(-most, min(most, wall_us - instant_us - self.offset_us))
            self.slewed_us = instant_us

    def next_stamp(self, now: int) -> int:
        """Return the next fence, token or stamp (P15)."""
        self.counter = max(self.counter + 1, (self.epoch << EPOCH_SHIFT) + now)
        return self.counter

    def next_number(self) -> int:
        """Return the next number of the one order of jobs, places and joinings."""
        self.numbers += 1
        return self.numbers

    def append(self, scope: Scope, name: str) -> None:
        """Void `name`, for everybody, from here on."""
        self.position += 1
        self.event_id = self._entropy.getrandbits(63)
        event = self.position, self.event_id, scope.value, name
        self._unwritten.append(event)
        if self._told is not None:
            self._told.add(*event)
        if scope is not Scope.KEY:
            self._con.execute(_MARK, (scope.value, name, self.position))
            if self.last_mark != OPEN_POSITION:
                self.last_mark = self.position

    def void(self, key: str) -> None:
        """Void a key, or the tag or family that it opens."""
        self.append(*((key[:1] == OPENING and opened_by(key)) or (Scope.KEY, key)))

    def open(self, key: str) -> None:
        """An intent stands on `key`: a tag or family that it opens has no last event for now (L14)."""
        opened = opened_by(key)
        if opened:
            self._con.execute(_SET_MARK, (opened[0].value, opened[1], OPEN_POSITION))
            self.last_mark = OPEN_POSITION

    def close(self, key: str) -> None:
        """No intent stands on `key` any more, nor in the table. The caller voids what it opened."""
        opened = opened_by(key)
        if opened:
            self._con.execute(_SET_MARK, (opened[0].value, opened[1], self.position))
            if not self._con.execute(_IS_ANY_OPEN).fetchone():
                self.last_mark = self.position

    def is_open(self, family: str, tags: tuple[str, ...]) -> bool:
        """Say whether somebody writes the whole family, or all of one of the tags."""
        return self.last_mark == OPEN_POSITION and voided_after(self._con, OPEN_POSITION - 1, family, tags, 0)

    def voided_after(self, position: int, family: str, tags: tuple[str, ...]) -> bool:
        """Say whether the family or one of the tags has an event after `position` (P12)."""
        if position >= self.last_mark and position >= self.tag_floor:
            return False
        return voided_after(self._con, position, family, tags, self.tag_floor)

    def news(self, since: Cursor) -> News:
        """Tell what came after `since`, of one name only the last event, or `reset`."""
        tail = Cursor(self.position, self.event_id)
        if since == tail:
            return News(tail, epoch=self.epoch)
        if self._told is None or not self._told.knows(since) or tail.position - since.position > NEWS_MOST:
            self.flush()
            self._told = _told_after(self._con, tail, self.before_position, self.before_id, since)
        return self._told.news(since, tail, self.epoch) if self._told else News(tail, reset=True, epoch=self.epoch)

    def trim(self) -> int:
        """Forget the oldest events beyond the length kept. Returns how many."""
        last = self.position - LOG_LENGTH
        trimmed = last - self.before_position
        if trimmed <= 0:
            return 0
        self.flush()
        tags = self._con.execute(
            "SELECT e.position, e.name FROM events AS e JOIN marks AS m"
            " ON m.scope = e.scope AND m.name = e.name AND m.position = e.position"
            " WHERE e.position <= ? AND e.scope = ? ORDER BY e.position",
            (last, Scope.TAG.value),
        ).fetchall()
        for position, name in tags:
            self._con.execute("DELETE FROM marks WHERE scope = ? AND name = ?", (Scope.TAG.value, name))
            self.tag_floor = position
        self.before_id = self._con.execute(_ID_AT, (last,)).fetchone()[0]
        self.before_position = last
        self._con.execute("DELETE FROM events WHERE position <= ?", (last,))
        return trimmed

    def lose(self, events: int) -> None:
        """Forget the last events and begin a new epoch, as a store that lost its memory does (P20)."""
        self.flush()
        self.position = max(self.before_position, self.position - events)
        self._con.execute("DELETE FROM marks WHERE position > ? AND position <> ?", (self.position, OPEN_POSITION))
        self._con.execute("DELETE FROM events WHERE position > ?", (self.position,))
        row = self._con.execute(_ID_AT, (self.position,)).fetchone()
        self.event_id = row[0] if row else self.before_id
        self.epoch += 1
        self._told = None

    def begin_epoch(self, epoch: int) -> None:
        """Go on in a new epoch, behind an event that no other log has: so an epoch is known by its events, even if its
        number is given twice.
        """
        self.epoch = epoch
        self.append(Scope.KEY, "")


def voided_after(con: Connection, position: int, family: str, tags: tuple[str, ...], tag_floor: int) -> bool:
    """Ask the marks themselves; see `Log.voided_after`."""
    if tags and position < tag_floor:
        return True
    names = ((Scope.FAMILY.value, family), *((Scope.TAG.value, tag) for tag in tags))
    marks = (con.execute(_MARK_OF, name).fetchone() for name in names)
    return any(mark is not None and mark[0] > position for mark in marks)


def news(con: Connection, tail: tuple[int, int, int, int, int], since: Cursor) -> News:
    """Tell what came after `since`, given the row that `TAIL` selects."""
    position, event_id, before_position, before_id, epoch = tail
    cursor = Cursor(position, event_id)
    if since == cursor:
        return News(cursor, epoch=epoch)
    told = _told_after(con, cursor, before_position, before_id, since)
    return told.news(since, cursor, epoch) if told else News(cursor, reset=True, epoch=epoch)


def _told_after(con: Connection, tail: Cursor, before_position: int, before_id: int, since: Cursor) -> _Told | None:
    """Read what came after `since`; None: that is not known here, or too much."""
    if not 0 < tail.position - since.position <= NEWS_MOST or not _knows(con, since, before_position, before_id):
        return None
    return _Told(since, con.execute(_AFTER, (since.position,)))


def _knows(con: Connection, cursor: Cursor, before_position: int, before_id: int) -> bool:
    if cursor == START or cursor.position < before_position:
        return False  # a newcomer holds nothing: a reset costs it nothing
    if cursor.position == before_position:
        return cursor.event_id == before_id
    row = con.execute(_ID_AT, (cursor.position,)).fetchone()
    return row is not None and bool(row[0] == cursor.event_id)
