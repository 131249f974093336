"""The host tier: a shelf that all processes of a machine share, between the local tier and the shared one.

    local tier ── nothing ──> is the log's end known well enough for this reader?   no ──> the shared tier: the same trip proves
                                    │ yes                                                  and brings the value
                              look on the shelf, once for all who wait ── nothing, late, damaged ──> the shared tier
                                    │ an entry
                              of this key, of this log, its ttl not over, nothing heard against it ── no ──> the shared tier
                                    │ yes
                              serve, keep it in the local tier

Laws:
    - It holds nothing that the local tier of its writer might not have held: what the shared tier had, a fill that was
      accepted, a put that was stored, each with the position at which it was true (P3). Nothing is written under an intent.
    - Its reader judges by the rule of the local tier (`freshness.proves`), with the index of last events in place of
      deletions (P6). So no event has to reach the shelf, and what happens to the shelf is never a stale read.
    - A position says nothing without its log: the event there must be, by its id, one that this process has heard (P20).
    - It costs no reader more than a bounded wait: what does not answer in time is not asked for a while.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from selaras._cache.breaker import Breaker
from selaras._cache.family import Reading, Slot
from selaras._cache.follower import Follower
from selaras._cache.histories import Seen
from selaras._cache.local import LocalTier
from selaras._cache.storable import Storable, local_entry
from selaras._contracts.partition import Invalidation, Partition
from selaras._contracts.shelf import Found, Shelf, ShelfDown
from selaras._core.cache.events import CacheEvent, Corrupt
from selaras._core.cache.freshness import Need, proves
from selaras._core.cache.hosted import Hosted, host_name, hosted_bytes, hosted_of
from selaras._core.cache.lifetimes import note_of
from selaras._core.codec import CorruptBytes, OtherShape, checksum
from selaras._core.errors import StoreUnavailable
from selaras._core.positions import START

SEEN_MOST: Final = 4_096
"""Names remembered between a look that found nothing to serve and the value that is put there."""

_TTL_S_MOST: Final = 29 * 86_400  # memcached takes longer ones for dates


class HostCounts:
    """What became of looks on the shelf, and of what was put there.

    Attributes:
        looks: sent. served: answered a read. empty: nothing stood there. old: nobody can say that it is fresh enough.
        damaged: not the bytes that were put. failed: no answer, or too late. unasked: the log's end was not known well
            enough, so that the shared tier was asked. put: values sent to it.
    """

    __slots__ = ("damaged", "empty", "failed", "looks", "old", "put", "served", "unasked")

    def __init__(self) -> None:
        self.looks = self.served = self.empty = self.old = self.damaged = self.failed = self.unasked = self.put = 0

    def shown(self) -> dict[str, int]:
        """Return all of them."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}


