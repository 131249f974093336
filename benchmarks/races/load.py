"""What a run consists of: which rows, how long loads and writes take. All chance comes from the run's seed."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct

from benchmarks.races.ground import Ground, Tally

BURST: Final = 10
"""Reads in a row: a hit waits for nothing, and others must get a word in."""

PAUSE_S: Final = 0.002
"""What a reader waits between bursts, on the average."""

LATE_S: Final = 0.002
"""What a load or a step of a write waits for, on the average, if it waits at all."""

VERY_LATE_S: Final = 0.05
STALE_TOLD: Final = 5


class Plan(Struct, frozen=True, kw_only=True):
    """One half of a run, as its processes are told of it.

    Attributes:
        url: of the store that all of them share. prefix: of what they keep in it.
        readers, writers: in each process.
        pause_s: between the writes of one writer, on the average.
        host_tier: the memcached of Selaras' half; "": none. With one, the local tiers are small, so that it is asked.
    """

    kind: str
    url: str
    prefix: str
    ground: str
    seed: int
    processes: int
    rows: int
    readers: int
    writers: int
    pause_s: float
    host_tier: str = ""


class Load:
    """One process's part of a run."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.ground = Ground(Path(plan.ground), plan.rows, plan.processes)
        self.tally = self.ground.tally(number)
        self._chance = Random(f"{plan.seed}-{number}")
        self._told = 0

    def chance(self) -> Random:
        """Return a sequence of chance for one task."""
        return Random(self._chance.getrandbits(64))

    def row(self, chance: Random) -> int:
        """Draw a row: some are hot."""
        draw = chance.random()
        return int(self.plan.rows * draw * draw)

    async def wait(self, chance: Random) -> None:
        """Wait as one does for a datastore: not at all, a little, or now and then for long."""
        draw = chance.random()
        if draw < 0.4:
            return
        await asyncio.sleep(VERY_LATE_S if draw > 0.995 else -math.log(1 - chance.random()) * LATE_S)

    async def pause(self, chance: Random) -> None:
        """Wait as a reader does between two bursts."""
        await asyncio.sleep(chance.expovariate(1 / PAUSE_S))

    async def select(self, row: int, chance: Random) -> int:
        """Read a row, as a loader does."""
        self.tally[Tally.LOADS] += 1
        await self.wait(chance)
        version: int = self.ground.committed[row]
        await self.wait(chance)
        return version

    def judge(self, row: int, floor: int, version: int, what: str) -> None:
        """Count a read that must not be below `floor`."""
        self.tally[Tally.READS] += 1
        if version < floor:
            self.tally[Tally.STALE] += 1
            self._told += 1
            if self._told <= STALE_TOLD:
                print(f"stale: {what} of row {row} gave version {version}; {floor} was acknowledged before", flush=True)

    def acknowledged(self, row: int, version: int) -> None:
        """A write is done, and its writer knows."""
        self.ground.acknowledge(row, version)
        self.tally[Tally.WRITES] += 1
