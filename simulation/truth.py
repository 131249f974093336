"""The datastore of a world: what each row was, and from when on nobody may be told less.

A commit is *binding* from the instant of which the promises speak. One under its writer's standing intent is so at once
(G2). One that nobody declared, or that came after its writer's lease was lost, is so once it was voided: by `invalidate`,
or by the settle that was refused (G4). Until then it may be seen, or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.loop import Loop, land

NEVER_NS: Final = 1 << 62
GHOST: Final = -1
"""Put by a writer that then raises: nobody else may ever read it."""

_TRIP: Final = 0.000_2
_LATE_MOST: Final = 6.0


@dataclass(slots=True)
class Commit:
    """A version of a row. `binding_ns`: from when on it counts."""

    version: int
    at_ns: int
    binding_ns: int
    job: str
    fence: int


class Datastore:
    """Rows with one number each, and how each came to be.

    Args:
        covered: says of (key, job, fence) whether that writer's intent stands in the store now.
        lag_s: how late the replica is that some families are read from.
    """

    def __init__(
        self, loop: Loop, chance: Random, covered: Callable[[str, str, int], bool], *, fenced: bool, lag_s: float
    ) -> None:
        self._loop = loop
        self._draw = chance.random
        self._covered = covered
        self._fenced = fenced
        self._lag_ns = round(lag_s * 1e9)
        self._fences: dict[str, int] = {}
        self._versions = 0
        self.rows: defaultdict[str, list[Commit]] = defaultdict(list)
        self._open: defaultdict[str, list[Commit]] = defaultdict(list)  # not binding yet
        self._by: defaultdict[tuple[str, int], list[tuple[str, Commit]]] = defaultdict(list)
        self.healed = False

    # -- what a program does

    async def read(self, key: str, *, replica: bool = False) -> int:
        """Read a row: a trip there, a look, a trip back."""
        loop = self._loop
        found = loop.create_future()

        def look() -> None:
            until = loop.now_ns - self._lag_ns if replica else NEVER_NS
            version = next((one.version for one in reversed(self.rows[key]) if one.at_ns <= until), 0)
            loop.outside_later(self._trip(), land, found, version)

        loop.outside_later(self._trip(), look)
        version: int = await found
        return version

    async def write(self, key: str, job: str, fence: int, *, late: bool = False, quiet: bool = False) -> int:
        """Write a row; once under way it is done, whatever becomes of the caller.

        Returns the version; 0: the row had a higher fence. `quiet`: binding only by what is said of it later.
        """
        loop = self._loop
        done = loop.create_future()

        def commit() -> None:
            version = 0
            if not (self._fenced and fence and self._fences.get(key, 0) > fence):
                self._fences[key] = max(self._fences.get(key, 0), fence)
                self._versions = version = self._versions + 1
                covered = not quiet and bool(job) and self._covered(key, job, fence)
                made = Commit(version, loop.now_ns, loop.now_ns if covered else NEVER_NS, job, fence)
                self.rows[key].append(made)
                self._by[job, fence].append((key, made))
                if not covered:
                    self._open[key].append(made)
            loop.outside_later(self._trip(), land, done, version)

        loop.outside_later(self._draw() * _LATE_MOST if late and not self.healed else self._trip(), commit)
        version: int = await done
        return version

    def _trip(self) -> float:
        return _TRIP * (0.5 + self._draw())

    # -- what binds

    def voided(self, keys: Iterable[str], at_ns: int) -> None:
        """Everything committed to these rows so far counts from here on."""
        for key in keys:
            if self._open.get(key):
                for commit in self._open.pop(key):
                    commit.binding_ns = at_ns

    def of_attempt(self, job: str, fence: int) -> list[tuple[str, Commit]]:
        """Return what an attempt committed."""
        return self._by.get((job, fence), [])

    # -- what was true

    def binding(self, key: str, as_of_ns: int) -> int:
        """Return the least version that a read which is fresh as of this instant may return."""
        return max((one.version for one in reversed(self.rows[key]) if one.binding_ns <= as_of_ns), default=0)

    def latest(self, key: str) -> int:
        """Return the version that the row has."""
        rows = self.rows[key]
        return rows[-1].version if rows else 0

    def knows(self, key: str, version: int) -> bool:
        """Say whether the row ever was that."""
        return version == 0 or any(one.version == version for one in reversed(self.rows[key]))

    def binds(self, key: str, version: int, at_ns: int) -> bool:
        """Say whether this version counts by now."""
        return any(one.version == version and one.binding_ns <= at_ns for one in reversed(self.rows[key]))

    def of(self, job: str) -> list[tuple[str, Commit]]:
        """Return what any attempt of a job committed: (key, commit)."""
        return [(key, one) for key, rows in self.rows.items() for one in rows if one.job == job]
