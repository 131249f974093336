"""Measured consistency: what became of audits, by family, task and pool, and what was found stale.

A pool is the queue that a job came from: what a pool of workers serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.codec import UNREADABLE
from selaras._core.proportions import at_most

AGES_US: Final = (1_000_000, 5_000_000, 30_000_000, 300_000_000)
"""Stale values are counted by the time since their key was last voided: below each of these, above all, or not known."""

FOUND_MOST: Final = 20
ROWS_MOST: Final = 1_000
"""Beyond these the oldest are forgotten."""

_UNKNOWN: Final = len(AGES_US) + 1

Who = tuple[str, str]
"""The task and the pool of the job that reads; empty outside of jobs."""


class Audits(Struct, frozen=True, array_like=True):
    """What audits came to.

    Attributes:
        same: served as the datastore had it. stale: older than the reader needed. unsure: it changed meanwhile, or could
            not be loaded: neither.
        ages: of those that were stale, by `AGES_US`.
    """

    same: int = 0
    stale: int = 0
    unsure: int = 0
    ages: tuple[int, ...] = (0,) * (_UNKNOWN + 1)

    @property
    def judged(self) -> int:
        """How many say something."""
        return self.same + self.stale

    @property
    def consistency(self) -> float | None:
        """The share that was not stale; None: nothing was judged."""
        return self.same / self.judged if self.judged else None

    @property
    def at_least(self) -> float:
        """The share that is certain with 95 % confidence."""
        return 1 - at_most(self.stale, self.judged)

    def plus(self, more: Audits) -> Audits:
        """Return both together."""
        ages = tuple(one + other for one, other in zip(self.ages, more.ages, strict=True))
        return Audits(self.same + more.same, self.stale + more.stale, self.unsure + more.unsure, ages)


ONE_SAME: Final = Audits(same=1)
ONE_UNSURE: Final = Audits(unsure=1)


def one_stale(age_us: int | None) -> Audits:
    """Return what one stale value counts as. `age_us`: since its key was last voided; None: not known."""
    place = _UNKNOWN if age_us is None else sum(age_us >= bound for bound in AGES_US)
    return Audits(stale=1, ages=tuple(int(one == place) for one in range(_UNKNOWN + 1)))


class Found(Struct, frozen=True, array_like=True):
    """A value that was served stale.

    Attributes:
        position: of the log at which it was thought to be true. voided_at: that of the event that should have been
            seen; 0: no event speaks against it, so it was changed without a word.
        age_us: since the key was last voided; None: not known.
    """

    at_us: int
    family: str
    key: str
    task: str
    pool: str
    job: str
    tier: str
    position: int
    voided_at: int
    age_us: int | None = None


class Ledger(Struct, frozen=True, array_like=True):
    """All audits, and the last values that were found stale, the newest last."""

    rows: dict[str, Audits] = {}
    found: tuple[Found, ...] = ()

    def plus(self, more: Ledger) -> Ledger:
        """Return both together, within bounds."""
        rows = dict(self.rows)
        for name, audits in more.rows.items():
            rows[name] = rows.pop(name, Audits()).plus(audits)
        for name in list(rows)[: max(0, len(rows) - ROWS_MOST)]:
            del rows[name]
        return Ledger(rows, (*self.found, *more.found)[-FOUND_MOST:])

    def by(self) -> Mapping[tuple[str, str, str], Audits]:
        """Return the rows by family, task and pool."""
        return {_names(name): audits for name, audits in self.rows.items()}


_SEPARATOR: Final = "\x1f"  # no name has it: names are without control characters


def row_name(family: str, task: str, pool: str) -> str:
    """Return the name of a ledger's row."""
    return _SEPARATOR.join((family, task, pool))


def _names(row: str) -> tuple[str, str, str]:
    family, task, pool = row.split(_SEPARATOR)
    return family, task, pool


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Ledger).decode


def ledger_bytes(ledger: Ledger) -> bytes:
    """Return a ledger as it is kept."""
    return _encode(ledger)


def ledger_of(data: bytes | None) -> Ledger:
    """Read a ledger; one that another version of the program wrote is an empty one."""
    if not data:
        return Ledger()
    try:
        return _decode(data)
    except UNREADABLE:
        return Ledger()


def gap(share: float, chance: float) -> int:
    """Return how many hits it is to the next one that is audited, if each is with the chance `share`, above 0.

    Drawn once instead of at each hit, which has the same effect: gaps of independent draws are geometric.
    """
    return 1 if share >= 1 else 1 + int(log(1 - chance) / log(1 - share))
