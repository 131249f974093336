"""`key.writing()`: an intent around a datastore write that no task declared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from selaras._app.elsewhere import settle
from selaras._app.once import finish, own as own_task
from selaras._app.portal import wait_for
from selaras._app.process import Holder, Process
from selaras._app.program import Program
from selaras._cache.family import Slot
from selaras._cache.session import SESSION, Session, SessionKind, session_here
from selaras._contracts.partition import Grant, Owner
from selaras._core.errors import LeaseLost, SelarasError, StoreUnavailable
from selaras._core.jobs.job import JobKind, NewJob, Settled, Settlement
from selaras._core.jobs.states import JobEvent


class Writing:
    """A scope: from its beginning to its end nothing is stored for its keys. Not re-usable.

    Inside, puts and enqueued jobs wait for the scope's success; when the body raises they are dropped; when the
    process dies they are released, since the commit may have happened.

    Raises:
        StoreUnavailable: on entry: the intent could not be planted; write nothing.
        LeaseLost: on exit: the lease had run out meanwhile. The keys were voided once more, so nothing stale stays;
            puts were refused.
    """

    def __init__(self, program: Program, slots: Sequence[Slot]) -> None:
        self._program = program
        self._slots = tuple(slots)
        self._session: Session | None = None
        self._holder: Holder | None = None

    @property
    def fence(self) -> int:
        """Grows with every scope and claim of its partition; for the datastore's own `where fence <= :fence`."""
        return self._session.owner.fence if self._session is not None and self._session.owner is not None else 0

    @property
    def sync(self) -> BlockingWriting:
        """The twin of which every call blocks."""
        return BlockingWriting(self)

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise SelarasError("a writing() scope is entered once: make another one")
        process = self._program.process()
        await process.open()
        self._holder, self._session = await self._begin(process)
        SESSION.set(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        # Not reset by a token: fixtures and generators may leave in another context than they entered in.
        SESSION.set(self._session.parent)
        settled = await finish(self._end(error))
        if error is not None:
            return
        if settled is None:
            raise StoreUnavailable(
                f"the end of writing {self._names()} could not be stored: nothing is cached for it until its lease ends"
            )
        if settled.refusal is not None:
            raise LeaseLost(
                f"the lease of writing {self._names()} ran out before its end; what is cached was voided once more"
            )

    async def _begin(self, process: Process) -> tuple[Holder, Session]:
        home = self._slots[0].partition
        own = {slot.key: slot for slot in self._slots if slot.family.during_write == "load"}
        serves = {slot.key: slot for slot in self._slots if slot.family.during_write == "serve"}
        job = NewJob(
            id=process.new_id(home), task="writing", kind=JobKind.WRITING, writes=tuple(own), serves=tuple(serves)
        )
        holder, grant = await self._open(process, job, home)
        # The instant after the reply: whatever began before may have missed what the scope must see (P1).
        since_ns = process.clock.instant_ns()
        owner = Owner(home, job.id, grant.fence)
        try:
            await self._plant_elsewhere(process, holder, owner, own)
        except BaseException as error:
            failed = Settlement(job.id, grant.fence, JobEvent.FAIL, writes=job.writes, serves=job.serves)
            ending = own_task(settle(process, holder, home, failed))
            if isinstance(error, Exception):  # who was cancelled is not kept waiting
                await asyncio.shield(ending)
            raise
        process.cache.told(own)
        return holder, Session(
            SessionKind.WRITING,
            since_ns,
            home=home,
            position=grant.news.tail.position,
            instance=holder.instance.id,
            owner=owner,
            own=dict(own),
            serves=dict(serves),
            started=True,
            parent=session_here(),
        )

    async def _open(self, process: Process, job: NewJob, home: int) -> tuple[Holder, Grant]:
        for _ in range(2):
            holder = await process.holder(process.settings.lease)
            holder.asks(home, job.id)
            sent_ns = process.clock.instant_ns()
            partition = process.store.partitions[home]
            asking = own_task(partition.open_scope(holder.instance.id, job, process.since(home)))
            try:
                grant = await asyncio.shield(asking)
            except BaseException:
                own_task(self._undo(process, holder, job, asking))  # it may be granted yet, and nobody would end it
                raise
            process.heard(home, grant.news, sent_ns)
            if grant.fence:
                holder.granted(home, job.id, grant.fence)
                return holder, grant
            holder.ended(home, job.id)
            holder.lost = True  # the store forgot this instance, as after a pause longer than its lease: enrol anew
        raise LeaseLost(f"no lease could be had for writing {self._names()}: write nothing")

    async def _undo(self, process: Process, holder: Holder, job: NewJob, asking: asyncio.Task[Grant]) -> None:
        """Nobody waits for the scope any more: end it as soon as it is there."""
        home = self._slots[0].partition
        try:
            grant = await asking
            if grant.fence:
                failed = Settlement(job.id, grant.fence, JobEvent.FAIL, writes=job.writes, serves=job.serves)
                await settle(process, holder, home, failed)
        except StoreUnavailable:
            pass  # whoever entered has met it, too
        finally:
            holder.abandon(home, job.id)

    async def _plant_elsewhere(self, process: Process, holder: Holder, owner: Owner, own: Mapping[str, Slot]) -> None:
        for index in sorted({slot.partition for slot in own.values()} - {owner.home}):
            sent_ns = process.clock.instant_ns()
            keys = [key for key, slot in own.items() if slot.partition == index]
            planted = await process.store.partitions[index].plant(holder.instance.id, owner, keys, process.since(index))
            process.heard(index, planted.news, sent_ns)
            if planted.refusal is not None:
                raise LeaseLost(f"the lease of writing {self._names()} was lost before it began: write nothing")

    async def _end(self, error: BaseException | None) -> Settled | None:
        assert self._session is not None
        assert self._session.owner is not None
        assert self._holder is not None
        process, session, owner = self._program.process(), self._session, self._session.owner
        session.close()
        effects = session.effects(success=error is None)
        settlement = Settlement(
            owner.job,
            owner.fence,
            JobEvent.SUCCEED if error is None else JobEvent.FAIL,
            puts=effects.puts,
            tags=effects.tags,
            families=effects.families,
            versions=effects.versions,
            closes=effects.closes,
            planted=effects.planted,
            writes=tuple(session.own),
            serves=tuple(session.serves),
            # Cancelled from outside, it may have left a commit that is still on its way (P18).
            unsure=error is not None and not isinstance(error, Exception),
        )
        sent_ns = process.clock.instant_ns()
        settled = await settle(process, self._holder, owner.home, settlement)
        if settled is not None:
            process.cache.told()
            process.cache.settled(session, settled, partition=owner.home, sent_ns=sent_ns)
            await process.keep_house(owner.home)
        return settled

    def _names(self) -> str:
        return ", ".join(slot.key for slot in self._slots)


class BlockingWriting:
    """A scope: from its beginning to its end nothing is stored for its keys. See `selaras.Writing`."""

    def __init__(self, aio: Writing) -> None:
        self.aio = aio

    @property
    def fence(self) -> int:
        """As of `selaras.Writing`."""
        return self.aio.fence

    def __enter__(self) -> Self:
        wait_for(self.aio.__aenter__, keep=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(lambda: self.aio.__aexit__(kind, error, traceback), keep=True)
