"""When an answer for a key was last given out: later readers of this process must see nothing older (P4)."""

from __future__ import annotations

from itertools import islice
from typing import Final

FLOORS_MOST: Final = 16_384
_OVERFLOW_SHARE = 32  # of what there may be, at once
_PRUNED_AT_ONCE = 1_024


class Floors:
    """An instant a key, for keys that do not stand in the local tier (an entry there carries its own).

    Bounded twice: no reader is served what was true more than `max_lag` ago, so that older floors say nothing; and
    beyond `most` the oldest ones make way for one floor under all keys. Not locked: its owner is.
    """

    def __init__(self, max_lag_ns: int, most: int = FLOORS_MOST) -> None:
        self.max_lag_ns = max_lag_ns
        self._most = most
        self._floors: dict[str, int] = {}  # in order of their instants
        self.everywhere_ns = 0

    def __len__(self) -> int:
        return len(self._floors)

    def of(self, key: str) -> int:
        """Return the instant after which whatever answers for `key` must have been true."""
        floor = self._floors.get(key, 0)
        return floor if floor > self.everywhere_ns else self.everywhere_ns  # noqa: FURB136 - each of many that join asks

    def lift(self, key: str, now_ns: int) -> None:
        """An answer for `key` was given out just now."""
        self._floors.pop(key, None)
        self._floors[key] = now_ns
        if len(self._floors) > self._most:
            self._make_room(now_ns)

    def lift_all(self, now_ns: int) -> None:
        """Whatever was given out until now: nothing older than that is, of any key."""
        self._floors.clear()
        self.everywhere_ns = max(self.everywhere_ns, now_ns)

    def take(self, key: str) -> int:
        """Remove and return the floor of a key that moves into the local tier."""
        return max(self._floors.pop(key, 0), self.everywhere_ns)

    def prune(self, now_ns: int) -> None:
        """Forget floors that say nothing any more, so many at a time."""
        old: list[str] = []
        for key, instant_ns in islice(self._floors.items(), _PRUNED_AT_ONCE):
            if instant_ns >= now_ns - self.max_lag_ns:
                break
            old.append(key)
        for key in old:
            del self._floors[key]

    def _make_room(self, now_ns: int) -> None:
        self.prune(now_ns)
        if len(self._floors) <= self._most:
            return
        for key in list(islice(self._floors, max(1, self._most // _OVERFLOW_SHARE))):
            self.everywhere_ns = max(self.everywhere_ns, self._floors.pop(key))
