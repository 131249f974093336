"""Follows one partition's log: how far it is applied here, and as of when that is known to be its end.

    heard(news, sent)   in this order, so that a reader that takes no lock and looks at `confirmed` first is right:
                        entries go, marks are set, then `applied`, then `confirmed` grows

Laws: `applied` and `confirmed` only grow, except that a log that was lost begins anew with an empty local tier (P20).
`confirmed` is moved by replies only, to the instant their request was sent (P2).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from selaras._cache.breaker import Breaker
from selaras._cache.local import LocalEntry, LocalTier
from selaras._core.positions import START, Cursor, Event, News, Pushed, Scope

INDEX_MOST: Final = 20_000
"""Names whose last event is remembered: a reply that was under way meanwhile is judged by it."""

INDEX_NS: Final = 60_000_000_000
"""A reply that took longer than this is not trusted by the local tier anyway."""

HOST_INDEX_NS: Final = 600_000_000_000
"""So long where there is a host tier: what it holds from before events that are forgotten cannot be proven."""

IDS_MOST: Final = 20_000
"""Positions whose event is known by its id, for the host tier."""

_HOST_AGES_NS: Final = 100_000_000

_position_of: Final = attrgetter("position")

NEVER_YET: Final = -(1 << 62)
"""An instant before every other."""


class Follower:
    """One partition as this process knows it.

    Attributes:
        applied: how far its log is applied. `confirmed_ns`: when the request was sent that proved it to be its end.
        bulk: the position of the last tag or family event applied.
    """

    def __init__(self, index: int, local: LocalTier, instant: Callable[[], int]) -> None:
        self.index = index
        self.applied: Cursor = START
        self.confirmed_ns = NEVER_YET
        self.epoch = 0
        self.bulk = 0
        self.on_event: Callable[[str], None] = lambda _: None
        self._local = local
        self._instant = instant
        self._last: dict[str, int] = {}  # key -> position of its last event, oldest first
        self._marks: dict[tuple[Scope, str], int] = {}  # the same of tags and families
        self._from = 0  # events at or below it are forgotten
        self._marks_from = 0
        self._ages: deque[tuple[int, int]] = deque()  # (heard at, position): to forget by age
        self._distrust_ns = NEVER_YET
        self._index_ns = INDEX_NS
        self._ids: dict[int, int] | None = None  # position -> id of the event there, oldest first
        self.breaker = Breaker()

    def judge_others(self) -> None:
        """Remember from here on what it takes to judge what other processes say of this log, and longer."""
        self._index_ns = HOST_INDEX_NS
        self._ids = {}

    # -- what replies say

    def heard(self, news: News, sent_ns: int) -> bool:
        """Apply a reply's news. Returns whether what else the reply says may be trusted by the local tier."""
        with self._local.lock:
            if news.epoch < self.epoch or (sent_ns <= self._distrust_ns and not news.reset):
                return False  # it speaks of a log that is gone
            if self.breaker.open_us:
                self.breaker.answered(self._instant() - sent_ns)
            if news.epoch > self.epoch or (news.reset and news.tail != self.applied):
                self._begin_anew(news)
            elif news.tail.position > self.applied.position:
                self._apply(news)
            self.confirmed_ns = max(self.confirmed_ns, sent_ns)
            return True

    def pushed(self, pushed: Pushed) -> bool:
        """Apply events that were pushed, if they are the next. They show no end of the log: `confirmed` stays (P2).

        Returns whether all that they speak against has left the local tier.
        """
        if pushed.since != self.applied:
            return False
        with self._local.lock:
            if pushed.since != self.applied or pushed.news.epoch != self.epoch:
                return False
            self._apply(pushed.news)
            return True

    def confirm(self, tail: Cursor, sent_ns: int) -> bool:
        """A look at the log showed `tail`. Returns whether that is what is applied."""
        if tail != self.applied:
            return False
        with self._local.lock:
            if tail != self.applied:
                return False
            if self.breaker.open_us:
                self.breaker.answered(self._instant() - sent_ns)
            self.confirmed_ns = max(self.confirmed_ns, sent_ns)
            return True

    def _begin_anew(self, news: News) -> None:
        lost = news.epoch > self.epoch or news.tail.position < self.applied.position
        if lost and self.applied != START:
            self._distrust_ns = self._instant()
        self._local.drop_partition(self.index)
        self._last.clear()
        self._marks.clear()
        self._ages.clear()
        self._from = self._marks_from = self.bulk = news.tail.position
        self.epoch = news.epoch
        if self._ids is not None:
            self._ids.clear()
            self._identify(self._ids, news)
        self.applied = news.tail

    def _apply(self, news: News) -> None:
        known = self.applied.position
        bulk = self.bulk
        events = news.events
        if events and events[0].position <= known:
            events = events[bisect_right(events, known, key=_position_of) :]
        for event in events:
            bulk = max(bulk, self._take(event))
        if news.events:
            self._note_age(news.tail.position)
        if self._ids is not None:
            self._identify(self._ids, news)
        self.bulk = bulk
        self.applied = news.tail
        if len(self._last) > INDEX_MOST:
            self._forget_keys(list(self._last)[: len(self._last) // 4])
        if len(self._marks) > INDEX_MOST:
            self._forget_marks(list(self._marks)[: len(self._marks) // 4])

    def _note_age(self, position: int) -> None:
        now = self._instant()
        if self._ids is not None and self._ages and now - self._ages[-1][0] < _HOST_AGES_NS:
            self._ages[-1] = self._ages[-1][0], position  # forgotten a little early, so that there are few
        else:
            self._ages.append((now, position))

    def _identify(self, ids: dict[int, int], news: News) -> None:
        for event, event_id in zip(news.events, news.ids, strict=False):
            ids[event.position] = event_id
        ids[news.tail.position] = news.tail.event_id
        if len(ids) > IDS_MOST:
            for position in list(ids)[: len(ids) // 4]:
                del ids[position]

    def _take(self, event: Event) -> int:
        if event.scope is Scope.KEY:
            self._last.pop(event.name, None)
            self._last[event.name] = event.position
            self._local.void(event.name, event.position)
            self.on_event(event.name)
            return 0
        mark = event.scope, event.name
        self._marks.pop(mark, None)
        self._marks[mark] = event.position
        return event.position

    # -- questions

    def untouched(self, key: str, position: int, family: str, tags: tuple[str, ...]) -> bool:
        """Say whether nothing applied here speaks against a value of `key` that was true at `position`."""
        if position >= self.applied.position:
            return True
        if position < self._from or self._last.get(key, 0) > position:
            return False
        return self._unmarked(position, family, tags)

    def id_at(self, position: int) -> int:
        """Return the id of the event at a position of the log that is followed, by which it is told from another log with
        one there; 0: it is not known (any more), and no event has it.
        """
        return self._ids.get(position, 0) if self._ids is not None else 0

    def vouches(self, entry: LocalEntry) -> bool:
        """Say whether tag and family events leave an entry of the local tier valid; key events have removed it."""
        bulk = self.bulk
        if not self._unmarked(entry.position, entry.family, entry.tags):
            return False
        entry.vetted = bulk
        return True

    def _unmarked(self, position: int, family: str, tags: tuple[str, ...]) -> bool:
        if position < self._marks_from or self._marks.get((Scope.FAMILY, family), 0) > position:
            return False
        return not any(self._marks.get((Scope.TAG, tag), 0) > position for tag in tags)

    @property
    def remembered(self) -> int:
        """Names whose last event is remembered."""
        return len(self._last) + len(self._marks)

    def has_heard(self, key: str, position: int) -> bool:
        """Say whether an event for a key was applied that lies after `position`; older ones may be forgotten."""
        return self._last.get(key, 0) > position

    def heard_of(self, key: str, position: int) -> int:
        """Return the position of the last event for a key if it lies after `position`, else 0; older ones may be
        forgotten.
        """
        last = self._last.get(key, 0)
        return last if last > position else 0

    def voided_ago_us(self, key: str) -> int | None:
        """Return how long ago the last event for a key was heard; None: that is not known (any more)."""
        last = self._last.get(key, 0)
        heard_ns = next((at for at, position in tuple(self._ages) if position >= last), None) if last else None
        return None if heard_ns is None else (self._instant() - heard_ns) // 1_000

    def trusts(self, sent_ns: int) -> bool:
        """Say whether a request of that instant was answered by the log that is followed now."""
        return sent_ns > self._distrust_ns

    # -- bounds

    def sweep(self, now_ns: int) -> None:
        """Forget key events that no reply still under way can be older than."""
        with self._local.lock:
            before = 0
            while self._ages and self._ages[0][0] < now_ns - self._index_ns:
                before = self._ages.popleft()[1]
            old: list[str] = []
            for key, position in self._last.items():
                if position > before:
                    break
                old.append(key)
            self._forget_keys(old)

    def _forget_keys(self, keys: list[str]) -> None:
        for key in keys:
            self._from = max(self._from, self._last.pop(key))

    def _forget_marks(self, marks: list[tuple[Scope, str]]) -> None:
        for mark in marks:
            self._marks_from = max(self._marks_from, self._marks.pop(mark))
        self.bulk = max(self.bulk, self._marks_from)

    # -- when it does not answer

    def lost(self, now_ns: int) -> bool:
        """It did not answer: leave it alone for a while, twice as long each time. Returns whether it did until now."""
        with self._local.lock:
            return self.breaker.failed(now_ns)
