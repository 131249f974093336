"""From a value to what a tier keeps, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from selaras._cache.family import Slot
from selaras._cache.histories import Histories
from selaras._cache.local import NEVER, LocalEntry, size_of
from selaras._core.cache.entry import Entry
from selaras._core.cache.events import CacheEvent, TooLarge, Unstorable
from selaras._core.cache.lifetimes import Adaptive, Note, Past, note_bytes
from selaras._core.cache.packing import PACKED, packed, unpacked
from selaras._core.codec import CorruptBytes, checksum
from selaras._core.errors import NotEncodable
from selaras._core.jobs.job import Put

_AT_ONCE: Final = 1 << 18
"""Bytes that are packed on the loop: some 2 ms. More of them are packed in a thread."""

_LARGE_MOST: Final = 1_000
"""Keys remembered whose values were too large when they were last loaded."""


class Storable:
    """Encodes values for the shared tier. What cannot be stored is served all the same, and told once a family."""

    def __init__(self, tell: Callable[[CacheEvent], None], chance: Callable[[], float]) -> None:
        self._tell = tell
        self.chance = chance
        self.histories = Histories()
        self.large: set[str] = set()  # no token is asked for these: readers would wait for a fill that does not come

    def bytes_of(self, slot: Slot, value: Any) -> bytes | None:
        """Return the value's bytes, or None if it has none."""
        try:
            return slot.family.codec.encode(value, path=slot.key)
        except Exception as error:  # noqa: BLE001 - a value's own methods may raise anything; a read must not break
            self.refuse(slot, error)
            return None

    def encoded(self, slot: Slot, value: Any) -> tuple[bytes | None, NotEncodable | None]:
        """Return the value's bytes, or why it has none: for whoever must be told."""
        try:
            return slot.family.codec.encode(value, path=slot.key), None
        except NotEncodable as error:
            return None, error
        except Exception as error:  # noqa: BLE001 - a value's own methods may raise anything
            refused = NotEncodable(f"{slot.key}: {type(error).__name__}: {error}")
            refused.__cause__ = error
            return None, refused

    def put_of(self, slot: Slot, value: Any, data: bytes | None, past: Past | None = None) -> Put | None:
        """Return what is to be stored, or None if nothing is. `past`: the key's until now. What the shared tier is given
        of it is told by `to_keep`.
        """
        family = slot.family
        past = past or Past()
        rule = family.adapts(value)
        ttl_us = rule.ttl_us(past, self._prior_us(slot, rule), self.chance()) if rule else family.ttl_of(value)
        if ttl_us == 0 or data is None:
            return None
        if family.max_value and len(data) > family.max_value:
            self._pass_by(slot, len(data))
            return None
        if self.large:
            self.large.discard(slot.key)
        try:
            tags = family.tags(slot.arguments, value) if family.tags else ()
            version = family.version(value) if family.version and value is not None else None
        except Exception as error:  # noqa: BLE001 - the program's functions: what they refuse is served, not stored
            self.refuse(slot, error)
            return None
        if ttl_us is None:
            return Put(slot.key, data, checksum(data), 0, tags, family.name, version)
        late_us = family.late_us(ttl_us)
        note = note_bytes(Note(ttl_us + late_us, late_us, family.load_us, past))
        return Put(slot.key, data, checksum(data), ttl_us + late_us, tags, family.name, version, note)

    async def to_keep(self, slot: Slot, put: Put) -> Put:
        """Return a put as the shared tier is given it: its value packed, if it is large."""
        threshold = slot.family.compress_threshold
        if not threshold or len(put.value) < threshold:
            return put
        if len(put.value) > _AT_ONCE:
            return replace(put, value=await asyncio.to_thread(packed, put.value, threshold))
        return replace(put, value=packed(put.value, threshold))

    def _prior_us(self, slot: Slot, rule: Adaptive) -> int:
        return self.histories.prior_us(slot.family.name, rule)

    def refuse(self, slot: Slot, error: Exception) -> None:
        """A value cannot be stored: the first of a family is told."""
        slot.family.counts.unstorable += 1
        if slot.family.counts.unstorable == 1:
            self._tell(Unstorable(family=slot.family.name, key=slot.key, error=f"{type(error).__name__}: {error}"))

    def _pass_by(self, slot: Slot, size: int) -> None:
        if len(self.large) >= _LARGE_MOST:
            self.large.clear()
        self.large.add(slot.key)
        slot.family.counts.too_large += 1
        if slot.family.counts.too_large == 1:
            self._tell(TooLarge(family=slot.family.name, key=slot.key, bytes=size, most=slot.family.max_value))


def opened(slot: Slot, entry: Entry) -> Entry:
    """Return an entry with its value's own bytes; as it is if they cannot be had of it: then its checksum fails."""
    if entry.value[:1] != PACKED:
        return entry
    try:
        return replace(entry, value=unpacked(entry.value, slot.family.max_value))
    except CorruptBytes:
        return entry


def without_value(put: Put) -> Put:
    """Return a fill that asks whether a value is accepted and leaves nothing behind: it expires at once."""
    return Put(put.key, b"", checksum(b""), 1, put.tags, put.family, put.version)


def local_entry(
    slot: Slot,
    value: Any,
    data: bytes,
    *,
    tags: tuple[str, ...],
    position: int,
    stamp: int,
    sent_ns: int,
    left_us: int | None,
    early_us: int = 0,
) -> LocalEntry:
    """Return a value for the local tier: itself if it may be shared, else its bytes.

    Its life counts from the request that brought it, so that it never outlives the shared tier's entry.

    Args:
        left_us: of its ttl; None: no end. `early_us`: how long before that it is loaded anew.
    """
    shared = slot.family.codec.shared
    return LocalEntry(
        slot.key,
        value if shared else data,
        partition=slot.partition,
        family=slot.family.name,
        tags=tags,
        position=position,
        stamp=stamp,
        sent_ns=sent_ns,
        expires_ns=NEVER if left_us is None else sent_ns + left_us * 1_000,
        early_ns=NEVER if left_us is None else sent_ns + (left_us - early_us) * 1_000,
        size=size_of(slot.key, data, shared=shared),
    )
