"""What happened to cached values lately: who planted, resolved, filled and voided them, and what jobs read.

read at position p  <── made by the last of what changed that key, its family or a tag of it at or below p: a settle that stored or
resolved, an invalidation; what was filled after it is what the datastore held then
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from operator import itemgetter
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.codec import UNREADABLE


class What(StrEnum):
    """What happened to a key, or to a tag or a family."""

    READ = "read"  # by a job
    PLANTED = "planted"  # an intent stands there from here on
    STORED = "stored"  # by the settle, which put the new value in the intent's place
    RESOLVED = "resolved"  # by the settle: the intent is gone, and nothing stands there
    REFUSED = "refused"  # the settle was refused: its lease had been lost; the key is voided
    FILLED = "filled"  # a loaded value was stored
    UNFILLED = "fill refused"  # a loaded value was not: the key was voided meanwhile, or is being written
    VOIDED = "voided"


CHANGES: Final = frozenset({What.PLANTED, What.STORED, What.RESOLVED, What.REFUSED, What.VOIDED})
"""After these the key's value may be another one."""


class Happening(Struct, frozen=True, array_like=True):
    """One thing that happened.

    Attributes:
        at_us: civil time of the process that saw it: for people, nothing is ordered by it.
        key: or "tag NAME", "family NAME". where: the process.
        job, task: who did it; empty outside of jobs. A `writing()` scope is a job of the task "writing".
        position: of the log; None: it is not known.
        tier: of a read.
        positions: of the logs of all partitions in which a tag or a family was voided, by partition.
        hangs_on: of a read: "family NAME" and every "tag NAME" that is known without the value.
    """

    at_us: int
    what: What
    key: str
    where: str = ""
    job: str = ""
    task: str = ""
    position: int | None = None
    tier: str = ""
    positions: dict[int, int] = {}
    hangs_on: tuple[str, ...] = ()

    def at(self, partition: int) -> int | None:
        """Return its position in the log of a partition, as far as it is known."""
        return self.positions.get(partition) if self.positions else self.position


class Kept(Struct, frozen=True, array_like=True):
    """A process that keeps pages of happenings in the store: how many, and when it last wrote one."""

    process: str
    pages: int
    at_us: int


def maker_of(read: Happening, partition: int, happenings: Iterable[Happening]) -> Happening | None:
    """Return what made the version that was read, as far as it is known. `partition`: the key's."""
    until = read.at(partition)
    if until is None:
        return None
    names = {read.key, *read.hangs_on}
    makers = [
        (at, one.at_us, one)
        for one in happenings
        if one.key in names and one.what in CHANGES and (at := one.at(partition)) is not None and at <= until
    ]
    # A settle resolves what was planted before; of one position the later one counts.
    return max(makers, key=itemgetter(0, 1))[2] if makers else None


_encode: Final = msgspec.msgpack.Encoder().encode
_page: Final = msgspec.msgpack.Decoder(list[Happening]).decode
_directory: Final = msgspec.msgpack.Decoder(list[Kept]).decode


def page_bytes(happenings: list[Happening]) -> bytes:
    """Return a page as it is kept."""
    return _encode(happenings)


def page_of(data: bytes | None) -> list[Happening]:
    """Read a page; one that another version of the program wrote is empty."""
    try:
        return _page(data) if data else []
    except UNREADABLE:
        return []


def directory_bytes(kept: list[Kept]) -> bytes:
    """Return the directory of all processes as it is kept."""
    return _encode(kept)


def directory_of(data: bytes | None) -> list[Kept]:
    """Read the directory; one that another version of the program wrote is empty."""
    try:
        return _directory(data) if data else []
    except UNREADABLE:
        return []
