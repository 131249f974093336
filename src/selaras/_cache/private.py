"""Reads that are nobody else's: of keys that the reader writes, and inside an open transaction (P10, P13).

Nothing that is loaded here is joined, or stored for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from selaras._cache.family import MISSING, Reading, Slot
from selaras._cache.follower import Follower
from selaras._cache.loading import Loading
from selaras._cache.local import LocalTier
from selaras._cache.session import Session
from selaras._cache.source import Source
from selaras._cache.storable import opened
from selaras._core.cache.entry import Entry
from selaras._core.cache.lifetimes import note_of
from selaras._core.cache.packing import unpacked
from selaras._core.codec import checksum


class Private:
    """Reads for one reader. `decoded`: a new object from bytes, or MISSING if they are bad."""

    def __init__(
        self,
        followers: Sequence[Follower],
        local: LocalTier,
        loading: Loading,
        source: Source,
        instant: Callable[[], int],
        *,
        max_lag_ns: int,
        decoded: Callable[[Slot, Any], Any],
    ) -> None:
        self._followers = followers
        self._local = local
        self._loading = loading
        self._source = source
        self._instant = instant
        self._max_lag_ns = max_lag_ns
        self._decoded = decoded

    async def of_writer(self, slot: Slot, writer: Session) -> Reading:
        """Read a key that an attempt or a scope writes: its put, what its intent replaced, or the datastore (P10)."""
        pending = writer.puts.get(slot.key)
        if pending is not None:
            slot.family.counts.own += 1
            self._local.lift(slot.key, self._instant())
            value = (
                pending.value if slot.family.codec.shared else slot.family.codec.decode(unpacked(pending.put.value, 0))
            )
            return Reading(value, "put", why="this attempt put it")
        preimage = writer.preimage_of(slot.key)
        if preimage is not None:
            value = self._preimage(slot, preimage, writer)
            if value is not MISSING:
                slot.family.counts.preimages += 1
                self._local.lift(slot.key, self._instant(), answered=False)
                age_us = (self._instant() - writer.since_ns) // 1_000
                return Reading(
                    value, "preimage", age_us, writer.position, "its intent replaced it, and its body has not begun"
                )
        value = await self.load(slot)
        return Reading(value, "loader", why="this attempt writes it")

    async def in_transaction(self, slot: Slot) -> Reading:
        """What the caller's open transaction sees is nobody else's: nothing it loads is joined or stored (P13)."""
        sent = self._instant()
        entry, floor = (None, None) if slot.family.ttl_us == 0 else await self._loading.glance(slot)
        value = MISSING if entry is None or _is_over(entry) else self._shared(slot, entry)
        if value is not MISSING and entry is not None:
            slot.family.counts.shared += 1
            self._local.lift(slot.key, self._instant())
            return Reading(value, "shared", (self._instant() - sent) // 1_000, entry.position, "the shared tier had it")
        return Reading(await self.load(slot, floor), "loader", why="a transaction is open, and no tier had it")

    async def load(self, slot: Slot, floor: int | None = None) -> Any:
        """Ask the datastore, for this reader only."""
        value = await self._source.load(slot, floor)
        self._local.lift(slot.key, self._instant())
        return value

    def _preimage(self, slot: Slot, entry: Entry, writer: Session) -> Any:
        """Return what the session's intent replaced, unless anything was heard of the key since the claim (P10).

        Nor if another answer was given out since the claim was asked for: it came from the datastore and may be newer,
        and nobody here may be told less afterwards (P4). So long as that is known, and no longer, it is served.
        """
        follower = self._followers[slot.partition]
        now, asked = self._instant(), writer.asked_ns or writer.since_ns
        entry = opened(slot, entry)
        left_us = note_of(entry.note).left_us(entry.expires_in_us)
        late = left_us is not None and writer.since_ns + left_us * 1_000 <= now
        if late or now - asked > self._max_lag_ns or self._local.answers.of(slot.key) >= asked:
            return MISSING
        if not follower.untouched(slot.key, writer.position, slot.family.name, entry.tags):
            return MISSING
        return self._shared(slot, entry) if checksum(entry.value) == entry.checksum else MISSING

    def _shared(self, slot: Slot, entry: Entry) -> Any:
        """Return the value of an entry of the shared tier; MISSING if its bytes are bad, or it lacks a tag by now."""
        value = self._decoded(slot, entry.value)
        return value if value is MISSING or slot.family.bears(slot.arguments, value, entry.tags) else MISSING


def _is_over(entry: Entry) -> bool:
    left_us = note_of(entry.note).left_us(entry.expires_in_us)
    return left_us is not None and left_us <= 0
