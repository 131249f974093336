"""What people see of the cache: what stands in a key's place, what a read would do there, and sizes and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selaras._cache.family import Family, Slot, Standing
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.host import HostTier
from selaras._cache.loading import Loading
from selaras._cache.local import NEVER, LocalTier
from selaras._contracts.clock import Clock
from selaras._core.cache.entry import Entry
from selaras._core.cache.lifetimes import ONE, Past, note_of
from selaras._core.codec import CorruptBytes


class Window:
    """Looks in from outside, and loads nothing. `would_serve`: whether the local tier would serve a key now."""

    def __init__(
        self,
        loading: Loading,
        followers: Sequence[Follower],
        local: LocalTier,
        floors: Floors,
        clock: Clock,
        *,
        would_serve: Callable[[Slot], bool],
        host: HostTier | None,
    ) -> None:
        self._loading = loading
        self._followers = followers
        self._local = local
        self._floors = floors
        self._clock = clock
        self._would_serve = would_serve
        self._host = host

    async def show(self, slot: Slot) -> Standing:
        """Look what stands in this place in the shared tier."""
        entry, _ = await self._loading.glance(slot)
        try:
            value = None if entry is None else slot.family.codec.decode(entry.value)
        except CorruptBytes:
            entry = value = None
        if entry is None:
            writers = "; ".join(
                holding.shown(self._clock.wall_us()) for holding in await self._loading.vigil.holdings(slot)
            )
            return Standing(None, "nothing", why=writers or "nobody has loaded it, or it was voided or evicted")
        note = note_of(entry.note)
        left_us = note.left_us(entry.expires_in_us)
        ttl_us = None if left_us is None else note.life_us - note.late_us
        return Standing(
            value,
            "stale" if left_us is not None and left_us <= 0 else "shared",
            None if left_us is None else note.stored_ago_us(entry.expires_in_us),
            ttl_us,
            left_us,
            entry.position,
            _why_so_long(slot.family, value, note.past, ttl_us),
        )

    async def explain(self, slot: Slot) -> list[str]:
        """Say, line by line, what stands in this place and what a read would do now."""
        applied = self._followers[slot.partition].applied.position
        lines = [
            f"key        {slot.key} in partition {slot.partition}, its log applied up to {applied}",
            f"local      {self._local_shown(slot)}",
        ]
        holdings = await self._loading.vigil.holdings(slot)
        found, floor = await self._loading.glance(slot)
        if self._host is not None:
            lines.append(f"host       {await self._host.shown(slot)}")
        lines.append(f"shared     {'nothing' if found is None else _entry_shown(found)}")
        lines += [
            f"intent     {one.shown(self._clock.wall_us())}, fence {one.intent.fence}: reads go to the datastore until it ends"
            for one in holdings
        ]
        if floor is not None:
            lines.append(f"floor      version {floor}: nothing older is accepted")
        return lines

    def _local_shown(self, slot: Slot) -> str:
        entry = self._local.find(slot.key)
        if entry is None:
            return "nothing"
        left = _left_shown(
            None if entry.expires_ns == NEVER else (entry.expires_ns - self._clock.instant_ns()) // 1_000
        )
        served = "would be served" if self._would_serve(slot) else "needs a look at the log first"
        return f"true at {entry.position}, {left}, {served}"

    def stats(self, families: Mapping[str, Family], flights: int) -> dict[str, Any]:
        """Return sizes and counters of this process's cache. `flights`: reads under way."""
        return {
            "entries": len(self._local),
            "bytes": self._local.bytes,
            "ghosts": self._local.ghosts,
            "queued": self._local.queued,
            "floors": len(self._floors),
            "remembered": sum(follower.remembered for follower in self._followers),
            "stuck_intents": self._loading.vigil.told,
            "flights": flights,
            "applied": [follower.applied.position for follower in self._followers],
            **({} if self._host is None else {"host": self._host.counts.shown()}),
            "families": {
                name: {field: getattr(family.counts, field) for field in family.counts.__slots__}
                for name, family in sorted(families.items())
            },
        }


def _entry_shown(entry: Entry) -> str:
    left = _left_shown(note_of(entry.note).left_us(entry.expires_in_us))
    return f"stored at {entry.position}, {len(entry.value)} bytes, {left}"


def _left_shown(left_us: int | None) -> str:
    if left_us is None:
        return "no end"
    return f"{left_us / 1e6:.1f} s left" if left_us > 0 else f"its ttl ended {-left_us / 1e6:.1f} s ago"


def _why_so_long(family: Family, value: Any, past: Past, ttl_us: int | None) -> str:
    rule = family.adapts(value)
    if rule is None:
        return "its family says so" if ttl_us is not None else "its family has no end for it"
    return (
        f"adaptive, {rule.k:g} of its age within {rule.min_us / 1e6:g} s and {rule.max_us / 1e6:g} s: when it was stored it "
        f"had been unchanged for {past.age_us / 1e6:.0f} s; {past.changes / ONE:.1f} changes count"
    )
