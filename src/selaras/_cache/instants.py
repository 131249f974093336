"""Instants in their order, so that "after" has a meaning even where a clock stands still."""

from __future__ import annotations

from selaras._contracts.clock import Clock


class Instants:
    """The clock of one cache. `last_ns`: the latest instant that it gave or was given."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.instant_ns
        self.last_ns = 0

    def now(self) -> int:
        """Return now, later than every instant that was given before."""
        now = self._now_ns()
        if now <= self.last_ns:
            now = self.last_ns + 1
        self.last_ns = now
        return now

    def reached(self, instant_ns: int) -> None:
        """Others have seen this instant."""
        if instant_ns > self.last_ns:
            self.last_ns = instant_ns
