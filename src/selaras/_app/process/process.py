"""What this process has open: the store, the cache over it, leases of scopes and locks. Made anew after a fork."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import Final
from weakref import WeakSet

from selaras._app.declared.registry import Registry
from selaras._app.process.audits import CacheLog, reader_here
from selaras._app.process.ends import Ends
from selaras._app.process.holding import Holder, Holders
from selaras._app.process.housekeeping import Housekeeping
from selaras._app.process.once import Interrupted, Once
from selaras._app.process.resources import Openings
from selaras._app.setup.settings import Settings
from selaras._cache.cache import Cache
from selaras._cache.lineage import Lineage
from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.partition import Partition
from selaras._contracts.shelf import Shelf
from selaras._contracts.store import Store
from selaras._core.errors import StoreMismatch, StoreRefused, StoreUnavailable
from selaras._core.positions import Cursor, News
from selaras._core.routing import partition_of

_ID_BITS: Final = 80
"""Of a generated id: far more than jobs there will ever be, and short in a log line."""
_ID_MASK: Final = (1 << _ID_BITS) - 1
_ID_DIGITS: Final = frozenset("0123456789abcdef")

_PUBLISH_S: Final = 1.0

_AGAIN_NS: Final = 1_000_000_000
"""A store that was away when this process began is tried again so often, while somebody reads."""


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
        self.housekeeping = Housekeeping(store, clock, entropy)
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
            met=self.housekeeping.met_an_intent,
        )
        store.listen(self.cache.grown)
        self.partitions = len(store.partitions)
        self.ends = Ends()
        self.opened = False
        self._adrift = False  # read from without its store, which is tried again at `_again_ns`
        self._again_ns = 0
        self._closings = 0
        self.users = 0
        self._ids = count(entropy.getrandbits(_ID_BITS))
        self._lock = Lock()
        self._opening: Once[None] | None = None
        self._holders = Holders(store, clock, reach=self.open, new_id=self.new_id)
        self.openings = Openings()

    # -- life

    async def open(self) -> None:
        """Connect the store, once; callers that come meanwhile wait for the same. Raises StoreUnavailable."""
        while not self.opened:
            try:
                await self._begin().wait()
            except Interrupted:
                continue
        self.housekeeping.begin()

    async def open_to_read(self) -> None:
        """Open it for whoever can do without the store. A server that cannot be reached by now may be later: until then it
        counts as one that does not answer.

        Raises StoreRefused, StoreMismatch; StoreUnavailable: it is no server.
        """
        if self.opened:
            return
        if self._adrift:
            now = self.clock.instant_ns()
            if now >= self._again_ns:
                self._again_ns = now + _AGAIN_NS
                self._begin()
            return
        if not self.store.returns:  # it is waited for, however slow the disk
            await self.open()
            return
        try:
            async with asyncio.timeout(self.settings.shared_timeout / 1_000_000 or None):
                await self.open()
        except (StoreRefused, StoreMismatch):
            raise
        except (StoreUnavailable, TimeoutError) as error:
            self._adrift = True
            self._again_ns = self.clock.instant_ns() + _AGAIN_NS
            self.cache.cut_off(str(error) or f"{self.store.url} is slow to answer")

    def _begin(self) -> Once[None]:
        """Return the opening that is under way, or one that is begun here."""
        with self._lock:
            opening = self._opening
            mine = opening is None or opening.failed
            if opening is None or mine:
                opening = self._opening = Once()
        if mine:
            opening.begin(self._open)
        return opening

    async def _open(self) -> None:
        closings = self._closings
        await self.store.open()
        if closings != self._closings:  # whoever closed it did not wait for this
            await self.store.close()
            raise Interrupted
        if not self._adrift:
            self.cache.open()
        self.opened, self._adrift = True, False
        self.housekeeping.begin()

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
        await self._holders.close()
        self.housekeeping.cease()
        if self.opened:
            await self.housekeeping.end_asked()
            await self._publish()
        if self.opened or self._adrift:
            self._closings += 1
            self.opened, self._adrift, self._opening = False, False, None
            await self.cache.close()
            await self.store.close()

    async def _publish(self) -> None:
        """Leave what was measured for others; a store that is away does not hold up the end."""
        try:
            async with asyncio.timeout(_PUBLISH_S):
                await self.cache.publish()
        except TimeoutError:
            pass

    # -- in whose name it acts

    async def holder(self, lease_us: int) -> Holder:
        """Return the instance that owns scopes and locks of this lease, enrolled and beating; made at first need."""
        return await self._holders.of(lease_us)

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
        await asyncio.gather(*(self._catch_up_in(one) for one in self.store.partitions if one.index != but))

    async def _catch_up_in(self, partition: Partition) -> None:
        sent_ns = self.clock.instant_ns()
        self.heard(partition.index, await partition.events_since(self.since(partition.index)), sent_ns)

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
    """The process state of an app: one a process, made at first need and after a fork. `current`: if there is one by now."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._make = make
        self._lock = Lock()
        self.current: Process | None = None
        _every.add(self)

    def here(self) -> Process:
        """Return this process's state."""
        current = self.current
        if current is not None:
            return current
        with self._lock:
            if self.current is None:
                self.current = self._make()
            return self.current

    async def close_here(self) -> None:
        """Close what the running loop has opened, if anything is."""
        current = self.current
        if current is not None:
            await current.close()

    def forget(self) -> None:
        """Start anew: what the parent had open stays the parent's."""
        self._lock = Lock()
        self.current = None

    @contextmanager
    def standing_in(self, process: Process) -> Generator[Process]:
        """Let another state be this process's for a while: tests run a program on a store and clock of theirs."""
        before, self.current = self.current, process
        try:
            yield process
        finally:
            self.current = before


_every: Final[WeakSet[Processes]] = WeakSet()


def _forget_all() -> None:
    for processes in list(_every):
        processes.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
