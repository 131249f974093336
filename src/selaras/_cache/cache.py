"""The cache as a program sees it. The read path, from the local tier down to the datastore:

own key of the session ───────────────────> its put, the pre-image, or the datastore itself (P10, P13)
local tier: entry there, proven fresh ────> serve                                     (`freshness.proves`)
            entry there, not proven ──────> one look at the log's end, shared by all who wait; then again
host tier, if there is one, the same ─────> serve                                     (`host`)
inside a known transaction ───────────────> the shared tier, else the datastore itself (P13)
a read under way that began late enough ──> join it                                   (`freshness.may_join`)
nothing ──────────────────────────────────> begin one: shared tier, loader, fill      (`loading`)
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from selaras._cache.auditing import Auditor, Reader
from selaras._cache.family import MISSING, Family, Reading, Slot, lag_us_of
from selaras._cache.flight import Flights
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.hints import Hints
from selaras._cache.host import HostTier
from selaras._cache.instants import Instants
from selaras._cache.keeping import Keeping
from selaras._cache.lineage import Lineage
from selaras._cache.loading import Loading
from selaras._cache.local import READS_COUNTED, LocalEntry, LocalTier, count_read
from selaras._cache.outcome import Alone, Outcome, Stale
from selaras._cache.private import Private
from selaras._cache.proving import Proving
from selaras._cache.session import SESSION, Session, session_here
from selaras._cache.settles import Settles
from selaras._cache.source import Source
from selaras._cache.storable import Storable
from selaras._cache.voiding import Voiding
from selaras._cache.warming import Warming
from selaras._cache.window import Window
from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.shelf import Shelf
from selaras._contracts.store import Store
from selaras._core.cache.consistency import Ledger
from selaras._core.cache.events import CacheEvent, SharedTierBack, SharedTierLost
from selaras._core.cache.freshness import Level, Need, may_join
from selaras._core.codec import CorruptBytes
from selaras._core.errors import StoreUnavailable, WouldDeadlock
from selaras._core.positions import News

SWEEP_NS: Final = 20_000_000
"""The least time between two looks for what is over."""


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
        entropy: Entropy | None = None,
        slow_us: int = 0,
        reader: Callable[[], Reader] | None = None,
        publishes: bool = False,
        lineage: Lineage | None = None,
        shelf: Shelf | None = None,
        owner: bytes = b"",
        families: Callable[[], Iterable[Family]] | None = None,
        met: Callable[[], None] | None = None,
    ) -> None:
        self.lineage = lineage
        self._partitions = store.partitions
        self._clock = clock
        self._now_ns = clock.instant_ns
        self._instants = Instants(clock)
        self.instant = self._instants.now
        self._max_lag_ns = max_lag_us * 1_000
        self._tell: Callable[[CacheEvent], None] = observer or _nobody
        self._floors = Floors(self._max_lag_ns)
        self._local = LocalTier(
            bytes_most=local_bytes, entries_most=local_entries, floors=self._floors, instant=self.instant
        )
        self._entries = self._local.entries
        self._followers = [Follower(index, self._local, self.instant) for index in range(len(self._partitions))]
        for follower in self._followers:
            follower.on_event = self._event_for
            follower.breaker.slow_ns = slow_us * 1_000
        self._joins_ns = 0
        self._sweep_ns = 0
        self._families: dict[str, Family] = {}
        self._loops: dict[int, Flights] = {}
        self._recent: Flights | None = None  # of those, the last that was asked for
        self._storable = Storable(self._tell, entropy.random if entropy else _no_chance)
        self._keeping = Keeping(self._followers, self._local)
        source = Source(clock, self.instant)
        self._loading = Loading(
            self._partitions,
            self._followers,
            self._local,
            clock,
            self.instant,
            source,
            storable=self._storable,
            keeping=self._keeping,
            heard=self._apply,
            lost=self._lost,
            tell=self._tell,
            refresh=self._begin_refresh,
            sample=self._sample,
            lineage=lineage,
            slow_us=slow_us,
            met=met,
        )
        self._proving = Proving(
            self._partitions,
            self._followers,
            self._local,
            self._floors,
            clock,
            self._instants,
            max_lag_ns=self._max_lag_ns,
            flights=self._flights,
            answer=self._loading.answer,
            heard=self._apply,
            lost=self._lost,
        )
        self._private = Private(
            self._followers,
            self._local,
            self._loading,
            source,
            self.instant,
            max_lag_ns=self._max_lag_ns,
            decoded=self._decoded,
        )
        self.grown = Hints(self._followers, self._local, self.instant, catch_up=self._proving.catch_up).grown
        self._voiding = Voiding(
            self._partitions,
            self._followers,
            self.instant,
            self._storable,
            heard=self._apply,
            drop=self._drop_keys,
            drop_joins=self.told,
            lag_us=lambda what: lag_us_of((families or self._families.values)(), what),
            lineage=lineage,
        )
        self.closing = self._voiding.closing

        self._auditor = Auditor(
            self._partitions,
            self._followers,
            source,
            clock,
            self.instant,
            chance=self._storable.chance,
            heard=self._apply,
            tell=self._tell,
            own=lambda work: self._flights().own(work),
            repair=lambda slot: self._voiding.void([slot], session=None),
            reader=reader or _nobodys,
            publishes=publishes,
        )
        self.host = self._keeping.host = (
            None
            if shelf is None
            else HostTier(
                shelf,
                owner,
                self._partitions,
                self._followers,
                self._local,
                self.instant,
                storable=self._storable,
                look_at_tail=self._proving.look_at_tail,
                refresh=self._begin_refresh,
                sample=self._auditor.hosted,
                tell=self._tell,
                own=lambda work: self._flights().own(work),
            )
        )

        self.warming = Warming(
            self._local,
            self._followers,
            clock,
            self._families,
            need=self._proving.need,
            prove=self._proving.prove,
            flights=self._flights,
            join_floor=self._join_floor,
            get_many=self.get_many,
        )
        self.settles = Settles(
            self._keeping, self._storable, self.warming, told=self.told, drop=self._drop_keys, lineage=lineage
        )
        self.window = Window(
            self._loading,
            self._followers,
            self._local,
            self._floors,
            clock,
            would_serve=lambda slot: (
                self._proving.proven(slot, self._proving.need(slot.family, None, session_here())) is not None
            ),
            host=self.host,
        )

    # -- what replies say

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """Apply a reply's news: before anything else of that reply is used. `sent_ns`: when its request was sent."""
        self._apply(self._followers[partition], news, sent_ns)

    def _apply(self, follower: Follower, news: News, sent_ns: int) -> bool:
        self._instants.reached(sent_ns)
        was_open = follower.breaker.open_us
        trusted = follower.heard(news, sent_ns)
        if was_open and not follower.breaker.open_us:
            self._tell(SharedTierBack(partition=follower.index))
        self.sweep()
        return trusted

    def _lost(self, follower: Follower, error: StoreUnavailable) -> None:
        if follower.lost(self.instant()):
            self._tell(SharedTierLost(partition=follower.index, error=str(error)))

    def cut_off(self, error: str) -> None:
        """The store could not be reached before anything was asked of it: no partition answers."""
        for follower in self._followers:
            self._lost(follower, StoreUnavailable(error))

    def _event_for(self, key: str) -> None:
        """What began before an event was heard is not joined after it."""
        for flights in tuple(self._loops.values()):
            if key in flights.running:
                self._local.lift(key, self.instant())
                return

    def cursor(self, partition: int) -> Any:
        """Return how far a partition's log is applied here: what the next request of this process says."""
        return self._followers[partition].applied

    def told(self, keys: Iterable[str] = ()) -> None:
        """Somebody in this process was told of an end (a job's, a scope's, an enqueue): from here on nothing that
        began before is joined, and what the local tier holds for these keys is gone (P5, G8). Call it after `heard`.
        """
        self._drop_keys(keys)
        self._joins_ns = self.instant()

    def _drop_keys(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._local.expel(key, self.instant())

    # -- reads

    def hit(self, slot: Slot, fresh: Level | None = None) -> Any:
        """Return the value if the local tier may serve it without waiting, else MISSING."""
        session = SESSION.get()
        family = slot.family
        level: Any = family.level if fresh is None else fresh
        if level.__class__ is not int or (
            session is not None
            and (
                session.parent is not None
                or session.watcher is not None
                or slot.key in session.own
                or slot.key in session.serves
                or not session.open
            )
        ):
            return self._hit_carefully(slot, fresh, session)
        now = self._now_ns()
        lag = level * 1_000
        since = now - (lag if lag < self._max_lag_ns else self._max_lag_ns)  # noqa: FURB136 - no call on the hot path
        follower = self._followers[slot.partition]
        # Looked at before the entry: what a reply spoke against has left the tier before `confirmed` grew with it.
        confirmed, applied = follower.confirmed_ns, follower.applied.position
        entry = self._entries.get(slot.key)
        if entry is None:
            if self._local.count == len(self._entries) or self._local.find(slot.key) is None:
                return MISSING
            return self._hit_carefully(slot, fresh, session)
        if since < entry.floor_ns:
            since = entry.floor_ns
        if since < self._floors.everywhere_ns:
            since = self._floors.everywhere_ns
        latest = entry.sent_ns if entry.sent_ns > confirmed else confirmed  # noqa: FURB136 - as above
        if (
            latest <= since
            or (
                session is not None
                and latest <= session.since_ns
                and (slot.partition != session.home or applied < session.position)
            )
            or entry.early_ns <= now
            or entry.vetted < follower.bulk
        ):
            return self._hit_carefully(slot, fresh, session)
        if entry.reads < READS_COUNTED:
            entry.reads += 1
        value = entry.value
        if value is None and not entry.alive:
            return MISSING
        counts = family.counts
        hits = counts.local + 1
        counts.local = hits
        if hits >= family.audit_at:
            self._auditor.hit(slot, value, entry.position, applied, entry.tags)
        if family.codec.shared:
            return value
        return self._decoded(slot, value)

    def _hit_carefully(self, slot: Slot, fresh: Level | None, session: Session | None) -> Any:
        if session is not None and not session.open:
            session = session_here()
        if session is not None and session.writes(slot.key):
            return MISSING
        need = self._proving.need(slot.family, fresh, session)
        entry = self._proving.proven(slot, need)
        if entry is None and self._local.find(slot.key) is not None and self._proving.look_at_tail(slot.partition):
            entry = self._proving.proven(slot, need)
        if entry is None:
            return MISSING
        # `last_ns` is no more than a moment ago: enough for what may begin at any time.
        if entry.early_ns <= self._instants.last_ns and not self._keep_fresh(slot, entry, session):
            return MISSING
        value = self._taken(slot, entry)
        if session is not None and session.watcher is not None and value is not MISSING:
            session.watcher.saw(slot, entry.position, "local")
        return value

    async def get(self, slot: Slot, fresh: Level | None = None) -> Any:
        """Read through. Inside a job no level goes below causal."""
        key, local = slot.key, self._local
        if key in self._entries or (local.count > len(self._entries) and local.find(key) is not None):
            value = self.hit(slot, fresh)
            return value if value is not MISSING else (await self.read(slot, fresh)).value
        if SESSION.get() is not None or self.host is not None:
            return (await self.read(slot, fresh)).value
        # Nothing is near and nobody's own, and nobody asks where it came from: most misses are such.
        family = slot.family
        level: Any = family.level if fresh is None else fresh
        if level.__class__ is int:  # as `since_of` has it: of many that join one read each comes by here
            lag = level * 1_000
            since = self._now_ns() - (lag if lag < self._max_lag_ns else self._max_lag_ns)  # noqa: FURB136
        else:
            since = self._proving.since(family, fresh)
        flights = self._recent
        if flights is None or flights.loop is not get_running_loop():
            flights = self._flights()
        flight = None if family.stale_us else flights.running.get(key)
        # As `may_join` and `_join_floor` have it, of a key that is not near.
        if (
            flight is not None
            and flight.started_ns > since
            and flight.started_ns > self._joins_ns
            and flight.started_ns > self._floors.of(key)
        ):
            family.counts.joined += 1
            waiter = flights.board(flight)  # as `Flights.wait` does, a coroutine less for each of many
            try:
                outcome = await waiter
            finally:
                flight.riders -= 1
        else:
            self._families[family.name] = family
            outcome = await self._far(slot, Need(since), fresh, None)
        try:
            return outcome.take(family)
        except Alone:
            return await self._private.load(slot)

    async def read(self, slot: Slot, fresh: Level | None = None) -> Reading:
        """Read through, and say where the value came from."""
        session = session_here()
        reading = await self._read(slot, fresh, session)
        if session is not None and session.watcher is not None:
            session.watcher.saw(slot, reading.position, reading.tier)
        return reading

    async def _read(self, slot: Slot, fresh: Level | None, session: Session | None) -> Reading:
        self._families[slot.family.name] = slot.family
        need = self._proving.need(slot.family, fresh, session)
        writer = session.writes(slot.key) or session.opener_of(slot.family) if session else None
        if writer is not None and (writer.started or slot.key in writer.own):
            return await self._private.of_writer(slot, writer)
        entry = await self._proving.prove(slot, need)
        if entry is not None:
            self._keep_fresh(slot, entry, session)
            value = self._taken(slot, entry)
            if value is not MISSING:
                return self._local_reading(entry, value)
        if self.host is not None:
            reading = await self.host.read(slot, need)
            if reading is not None:
                return reading
        if session is not None and session.in_transaction() and slot.family.version is None:
            return await self._private.in_transaction(slot)
        self._check_not_its_own(slot, session)
        return await self._reading(slot, await self._far(slot, need, fresh, session))

    async def _far(self, slot: Slot, need: Need, fresh: Level | None, session: Session | None) -> Outcome:
        """Read what no tier at hand has."""
        if session is None and slot.family.stale_us and _may_be_stale(slot.family, fresh):
            outcome, joined = await self._ride_or_stale(slot, need)
        elif session is None or session.turns is None:
            outcome, joined = await self._flights().ride(slot, need, self._join_floor)
        else:
            async with session.waiting():
                outcome, joined = await self._flights().ride(slot, need, self._join_floor)
        slot.family.counts.joined += joined
        return outcome

    async def _ride_or_stale(self, slot: Slot, need: Need) -> tuple[Outcome, bool]:
        """Read one key for somebody who may be given a value past its ttl: at once while it is loaded anew, or if the
        load takes too long, or fails. Nothing may speak against the value: that is asked when it is served.
        """
        flights, family = self._flights(), slot.family
        flight = flights.running.get(slot.key)
        joined = flight is not None
        if flight is None:
            (flight,) = flights.begin([slot])
        behind = joined and not may_join(need, started_ns=flight.started_ns, floor_ns=self._join_floor(slot.key))
        if family.stale_while_revalidate_us and flight.expired is not None:
            flight.riders += 1
            try:
                await asyncio.wait((flight.future, flight.expired), return_when=asyncio.FIRST_COMPLETED)
            finally:
                flight.riders -= 1
            if not flight.future.done():
                stale = None if behind else self._unspoken(slot, flight.stale)
                stale = stale or await self._loading.stale(slot)
                if stale is not None and stale.late_us < family.stale_while_revalidate_us:
                    return self._served_stale(slot, stale), joined
        ride = flights.own(
            flights.ride(slot, need, self._join_floor) if behind else _joined(flights.wait(flight), joined)
        )
        try:
            if family.soft_timeout_us:
                alarm = flights.own(self._clock.sleep(family.soft_timeout_us / 1_000_000))
                try:
                    await asyncio.wait((ride, alarm), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    alarm.cancel()
                stale = None if ride.done() else await self._loading.stale(slot)
                if stale is not None and stale.late_us < family.stale_us:
                    return self._served_stale(slot, stale), joined
            return await ride
        except Exception:
            stale = await self._loading.stale(slot)
            if stale is None or stale.late_us >= family.stale_if_error_us:
                raise
            return self._served_stale(slot, stale), joined
        finally:
            ride.cancel()

    def _unspoken(self, slot: Slot, stale: Stale | None) -> Stale | None:
        """Return it, unless an event that was heard since it was seen speaks against it."""
        if stale is None or stale.outcome.position is None:
            return None
        follower = self._followers[slot.partition]
        return stale if follower.untouched(slot.key, stale.outcome.position, slot.family.name, stale.tags) else None

    def _served_stale(self, slot: Slot, stale: Stale) -> Outcome:
        slot.family.counts.stale += 1
        self._local.lift(slot.key, self.instant())
        return stale.outcome

    def _sample(self, slot: Slot, data: bytes, position: int, tags: tuple[str, ...]) -> None:
        self._auditor.shared(slot, data, position, tags)

    # -- ahead of the end

    def _keep_fresh(self, slot: Slot, entry: LocalEntry, session: Session | None) -> bool:
        """Load an entry anew whose time for that has come. Returns whether it may be served here: False off any loop."""
        if entry.early_ns > self._now_ns() or (session is not None and session.in_transaction()):
            return True
        try:
            get_running_loop()
        except RuntimeError:
            return False
        entry.early_ns = entry.expires_ns  # one try a process
        self._begin_refresh(slot, entry.stamp)
        return True

    def _begin_refresh(self, slot: Slot, stamp: int) -> None:
        session = session_here()
        if session is None or not session.in_transaction():
            self._flights().refresh(slot, stamp)

    async def get_many(self, slots: Sequence[Slot], fresh: Level | None = None) -> list[Any]:
        """Read many: one trip a partition, one call of the batch loader, one fill a partition."""
        session = session_here()
        alone = session is not None and session.in_transaction()
        values: dict[str, Any] = {}
        together: dict[str, Slot] = {}
        for slot in {slot.key: slot for slot in slots}.values():
            value = self.hit(slot, fresh)
            if value is not MISSING:
                values[slot.key] = value
            elif (alone and slot.family.version is None) or (
                session is not None and (session.writes(slot.key) or session.opener_of(slot.family))
            ):
                values[slot.key] = (await self.read(slot, fresh)).value
            else:
                together[slot.key] = slot
        if together:
            values |= await self._read_together(tuple(together.values()), fresh, session)
        answered: list[Any] = []
        seen: set[str] = set()
        for slot in slots:
            again = slot.key in seen and not slot.family.codec.shared  # another object for each place in the list
            answered.append(await self.get(slot, fresh) if again else values[slot.key])
            seen.add(slot.key)
        return answered

    async def _read_together(
        self, slots: Sequence[Slot], fresh: Level | None, session: Session | None
    ) -> dict[str, Any]:
        # One need for all of them, the strictest: they travel together.
        need = max((self._proving.need(slot.family, fresh, session) for slot in slots), key=lambda need: need.since_ns)
        values: dict[str, Any] = {}
        rest: list[Slot] = []
        for slot in slots:
            entry = await self._proving.prove(slot, need)  # waits once a partition: that look proves the others, too
            value = MISSING if entry is None else self._taken(slot, entry)
            if value is not MISSING and entry is not None:
                values[slot.key] = value
                if session is not None and session.watcher is not None:
                    session.watcher.saw(slot, entry.position, "local")
                continue
            self._check_not_its_own(slot, session)
            self._families[slot.family.name] = slot.family
            rest.append(slot)
        if rest and self.host is not None:
            found = await self.host.read_many(rest, need)
            for slot in rest:
                if (reading := found.get(slot.key)) is not None:
                    values[slot.key] = reading.value
                    if session is not None and session.watcher is not None:
                        session.watcher.saw(slot, reading.position, reading.tier)
            rest = [slot for slot in rest if slot.key not in found]
        if rest:
            async with session.waiting() if session else nullcontext():
                rides = await self._flights().ride_many(rest, need, self._join_floor)
            for slot, outcome, joined in rides:
                slot.family.counts.joined += joined
                values[slot.key] = (await self._reading(slot, outcome)).value
                if session is not None and session.watcher is not None:
                    session.watcher.saw(slot, outcome.position, outcome.tier)
        return values

    # -- the local tier

    def _taken(self, slot: Slot, entry: LocalEntry) -> Any:
        count_read(entry)
        slot.family.counts.local += 1
        value = entry.value
        if value is None and not entry.alive:
            return MISSING
        if slot.family.counts.local >= slot.family.audit_at:
            applied = self._followers[slot.partition].applied.position
            self._auditor.hit(slot, value, entry.position, applied, entry.tags)
        return value if slot.family.codec.shared else self._decoded(slot, value)

    def _decoded(self, slot: Slot, data: Any) -> Any:
        """Return a new object from bytes of the local tier; MISSING if another thread dropped them, or they are bad."""
        try:
            return slot.family.codec.decode(data)
        except (CorruptBytes, TypeError):
            self._local.drop(slot.key)
            return MISSING

    def _local_reading(self, entry: LocalEntry, value: Any) -> Reading:
        proven_ns = max(entry.sent_ns, self._followers[entry.partition].confirmed_ns)
        age_us = max(0, self.instant() - proven_ns) // 1_000
        return Reading(value, "local", age_us, entry.position, "nothing was heard against it since")

    # -- flights

    def _flights(self) -> Flights:
        loop = get_running_loop()
        flights = self._loops.get(id(loop))
        if flights is None or flights.loop is not loop:
            with self._local.lock:
                flights = self._loops[id(loop)] = self._new_flights(loop)
        self._recent = flights
        return flights

    def _forget_closed_loops(self) -> None:
        with self._local.lock:
            for key in [key for key, flights in self._loops.items() if flights.loop.is_closed()]:
                if self._loops.pop(key) is self._recent:
                    self._recent = None

    def _new_flights(self, loop: AbstractEventLoop) -> Flights:
        return Flights(
            loop,
            self._clock,
            self.instant,
            fetch=self._loading.fetch,
            look=self._loading.look,
            renew=self._loading.renew,
            check=self._proving.check,
        )

    def _join_floor(self, key: str) -> int:
        entry = self._local.find(key)
        return max(self._joins_ns, self._floors.of(key), entry.floor_ns if entry is not None else 0)

    def _check_not_its_own(self, slot: Slot, session: Session | None) -> None:
        if session is not None and slot.key in session.loads:
            raise WouldDeadlock(f"the loader of {slot.key} reads {slot.key}: it would wait for itself")

    async def _reading(self, slot: Slot, outcome: Outcome) -> Reading:
        try:
            value = outcome.take(slot.family)
        except Alone:
            value = await self._private.load(slot)
        age_us = max(0, self.instant() - outcome.known_ns) // 1_000
        return Reading(value, outcome.tier, age_us, outcome.position, outcome.why)

    # -- writes

    async def put(self, slot: Slot, value: Any) -> None:
        """In a session that owns the key: kept until its settle. Anywhere else: an invalidation (P8)."""
        await self._voiding.put(slot, value, session_here())

    async def invalidate(
        self,
        slots: Sequence[Slot] = (),
        *,
        tags: Sequence[str] = (),
        families: Sequence[str] = (),
        versions: Sequence[tuple[Slot, int]] = (),
    ) -> None:
        """Void names: now, and inside a session again by its settle (P14).

        Args:
            versions: slots with the datastore's version that is now known to exist: nothing older is accepted (P13).

        Raises:
            StoreUnavailable: not all was voided; call again.
            LeaseLost: the session's attempt is not its job's any more.
        """
        await self._voiding.void(slots, tags=tags, families=families, versions=versions, session=session_here())

    # -- the rest

    def sweep(self) -> None:
        """Drop a little of what is over. Every reply does this; call it from time to time where none come."""
        now = self._now_ns()
        if now < self._sweep_ns:
            return
        self._sweep_ns = now + SWEEP_NS
        self._local.sweep(now)
        self._forget_closed_loops()
        for follower in self._followers:
            follower.sweep(now)
        if self.lineage is not None and self.lineage.is_due(now):
            self._show_lineage(self.lineage)

    def _show_lineage(self, lineage: Lineage) -> None:
        try:
            self._flights().own(lineage.publish())
        except RuntimeError:
            pass  # no loop runs here: the next reply that one hears shows it

    def stats(self) -> dict[str, Any]:
        """Return sizes and counters of this process's cache."""
        self.sweep()
        return self.window.stats(self._families, sum(len(flights.running) for flights in tuple(self._loops.values())))

    @property
    def audits(self) -> Ledger:
        """What audits in this process came to."""
        return self._auditor.ledger

    async def publish(self) -> None:
        """Leave what was measured and noted here where other processes find it. What cannot be told now is told later."""
        await self._auditor.publish()
        if self.lineage is not None:
            await self.lineage.publish()

    def open(self) -> None:
        """Read on after `close`."""
        self._loops = {}
        self._recent = None

    async def close(self) -> None:
        """End what is under way. Readers that wait get StoreUnavailable."""
        if self.host is not None:
            await self.host.close()
        here = get_running_loop()
        for flights in tuple(self._loops.values()):
            if flights.loop is here:
                await flights.close()
            else:
                flights.close_from_outside()


def _may_be_stale(family: Family, fresh: Level | None) -> bool:
    """Say whether a read outside of jobs and scopes may be given a value past its ttl."""
    return isinstance(family.level if fresh is None else fresh, int)


async def _joined(outcome: Coroutine[Any, Any, Outcome], joined: bool) -> tuple[Outcome, bool]:
    return await outcome, joined


def _nobodys() -> Reader:
    return "", "", ""


def _no_chance() -> float:
    return 0.5


def _nobody(event: CacheEvent) -> None:
    """Nobody watches."""
