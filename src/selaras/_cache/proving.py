"""Says whether what the local tier holds may be served to a reader, and looks at the log's end where that is what it takes.

`Cache.hit` has the same rule by heart, for the reads that need nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from selaras._cache.family import Family, Slot
from selaras._cache.flight import Flights
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.instants import Instants
from selaras._cache.local import LocalEntry, LocalTier
from selaras._cache.session import Session
from selaras._contracts.clock import Clock
from selaras._contracts.partition import Partition
from selaras._core.cache.freshness import Level, Need, proves, since_of
from selaras._core.errors import StoreUnavailable
from selaras._core.positions import News


class Proving:
    """Proves entries of the local tier.

    Args:
        flights: of the running loop.
        answer: waits for a store's answer as the breaker has it.
        heard: applies a reply's news. `lost`: the store did not answer.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        followers: Sequence[Follower],
        local: LocalTier,
        floors: Floors,
        clock: Clock,
        instants: Instants,
        *,
        max_lag_ns: int,
        flights: Callable[[], Flights],
        answer: Callable[[Follower, Coroutine[Any, Any, News]], Coroutine[Any, Any, News]],
        heard: Callable[[Follower, News, int], bool],
        lost: Callable[[Follower, StoreUnavailable], None],
    ) -> None:
        self._partitions = partitions
        self._followers = followers
        self._local = local
        self._floors = floors
        self._now_ns = clock.instant_ns
        self._instants = instants
        self._max_lag_ns = max_lag_ns
        self._flights = flights
        self._answer = answer
        self._heard = heard
        self._lost = lost

    def since(self, family: Family, fresh: Level | None) -> int:
        """Return the instant that what is served must have been true after."""
        level = family.level if fresh is None else fresh
        now = self._instants.now() if level == "strict" else self._now_ns()
        return since_of(level, now_ns=now, max_lag_ns=self._max_lag_ns)

    def need(self, family: Family, fresh: Level | None, session: Session | None) -> Need:
        """Return what this reader needs."""
        since = self.since(family, fresh)
        if session is None:
            return Need(since)
        claim = session.claim_ns()
        self._instants.reached(claim)
        return Need(since, claim, session.home, session.position)

    def proven(self, slot: Slot, need: Need) -> LocalEntry | None:
        """Return the local entry if it may be served to this reader."""
        follower = self._followers[slot.partition]
        confirmed, applied = follower.confirmed_ns, follower.applied.position
        entry = self._local.find(slot.key)
        if entry is None:
            return None
        if entry.expires_ns <= self._now_ns():
            self._local.drop(slot.key)
            return None
        if entry.vetted < follower.bulk and not follower.vouches(entry):
            slot.family.counts.rejected += 1
            self._local.drop(slot.key)
            return None
        fresh = proves(
            need,
            partition=slot.partition,
            applied=applied,
            confirmed_ns=confirmed,
            sent_ns=entry.sent_ns,
            floor_ns=max(entry.floor_ns, self._floors.everywhere_ns),
        )
        return entry if fresh else None

    async def prove(self, slot: Slot, need: Need) -> LocalEntry | None:
        """Return the local entry if it may be served, after a look at the log's end if that is what it takes."""
        entry = self.proven(slot, need)
        held = self._local.find(slot.key)
        if entry is not None or held is None:
            return entry
        if not self.look_at_tail(slot.partition):
            since = max(need.join_ns, held.floor_ns, self._floors.everywhere_ns)
            await self.catch_up(slot.partition, since)
        entry = self.proven(slot, need)
        if entry is None and self._local.find(slot.key) is not None:
            # It stays, unproven. It may have been given out until now: what is joined instead must be newer (P4).
            slot.family.counts.rejected += 1
            self._local.lift(slot.key, self._instants.now())
        return entry

    def look_at_tail(self, partition: int) -> bool:
        """Look at the log's end where that needs no waiting. Returns whether it proved what is applied."""
        sent = self._instants.now()
        try:
            tail = self._partitions[partition].tail_now()
        except StoreUnavailable as error:
            self._lost(self._followers[partition], error)
            return False
        return tail is not None and self._followers[partition].confirm(tail, sent)

    async def catch_up(self, partition: int, since_ns: int) -> None:
        """Let the log be looked at, once for all who wait, by a request that is sent after `since_ns`."""
        if self._followers[partition].breaker.is_open(self._now_ns()):
            return
        try:
            await self._flights().checks.after(partition, since_ns)
        except StoreUnavailable:
            pass  # told where it was met; the read goes on to the loader

    async def check(self, partition: int, sent_ns: int) -> None:
        """Look at the log now."""
        follower = self._followers[partition]
        news = await self._answer(follower, self._partitions[partition].events_since(follower.applied))
        self._heard(follower, news, sent_ns)
