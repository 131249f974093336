"""Compares a sample of what is served with the datastore, in the background: how consistent reads really are.

    a hit is sampled ──> the datastore is asked ── the same ──────────────────────────────> same
                                 └── another ── the log, or an intent, speaks of a change ─> unsure: not a stale read
                                          └── nothing does, a moment later neither ────────> stale: repaired, told

A value is stale if it was older than its reader needed, and that is judged by positions: what was served was true as far as
the log was applied at that moment (`proven`). An event after that is a change that the reader need not have known; one
between the value's own position and `proven` it should have seen.
"""

from __future__ import annotations

import asyncio
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from selaras._cache.family import Family, Slot
from selaras._cache.follower import Follower
from selaras._cache.notes import Notes
from selaras._cache.session import SESSION, Session, SessionKind
from selaras._cache.source import Source
from selaras._contracts.clock import Clock
from selaras._contracts.partition import Partition
from selaras._core.cache.consistency import (
    ONE_SAME,
    ONE_UNSURE,
    Audits,
    Found,
    Ledger,
    gap,
    ledger_bytes,
    ledger_of,
    one_stale,
    row_name,
)
from selaras._core.cache.events import CacheEvent, StaleRead
from selaras._core.errors import StoreUnavailable

AT_ONCE: Final = 4
"""Audits that run at a time in a process; what is sampled beyond that is left out."""

WORD_S: Final = 1.0
"""Who changes the datastore first and says so afterwards has so long: such a value is not called stale."""

PUBLISH_S: Final = 1.0
TTL_US: Final = 7 * 86_400_000_000
"""What was measured is kept for a week after the last audit."""

NEVER: Final = 1 << 62
NOTE: Final = "audits"

Reader = tuple[str, str, str]
"""The task, the pool and the id of the job that reads; empty outside of jobs."""


class Sample(NamedTuple):
    """A value that was served.

    Attributes:
        data: its bytes, or itself where it may be shared.
        position: at which it was true. proven: up to where nothing was known against it when it was served.
        voided_at: of an event in between, by which it should have been voided; 0: none.
    """

    slot: Slot
    data: Any
    position: int
    proven: int
    voided_at: int
    tags: tuple[str, ...]
    tier: str
    reader: Reader


