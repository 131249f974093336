"""What this process saw of keys with an adaptive ttl, for when their entries are gone: voided, or evicted."""

from __future__ import annotations

from typing import Final, NamedTuple

from selaras._core.cache.lifetimes import ONE, Adaptive, Past

HISTORIES_MOST: Final = 10_000
"""Keys remembered; the one longest unseen makes way."""

_POOL_MOST: Final = 64 * ONE  # changes of a family that count


class Seen(NamedTuple):
    """A key as it was at an instant: its past until then, its value's checksum, and the log's position."""

    past: Past
    at_ns: int
    checksum: int
    position: int


class Histories:
    """Bounded memory of keys, and of families: how long their keys stay unchanged on the average."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._pools: dict[str, Past] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def saw(self, key: str, seen: Seen) -> None:
        """Remember a key; whoever saw it last is right."""
        self._seen.pop(key, None)
        self._seen[key] = seen
        if len(self._seen) > HISTORIES_MOST:
            self._seen.pop(next(iter(self._seen)), None)

    def of(self, key: str) -> Seen | None:
        """Return what was seen of a key."""
        return self._seen.get(key)

    def learn(self, family: str, interval_us: int) -> None:
        """A key of the family changed after so long."""
        pool = self._pools.get(family, Past())
        if pool.changes >= _POOL_MOST:
            pool = Past(0, pool.span_us // 2, pool.changes // 2)
        self._pools[family] = Past(0, pool.span_us + interval_us, pool.changes + ONE)

    def prior_us(self, family: str, rule: Adaptive) -> int:
        """Return how long a key of the family is supposed to stay unchanged that nothing is known of."""
        pool = self._pools.get(family, Past())
        return (rule.first_us + pool.span_us) * ONE // (ONE + pool.changes)
