"""The cache as a program sees it: the read path, from the local tier down to the datastore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from selaras._cache.family import Reading, Slot
from selaras._cache.session import Session
from selaras._contracts.clock import Clock
from selaras._contracts.store import Store
from selaras._core.cache.events import CacheEvent
from selaras._core.cache.freshness import Level
from selaras._core.jobs.job import Settled
from selaras._core.positions import News


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING: Final = _Missing()
"""What `Cache.hit` returns when it cannot answer at once. Not a value anybody can store."""


class Cache:
    """One process's view of the cached families of one store. Any thread and any loop may use it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        max_lag_us: int = 1_000_000,
        local_bytes: int = 64 * 1024 * 1024,
        local_entries: int = 100_000,
        observer: Callable[[CacheEvent], None] | None = None,
    ) -> None:
        raise NotImplementedError

    # -- what replies say

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """Apply a reply's news: before anything else of that reply is used. `sent_ns`: when its request was sent."""
        raise NotImplementedError

    def told(self, slots: Iterable[Slot] = (), *, keys: Iterable[str] = ()) -> None:
        """Somebody in this process was told of an end (a job's, a scope's, an enqueue): from here on nothing that
        began before is joined, and what the local tier holds for these keys is gone (P5, G8). Call it after `heard`."""
        raise NotImplementedError

    def settled(self, session: Session, settled: Settled, *, partition: int, sent_ns: int) -> None:
        """Hear what became of a session's settle: its stored puts enter the local tier, each at its own position (P3)."""
        raise NotImplementedError

    def learned(self, slot: Slot, data: bytes, *, position: int, stamp: int, sent_ns: int, tags: tuple[str, ...] = ()) -> None:
        """Take a value into the local tier that a reply says was stored, true at `position`."""
        raise NotImplementedError

    # -- reads

    def hit(self, slot: Slot, fresh: Level | None = None) -> Any:
        """Return the value if the local tier may serve it without waiting, else MISSING."""
        raise NotImplementedError

    async def get(self, slot: Slot, fresh: Level | None = None) -> Any:
        """Read through. Inside a job no level goes below causal."""
        raise NotImplementedError

    async def read(self, slot: Slot, fresh: Level | None = None) -> Reading:
        """Read through, and say where the value came from."""
        raise NotImplementedError

    async def get_many(self, slots: Sequence[Slot], fresh: Level | None = None) -> list[Any]:
        """Read many: one trip a partition, one call of the batch loader, one fill a partition."""
        raise NotImplementedError

    async def warm(self, slots: Sequence[Slot], sessions: Sequence[Session] = ()) -> None:
        """Bring values into the local tier, fresh enough for these sessions. Keys that they write are left out; what
        fails is left to the read that follows."""
        raise NotImplementedError

    # -- writes

    async def put(self, slot: Slot, value: Any) -> None:
        """In a session that owns the key: kept until its settle. Anywhere else: an invalidation (P8)."""
        raise NotImplementedError

    async def invalidate(
        self,
        slots: Sequence[Slot] = (),
        *,
        tags: Sequence[str] = (),
        families: Sequence[str] = (),
        versions: Sequence[tuple[Slot, int]] = (),
    ) -> None:
        """Void names: now, and inside a session again by its settle (P14).

        Raises:
            StoreUnavailable: not all was voided; call again.
            LeaseLost: the session's attempt is not its job's any more.
        """
        raise NotImplementedError

    # -- the rest

    async def explain(self, slot: Slot) -> list[str]:
        """Say, line by line, what stands in this place and what a read would do now."""
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of this process's cache."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what is under way. Readers that wait get StoreUnavailable."""
        raise NotImplementedError
