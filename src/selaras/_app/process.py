"""What this process has open: the store, the cache over it, leases of scopes and locks. Made anew after a fork."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from threading import Lock
from typing import Final
from weakref import WeakSet

from selaras._app.audits import CacheLog, reader_here
from selaras._app.ends import Ends
from selaras._app.once import Interrupted, Once, own
from selaras._app.registry import Registry
from selaras._app.relaying import relay
from selaras._app.resources import Openings
from selaras._app.settings import Settings
from selaras._cache.cache import Cache
from selaras._cache.lineage import Lineage
from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.partition import HeartbeatReply, Instance
from selaras._contracts.shelf import Shelf
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt
from selaras._core.positions import Cursor, News
from selaras._core.routing import partition_of
from selaras._worker.heart import Beat, Heart
from selaras._worker.keeper import ask_after

_log = logging.getLogger("selaras")

_ID_BITS: Final = 80
"""Of a generated id: far more than jobs there will ever be, and short in a log line."""
_ID_MASK: Final = (1 << _ID_BITS) - 1
_ID_DIGITS: Final = frozenset("0123456789abcdef")

_HOUSE_EVERY_NS: Final = 1_000_000_000
_HOUSE_MOST: Final = 100
_PUBLISH_S: Final = 1.0

HOUSE_EVERY_S: Final = 60.0
"""A process that has a store open, and no worker, keeps house so often: where there are producers and readers only, nobody else
would expire jobs, end what killed processes held, trim logs and drop values whose time is over."""

HOUSE_SPREAD: Final = 0.5
"""Processes do not keep house in step."""

MET_EVERY_NS: Final = 5_000_000_000
"""One whose readers meet write intents keeps house so often: a holder that was killed would keep them off their caches longer."""

HOUSE_ROUNDS: Final = 20
"""So often a round goes on at once because more waits."""


class Holder:
    """An instance that owns scopes and locks, and the heart that renews its lease.

    It answers for a scope from before the store is asked for it until its end was answered. What it no longer answers
    for its heart does not name, and then the store ends it: a scope that nobody could enter or leave in order, because
    the caller was cancelled or the store was away, stands no longer than to the next beat that arrives (P16, P19).

    Attributes:
        lost: the store has forgotten it: what it owned is gone, and the next scope needs another one.
    """

    def __init__(self, store: Store, clock: Clock, instance: Instance, enrolled_ns: int) -> None:
        self.instance = instance
        self.lost = False
        self.heart = Heart(store, clock, instance, enrolled_ns=enrolled_ns, state=self._state, on_reply=self._heard)
        self._scopes: list[dict[str, int]] = [{} for _ in store.partitions]  # fences; 0: it was asked for

    def asks(self, partition: int, job: str) -> None:
        """A scope or lock is about to be asked for."""
        self._scopes[partition][job] = 0

    def granted(self, partition: int, job: str, fence: int) -> None:
        """It is held here from now on."""
        self._scopes[partition][job] = fence

    def ended(self, partition: int, job: str) -> None:
        """The store has ended it."""
        self._scopes[partition].pop(job, None)

    def abandon(self, partition: int, job: str) -> None:
        """Nobody here answers for it any more, and the store may not know yet: let it end what it has of it."""
        if self._scopes[partition].pop(job, None) is not None:
            self.heart.beat_now(partition)

    @property
    def idle(self) -> bool:
        """Whether nothing is held under it."""
        return not any(self._scopes)

    def _state(self, partition: int) -> Beat:
        # A copy in one step: callers change it meanwhile, in their own threads.
        scopes = self._scopes[partition].copy()
        return Beat(scopes=tuple(Attempt(job, fence) for job, fence in scopes.items()))

    def _heard(self, partition: int, beat: Beat, reply: HeartbeatReply) -> None:
        del partition, beat
        if not reply.enrolled:
            self.lost = True


class Process:
    """One store and one cache, shared by every loop and thread of this process."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        settings: Settings,
        registry: Registry,
        shelf: Shelf | None = None,
        owner: bytes = b"",
    ) -> None:
        self.store = store
        self.clock = clock
        self.entropy = entropy
        self.settings = settings
        self.cache = Cache(
            store,
            clock,
            max_lag_us=settings.max_lag,
            local_bytes=settings.local_bytes,
            local_entries=settings.local_entries,
            entropy=entropy,
            slow_us=settings.shared_timeout,
            observer=CacheLog().heard,
            reader=reader_here,
            publishes=True,
            lineage=Lineage(
                store.partitions,
                clock,
                jobs_a_second=settings.lineage,
                process=format(entropy.getrandbits(64), "016x"),
                where=f"{socket.gethostname()}:{os.getpid()}",
                by=reader_here,
            )
            if settings.lineage
            else None,
            shelf=shelf,
            owner=owner,
            families=lambda: [spec.family for spec in registry.families.values()],
            met=self._met_an_intent,
        )
        store.listen(self.cache.grown)
        self.partitions = len(store.partitions)
        self.ends = Ends()
        self.opened = False
        self.users = 0
        self.workers = 0  # that run in this process, and keep house
        self._ids = count(entropy.getrandbits(_ID_BITS))
        self._lock = Lock()
        self._opening: Once[None] | None = None
        self._holders: dict[int, Once[Holder]] = {}
        self._forgotten: list[Holder] = []  # by the store; they beat on for what is still held under them elsewhere
        self._house_ns = [0] * self.partitions  # when it may be kept again
        self._housekeeping: asyncio.Task[None] | None = None
        self.openings = Openings()
        self._met_ns = 0  # when a reader that meets an intent may ask for it again
        self._asked: asyncio.Task[None] | None = None

    # -- life

    async def open(self) -> None:
        """Connect the store, once; callers that come meanwhile wait for the same. Raises StoreUnavailable."""
        while not self.opened:
            with self._lock:
                opening = self._opening
                mine = opening is None or opening.failed
                if opening is None or mine:
                    opening = self._opening = Once()
            if mine:
                opening.begin(self._open)
            try:
                await opening.wait()
            except Interrupted:
                continue
        housekeeping = self._housekeeping
        if housekeeping is None or housekeeping.done() or housekeeping.get_loop().is_closed():
            self._housekeeping = own(self._keep_house())

    async def _open(self) -> None:
        await self.store.open()
        self.cache.open()
        self.opened = True

    def enter(self) -> None:
        """Use it from the running loop: what threads want is opened there meanwhile."""
        self.users += 1
        self.openings.settle()

    async def leave(self) -> None:
        """End a use by the running loop, and close what is of no use any more."""
        self.users -= 1
        try:
            await self.openings.leave()
        finally:
            await self._close_unused()

    async def close(self) -> None:
        """Close what the running loop has opened; with the last user the leases, the cache and the store, too."""
        try:
            await self.openings.close_here()
        finally:
            await self._close_unused()

    async def _close_unused(self) -> None:
        if self.users > 0:
            return
        try:
            await self.openings.close()
        finally:
            await self._close_all()

    async def _close_all(self) -> None:
        holders = [holder for once in self._holders.values() if (holder := once.value()) is not None]
        holders += self._forgotten
        self._holders.clear()
        self._forgotten.clear()
        for holder in holders:
            await asyncio.get_running_loop().run_in_executor(None, holder.heart.stop)
            await self._dismiss(holder)
        housekeeping, self._housekeeping = self._housekeeping, None
        if housekeeping is not None and not housekeeping.get_loop().is_closed():
            housekeeping.get_loop().call_soon_threadsafe(housekeeping.cancel)
        if self.opened:
            await self._end_asked()
            await self._publish()
            self.opened, self._opening = False, None
            await self.cache.close()
            await self.store.close()

    async def _end_asked(self) -> None:
        """Let the housekeeping that a reader asked for end: a process may live for one read only, and so the next."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([asked], timeout=_PUBLISH_S)

    async def _publish(self) -> None:
        """Leave what was measured for others; a store that is away does not hold up the end."""
        try:
            async with asyncio.timeout(_PUBLISH_S):
                await self.cache.publish()
        except TimeoutError:
            pass

    # -- what replies say

    def since(self, partition: int) -> Cursor:
        """Return how far this process has applied a log."""
        cursor: Cursor = self.cache.cursor(partition)
        return cursor

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """Apply a reply's news, before the reply is told to anybody (G8)."""
        self.cache.heard(partition, news, sent_ns)

    async def catch_up(self, *, but: int) -> None:
        """Hear the news of every partition except one: whoever was told of an end may read its effects anywhere."""
        for partition in self.store.partitions:
            if partition.index != but:
                sent_ns = self.clock.instant_ns()
                self.heard(partition.index, await partition.events_since(self.since(partition.index)), sent_ns)

    # -- leases

    async def holder(self, lease_us: int) -> Holder:
        """Return the instance that owns scopes and locks of this lease, enrolled and beating; made at first need."""
        while True:
            with self._lock:
                once = self._holders.get(lease_us)
                known = once.value() if once is not None else None
                mine = once is None or once.failed or (known is not None and known.lost)
                if once is None or mine:
                    once = self._holders[lease_us] = Once()
                if known is not None and mine:
                    self._forgotten.append(known)
            if mine:
                once.begin(lambda: self._enroll(lease_us))
            try:
                return await once.wait()
            except Interrupted:
                continue

    async def _enroll(self, lease_us: int) -> Holder:
        await self.open()
        instance = Instance(
            id=self.new_id(), lease_us=lease_us, name="scopes", pid=os.getpid(), host=socket.gethostname()
        )
        enrolled_ns = self.clock.instant_ns()
        for partition in self.store.partitions:
            await partition.enroll(instance)
        holder = Holder(self.store, self.clock, instance, enrolled_ns)
        holder.heart.start()
        with self._lock:
            over = [one for one in self._forgotten if one.idle]
            self._forgotten = [one for one in self._forgotten if one not in over]
        for one in over:
            one.heart.stop(timeout=0)
            await self._dismiss(one)
        return holder

    async def keep_house(self, partition: int) -> None:
        """Tend a partition, once a second at most. Whoever uses scopes and locks does so: where no worker runs, nobody
        else would soon end what a killed process held.
        """
        now = self.clock.instant_ns()
        if now >= self._house_ns[partition]:
            self._house_ns[partition] = now + _HOUSE_EVERY_NS
            with suppress(StoreUnavailable):
                await self._tend(partition)

    async def _keep_house(self) -> None:
        """Tend all partitions now and then, while no worker of this process does."""
        while True:
            await self.clock.sleep(HOUSE_EVERY_S * (1 + HOUSE_SPREAD * self.entropy.random()))
            if not self.workers:
                await self._tend_all()

    def _met_an_intent(self) -> None:
        """A reader passes its cache because somebody writes: it may be that nobody does any more, and nobody else looks.

        All partitions are looked after: what holds an intent here may have its home elsewhere.
        """
        now = self.clock.instant_ns()
        if now >= self._met_ns and not self.workers:
            self._met_ns = now + MET_EVERY_NS
            self._asked = own(self._tend_all())

    async def _tend_all(self) -> None:
        for partition in range(self.partitions):
            try:
                rounds = 1
                while await self._tend(partition) and rounds < HOUSE_ROUNDS:
                    rounds += 1
            except StoreUnavailable:  # whoever wants something of it will say so
                pass
            except Exception as error:  # noqa: BLE001 - it must not end
                _log.warning("housekeeping in %s failed: %s: %s", self.store.url, type(error).__name__, error)

    async def _tend(self, partition: int) -> bool:
        """Do one round, and what follows from it in other partitions. Returns whether more waits."""
        here = self.store.partitions[partition]
        tended = await here.tend(_HOUSE_MOST)
        if tended.orphans:
            await ask_after(self.store.partitions, here, tended.orphans)
        if tended.outbox:
            await relay(self.store)
        return tended.again

    async def _dismiss(self, holder: Holder) -> None:
        """Give a lease up; where the store does not answer it ends by itself."""
        for partition in self.store.partitions:
            with suppress(StoreUnavailable):
                await partition.dismiss(holder.instance.id)

    # -- small things

    def new_id(self, home: int = -1) -> str:
        """Return a new id; with `home`, one whose own hash is that partition, so that the id alone finds the job."""
        while True:
            # Consecutive from a random beginning: as unlikely to meet another process's as all random ones, and
            # neighbours in the store's index.
            made = format(next(self._ids) & _ID_MASK, "020x")
            if home < 0 or self.partitions == 1 or partition_of(made, self.partitions) == home:
                return made


def looks_generated(id: str) -> bool:
    """Say whether an id is of the form of a generated one."""
    return len(id) == _ID_BITS // 4 and not set(id) - _ID_DIGITS


class Processes:
    """The process state of an app: one a process, made at first need and after a fork."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._make = make
        self._lock = Lock()
        self._current: Process | None = None
        _every.add(self)

    def here(self) -> Process:
        """Return this process's state."""
        current = self._current
        if current is not None:
            return current
        with self._lock:
            if self._current is None:
                self._current = self._make()
            return self._current

    async def close_here(self) -> None:
        """Close what the running loop has opened, if anything is."""
        current = self._current
        if current is not None:
            await current.close()

    def forget(self) -> None:
        """Start anew: what the parent had open stays the parent's."""
        self._lock = Lock()
        self._current = None

    @contextmanager
    def standing_in(self, process: Process) -> Generator[Process]:
        """Let another state be this process's for a while: tests run a program on a store and clock of theirs."""
        before, self._current = self._current, process
        try:
            yield process
        finally:
            self._current = before


_every: Final[WeakSet[Processes]] = WeakSet()


def _forget_all() -> None:
    for processes in list(_every):
        processes.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
