"""`app.lock()`: a place in the same line that jobs stand in, for code outside of jobs."""

from __future__ import annotations

import asyncio
import logging
import os
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Self

from selaras._app.process.elsewhere import settle
from selaras._app.process.holding import Holder
from selaras._app.process.once import finish, own
from selaras._app.process.portal import wait_for
from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import LeaseLost, NotReplicated, SelarasError, StoreUnavailable
from selaras._core.jobs.job import JobKind, NewJob, Refusal, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.routing import partition_of

_log = logging.getLogger("selaras")

_ASK_LEAST_S: Final = 0.001
_ASK_MOST_S: Final = 0.05
"""A lock that was granted must be fetched within seconds, and costs its line this much at most."""
_GROWTH: Final = 1.5
_CROSSED_NS: Final = 10_000_000_000
"""Waiting so long for a line with another in hand: whoever has it may wait for that one."""


class Hold:
    """A line that is held here. `open` until it is let go: a task that outlives the holder holds nothing."""

    __slots__ = ("fence", "open")

    def __init__(self, fence: int) -> None:
        self.fence = fence
        self.open = True


HELD: ContextVar[dict[str, Hold] | None] = ContextVar("selaras_held_lines", default=None)
"""The lines that the current job, or the locks around here, hold."""


def _begin_outside() -> None:
    """A forked child holds nothing."""
    HELD.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_outside)


def held_here(line: str) -> Hold | None:
    """Return the hold on a line, if the code here is inside of one."""
    held = (HELD.get() or {}).get(line)
    return held if held is not None and held.open else None


class Lock:
    """A line, held: `async with app.lock("mail:7") as lock`. Re-entrant for a job that stands in that line.

    Attributes:
        name: the line.
        fence: grows with every holder; for the datastore's own `where fence <= :fence`. 0 until it is held.
    """

    def __init__(
        self, program: Program, name: str, *, lease: Duration | None = None, timeout: Duration | None = None
    ) -> None:
        self.name = name
        self.fence = 0
        self._program = program
        self._lease_us = program.settings.lease if lease is None else duration_us(lease, name="lease")
        self._timeout_us = None if timeout is None else duration_us(timeout, name="timeout")
        self._job: NewJob | None = None
        self._holder: Holder | None = None
        self._hold: Hold | None = None
        self._before: dict[str, Hold] | None = None

    def __repr__(self) -> str:
        return f"<lock {self.name}>"

    @property
    def sync(self) -> BlockingLock:
        """The twin of which every call blocks."""
        return BlockingLock(self)

    async def __aenter__(self) -> Self:
        if self._hold is not None:
            raise SelarasError(f"{self!r} is held already: make another one with app.lock()")
        outer = held_here(self.name)
        if outer is not None:
            self.fence = outer.fence
            return self
        process = self._program.process()
        await process.open()
        timeout = None if self._timeout_us is None else self._timeout_us / 1_000_000
        home = partition_of(self.name, process.partitions)
        job = NewJob(id=process.new_id(home), task="lock", kind=JobKind.LOCK, line=self.name)
        try:
            async with asyncio.timeout(timeout):
                self._holder, self.fence = await self._stand_in_line(process, job, home)
        except TimeoutError:
            raise TimeoutError(f"the line {self.name!r} was not free within {timeout:g} s") from None
        self._job = job
        self._hold = Hold(self.fence)
        self._before = HELD.get()
        HELD.set({**(self._before or {}), self.name: self._hold})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._hold is None:
            return  # an outer hold goes on
        assert self._job is not None
        assert self._holder is not None
        self._hold.open = False
        self._hold = None
        HELD.set(self._before)
        process = self._program.process()
        end = Settlement(self._job.id, self.fence, JobEvent.SUCCEED)
        # Whoever is cancelled on the way out lets it go all the same.
        try:
            settled = await finish(settle(process, self._holder, partition_of(self.name, process.partitions), end))
        except NotReplicated as doubt:
            _log.warning("the lock %r was let go, and after a failover its lease would end it: %s", self.name, doubt)
            return
        if settled is None or settled.refusal is None or error is not None:
            return
        raise LeaseLost(f"the lock {self.name!r} was lost before it was let go: another may have held it meanwhile")

    async def _stand_in_line(self, process: Process, job: NewJob, home: int) -> tuple[Holder, int]:
        pause_s = _ASK_LEAST_S
        partition = process.store.partitions[home]
        holder = await process.holder(self._lease_us)
        began_ns = process.clock.instant_ns()
        held = list(HELD.get() or ())
        try:
            while True:
                if held and process.clock.instant_ns() - began_ns > _CROSSED_NS:
                    _log.warning(
                        "the lock %r has been waited for %d s while %s held here: if whoever has it waits for that, neither "
                        "goes on; take lines in one order everywhere, or give app.lock() a timeout=",
                        self.name,
                        _CROSSED_NS // 1_000_000_000,
                        f"the line {held[0]!r} is" if len(held) == 1 else f"the lines {', '.join(map(repr, held))} are",
                    )
                    held = []
                holder.asks(home, job.id)
                sent_ns = process.clock.instant_ns()
                grant = await partition.acquire(holder.instance.id, job, process.since(home))
                process.heard(home, grant.news, sent_ns)
                if grant.fence:
                    holder.granted(home, job.id, grant.fence)
                    process.cache.told()
                    return holder, grant.fence
                if grant.refusal is Refusal.LEASE_LOST:
                    holder.ended(home, job.id)
                    holder.lost = True
                    holder = await process.holder(self._lease_us)
                await process.housekeeping.used(home)
                await process.clock.sleep(pause_s)
                pause_s = min(pause_s * _GROWTH, _ASK_MOST_S)
        except BaseException:
            await asyncio.shield(own(self._leave(process, holder, job, home)))
            raise

    async def _leave(self, process: Process, holder: Holder, job: NewJob, home: int) -> None:
        """Give the place up; if the lock was granted at the last moment, let it go."""
        partition = process.store.partitions[home]
        try:
            state, _ = await partition.cancel(job.id, "nobody waits for the lock any more")
            if state is JobState.RUNNING:
                grant = await partition.acquire(holder.instance.id, job, process.since(home))
                await settle(process, holder, home, Settlement(job.id, grant.fence, JobEvent.SUCCEED))
        except StoreUnavailable as error:
            _log.warning("the place in the line %r could not be given up, its lease will end it: %s", self.name, error)
        finally:
            # Also if it was: a request that was cut off may reach the store yet, and is then not answered for.
            holder.abandon(home, job.id)


class BlockingLock:
    """A line, held: `with app.lock("mail:7") as lock`. See `selaras.Lock`."""

    def __init__(self, aio: Lock) -> None:
        self.aio = aio

    @property
    def name(self) -> str:
        """The line."""
        return self.aio.name

    @property
    def fence(self) -> int:
        """Grows with every holder; 0 until it is held."""
        return self.aio.fence

    def __repr__(self) -> str:
        return repr(self.aio)

    def __enter__(self) -> Self:
        wait_for(self.aio.__aenter__, keep=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(lambda: self.aio.__aexit__(kind, error, traceback), keep=True)
