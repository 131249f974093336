"""Waits that end by an event or by the clock, whichever comes first."""

from __future__ import annotations

import asyncio
from asyncio import Event

from selaras._contracts.clock import Clock


async def within(clock: Clock, seconds: float, *events: Event) -> bool:
    """Wait for any of `events`, at most `seconds`. Returns whether one is set."""
    if seconds > 0 and not any(event.is_set() for event in events):
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(clock.sleep(seconds)), *(loop.create_task(_wait(event)) for event in events)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
    return any(event.is_set() for event in events)


async def _wait(event: Event) -> None:
    await event.wait()


class Alarm:
    """A time to wake at that others may move forward."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_ns = 0
        self._moved = Event()

    def by(self, at_ns: int) -> None:
        """Wake no later than `at_ns`."""
        if at_ns < self._at_ns:
            self._moved.set()

    async def wait(self, at_ns: int) -> None:
        """Wait until `at_ns`, or until somebody needs it sooner."""
        self._at_ns = at_ns
        self._moved.clear()
        await within(self._clock, (at_ns - self._clock.instant_ns()) / 1e9, self._moved)
