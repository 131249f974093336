"""Whether a partition is asked: not one that failed a moment ago, so that reads lose no time on it.

    closed ── a request fails, or takes too long ──> open, twice as long each time
    open ──── its time is over ────────────────────> half open: one request goes, all others still do without
    half open ── answered in time ──> closed         failed ──> open

Only reads ask: what writes is always sent, and fails closed.
"""

from __future__ import annotations

from typing import Final

_OPEN_US_FIRST: Final = 50_000
_OPEN_US_MOST: Final = 2_000_000


class Breaker:
    """One partition's. Not locked: its owner is; `lets` may be raced, and then two probes go."""

    __slots__ = ("_until_ns", "open_us", "slow_ns")

    def __init__(self) -> None:
        self.open_us = 0
        """How long it was opened the last time; 0: it is closed, and all requests go."""
        self._until_ns = 0
        self.slow_ns = 0
        """An answer after so long is none; 0: it is never too late."""

    def is_open(self, now_ns: int) -> bool:
        """Say whether no request goes now, without being one."""
        return self._until_ns > now_ns

    def lets(self, now_ns: int) -> bool:
        """Say whether a request may go now. The one that may while it is half open is the probe: the next may only
        after as long again, or when that has been answered.
        """
        if not self.open_us:
            return True
        if self._until_ns > now_ns:
            return False
        self._until_ns = now_ns + self.open_us * 1_000
        return True

    def answered(self, took_ns: int) -> None:
        """A request was answered after so long."""
        if not self.slow_ns or took_ns <= self.slow_ns:
            self.open_us = self._until_ns = 0

    def failed(self, now_ns: int) -> bool:
        """A request was not answered, or not in time. Returns whether it was closed until now."""
        first = not self.open_us
        self.open_us = min(max(self.open_us * 2, _OPEN_US_FIRST), _OPEN_US_MOST)
        self._until_ns = now_ns + self.open_us * 1_000
        return first
