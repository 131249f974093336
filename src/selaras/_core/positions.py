"""Positions in a partition's log, and the news a reply carries.

A position is the number of events appended so far. A cursor adds the random id of the event at that
position, so that a log that lost events and grew again is noticed (P20).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from msgspec import Struct


class Scope(IntEnum):
    """What an event voids."""

    KEY = 0
    TAG = 1
    FAMILY = 2


class Cursor(Struct, frozen=True, order=True):
    """How far a process has applied a log: a position, and the id of the event there."""

    position: int = 0
    event_id: int = 0


START = Cursor()
"""Before the first event: what a process says that has applied nothing and holds nothing."""


class Event(Struct, frozen=True):
    """One invalidation in a log. `name` is a key, a tag or a family."""

    position: int
    scope: Scope
    name: str


class News(Struct, frozen=True):
    """The log from a reader's cursor to its tail: complete, or `reset`.

    Attributes:
        tail: how far the log reaches, read atomically with the rest of the reply.
        events: in order of position; of one name only the last (P-cost). `ids`: theirs, in the same order.
        reset: the log no longer reaches back to the cursor, or is another log: drop the local tier of this
            partition; `events` is empty.
        epoch: grows each time the store lost its memory.
    """

    tail: Cursor
    events: tuple[Event, ...] = ()
    reset: bool = False
    epoch: int = 0
    ids: tuple[int, ...] = ()


class Pushed(Struct, frozen=True):
    """What a store said of its own accord of a log's new events. A hint: it may be lost, or be old; it proves nothing.

    Attributes:
        since: what the events follow. news: all of them, and never `reset`.
    """

    since: Cursor
    news: News


Grown = Callable[[int, int, Callable[[], Pushed | None]], None]
"""Told that a log has grown: the partition, the position reached (-1: not known), and how to read what was pushed of its
new events, which is work that most listeners need not do; it returns None where nothing was, or nothing that can be read.
"""


def nothing_pushed() -> Pushed | None:
    """No events came with a hint."""
    return None
