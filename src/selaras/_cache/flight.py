"""Reads that are under way on one event loop, and who may share them.

Of a key one read runs at a time. A reader joins it if it began after the instant as of which the reader must be fresh;
otherwise it waits until that one has passed, and whoever wakes first begins the next, which all the others can join:
one running plus one next, however many readers. Reads of several keys that begin in one turn of the loop look at the
shared tier together; what they do not find there each loads for itself, in the context of whoever began it.

A reader that is cancelled leaves alone. A read that nobody waits for any more goes on for as long as loads of its family
take, since whoever asked with too short a deadline asks again, and then finds it; past that it is cancelled, so that a
loader that hangs is not kept for ever. One that others wait behind is passed after the same time.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Future, Semaphore, Task
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeVar

from selaras._cache.bound import Bound
from selaras._cache.checks import Checks
from selaras._cache.family import LEASE_US_LEAST, Family, Slot
from selaras._cache.outcome import Known, Outcome, Stale
from selaras._contracts.clock import Clock
from selaras._core.cache.freshness import Need, may_join
from selaras._core.errors import StoreUnavailable

T = TypeVar("T")

_TICK_S: Final = LEASE_US_LEAST / 3_000_000  # a token is renewed well before a third of the shortest life is left
_ENDED: Final = "the cache was closed, or the loader took too long and was ended"

LOOKS_AT_ONCE: Final = 256
"""Keys that one loop looks at at a time. Of ten thousand reads begun at once the first have been loaded and filled when the last
ones are asked for; all asked at once, their tokens would run out while the loop is busy with the others."""

LOOK_MOST: Final = 64
"""Keys that reads begun in one turn look at in one trip: each of them waits for the answers of all."""


Flying = Callable[[], Coroutine[Any, Any, None]]
"""Flies a voyage until all of it has landed."""


class Flight:
    """One key's read under way.

    Attributes:
        waiters: of those who wait for it and for nothing else: a future each, which costs a third of shielding one for all.
        passed: done as soon as nobody needs to wait behind it any more: it has ended, or takes too long. None: nobody does.
        token: its right to fill, 0: none.
        holder: the token of another reader whose fill it waits for; `waits_since_ns`: since when it waits for any.
        distrust: the stamp of an entry whose bytes were found corrupt; `repairs`: how many were.
        renews: the stamp of an entry that it loads anew; `known`: that entry.
        aside: nobody waits for it. ahead: besides, nobody reads it yet.
        expired: where values may be served past their ttl: done once such a one was seen, and `stale` is it.
    """

    __slots__ = (
        "ahead",
        "aside",
        "distrust",
        "expired",
        "future",
        "holder",
        "known",
        "passed",
        "renews",
        "repairs",
        "riders",
        "slot",
        "stale",
        "started_ns",
        "token",
        "voyage",
        "waiters",
        "waits_since_ns",
    )

    def __init__(self, slot: Slot, started_ns: int, voyage: Voyage, loop: AbstractEventLoop) -> None:
        self.slot = slot
        self.started_ns = started_ns
        self.voyage = voyage
        self.future: Future[Outcome] = loop.create_future()
        self.passed: Future[None] | None = None
        self.waiters: list[Future[Outcome]] = []
        self.riders = 0
        self.token = 0
        self.holder = 0
        self.waits_since_ns = 0
        self.distrust = 0
        self.repairs = 0
        self.renews = 0
        self.aside = False
        self.ahead = False
        self.known: Known | None = None
        self.stale: Stale | None = None
        self.expired: Future[None] | None = loop.create_future() if slot.family.stale_us else None

    def land(self, outcome: Outcome) -> None:
        """Give everybody the answer."""
        if not self.future.done():
            self.future.set_result(outcome)
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(outcome)
        self.voyage.flights.landed(self)

    def show(self, stale: Stale) -> None:
        """A value past its ttl was seen, while it is loaded anew."""
        self.stale = stale
        if self.expired is not None and not self.expired.done():
            self.expired.set_result(None)

    def waits_on(self, holder: int, now: int) -> bool:
        """Say whether another reader's fill is still waited for: for how long, its family says."""
        if not self.waits_since_ns:
            self.waits_since_ns, self.holder = now, holder
        same = holder == self.holder
        return now - self.waits_since_ns < self.slot.family.patience_us(same=same) * 1_000

    def drop(self) -> None:
        """There is nothing to do: of a flight that nobody waits for."""
        self.future.cancel()
        self.voyage.flights.landed(self)

    def fail(self, error: BaseException) -> None:
        """Give everybody the error: it is nobody's answer tomorrow."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # retrieved: perhaps nobody waits any more
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        self.voyage.flights.landed(self)


class Voyage:
    """Reads that were begun together and travel in the same trips.

    Attributes:
        context: of whoever began them: a loader may need what its caller set. task: what flies them, in that context; None:
            they look together with others.
    """

    __slots__ = ("context", "flights", "lease_ns", "members", "renewed_ns", "started_ns", "task")

    def __init__(self, flights: Flights, started_ns: int, lease_ns: int) -> None:
        self.context = copy_context()
        self.flights = flights
        self.started_ns = started_ns
        self.renewed_ns = started_ns
        self.lease_ns = lease_ns
        self.members: list[Flight] = []
        self.task: Task[None] | None = None

    def unwanted(self) -> bool:
        """Say whether nobody waits for what has not landed yet."""
        return all(flight.riders == 0 or flight.future.done() for flight in self.members)


class Flights:
    """All reads under way on one loop. `fetch` flies them, `renew` keeps their tokens, `check` asks for a log's end.

    `look` looks for several voyages at once, and returns for each what flies it on, or None if it has ended.

    Attributes:
        looks: bounds the keys that are looked at. checks: looks at logs' ends.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Clock,
        instant: Callable[[], int],
        *,
        fetch: Callable[[Sequence[Flight]], Coroutine[Any, Any, None]],
        look: Callable[[Sequence[Voyage]], Coroutine[Any, Any, Sequence[Flying | None]]],
        renew: Callable[[Sequence[Flight], int], Awaitable[None]],
        check: Callable[[int, int], Coroutine[Any, Any, None]],
    ) -> None:
        self.loop = loop
        self._clock = clock
        self._instant = instant
        self._fetch = fetch
        self._look = look
        self._renew = renew
        self.checks = Checks(loop, instant, self.own, check)
        self.running: dict[str, Flight] = {}
        self._aside: dict[str, Flight] = {}
        self._budgets: dict[str, Semaphore] = {}
        self.looks = Bound(loop, LOOKS_AT_ONCE)
        self._voyages: set[Voyage] = set()
        self._leaving: list[Voyage] = []
        self._first: Task[None] | None = None  # of this turn: it flies, or looks for, all that leave
        self._tasks: set[Task[Any]] = set()
        self._keeper: Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self.running) + len(self.checks) + len(self._tasks)

    # -- reads

    async def ride(self, slot: Slot, need: Need, floor: Callable[[str], int]) -> tuple[Outcome, bool]:
        """Read one key. Returns what it came to, and whether the read was somebody else's."""
        while True:
            flight = self.running.get(slot.key)
            if flight is None:
                (flight,) = self.begin([slot])
                return await self.wait(flight), False
            if may_join(need, started_ns=flight.started_ns, floor_ns=floor(slot.key)):
                return await self.wait(flight), True
            await asyncio.shield(self._behind(flight))

    def refresh(self, slot: Slot, stamp: int) -> None:
        """Begin to load an entry anew that still stands, unless it is being read or loaded already; wait for nothing."""
        if self._closed or slot.key in self.running or slot.key in self._aside:
            return
        (flight,) = self._depart([slot])
        flight.aside, flight.renews = True, stamp
        self._aside[slot.key] = flight

    def ahead(self, slots: Sequence[Slot], most: int) -> set[str]:
        """Begin to bring keys that nobody reads or loads yet, `most` at a time; wait for nothing. Returns those that were
        begun.
        """
        room = most - len(self._aside)
        free = [slot for slot in slots if slot.key not in self.running and slot.key not in self._aside]
        if self._closed or room <= 0 or not free:
            return set()
        flights = self._depart(free[:room])
        for flight in flights:
            flight.aside = flight.ahead = True
            self._aside[flight.slot.key] = flight
        return {flight.slot.key for flight in flights}

    async def ride_many(
        self, slots: Sequence[Slot], need: Need, floor: Callable[[str], int]
    ) -> list[tuple[Slot, Outcome, bool]]:
        """Read many keys, each of them once, in as few trips as can be. Raises what the first that fails does."""
        rides = await self._rides(slots, need, floor)
        try:
            return [(flight.slot, await asyncio.shield(flight.future), joined) for flight, joined in rides]
        finally:
            for flight, _ in rides:
                flight.riders -= 1

    async def ride_each(
        self, slots: Sequence[Slot], need: Need, floor: Callable[[str], int]
    ) -> list[tuple[Slot, Outcome | BaseException]]:
        """As `ride_many`, and one that fails leaves the others alone."""
        rides = await self._rides(slots, need, floor)
        try:
            if rides:
                await asyncio.wait([flight.future for flight, _ in rides])
            return [(flight.slot, _came_to(flight.future)) for flight, _ in rides]
        finally:
            for flight, _ in rides:
                flight.riders -= 1

    async def _rides(self, slots: Sequence[Slot], need: Need, floor: Callable[[str], int]) -> list[tuple[Flight, bool]]:
        rides: list[tuple[Flight, bool]] = []
        pending = list(slots)
        try:
            while pending:
                free: list[Slot] = []
                behind: list[tuple[Slot, Future[None]]] = []
                for slot in pending:
                    flight = self.running.get(slot.key)
                    if flight is None:
                        free.append(slot)
                    elif may_join(need, started_ns=flight.started_ns, floor_ns=floor(slot.key)):
                        rides.append((_board(flight), True))
                    else:
                        behind.append((slot, self._behind(flight)))
                rides.extend((_board(flight), False) for flight in (self.begin(free) if free else ()))
                if behind:
                    await asyncio.wait([passed for _, passed in behind])
                pending = [slot for slot, _ in behind]
        except BaseException:
            for flight, _ in rides:
                flight.riders -= 1
            raise
        return rides

    async def wait(self, flight: Flight) -> Outcome:
        """Wait for a read; whoever is cancelled meanwhile leaves alone."""
        if flight.future.done():
            return flight.future.result()
        waiter = self.board(flight)
        try:
            return await waiter
        finally:
            flight.riders -= 1

    def board(self, flight: Flight) -> Future[Outcome]:
        """Wait for a read that has not ended; whoever does is a rider less when that is over."""
        waiter: Future[Outcome] = self.loop.create_future()
        flight.waiters.append(waiter)
        flight.riders += 1
        return waiter

    def begin(self, slots: Sequence[Slot]) -> list[Flight]:
        """Begin to read keys that nobody reads now."""
        if self._closed:
            raise StoreUnavailable("the cache is closed")
        flights = self._depart(slots)
        for flight in flights:
            self.running[flight.slot.key] = flight
        return flights

    def _depart(self, slots: Sequence[Slot]) -> list[Flight]:
        started = self._instant()
        voyage = Voyage(self, started, max(slot.family.lease_us() for slot in slots) * 1_000)
        voyage.members = [Flight(slot, started, voyage, self.loop) for slot in slots]
        self._voyages.add(voyage)
        self._leaving.append(voyage)
        if self._first is None:
            self._first = self.own(self._leave())
        if self._keeper is None or self._keeper.done():
            self._keeper = self.own(self._keep())
        return voyage.members

    async def _leave(self) -> None:
        """Fly what was begun in the turn before, in as few trips as can be."""
        leaving, self._leaving = self._leaving, []
        here, self._first = self._first, None
        if len(leaving) == 1:
            leaving[0].task = here  # begun by whoever began the voyage: its context is the same
            await self._fly(leaving[0], partial(self._fetch, leaving[0].members))
            return
        parties: list[list[Voyage]] = []
        keys = LOOK_MOST
        for voyage in leaving:
            keys += len(voyage.members)
            if keys > LOOK_MOST:
                parties.append([])
                keys = len(voyage.members)
            parties[-1].append(voyage)
        first, *others = parties
        for party in others:
            self.own(self._fly_together(party))
        await self._fly_together(first)

    async def _fly_together(self, voyages: Sequence[Voyage]) -> None:
        try:
            left = await self._look(voyages)
        except BaseException as error:
            ours = isinstance(error, CancelledError)
            for voyage in voyages:
                self._ground(voyage, StoreUnavailable(_ENDED) if ours else error)
                self._voyages.discard(voyage)
            if not isinstance(error, Exception):
                raise
            return
        for voyage, on in zip(voyages, left, strict=True):
            if on is None:
                self._voyages.discard(voyage)
            else:
                voyage.task = self.own(self._fly(voyage, on), voyage.context)

    async def _fly(self, voyage: Voyage, flying: Flying) -> None:
        try:
            await flying()
        except CancelledError:
            self._ground(voyage, StoreUnavailable(_ENDED))
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it was, it belongs to those who wait
            self._ground(voyage, error)
        finally:
            self._voyages.discard(voyage)

    def _ground(self, voyage: Voyage, error: BaseException) -> None:
        for flight in voyage.members:
            flight.fail(error)

    def landed(self, flight: Flight) -> None:
        """A read has ended: the next one may begin."""
        flying = self._aside if flight.aside else self.running
        if flying.get(flight.slot.key) is flight:
            del flying[flight.slot.key]
        if flight.passed is not None and not flight.passed.done():
            flight.passed.set_result(None)

    def _behind(self, flight: Flight) -> Future[None]:
        """Return what is done once a read under way need not be waited for any more."""
        if flight.passed is None:
            flight.passed = self.loop.create_future()
        return flight.passed

    def aside(self, key: str) -> Future[Outcome] | None:
        """Return what this process is loading anew, if it is."""
        flight = self._aside.get(key)
        return flight.future if flight is not None else None

    def budget(self, family: Family) -> Semaphore:
        """Return what bounds the loads of a family while the store does not answer."""
        return self._budgets.setdefault(family.name, Semaphore(family.fallback_loads))

    # -- ownership

    async def _keep(self) -> None:
        """Renew tokens, let readers pass what takes too long, and end what nobody wants."""
        while self._voyages:
            await self._clock.sleep(_TICK_S)
            now = self._instant()
            due: dict[int, list[Flight]] = {}
            for voyage in tuple(self._voyages):
                if now - voyage.started_ns > voyage.lease_ns:
                    if voyage.unwanted():
                        _cancel(voyage.task)
                        continue
                    for flight in voyage.members:
                        self.landed(flight)
                if now - voyage.renewed_ns >= voyage.lease_ns // 3:
                    voyage.renewed_ns = now
                    held = [flight for flight in voyage.members if flight.token and not flight.future.done()]
                    if held:
                        due.setdefault(voyage.lease_ns // 1_000, []).extend(held)
            for lease_us, flights in due.items():
                await self._renew(flights, lease_us)

    def own(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> Task[T]:
        """Begin something that ends with the cache at the latest."""
        task = self.loop.create_task(work, context=context or copy_context())
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have it

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has ended."""
        self._closed = True
        self.checks.close()
        tasks = tuple(self._tasks)
        self._cancel_all()
        if tasks:
            await asyncio.wait(tasks)

    def close_from_outside(self) -> None:
        """The same from another thread, without waiting."""
        self._closed = True
        self.checks.close()
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._cancel_all)

    def _cancel_all(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for voyage in tuple(self._voyages):  # a task that has not begun yet says nothing
            self._ground(voyage, StoreUnavailable(_ENDED))
        self._voyages.clear()


def is_cancelled() -> bool:
    """Say whether somebody cancelled the current task; else a CancelledError is the code's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _came_to(future: Future[Outcome]) -> Outcome | BaseException:
    if future.cancelled():
        return StoreUnavailable("the cache was closed")
    return future.exception() or future.result()


def _board(flight: Flight) -> Flight:
    flight.riders += 1
    return flight


def _cancel(task: Task[None] | None) -> None:
    if task is not None:
        task.cancel()