class Auditor:
    """One process's. `own` begins a task on the running loop that ends with the cache; `repair` voids a key."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        followers: Sequence[Follower],
        source: Source,
        clock: Clock,
        instant: Callable[[], int],
        *,
        chance: Callable[[], float],
        heard: Callable[[Follower, Any, int], bool],
        tell: Callable[[CacheEvent], None],
        own: Callable[[Any], object],
        repair: Callable[[Slot], Awaitable[None]],
        reader: Callable[[], Reader],
        publishes: bool,
    ) -> None:
        self._partitions = partitions
        self._followers = followers
        self._source = source
        self._clock = clock
        self._instant = instant
        self._chance = chance
        self._heard = heard
        self._tell = tell
        self._own = own
        self._repair = repair
        self._reader = reader
        self._publishes = publishes
        self._turns = Semaphore(AT_ONCE)
        self._publishing = False
        self._unpublished = Ledger()
        self.ledger = Ledger()
        """Of this process."""

    # -- sampling

    def hit(self, slot: Slot, value: Any, position: int, proven: int, tags: tuple[str, ...]) -> None:
        """A family's count of local hits has reached `audit_at`: audit this one, and draw the next."""
        family = slot.family
        was_drawn = family.audit_at > 0
        if not family.audit:
            family.audit_at = NEVER
            return
        family.audit_at = family.counts.local + gap(family.audit, self._chance())
        if was_drawn:
            self._begin(slot, value, position, proven, tags, "local")

    def shared(self, slot: Slot, data: bytes, position: int, tags: tuple[str, ...]) -> None:
        """A value of the shared tier, true at `position`, is served."""
        if slot.family.audit and self._chance() < slot.family.audit:
            self._begin(slot, data, position, position, tags, "shared")

    def hosted(self, slot: Slot, data: bytes, position: int, proven: int, tags: tuple[str, ...]) -> None:
        """A value of the host tier, true at `position` and not spoken against up to `proven`, is served."""
        if slot.family.audit and self._chance() < slot.family.audit:
            self._begin(slot, data, position, proven, tags, "host")

    def _begin(self, slot: Slot, data: Any, position: int, proven: int, tags: tuple[str, ...], tier: str) -> None:
        if self._turns.locked():
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # a blocking caller's thread: others are sampled
        follower = self._followers[slot.partition]
        voided_at = follower.heard_of(slot.key, position)
        sample = Sample(slot, data, position, proven, voided_at, tags, tier, self._reader())
        self._own(self._audit(sample))

    # -- one audit

    async def _audit(self, sample: Sample) -> None:
        async with self._turns:
            try:
                is_stale = await self._is_stale(sample)
            except Exception:  # noqa: BLE001 - a loader may raise anything: then nothing is known
                is_stale = None
            if is_stale:
                await self._found(sample)
            else:
                self._count(sample, ONE_UNSURE if is_stale is None else ONE_SAME)

    async def _is_stale(self, sample: Sample) -> bool | None:
        """Judge what was served; None: it cannot be judged."""
        family = sample.slot.family
        served = family.codec.encode(sample.data) if family.codec.shared and sample.tier == "local" else sample.data
        first = await self._load(sample.slot)
        if _is_same(family, served, first):
            return False
        if await self._changed_since(sample):
            return None
        await self._clock.sleep(WORD_S)
        second = await self._load(sample.slot)
        if not _is_same(family, first, second) or _is_behind(family, second, served):
            return None  # its loader never says the same, or answers late itself
        return None if await self._changed_since(sample) else True

    async def _load(self, slot: Slot) -> bytes:
        """Ask the datastore, as a loader for nobody in particular."""
        loads = frozenset({slot.key})
        SESSION.set(Session(SessionKind.LOADING, self._instant() - 1, loads=loads))
        return slot.family.codec.encode(await self._source.ask(slot))

    async def _changed_since(self, sample: Sample) -> bool:
        """Say whether the log speaks of a change after what was served was known to be true, or somebody writes it."""
        slot, follower = sample.slot, self._followers[sample.slot.partition]
        partition = self._partitions[slot.partition]
        sent = self._instant()
        self._heard(follower, await partition.events_since(follower.applied), sent)
        if not follower.untouched(slot.key, sample.proven, slot.family.name, sample.tags):
            return True
        return bool(await partition.intents(slot.key))

    async def _found(self, sample: Sample) -> None:
        """Repair and tell."""
        slot, (task, pool, job) = sample.slot, sample.reader
        age_us = self._followers[slot.partition].voided_ago_us(slot.key)
        try:
            await self._repair(slot)
        except StoreUnavailable:
            pass  # it is told all the same; a local value that cannot be proven is not served either
        found = Found(
            self._clock.wall_us(),
            slot.family.name,
            slot.key,
            task,
            pool,
            job,
            sample.tier,
            sample.position,
            sample.voided_at,
            age_us,
        )
        self._count(sample, one_stale(age_us), found)
        self._tell(StaleRead(found=found))

    # -- counting

    def _count(self, sample: Sample, audits: Audits, *found: Found) -> None:
        family, (task, pool, _) = sample.slot.family, sample.reader
        family.counts.audited += audits.judged
        family.counts.stale_reads += audits.stale
        more = Ledger({row_name(family.name, task, pool): audits}, found)
        self.ledger = self.ledger.plus(more)
        if self._publishes:
            self._unpublished = self._unpublished.plus(more)
            if not self._publishing:
                self._publishing = True
                self._own(self._publish_soon())

    async def _publish_soon(self) -> None:
        try:
            while self._unpublished.rows:
                await self._clock.sleep(PUBLISH_S)
                await self.publish()
        finally:
            self._publishing = False

    async def publish(self) -> None:
        """Add what was measured here to what all processes have."""
        unpublished = self._unpublished
        if not unpublished.rows:
            return
        self._unpublished = Ledger()
        is_told = False
        try:
            is_told = await Notes(self._partitions).change(
                NOTE, lambda data: ledger_bytes(ledger_of(data).plus(unpublished)), ttl_us=TTL_US
            )
        except StoreUnavailable:
            pass  # the next time
        finally:
            if not is_told:
                self._unpublished = unpublished.plus(self._unpublished)


def _is_same(family: Family, one: bytes, other: bytes) -> bool:
    # Sets and dicts may be written in another order.
    return one == other or bool(family.codec.decode(one) == family.codec.decode(other))


def _is_behind(family: Family, loaded: bytes, served: bytes) -> bool:
    """Say whether the datastore itself answered with an older version than was served."""
    if family.version is None:
        return False
    there, here = (
        None if value is None else family.version(value)
        for value in (family.codec.decode(loaded), family.codec.decode(served))
    )
    return there is None or (here is not None and there < here)
