"""What the cache tells those who watch it, beside its counters. Keys are for messages, families for labels."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from selaras._core.cache.consistency import Found


class Unstorable(Struct, frozen=True, kw_only=True):
    """A value was served but could not be stored. Told once a family."""

    family: str
    key: str
    error: str


class TooLarge(Struct, frozen=True, kw_only=True):
    """A value of so many bytes was served and not kept: `most` is what may be. Told once a family."""

    family: str
    key: str
    bytes: int
    most: int


class Corrupt(Struct, frozen=True, kw_only=True):
    """The bytes of an entry were not those that were stored, or no longer decode: it was dropped and loaded anew."""

    family: str
    key: str
    stamp: int


class SharedTierLost(Struct, frozen=True, kw_only=True):
    """A partition does not answer: reads go to the loader. Told once until it is back."""

    partition: int
    error: str


class SharedTierBack(Struct, frozen=True, kw_only=True):
    """A partition answers again."""

    partition: int


class StaleRead(Struct, frozen=True, kw_only=True):
    """An audit found that a value was served that was older than its reader needed. It has been voided."""

    found: Found


class IntentStands(Struct, frozen=True, kw_only=True):
    """Readers have passed a write intent for long: of a key, or of a tag or family of it. Told once an attempt.

    Attributes:
        job, task, instance: who holds it. `instance` is empty while no worker has the job.
        stands_us: since its attempt began.
        text: all of it, for people.
    """

    family: str
    key: str
    job: str
    task: str
    instance: str
    stands_us: int
    text: str


CacheEvent: TypeAlias = Unstorable | TooLarge | Corrupt | SharedTierLost | SharedTierBack | StaleRead | IntentStands