class HostTier:
    """One process's way to the shelf. Any loop may read; each has its own looks under way.

    Args:
        owner: tells apart all who use the shelf: see `hosted.host_name`.
        look_at_tail: look at a log's end if that needs no waiting; whether it proved what is applied.
        refresh: load an entry anew; sample: audit what is served. `own`: begin a task that ends with the cache.
    """

    def __init__(
        self,
        shelf: Shelf,
        owner: bytes,
        partitions: Sequence[Partition],
        followers: Sequence[Follower],
        local: LocalTier,
        instant: Callable[[], int],
        *,
        storable: Storable,
        look_at_tail: Callable[[int], bool],
        refresh: Callable[[Slot, int], object],
        sample: Callable[[Slot, bytes, int, int, tuple[str, ...]], None],
        tell: Callable[[CacheEvent], None],
        own: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.shelf = shelf
        self.counts = HostCounts()
        self._owner = owner
        self._partitions = partitions
        self._followers = followers
        self._local = local
        self._instant = instant
        self._storable = storable
        self._look_at_tail = look_at_tail
        self._refresh = refresh
        self._sample = sample
        self._tell = tell
        self._own = own
        self._breaker = Breaker()
        self._waiting: dict[tuple[int, str], list[Future[Found | None]]] = {}
        self._seen: dict[str, int] = {}
        self._begun: set[int] = set()
        for follower in followers:
            follower.judge_others()

    # -- reads

    async def read(self, slot: Slot, need: Need) -> Reading | None:
        """Return what the tier has, if this reader may have it."""
        if not self._may_serve(slot, need):
            return None
        found = await self._look(slot)
        return None if found is None else self._serve(slot, need, found)

    async def read_many(self, slots: Sequence[Slot], need: Need) -> dict[str, Reading]:
        """As `read`, in one trip. Returns what is served, by key."""
        wanted = [slot for slot in slots if self._may_serve(slot, need)]
        if not wanted:
            return {}
        looks = [self._begin(slot) for slot in wanted]
        await asyncio.wait(looks)
        served: dict[str, Reading] = {}
        for slot, look in zip(wanted, looks, strict=True):
            found = self._hosted(slot, look.result())
            reading = None if found is None else self._serve(slot, need, found)
            if reading is not None:
                served[slot.key] = reading
        return served

    def _may_serve(self, slot: Slot, need: Need) -> bool:
        if not slot.family.host or slot.family.ttl_us == 0:
            return False
        if not self._proves(slot, need) and not (self._look_at_tail(slot.partition) and self._proves(slot, need)):
            self.counts.unasked += 1
            return False
        return self._breaker.lets(self._instant())

    def _proves(self, slot: Slot, need: Need) -> bool:
        """Say whether an entry that nothing was heard against is fresh enough for this reader."""
        follower = self._followers[slot.partition]
        confirmed, applied = follower.confirmed_ns, follower.applied.position
        held = self._local.entries.get(slot.key)
        floor = max(self._local.floors.of(slot.key), held.floor_ns if held is not None else 0)
        return proves(need, partition=slot.partition, applied=applied, confirmed_ns=confirmed, floor_ns=floor)

    async def _look(self, slot: Slot) -> Hosted | None:
        return self._hosted(slot, await self._begin(slot))

    async def shown(self, slot: Slot) -> str:
        """Say what stands in a key's place, for people. The log's news must have been heard."""
        if not slot.family.host:
            return "its family leaves it out"
        failed = self.counts.failed
        hosted = await self._look(slot)
        if hosted is None:
            return f"{self.shelf.url} does not answer" if self.counts.failed > failed else "nothing"
        follower, left_s = self._followers[slot.partition], (hosted.until_ns - self._instant()) / 1e9
        if hosted.until_ns and left_s <= 0:
            fate = f"its ttl ended {-left_s:.1f} s ago"
        elif not self._is_of_this_log(hosted, follower):
            fate = "not served here: of a position that this process, which knows the log since its own start, cannot judge"
        elif not follower.untouched(slot.key, hosted.position, slot.family.name, hosted.tags):
            fate = "not served: it was voided since"
        else:
            fate = f"{left_s:.1f} s left" if hosted.until_ns else "no end"
        return f"true at {hosted.position}, {len(hosted.value)} bytes, {fate}"

    def _begin(self, slot: Slot) -> Future[Found | None]:
        """Ask the shelf, with everybody else who does at this moment. Each has a future of its own, and may leave alone."""
        loop = asyncio.get_running_loop()
        future: Future[Found | None] = loop.create_future()
        place = id(loop), slot.key
        waiting = self._waiting.get(place)
        if waiting is not None:
            waiting.append(future)
            return future
        waiting = self._waiting[place] = [future]
        sent = self._instant()
        self.counts.looks += 1

        def told(found: Found | ShelfDown | None) -> None:
            if self._waiting.get(place) is waiting:
                del self._waiting[place]
            if isinstance(found, ShelfDown):
                self.counts.failed += 1
                self._breaker.failed(self._instant())
                found = None
            else:
                self._breaker.answered(self._instant() - sent)
                if found is None:
                    self.counts.empty += 1
                    self._note_seen(slot.key, 0)
            for one in waiting:
                if not one.done():
                    one.set_result(found)

        self.shelf.ask(host_name(self._owner, slot.key), told)
        return future

    def _hosted(self, slot: Slot, found: Found | None) -> Hosted | None:
        """Read what stood there, if it is an entry of this key."""
        if found is None:
            return None
        self._note_seen(slot.key, found.seen)
        hosted = hosted_of(found.data)
        if hosted is None:
            self._damaged(slot, 0)
            return None
        if hosted.key != slot.key:  # two keys of one hash
            self.counts.empty += 1
            return None
        return hosted

    def _note_seen(self, key: str, seen: int) -> None:
        if len(self._seen) >= SEEN_MOST:
            self._seen.clear()
        self._seen[key] = seen

    def _damaged(self, slot: Slot, stamp: int) -> None:
        self.counts.damaged += 1
        slot.family.counts.repaired += 1
        self._tell(Corrupt(family=slot.family.name, key=slot.key, stamp=stamp))

    def _is_sound(self, slot: Slot, hosted: Hosted) -> bool:
        """Say whether it was true in the log that is followed here, nothing was heard against it, and its ttl is not over."""
        follower = self._followers[slot.partition]
        return (
            self._is_of_this_log(hosted, follower)
            and follower.untouched(slot.key, hosted.position, slot.family.name, hosted.tags)
            and not 0 < hosted.until_ns <= self._instant()
        )

    def _is_of_this_log(self, hosted: Hosted, follower: Follower) -> bool:
        return (
            hosted.event_id != 0
            and hosted.epoch == follower.epoch
            and hosted.event_id == follower.id_at(hosted.position)
        )

    def _serve(self, slot: Slot, need: Need, hosted: Hosted) -> Reading | None:
        family = slot.family
        try:
            value = family.codec.decode(hosted.value)
        except OtherShape:
            self.counts.old += 1
            return None
        except CorruptBytes:
            self._damaged(slot, hosted.stamp)
            return None
        if not family.bears(slot.arguments, value, hosted.tags):
            self.counts.old += 1
            return None
        with self._local.lock:  # nothing is applied between the judgement and the local tier's
            follower = self._followers[slot.partition]
            held = self._local.entries.get(slot.key)
            is_newest = held is None or (held.position, held.stamp) <= (hosted.position, hosted.stamp)
            if not is_newest or not self._is_sound(slot, hosted) or not self._proves(slot, need):
                self.counts.old += 1
                return None
            proven, known_ns = follower.applied.position, follower.confirmed_ns
            is_early = self._keep(slot, value, hosted, follower)
        self._seen.pop(slot.key, None)
        self.counts.served += 1
        family.counts.host += 1
        self._sample(slot, hosted.value, hosted.position, proven, hosted.tags)
        if is_early:
            self._refresh(slot, hosted.stamp)
        age_us = max(0, self._instant() - known_ns) // 1_000
        return Reading(
            value, "host", age_us, hosted.position, "a process of this host had it, and nothing was heard since"
        )

    def _keep(self, slot: Slot, value: Any, hosted: Hosted, follower: Follower) -> bool:
        """Keep it in the local tier. Returns whether its time has come to be loaded anew."""
        family, note, now = slot.family, note_of(hosted.note), self._instant()
        left_us = (hosted.until_ns - now) // 1_000 if hosted.until_ns else None
        family.heard(note.load_us)
        early_us = family.early_us(note.load_us, self._storable.chance()) if left_us is not None else 0
        is_early = left_us is not None and left_us <= early_us
        if family.adaptive is not None:
            past = note.past.unchanged(note.stored_ago_us(left_us + note.late_us) if left_us is not None else 0)
            self._storable.histories.saw(slot.key, Seen(past, now, checksum(hosted.value), hosted.position))
        if family.local:
            entry = local_entry(
                slot,
                value,
                hosted.value,
                tags=hosted.tags,
                position=hosted.position,
                stamp=hosted.stamp,
                sent_ns=now,
                left_us=left_us,
                early_us=0 if is_early else early_us,
            )
            entry.sent_ns = follower.confirmed_ns  # no request proved more than the log's last one did
            entry.vetted = follower.bulk
            self._local.store(entry)
        return is_early

    # -- writes

    def offer(
        self,
        slot: Slot,
        data: bytes,
        *,
        tags: tuple[str, ...],
        position: int,
        stamp: int,
        sent_ns: int,
        left_us: int | None,
        note: bytes,
    ) -> None:
        """Put a value there that the store has just said is true at `position`, and that nothing was heard against."""
        seen = self._seen.pop(slot.key, None)
        if not slot.family.host or self._breaker.open_us or (left_us is not None and left_us <= 0):
            return
        follower = self._followers[slot.partition]
        with self._local.lock:  # the three are of one log
            event_id = follower.id_at(position) if follower.trusts(sent_ns) else 0
            epoch = follower.epoch
        if not event_id:
            if follower.applied == START:
                self._begin_log(slot.partition)
            return
        hosted = Hosted(
            slot.key,
            epoch,
            position,
            event_id,
            stamp,
            0 if left_us is None else sent_ns + left_us * 1_000,
            tags,
            note,
            data,
        )
        ttl_s = 0 if left_us is None else min(left_us // 1_000_000 + 1, _TTL_S_MOST)
        try:
            self.shelf.put(host_name(self._owner, slot.key), hosted_bytes(hosted), ttl_s, over=seen)
        except RuntimeError:
            return  # no loop runs here
        self.counts.put += 1

    def _begin_log(self, partition: int) -> None:
        """Append the first event to a log: an empty one cannot be told from another empty one."""
        if partition not in self._begun:
            self._begun.add(partition)
            self._own(self._append_first(partition))

    async def _append_first(self, partition: int) -> None:
        try:
            await self._partitions[partition].invalidate(Invalidation(keys=("",)), START)
        except StoreUnavailable:
            self._begun.discard(partition)

    # -- the rest

    @property
    def is_left_alone(self) -> bool:
        """Whether it did not answer lately."""
        return self._breaker.open_us > 0

    async def close(self) -> None:
        """Free the shelf's connections."""
        await self.shelf.close()
