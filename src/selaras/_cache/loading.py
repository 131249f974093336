"""From the shared tier down to the datastore: looks, loads, and fills under their tokens.

    look ── hit ─────────────────────────────> serve; keep locally what nothing speaks against (P3)
      ├──── hit, its ttl over ──> look again for a token; who gets it loads, all others wait or are served "stale"
      ├──── miss, token ──> load ──> fill ───> serve; keep locally only what was accepted (P11)
      ├──── busy ──> wait a little, look again; when that load takes too long: load, store nothing
      ├──── standing (an intent, or a late datastore) ──> load, store nothing
      └──── no answer, or too late ──> load, store nothing; of each family so many at once

A load below the key's version floor is tried again for a while; then it is an error (P13).
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Semaphore
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from selaras._cache.family import Family, Slot
from selaras._cache.flight import Flight, Flying, Voyage, is_cancelled
from selaras._cache.follower import Follower
from selaras._cache.histories import Seen
from selaras._cache.keeping import Keeping
from selaras._cache.lineage import Lineage
from selaras._cache.local import LocalTier
from selaras._cache.outcome import Known, Outcome, Stale
from selaras._cache.patience import Patience
from selaras._cache.session import SESSION, Session, SessionKind
from selaras._cache.source import Source
from selaras._cache.storable import Storable, opened, without_value
from selaras._cache.vigil import Vigil
from selaras._contracts.clock import Clock
from selaras._contracts.partition import Fill, Partition, ReadRequest
from selaras._core.cache.entry import Busy, Entry, Hit, Look, Miss, Standing
from selaras._core.cache.events import CacheEvent, Corrupt
from selaras._core.cache.lifetimes import Past, note_of
from selaras._core.cache.lineage import What
from selaras._core.cache.packing import unpacked
from selaras._core.codec import CorruptBytes, OtherShape, checksum
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Put
from selaras._core.positions import News

T = TypeVar("T")

LOADS_AT_ONCE: Final = 32
"""Loads of one batch that run at a time where a family has no batch loader."""

_PAUSE_US_FIRST = 1_000
_PAUSE_US_MOST = 100_000
_REPAIRS_MOST = 3  # an entry that is corrupt again and again is not worth more trips


@dataclass(slots=True)
class _Permit:
    """A flight that must go to the datastore. `floor`: the version below which it may not come back."""

    flight: Flight
    why: str
    floor: int | None = None
    fallback: bool = False


@dataclass(slots=True)
class _Loaded:
    permit: _Permit
    value: Any


@dataclass(slots=True)
class _Left:
    """What a look did not land: what must be loaded, what waits for a fill (so long), what is to be looked at again."""

    permits: list[_Permit] = field(default_factory=list[_Permit])
    busy: list[tuple[Flight, int]] = field(default_factory=list[tuple[Flight, int]])
    again: list[Flight] = field(default_factory=list[Flight])


@dataclass(slots=True)
class _Sight:
    """What a trip to a partition showed; `looks` None: it did not answer."""

    looks: tuple[Look, ...] | None
    position: int = 0
    sent_ns: int = 0
    trusted: bool = False


class Loading:
    """Flies flights. `heard` applies a reply's news and says whether the rest may be trusted locally."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        followers: Sequence[Follower],
        local: LocalTier,
        clock: Clock,
        instant: Callable[[], int],
        source: Source,
        *,
        storable: Storable,
        keeping: Keeping,
        heard: Callable[[Follower, News, int], bool],
        lost: Callable[[Follower, StoreUnavailable], None],
        tell: Callable[[CacheEvent], None],
        refresh: Callable[[Slot, int], object],
        sample: Callable[[Slot, bytes, int, tuple[str, ...]], None],
        lineage: Lineage | None = None,
        slow_us: int = 0,
        met: Callable[[], None] | None = None,
    ) -> None:
        self._partitions = partitions
        self._followers = followers
        self._local = local
        self._clock = clock
        self._instant = instant
        self._source = source
        self._storable = storable
        self._keeping = keeping
        self._heard = heard
        self._lost = lost
        self._tell = tell
        self._refresh = refresh
        self._sample = sample
        self._lineage = lineage
        self._slow_us = slow_us
        self.vigil = Vigil(partitions, clock, tell=tell, own=source.own, met=met)

    async def answer(self, follower: Follower, work: Coroutine[Any, Any, T]) -> T:
        """Ask a partition, for a read: one that takes too long counts as one that does not answer.

        A token that such a request was granted runs out by itself.

        Raises:
            StoreUnavailable: told already.
        """
        try:
            if not self._slow_us:
                return await work
            with Patience(self._slow_us / 1_000_000):
                return await work
        except TimeoutError:
            error = StoreUnavailable(
                f"partition {follower.index} did not answer within {self._slow_us / 1_000_000:g} s: reads go to the loader"
            )
            self._lost(follower, error)
            raise error from None
        except StoreUnavailable as error:
            self._lost(follower, error)
            raise

    async def fetch(self, flights: Sequence[Flight]) -> None:
        """Fly flights of one voyage until all have landed."""
        await self._fly_on(await self._look(flights))

    async def look(self, voyages: Sequence[Voyage]) -> list[Flying | None]:
        """Look for several voyages in the same trips. Returns for each what flies it on; None: all of it has landed."""
        left = {voyage: _Left() for voyage in voyages}
        found = await self._look([flight for voyage in voyages for flight in voyage.members])
        for permit in found.permits:
            left[permit.flight.voyage].permits.append(permit)
        for flight, wait_us in found.busy:
            left[flight.voyage].busy.append((flight, wait_us))
        return [partial(self._fly_on, one) if one.permits or one.busy else None for one in left.values()]

    async def _fly_on(self, left: _Left) -> None:
        permits, busy = left.permits, left.busy
        if not busy:
            if permits:
                await self._load(permits)
            return
        async with asyncio.TaskGroup() as group:
            if permits:
                group.create_task(self._load(permits))
            await self._wait_for_fills(busy, group)

    async def _wait_for_fills(self, busy: Sequence[tuple[Flight, int]], group: asyncio.TaskGroup) -> None:
        """Somebody else loads these keys: look again and again, at growing intervals, as long as patience lasts."""
        for flight, _ in busy:
            flight.slot.family.counts.waited += 1
        pause_us = _PAUSE_US_FIRST
        while busy:
            # One microsecond beyond the shortest token's end, so that it has ended when it is looked at.
            pause_us = min(pause_us, min(wait_us for _, wait_us in busy) + 1)
            await self._pause(pause_us, [flight for flight, _ in busy])
            pause_us = min(pause_us * 3 // 2, _PAUSE_US_MOST)
            left = await self._look([flight for flight, _ in busy])
            busy = left.busy
            if left.permits:
                group.create_task(self._load(left.permits))

    async def _pause(self, pause_us: int, flights: Sequence[Flight]) -> None:
        """Wait a little; no longer than for what this process itself is loading ahead of its time."""
        own = [aside for flight in flights if (aside := flight.voyage.flights.aside(flight.slot.key)) is not None]
        if not own:
            await self._clock.sleep(pause_us / 1_000_000)
            return
        alarm: asyncio.Future[Any] = self._source.own(self._clock.sleep(pause_us / 1_000_000))
        try:
            await asyncio.wait([alarm, *own], return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()

    # -- looks

    async def _look(self, flights: Sequence[Flight]) -> _Left:
        """Ask the shared tier, one trip a partition. Hits land; returns what must be loaded, and what must wait."""
        left = _Left()
        trips: dict[int, list[Flight]] = {}
        for flight in flights:
            if flight.slot.family.ttl_us == 0:
                left.permits.append(_Permit(flight, "its family is not stored"))
            else:
                trips.setdefault(flight.slot.partition, []).append(flight)
        for there, sight in zip(trips.values(), await self._see_all(trips), strict=True):
            if sight.looks is None:
                for flight in there:
                    if flight.aside:
                        flight.drop()
                    else:
                        left.permits.append(self._unanswered(flight))
                continue
            for flight, look in zip(there, sight.looks, strict=True):
                voyage = flight.voyage
                try:
                    if voyage.task is None:  # it looks together with others: the program's own code runs in its context
                        voyage.context.run(self._judge, flight, look, sight, left)
                    else:
                        self._judge(flight, look, sight, left)
                except Exception as error:  # noqa: BLE001 - a codec, tags: what they raise belongs to those who wait
                    flight.fail(error)
        if left.again:
            hopeless = [
                _Permit(flight, "its entry is corrupt") for flight in left.again if flight.repairs > _REPAIRS_MOST
            ]
            more = await self._look([flight for flight in left.again if flight.repairs <= _REPAIRS_MOST])
            left.permits += hopeless + more.permits
            left.busy += more.busy
        return left

    def _judge(self, flight: Flight, look: Look, sight: _Sight, left: _Left) -> None:
        """Land a flight with what was seen, or say what is left of it."""
        match look:
            case Hit(entry, token, wait_us, holder):
                entry = opened(flight.slot, entry)
                if token:
                    flight.token, flight.known = token, Known(entry, sight.sent_ns)
                    left.permits.append(_Permit(flight, "it is loaded anew"))
                elif flight.aside and (flight.renews or not flight.ahead):
                    flight.drop()  # another process does it, or has done it
                elif not self._serve(flight, entry, sight):
                    if flight.renews != entry.stamp or not wait_us:
                        left.again.append(flight)
                    elif flight.waits_on(holder, self._instant()):
                        left.busy.append((flight, wait_us))
                    else:
                        left.permits.append(_Permit(flight, self._unfilled(flight)))
            case Busy() | Standing() if flight.aside:
                flight.drop()
            case Miss(token, floor):
                flight.token = token
                left.permits.append(_Permit(flight, "no tier had it", floor))
            case Busy(wait_us, floor, holder):
                if wait_us and flight.waits_on(holder, self._instant()):
                    left.busy.append((flight, wait_us))
                else:
                    left.permits.append(_Permit(flight, self._unfilled(flight), floor))
            case Standing(floor):
                flight.slot.family.counts.intents += 1
                self.vigil.passes(flight.slot)
                left.permits.append(_Permit(flight, "somebody writes it", floor))

    async def _see_all(self, trips: dict[int, list[Flight]]) -> list[_Sight]:
        if len(trips) == 1:
            return [await self._see(index, flights) for index, flights in trips.items()]
        return list(await asyncio.gather(*(self._see(index, flights) for index, flights in trips.items())))

    async def _see(self, index: int, flights: Sequence[Flight]) -> _Sight:
        gate = flights[0].voyage.flights.looks
        if not gate.enters(len(flights)):  # whoever is through waits for the store alone, so everybody gets through
            await gate.turn(len(flights))
        try:
            follower = self._followers[index]
            sent = self._instant()
            if not follower.breaker.lets(sent):
                return _Sight(None)
            large = self._storable.large
            requests = [
                ReadRequest(
                    f.slot.key,
                    f.slot.family.name,
                    0 if f.slot.key in large else f.slot.family.lease_us(),
                    f.distrust,
                    f.renews,
                )
                for f in flights
            ]
            reply = await self.answer(follower, self._partitions[index].read(requests, follower.applied))
            trusted = self._heard(follower, reply.news, sent)
            return _Sight(reply.looks, reply.news.tail.position, sent, trusted)
        except StoreUnavailable:
            return _Sight(None)
        finally:
            gate.leave(len(flights))

    async def glance(self, slot: Slot) -> tuple[Entry | None, int | None]:
        """Look at one key without asking for a token. Returns the entry, its ttl over or not, and the version floor."""
        follower = self._followers[slot.partition]
        sent = self._instant()
        if not follower.breaker.lets(sent):
            return None, None
        try:
            request = ReadRequest(slot.key, slot.family.name)
            reply = await self.answer(follower, self._partitions[slot.partition].read([request], follower.applied))
        except StoreUnavailable:
            return None, None
        self._heard(follower, reply.news, sent)
        match reply.looks[0]:
            case Hit(entry):
                entry = opened(slot, entry)
                sound = slot.family.shared_tier and checksum(entry.value) == entry.checksum
                return (entry if sound else None), None
            case Miss(_, floor) | Busy(_, floor) | Standing(floor):
                return None, floor

    def _unfilled(self, flight: Flight) -> str:
        """Say why it got no token, and nobody else's fill is waited for."""
        if flight.slot.key in self._storable.large:
            return f"it is not stored: it is larger than max_value, {flight.slot.family.max_value:,} bytes"
        return "another reader's fill did not come"

    def _unanswered(self, flight: Flight) -> _Permit:
        flight.slot.family.counts.fallbacks += 1
        return _Permit(flight, "the store does not answer", fallback=True)

    def _serve(self, flight: Flight, entry: Entry, sight: _Sight) -> bool:
        """Land a flight with what the shared tier holds. Returns False if it must look again: those are not the bytes
        that were stored, or the ttl is over, and somebody must load it anew.
        """
        slot, family = flight.slot, flight.slot.family
        note = note_of(entry.note)
        left_us = note.left_us(entry.expires_in_us)
        is_over = left_us is not None and left_us <= 0
        if not is_over:
            flight.distrust = entry.stamp
        if not family.shared_tier:  # what a fill of such a family leaves for a microsecond: no value, and no fault
            return False
        try:
            if checksum(entry.value) != entry.checksum:
                unpacked(entry.value, family.max_value)  # which may know better why
                raise CorruptBytes("checksum")
            value = family.codec.decode(entry.value)
        except CorruptBytes as error:
            flight.distrust = entry.stamp
            flight.repairs += 1
            family.counts.repaired += 1
            if not isinstance(error, OtherShape):  # what another version of the program stored is no damage
                self._tell(Corrupt(family=family.name, key=slot.key, stamp=entry.stamp))
            return False
        if not family.bears(slot.arguments, value, entry.tags):
            flight.distrust = entry.stamp
            flight.repairs += 1
            return False
        family.heard(note.load_us)
        if left_us is not None and is_over:
            if flight.renews != entry.stamp:
                flight.renews = entry.stamp
                flight.show(self._stale(slot, value, entry, sight, max(1, -left_us)))
            return False
        early_us = family.early_us(note.load_us, self._storable.chance()) if left_us is not None else 0
        is_early = left_us is not None and left_us <= early_us
        family.counts.shared += 1
        self._sample(slot, entry.value, sight.position, entry.tags)
        if family.adaptive is not None:
            self._saw(slot, note.past.unchanged(note.stored_ago_us(entry.expires_in_us)), entry.checksum, sight)
        if not self._keeping.keep(
            slot,
            value,
            entry.value,
            tags=entry.tags,
            position=sight.position,
            stamp=entry.stamp,
            sent_ns=sight.sent_ns,
            left_us=left_us,
            early_us=0 if is_early else early_us,
            note=entry.note,
            trusted=sight.trusted,
        ):
            self._local.lift(slot.key, self._instant())
        flight.land(
            Outcome(
                value,
                entry.value,
                shared=family.codec.shared,
                tier="shared",
                position=sight.position,
                known_ns=sight.sent_ns,
                why="the shared tier had it",
            )
        )
        if is_early:
            self._refresh(slot, entry.stamp)
        return True

    def _stale(self, slot: Slot, value: Any, entry: Entry, sight: _Sight, late_us: int) -> Stale:
        outcome = Outcome(
            value,
            entry.value,
            shared=slot.family.codec.shared,
            tier="stale" if late_us else "shared",
            position=sight.position,
            # What its ttl does not vouch for any more was known to be true when it was stored.
            known_ns=sight.sent_ns - (note_of(entry.note).stored_ago_us(entry.expires_in_us) * 1_000 if late_us else 0),
            why=f"its ttl ended {late_us / 1_000_000:.3f} s ago" if late_us else "the shared tier had it by now",
        )
        return Stale(outcome, late_us, entry.tags)

    async def stale(self, slot: Slot) -> Stale | None:
        """Look whether a value past its ttl stands in the shared tier now, with nothing against it; or even a fresh one."""
        sent = self._instant()
        entry, _ = await self.glance(slot)
        if entry is None:
            return None
        try:
            value = slot.family.codec.decode(entry.value)
        except CorruptBytes:
            return None
        if not slot.family.bears(slot.arguments, value, entry.tags):
            return None
        left_us = note_of(entry.note).left_us(entry.expires_in_us)
        position = self._followers[slot.partition].applied.position
        sight = _Sight(None, position, sent)
        return self._stale(slot, value, entry, sight, 0 if left_us is None else max(0, -left_us))

    def _saw(self, slot: Slot, past: Past, checksum: int, sight: _Sight) -> None:
        self._storable.histories.saw(slot.key, Seen(past, sight.sent_ns, checksum, sight.position))

    # -- loads

    async def _load(self, permits: Sequence[_Permit]) -> None:
        """Load, and hand on what is there as soon as it is there: a loader may wait for another key of the batch."""
        jobs = list(self._divided(permits))
        if len(jobs) == 1:
            await self._finish(await jobs[0])
            return
        ready: list[_Loaded] = []
        wake = asyncio.Event()
        running = len(jobs)

        async def run(job: Coroutine[Any, Any, list[_Loaded]]) -> None:
            nonlocal running
            ready.extend(await job)
            running -= 1
            wake.set()

        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(run(job))
            while running or ready:
                await wake.wait()
                wake.clear()
                loaded, ready[:] = ready[:], []
                if loaded:
                    await self._finish(loaded)

    def _divided(self, permits: Sequence[_Permit]) -> Iterable[Coroutine[Any, Any, list[_Loaded]]]:
        turns = Semaphore(LOADS_AT_ONCE)
        families: dict[int, list[_Permit]] = {}
        for permit in permits:
            families.setdefault(id(permit.flight.slot.family), []).append(permit)
        for group in families.values():
            family = group[0].flight.slot.family
            if family.load_many is not None and len(group) > 1:
                yield self._load_many(family, group)
            else:
                for permit in group:
                    yield self._load_one(permit, _budget(permit) or turns)

    async def _load_one(self, permit: _Permit, turns: Semaphore) -> list[_Loaded]:
        flight = permit.flight
        try:
            async with turns:
                _enter([flight], turns)
                value = await self._source.load(flight.slot, permit.floor, flight.known)
        except BaseException as error:  # noqa: BLE001 - a loader may raise anything: it belongs to those who wait
            await self._fail([flight], error)
            return []
        return [_Loaded(permit, value)]

    async def _load_many(self, family: Family, permits: Sequence[_Permit]) -> list[_Loaded]:
        flights = [permit.flight for permit in permits]
        try:
            budget = _budget(permits[0])
            async with budget or nullcontext():
                _enter(flights, budget)
                values = await self._source.load_many([flight.slot for flight in flights])
        except BaseException as error:  # noqa: BLE001 - as in _load_one
            await self._fail(flights, error)
            return []
        loaded: list[_Loaded] = []
        late: list[_Permit] = []
        for permit, value in zip(permits, values, strict=True):
            if self._source.is_late(family, value, permit.floor):
                late.append(permit)
            else:
                loaded.append(_Loaded(permit, value))
        turns = Semaphore(LOADS_AT_ONCE)
        for more in await asyncio.gather(*(self._load_one(permit, turns) for permit in late)):
            loaded += more
        return loaded

    async def _fail(self, flights: Sequence[Flight], error: BaseException) -> None:
        """A load ended with an error: it is everybody's who waits, and nobody's tomorrow. A cancellation from outside
        goes on instead; one that a loader made up is an error like others.
        """
        cancelled = isinstance(error, CancelledError)
        if cancelled and not is_cancelled():
            error = RuntimeError(
                f"the loader of {flights[0].slot.key} raised CancelledError, though nobody cancelled it"
            )
            cancelled = False
        if not cancelled:
            for flight in flights:
                flight.fail(error)
        await self._give_up(flights)
        if cancelled:
            raise error

    # -- fills

    async def _finish(self, loaded: Sequence[_Loaded]) -> None:
        """Store what may be stored, one trip a partition; then land all."""
        fills: dict[int, list[tuple[_Loaded, Put]]] = {}
        unused: list[Flight] = []
        for one in loaded:
            flight = one.permit.flight
            data = self._bytes_to_share(flight, one.value)
            past = self._past_of(flight, data)
            asked = flight.token or flight.slot.key in self._storable.large
            put = self._storable.put_of(flight.slot, one.value, data, past) if asked else None
            if put is not None and flight.token:
                fills.setdefault(flight.slot.partition, []).append((one, put))
                continue
            if flight.token:
                unused.append(flight)
            self._land(one, data, None)
        if len(fills) == 1:
            for index, there in fills.items():
                await self._fill(index, there)
        elif fills:
            await asyncio.gather(*(self._fill(index, there) for index, there in fills.items()))
        if unused:
            await self._give_up(unused)

    def _past_of(self, flight: Flight, data: bytes | None) -> Past | None:
        """Compare what was loaded with what was known of the key: in the entry that it replaces, else by this process."""
        slot, family = flight.slot, flight.slot.family
        known, histories = flight.known, self._storable.histories
        seen = histories.of(slot.key) if family.adaptive is not None else None
        if data is None or (known is None and seen is None):
            return None
        now, found = self._instant(), checksum(data)
        if known is not None:
            note = note_of(known.entry.note)
            past, same = note.past, known.entry.checksum == found
            elapsed_us = note.stored_ago_us(known.entry.expires_in_us) + (now - known.sent_ns) // 1_000
        else:
            assert seen is not None
            past, elapsed_us = seen.past, (now - seen.at_ns) // 1_000
            follower = self._followers[slot.partition]
            same = seen.checksum == found and not follower.has_heard(slot.key, seen.position)
        if same:
            family.counts.unchanged += 1
            return past.unchanged(elapsed_us)
        if family.adaptive is not None:
            histories.learn(family.name, past.age_us + elapsed_us)
        return past.changed(elapsed_us)

    def _bytes_to_share(self, flight: Flight, value: Any) -> bytes | None:
        """A value is encoded to be stored, or to be copied for several readers; not for one alone."""
        if flight.token or flight.riders > 1 or flight.slot.key in self._storable.large:
            return self._storable.bytes_of(flight.slot, value)
        return None

    async def _fill(self, index: int, there: Sequence[tuple[_Loaded, Put]]) -> None:
        follower = self._followers[index]
        fills: list[Fill] = []
        for one, put in there:
            slot = one.permit.flight.slot
            kept = await self._storable.to_keep(slot, put) if slot.family.shared_tier else without_value(put)
            fills.append(Fill(kept, one.permit.flight.token))
        sent = self._instant()
        try:
            reply = await self.answer(follower, self._partitions[index].fill(fills, follower.applied))
        except StoreUnavailable:
            for one, put in there:
                self._land(one, put.value, None)
            return
        trusted = self._heard(follower, reply.news, sent)
        for (one, put), stored in zip(there, reply.stored, strict=True):
            flight = one.permit.flight
            flight.token = 0
            if stored is None:
                flight.slot.family.counts.refused += 1
                self.vigil.passes(flight.slot, put.tags)
                if self._lineage is not None:
                    self._lineage.note_here(What.UNFILLED, flight.slot.key, position=reply.news.tail.position)
                self._land(one, put.value, None)
                continue
            position, stamp = stored
            if self._lineage is not None:
                self._lineage.note_here(What.FILLED, flight.slot.key, position=position)
            family, note = flight.slot.family, note_of(put.note)
            left_us = note.left_us(put.expires_in_us)
            family.counts.early += flight.aside and not flight.ahead
            family.counts.ahead += flight.ahead
            if family.adaptive is not None:
                self._saw(flight.slot, note.past, put.checksum, _Sight(None, position, sent))
            if not self._keeping.keep(
                flight.slot,
                one.value,
                put.value,
                tags=put.tags,
                position=position,
                stamp=stamp,
                sent_ns=sent,
                left_us=left_us,
                early_us=family.early_us(note.load_us, self._storable.chance()) if left_us is not None else 0,
                note=put.note,
                trusted=trusted,
            ):
                self._local.lift(flight.slot.key, self._instant())
            self._land(one, put.value, position)

    def _land(self, one: _Loaded, data: bytes | None, position: int | None) -> None:
        flight = one.permit.flight
        if position is None:
            self._local.lift(flight.slot.key, self._instant())
        shared = flight.slot.family.codec.shared
        flight.land(
            Outcome(
                one.value,
                data,
                shared=shared,
                tier="loader",
                position=position,
                known_ns=flight.started_ns,
                why=one.permit.why,
            )
        )

    # -- tokens

    async def renew(self, flights: Sequence[Flight], lease_us: int) -> None:
        """Keep the tokens of loads that take longer than most."""
        for index, tokens in _by_partition(flights).items():
            try:
                await self._partitions[index].extend_fills(tokens, lease_us)
            except StoreUnavailable as error:
                self._lost(self._followers[index], error)

    async def _give_up(self, flights: Sequence[Flight]) -> None:
        """Give tokens back that will not be used, so that the next reader need not wait."""
        held = _by_partition(flights)
        for flight in flights:
            flight.token = 0
        for index, tokens in held.items():
            try:
                await self._partitions[index].abandon_fills(tokens)
            except StoreUnavailable as error:
                self._lost(self._followers[index], error)


def _by_partition(flights: Sequence[Flight]) -> dict[int, list[tuple[str, int]]]:
    held: dict[int, list[tuple[str, int]]] = {}
    for flight in flights:
        if flight.token:
            held.setdefault(flight.slot.partition, []).append((flight.slot.key, flight.token))
    return held


def _budget(permit: _Permit) -> Semaphore | None:
    """Return what bounds a load that goes to the datastore because the store does not answer."""
    flight = permit.flight
    return flight.voyage.flights.budget(flight.slot.family) if permit.fallback else None


def _enter(flights: Sequence[Flight], turns: Semaphore | None) -> None:
    """From here on the loader speaks for all readers of these flights: what it reads is as fresh as they are.

    The caller's session ends here: what it owns is not theirs.
    """
    around = SESSION.get()
    outer = around.loads if around is not None else frozenset[str]()
    # One less: a flight that began at the same instant is fresh enough.
    since = min(flight.started_ns for flight in flights) - 1
    loads = outer | {flight.slot.key for flight in flights}
    SESSION.set(Session(SessionKind.LOADING, since, loads=loads, turns=turns))
