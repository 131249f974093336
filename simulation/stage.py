"""What the processes of a world have in common, and what each can do for the program that it runs."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from selaras import Selaras
from selaras._app.jobs.lines import HELD
from selaras._app.jobs.task import Task
from selaras._app.values.cached import Cached
from selaras._core.errors import SelarasError
from simulation.loop import Lane, Loop
from simulation.machine import chance_of
from simulation.plan import Fault, Plan
from simulation.promises import FAMILIES, Promises
from simulation.trace import Trace
from simulation.truth import Datastore

_NO_FLOOR: Final = "the store does not answer"
"""Why a read went to a late datastore without knowing how new it must be: nothing is promised of it then."""

_RECENT: Final = 4


class Glass(Protocol):
    """Looks into the store, without a trip."""

    def holds(self, job: str, fence: int) -> bool:
        """Say whether an attempt runs, as the store knows it."""
        ...


class Stage:
    """What all processes of a world share."""

    glass: Glass
    truth: Datastore

    def __init__(self, plan: Plan, on_error: Callable[[dict[str, Any]], None], *, kept: int) -> None:
        self.plan = plan
        self.loop = Loop(chance_of(plan.seed, "order"), on_error)
        self.trace = Trace(self.loop, kept=kept)
        self.promises = Promises(self.loop, self.trace, plan.partitions)
        self.healed = False
        self.closing = False
        self.recent: deque[int] = deque(maxlen=_RECENT)
        self.producing = plan.producers
        self._numbers = 0
        self._runs: Counter[int] = Counter()

    def number(self) -> int:
        """Return the next of a row of numbers."""
        self._numbers += 1
        return self._numbers

    def run_of(self, n: int) -> int:
        """Count the runs of the job of this number: each draws anew."""
        self._runs[n] += 1
        return self._runs[n]

    def produced(self) -> None:
        """A producer has made all its jobs, or is gone."""
        self.producing -= 1

    def accepted(self, job: str) -> None:
        """A producer was told that this job is accepted."""
        self.trace.call(job)
        self.promises.accepted.add(job)

    def line_of(self, job: str) -> str:
        """Return the line that the running body holds; "" for none."""
        del job
        return next(iter(HELD.get() or {}), "")


@dataclass
class Declared:
    """What the program declares. `families` and `tasks`: by name."""

    app: Selaras
    families: dict[str, Cached[[int], int]]
    tasks: dict[str, Task[..., Any]]

    def key(self, name: str) -> Any:
        """Return the handle of a key: "item:3"."""
        family, _, number = name.partition(":")
        return self.families[family].key(int(number))


class Actor:
    """A process, as its program knows it: it reads and writes, and what it was answered is judged."""

    program: Declared

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.plan = stage.plan
        self.promises = stage.promises
        self.trace = stage.trace
        self.name = name
        self.chance = chance_of(self.plan.seed, name)
        self.lane = Lane(stage.loop, name)
        self.leaving = False
        self.ended = False

    def rate(self, fault: Fault) -> float:
        """Return how often a fault happens now."""
        return 0.0 if self.stage.healed else self.plan.rate(fault)

    async def block(self, chance: Random) -> None:
        """Block the loop; the threads go on."""
        self.promises.happened("block", self.lane)
        self.freeze(chance.random() ** 2 * 4 * self.plan.lease_s, threads=False)
        await asyncio.sleep(0)

    def freeze(self, seconds: float, *, threads: bool) -> None:
        """Stand still so long: its loop, or its threads too."""
        lane = self.lane
        lane.freeze(threads=threads)
        self.stage.loop.outside_later(seconds, lambda: lane.thaw(threads=threads))

    # -- what its program does

    def a_key(self, chance: Random) -> int:
        """Draw a key's number."""
        return int(chance.random() ** 2 * self.plan.keys)

    def a_recent_key(self, chance: Random) -> int:
        """Draw a key's number, often one that somebody writes or has just written: there old values show."""
        recent = self.stage.recent
        return chance.choice(recent) if recent and chance.random() < 0.6 else self.a_key(chance)

    def touches(self, key: str) -> None:
        """This key is being written."""
        self.stage.recent.append(int(key.partition(":")[2]))

    def a_family(self, chance: Random) -> str:
        """Draw a family's name."""
        return chance.choice(("item", "item", "item", *FAMILIES))

    async def write(self, chance: Random, key: str, job: str, fence: int, *, quiet: bool = False) -> int:
        """Commit a new version. Returns it, or 0 if the row refused it."""
        self.touches(key)
        late = chance.random() < self.rate("late-writes")
        if late:
            self.promises.happened("late-writes", self.lane)
        quiet = quiet or key.startswith(("served:", "late:"))
        version = await self.stage.truth.write(key, job, fence, late=late, quiet=quiet)
        self.trace.add("commit", self.name, key, version, job, fence)
        return version

    async def read(
        self, key: str, level: Any, *, how: str, needed_ns: int | None = None, own: int = 0, put: int = 0
    ) -> None:
        """Read a key through the product, and judge the answer. `needed_ns`: of a job, its claim."""
        called_ns, before = self.stage.loop.now_ns, self.promises.before(self.name, key)
        handle = self.program.key(key)
        late = key.startswith("late:")
        plain = level is None and not late and self.chance.random() < 0.5
        tier = ""
        try:
            if plain:
                version = await self.program.families[key.partition(":")[0]](int(key.partition(":")[2]))
            else:
                reading = await handle.read(level)
                version, tier = reading.value, reading.tier
                if late and reading.why == _NO_FLOOR:
                    return
        except SelarasError as error:
            self._unread(key, error)
            return
        needed_ns = self._needed_ns(called_ns, level, needed_ns)
        self.judge(
            key, version, how=how, needed_ns=needed_ns, before=before, called_ns=called_ns, tier=tier, own=own, put=put
        )

    def _unread(self, key: str, error: SelarasError) -> None:
        if self.leaving or self.ended:
            return  # its cache was closed
        if not key.startswith("late:"):
            self.promises.breaks("no trouble", f"{self.name} could not read {key}: {type(error).__name__}: {error}")
        self.trace.add("unread", self.name, key)

    async def read_many(self, keys: list[str], level: Any) -> None:
        """Read several keys together."""
        called_ns = self.stage.loop.now_ns
        before = [self.promises.before(self.name, key) for key in keys]
        versions = await self.program.app.read_many([self.program.key(key) for key in keys], level)
        needed_ns = self._needed_ns(called_ns, level, None)
        for key, version, least in zip(keys, versions, before, strict=True):
            self.judge(key, version, how=f"together, {level or 'bounded'}", needed_ns=needed_ns, before=least,
                       called_ns=called_ns)  # fmt: skip

    async def warm(self, keys: list[str], levels: Sequence[Any], *, how: str, claimed_ns: int | None = None) -> None:
        """Bring keys into the tiers, then read each: what was brought is as fresh as what is read at once."""
        handles = [self.program.key(key) for key in keys]
        try:
            warmed = await self.program.app.warm(handles)
        except SelarasError as error:
            self._unread(keys[0], error)
            return
        self.promises.warmed(self.name, keys, warmed)
        self.trace.add("warm", self.name, *keys)
        for key, level in zip(keys, levels, strict=False):
            await self.read(key, level, needed_ns=claimed_ns, how=f"{how}, warmed before")

    def _needed_ns(self, called_ns: int, level: Any, claimed_ns: int | None) -> int:
        if level == "strict":
            return called_ns
        if claimed_ns is None:
            return called_ns - round((1.0 if level is None else level) * 1e9)
        return max(claimed_ns, called_ns - round(level * 1e9)) if level else claimed_ns

    def judge(
        self,
        key: str,
        version: int,
        *,
        how: str,
        needed_ns: int,
        before: tuple[int, int],
        called_ns: int = 0,
        tier: str = "",
        own: int = 0,
        put: int = 0,
    ) -> None:
        """Judge an answer."""
        self.promises.read(
            self.name,
            key,
            version,
            how=f"{how}, {tier}" if tier else how,
            called_ns=called_ns or self.stage.loop.now_ns,
            needed_ns=needed_ns,
            before=before,
            local=tier == "local" and called_ns > 0,
            own=own,
            put=put,
        )
