"""The log of one partition: events, and the last position of each tag and family."""

from __future__ import annotations

from collections import deque

from selaras._contracts.clock import Entropy
from selaras._contracts.limits import LOG_LENGTH, NEWS_MOST, OPEN_POSITION
from selaras._core.cache.opening import opened_by
from selaras._core.positions import START, Cursor, Event, News, Scope


class Log:
    """Append-only; trimmed at its old end."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._events: deque[tuple[Event, int]] = deque()
        self._before = START  # the cursor just before the oldest kept event
        self.tail = START
        self.epoch = 0
        self._marks: dict[tuple[Scope, str], int] = {}
        self._tag_floor = 0  # marks of tags at or below it are forgotten: entries with tags so old are void

    def __len__(self) -> int:
        return len(self._events)

    def append(self, scope: Scope, name: str) -> None:
        """Void `name`, for everybody, from here on."""
        position = self.tail.position + 1
        self.tail = Cursor(position, self._entropy.getrandbits(63))
        self._events.append((Event(position, scope, name), self.tail.event_id))
        if scope is not Scope.KEY and self._marks.get((scope, name)) != OPEN_POSITION:
            self._marks[scope, name] = position

    def void(self, key: str) -> None:
        """Void a key, or the tag or family that it opens."""
        self.append(*(opened_by(key) or (Scope.KEY, key)))

    def open(self, key: str) -> None:
        """An intent stands on `key`: a tag or family that it opens has no last event for now (L14)."""
        opened = opened_by(key)
        if opened:
            self._marks[opened] = OPEN_POSITION

    def close(self, key: str) -> None:
        """No intent stands on `key` any more. The caller voids what it opened."""
        opened = opened_by(key)
        if opened:
            self._marks[opened] = self.tail.position

    def is_open(self, family: str, tags: tuple[str, ...]) -> bool:
        """Say whether somebody writes the whole family, or all of one of the tags."""
        names = ((Scope.FAMILY, family), *((Scope.TAG, tag) for tag in tags))
        return any(self._marks.get(name) == OPEN_POSITION for name in names)

    @property
    def is_any_open(self) -> bool:
        """Whether somebody writes a whole family or tag."""
        return OPEN_POSITION in self._marks.values()

    def voided_after(self, position: int, family: str, tags: tuple[str, ...]) -> bool:
        """Say whether the family or one of the tags has an event after `position` (P12)."""
        if tags and position < self._tag_floor:
            return True
        return self._marks.get((Scope.FAMILY, family), 0) > position or any(
            self._marks.get((Scope.TAG, tag), 0) > position for tag in tags
        )

    def news(self, since: Cursor) -> News:
        """Tell what came after `since`, of one name only the last event, or `reset`."""
        if since == self.tail:
            return News(self.tail, epoch=self.epoch)
        behind = self.tail.position - since.position
        if not 0 < behind <= NEWS_MOST or not self._knows(since):
            return News(self.tail, reset=True, epoch=self.epoch)
        last: dict[tuple[Scope, str], tuple[Event, int]] = {}
        for event, event_id in list(self._events)[-behind:]:
            last.pop((event.scope, event.name), None)
            last[event.scope, event.name] = event, event_id
        told = last.values()
        events, ids = tuple([event for event, _ in told]), tuple([event_id for _, event_id in told])
        return News(self.tail, events, epoch=self.epoch, ids=ids)

    def trim(self) -> int:
        """Forget the oldest events beyond the length kept. Returns how many."""
        trimmed = 0
        while len(self._events) > LOG_LENGTH:
            event, event_id = self._events.popleft()
            self._before = Cursor(event.position, event_id)
            if event.scope is Scope.TAG and self._marks.get((Scope.TAG, event.name)) == event.position:
                del self._marks[Scope.TAG, event.name]
                self._tag_floor = event.position
            trimmed += 1
        return trimmed

    def lose(self, events: int) -> None:
        """Forget the last events and begin a new epoch (P20)."""
        for _ in range(min(events, len(self._events))):
            event, _ = self._events.pop()
            if self._marks.get((event.scope, event.name)) == event.position:
                del self._marks[event.scope, event.name]
        last = self._events[-1] if self._events else None
        self.tail = Cursor(last[0].position, last[1]) if last else self._before
        self.epoch += 1

    def begin_epoch(self, epoch: int) -> None:
        """Go on in a new epoch, behind an event that no other log has: what was true at a position of this one, in this
        epoch, is known by the event there, even if its number is given twice.
        """
        self.epoch = epoch
        self.append(Scope.KEY, "")

    def _knows(self, cursor: Cursor) -> bool:
        if cursor == START or cursor.position < self._before.position:
            return False  # a newcomer holds nothing: a reset costs it nothing
        if cursor.position == self._before.position:
            return cursor.event_id == self._before.event_id
        return self._events[cursor.position - self._before.position - 1][1] == cursor.event_id
