"""Small things that processes leave in the shared tier for people, and for each other: counters, and what was read.

They are entries like others, of keys that no family can have. So they are bounded by their ttl, on every store, and a
store needs to know nothing of them. To change one is to load it anew under its token: one at a time, and never over
what another process has written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from selaras._contracts.partition import Fill, Partition, ReadRequest
from selaras._core.cache.entry import Hit, Look, Miss
from selaras._core.codec import checksum
from selaras._core.jobs.job import Put
from selaras._core.positions import START
from selaras._core.routing import partition_of

FAMILY: Final = "selaras notes"
"""No family is named so by accident; what voids it voids what is noted."""

_LEASE_US: Final = 2_000_000


def note_key(name: str) -> str:
    """Return a note's key. A value's key has a colon between its family and the rest; no note's has one."""
    return f"selaras-notes/{name}"


class Notes:
    """The notes of one store.

    Raises (all verbs): StoreUnavailable.
    """

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self._partitions = partitions

    async def read(self, name: str) -> bytes | None:
        """Return a note; None: there is none, or it is damaged."""
        look = await self._look(note_key(name), lease_us=0)
        return _sound(look)

    async def change(self, name: str, how: Callable[[bytes | None], bytes], *, ttl_us: int) -> bool:
        """Replace a note by what `how` makes of it. Returns False if others change it at this moment: try again."""
        key = note_key(name)
        look = await self._look(key)
        if isinstance(look, Hit):
            look = await self._look(key, renews=look.entry.stamp)
        token = look.token if isinstance(look, (Hit, Miss)) else 0
        if not token:
            return False
        data = how(_sound(look))
        put = Put(key, data, checksum(data), ttl_us, family=FAMILY)
        reply = await self._at(key).fill([Fill(put, token)], START)
        return reply.stored[0] is not None

    async def _look(self, key: str, *, lease_us: int = _LEASE_US, renews: int = 0) -> Look:
        request = ReadRequest(key, FAMILY, lease_us, renews=renews)
        return (await self._at(key).read([request], START)).looks[0]

    def _at(self, key: str) -> Partition:
        return self._partitions[partition_of(key, len(self._partitions))]


def _sound(look: Look) -> bytes | None:
    if isinstance(look, Hit) and checksum(look.entry.value) == look.entry.checksum:
        return look.entry.value
    return None
