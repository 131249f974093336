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
