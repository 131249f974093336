"""How long a value lives: what is noted with it, when it is loaded anew ahead of its end, and an adaptive ttl.

    stored ──────────────── early ──── ttl over ─────────────── gone
             served            │          │  only as "stale", to reads that may have it; compared, handed to its loader
                               └ one reader of the fleet loads it anew, others are served on

All times are lengths, and count from the store's own: no wall clock is compared with another one.
"""

from __future__ import annotations

from math import log
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.codec import UNREADABLE

ONE: Final = 1024
"""One change, as `Past` counts them."""

JITTER: Final = 0.1
"""Adaptive lives are spread by so much to either side, so that what was stored together does not end together."""


class Past(Struct, frozen=True, array_like=True):
    """What was seen of one key's changes. Older ones fade: each new one halves what those before it count.

    Attributes:
        age_us: since its last change, or since it was first seen.
        span_us: the time between the changes seen. `changes`: how many, in units of `ONE`.
    """

    age_us: int = 0
    span_us: int = 0
    changes: int = 0

    def unchanged(self, elapsed_us: int) -> Past:
        """It was looked at again after so long, and was the same."""
        return Past(self.age_us + elapsed_us, self.span_us, self.changes)

    def changed(self, elapsed_us: int) -> Past:
        """It was looked at again, or voided, after so long, and was another."""
        return Past(0, self.span_us // 2 + self.age_us + elapsed_us, self.changes // 2 + ONE)


class Adaptive(Struct, frozen=True):
    """A ttl that follows each key's own changes: `k` times its age since the last one, smoothed, within bounds.

    The share of the age is the Alex protocol's (Cate 1992; RFC 9111, 4.2.2). Smoothed: changes are taken for a Poisson
    process whose rate has a Gamma prior, one change in `prior_us`; the mean time between changes is then (prior + all
    time seen) / (1 + all changes seen), the time since the last one included.
    """

    min_us: int
    max_us: int
    k: float = 0.1

    @property
    def first_us(self) -> int:
        """Return the time between changes that gives the shortest ttl: what is supposed of a family nobody knows yet."""
        return round(self.min_us / self.k)

    def ttl_us(self, past: Past, prior_us: int, chance: float = 0.5) -> int:
        """Return how long a value lives that is stored now, never less than the least nor more than the most.

        `chance`: of the jitter, in [0, 1).
        """
        mean_us = (prior_us + past.span_us + past.age_us) * ONE / (ONE + past.changes)
        spread = 1 + JITTER * (2 * chance - 1)
        return round(min(max(max(self.k * mean_us, self.min_us) * spread, self.min_us), self.max_us))


class Note(Struct, frozen=True, array_like=True):
    """What is kept with a value for its readers.

    Attributes:
        life_us: how long the store keeps it, from when it was stored; 0: no end.
        late_us: the last part of that, in which its ttl is over.
        load_us: what its load took.
        past: when it was stored.
    """

    life_us: int = 0
    late_us: int = 0
    load_us: int = 0
    past: Past = Past()

    def left_us(self, expires_in_us: int) -> int | None:
        """Return what is left of its ttl, not above 0 if that is over; None: no end."""
        return expires_in_us - self.late_us if expires_in_us else None

    def stored_ago_us(self, expires_in_us: int) -> int:
        """Return how long ago it was stored, as far as is known."""
        return max(0, self.life_us - expires_in_us) if expires_in_us else 0


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Note).decode
_NOTHING: Final = Note()


def note_bytes(note: Note) -> bytes:
    """Return a note as stores keep it."""
    return _encode(note)


def note_of(data: bytes) -> Note:
    """Read a note; one that another version of the program wrote says nothing."""
    if not data:
        return _NOTHING
    try:
        return _decode(data)
    except UNREADABLE:
        return _NOTHING


def early_us(load_us: int, beta: float, chance: float) -> int:
    """Return how long before its end a value is loaded anew, by a reader who draws `chance` from [0, 1).

    Longer loads and a higher `beta` begin earlier. Each process draws once a value, and many processes so begin one after
    the other, the first of them in time for all.

    Source: Vattani, Chierichetti and Lowenstein, "Optimal probabilistic cache stampede prevention", VLDB 2015.
    """
    return round(load_us * beta * -log(1 - chance))
