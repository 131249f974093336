"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio

START_US = 1_700_000_000_000_000
"""Some instant in 2023; a store's times are microseconds since 1970."""

SECOND = 1_000_000
"""Microseconds."""


class VirtualClock:
    """See `Clock`. Both times move together unless `jump` moves the wall clock alone."""

    def __init__(self, wall_us: int = START_US) -> None:
        self._wall_us = wall_us
        self._instant_ns = 0
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def instant_ns(self) -> int:
        return self._instant_ns

    def wall_us(self) -> int:
        return self._wall_us

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._instant_ns + round(seconds * 1e9), future))
        await future

    def advance(self, us: int) -> None:
        """Let time pass, and wake whoever slept so long."""
        self._wall_us += us
        self._instant_ns += us * 1_000
        awake = [future for until_ns, future in self._sleepers if until_ns <= self._instant_ns]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[1] not in awake]
        for future in awake:
            if not future.done():
                future.set_result(None)

    def jump(self, us: int) -> None:
        """Move civil time alone, as an operator or NTP may."""
        self._wall_us += us
