"""Who owns the scopes and locks of this process: instances under leases, one a length, made at first need."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock

from selaras._app.process.once import Interrupted, Once
from selaras._contracts.clock import Clock
from selaras._contracts.partition import HeartbeatReply, Instance
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt
from selaras._worker.heart import Beat, Heart


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

    @property
    def is_here(self) -> bool:
        """Whether this is the process whose it is: what a fork copied of it is its parent's."""
        return self.instance.pid == os.getpid()

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


class Holders:
    """The holders of a process: one for each length of a lease.

    Args:
        reach: opens the store, if it is not open.
        new_id: makes the id of an instance.
    """

    def __init__(
        self, store: Store, clock: Clock, *, reach: Callable[[], Awaitable[None]], new_id: Callable[[], str]
    ) -> None:
        self._store = store
        self._clock = clock
        self._reach = reach
        self._new_id = new_id
        self._lock = Lock()
        self._by_lease: dict[int, Once[Holder]] = {}
        self._forgotten: list[Holder] = []  # by the store; they beat on for what is still held under them elsewhere

    async def of(self, lease_us: int) -> Holder:
        """Return the instance that owns scopes and locks of this lease, enrolled and beating."""
        while True:
            with self._lock:
                once = self._by_lease.get(lease_us)
                known = once.value() if once is not None else None
                mine = once is None or once.failed or (known is not None and known.lost)
                if once is None or mine:
                    once = self._by_lease[lease_us] = Once()
                if known is not None and mine:
                    self._forgotten.append(known)
            if mine:
                once.begin(lambda: self._enroll(lease_us))
            try:
                return await once.wait()
            except Interrupted:
                continue

    async def close(self) -> None:
        """Give all leases up."""
        holders = [holder for once in self._by_lease.values() if (holder := once.value()) is not None]
        holders += self._forgotten
        self._by_lease.clear()
        self._forgotten.clear()
        for holder in holders:
            await asyncio.get_running_loop().run_in_executor(None, holder.heart.stop)
            await self._dismiss(holder)

    async def _enroll(self, lease_us: int) -> Holder:
        await self._reach()
        instance = Instance(
            id=self._new_id(), lease_us=lease_us, name="scopes", pid=os.getpid(), host=socket.gethostname()
        )
        enrolled_ns = self._clock.instant_ns()
        for partition in self._store.partitions:
            await partition.enroll(instance)
        holder = Holder(self._store, self._clock, instance, enrolled_ns)
        holder.heart.start()
        with self._lock:
            over = [one for one in self._forgotten if one.idle]
            self._forgotten = [one for one in self._forgotten if one not in over]
        for one in over:
            one.heart.stop(timeout=0)
            await self._dismiss(one)
        return holder

    async def _dismiss(self, holder: Holder) -> None:
        """Give a lease up; where the store does not answer it ends by itself."""
        for partition in self._store.partitions:
            with suppress(StoreUnavailable):
                await partition.dismiss(holder.instance.id)
