"""The real clock and the real dice: the one place that touches them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from pathlib import Path

from selaras._contracts.clock import Clock, Entropy

# CLOCK_MONOTONIC stands still while a machine sleeps: a lease that ran out meanwhile would look held (P2).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
_instant_ns = time.monotonic_ns if _CLOCK is None else partial(time.clock_gettime_ns, _CLOCK)


class SystemClock:
    """The machine's own time."""

    instant_ns = staticmethod(_instant_ns)
    """Returns nanoseconds since boot, sleep included, where the system offers such a clock."""

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await asyncio.sleep(seconds)


def clock_origin() -> str:
    """Return what two processes have in common whose instants can be compared: the machine, its boot, and the clock that
    their container is given. Empty where the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115 - it is no path that it reads
    except OSError:
        return boot  # before Linux 5.6 all processes have one clock


def system_clock() -> Clock:
    """Make the real clock."""
    return SystemClock()


def system_entropy() -> Entropy:
    """Make a source of randomness of its own, seeded by the system: two processes never share a sequence.

    A fork would copy the state, so a child process makes its own.
    """
    return random.Random(os.urandom(16))
