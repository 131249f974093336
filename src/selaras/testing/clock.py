"""Time that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
# How often other tasks get their turn after an instant was reached, so that whoever woke there can go on and sleep
# again before time moves past it. Each is one pass of the loop; a task that has nothing to do costs none.
_PASSES: Final = 20


class VirtualClock:
    """A clock that a test moves by hand; any thread may read it, and sleep by it on a loop of its own.

    It starts at 2026-01-01 00:00 UTC unless told otherwise.
    """

    def __init__(self, start: datetime = _START) -> None:
        if start.tzinfo is None:
            raise ConfigurationError(f"start={start!r} has no time zone; say which instant it is, e.g. tzinfo=UTC")
        self._lock = Lock()
        # Not 0: an instant of 0 often means "never".
        self._instant_ns = 3_600_000_000_000
        self._wall_us = (start - _EPOCH) // timedelta(microseconds=1)
        self._numbers = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def instant_ns(self) -> int:
        """Return the instant; it goes on only when it is moved."""
        return self._instant_ns

    def wall_us(self) -> int:
        """Return the civil time in microseconds since 1970-01-01 UTC."""
        return self._wall_us

    def now(self) -> datetime:
        """Return the civil time, in UTC."""
        return _EPOCH + timedelta(microseconds=self._wall_us)

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been moved `seconds` on."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waker = asyncio.get_running_loop().create_future()
        with self._lock:
            due_ns = self._instant_ns + round(seconds * 1e9)
            heapq.heappush(self._sleepers, (due_ns, next(self._numbers), waker))
        try:
            await waker
        finally:
            # A sleeper that was cancelled must not hold its place until its time comes.
            with self._lock:
                self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[2] is not waker]
                heapq.heapify(self._sleepers)

    def next_wake_us(self) -> int | None:
        """Return how far the next sleeper is away, in microseconds rounded up, or None: nobody sleeps."""
        with self._lock:
            due_ns = min((due_ns for due_ns, _, waker in self._sleepers if not waker.done()), default=None)
        return None if due_ns is None else -((self._instant_ns - due_ns) // 1_000)

    async def elapse(self, by: Duration) -> None:
        """Move the clock on by `by`, stopping at each instant at which somebody wakes and letting them go on."""
        end_ns = self._instant_ns + duration_us(by, name="by") * 1_000
        while True:
            with self._lock:
                due_ns = min((due_ns for due_ns, _, waker in self._sleepers if not waker.done()), default=end_ns)
            self.move_to(min(due_ns, end_ns))
            for _ in range(_PASSES):
                await asyncio.sleep(0)
            if due_ns >= end_ns:
                return

    def move(self, by: Duration) -> None:
        """Move the clock on by `by` in one step; whoever should have woken wakes when their loop runs next."""
        self.move_to(self._instant_ns + duration_us(by, name="by") * 1_000)

    def move_to(self, instant_ns: int) -> None:
        """Move the clock to an instant in one step; it never goes back."""
        with self._lock:
            step_ns = max(0, instant_ns - self._instant_ns)
            # The wall keeps whole microseconds; what is below one is not lost but counted from the instant.
            self._wall_us += (self._instant_ns + step_ns) // 1_000 - self._instant_ns // 1_000
            self._instant_ns += step_ns
            woken: list[asyncio.Future[None]] = []
            while self._sleepers and self._sleepers[0][0] <= self._instant_ns:
                woken.append(heapq.heappop(self._sleepers)[2])
        for waker in woken:
            waker.get_loop().call_soon_threadsafe(_wake, waker)

    def set_wall(self, to: datetime) -> None:
        """Let civil time jump, as when somebody sets the machine's clock; instants and sleepers don't notice."""
        if to.tzinfo is None:
            raise ConfigurationError(f"to={to!r} has no time zone; say which instant it is, e.g. tzinfo=UTC")
        with self._lock:
            self._wall_us = (to - _EPOCH) // timedelta(microseconds=1)


def _wake(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)
