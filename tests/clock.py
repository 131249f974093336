"""The public clock of tests, in a store's own unit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from selaras.testing import clock

START_US = 1_700_000_000_000_000
"""Some instant in 2023; a store's times are microseconds since 1970."""

SECOND = 1_000_000
"""Microseconds."""


class VirtualClock(clock.VirtualClock):
    """See `selaras.testing.clock.VirtualClock`. Both times move together unless `jump` moves the wall clock alone."""

    def __init__(self, wall_us: int = START_US) -> None:
        super().__init__(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=wall_us))

    def advance(self, us: int) -> None:
        """Let time pass, and wake whoever slept so long."""
        self.move_to(self.instant_ns() + us * 1_000)

    def jump(self, us: int) -> None:
        """Move civil time alone, as an operator or NTP may."""
        self.set_wall(self.now() + timedelta(microseconds=us))
