"""A scope outside jobs in the store: its lease, its intents, and the jobs that wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from selaras._app.process.elsewhere import settle
from selaras._app.process.holding import Holder
from selaras._app.process.once import own as own_task
from selaras._app.process.process import Process
from selaras._cache.family import Slot
from selaras._cache.session import Session
from selaras._contracts.partition import Grant, Owner
from selaras._core.cache.lineage import What
from selaras._core.cache.opening import Opening, open_names, shown_keys
from selaras._core.errors import LeaseLost, NotReplicated, StoreUnavailable
from selaras._core.jobs.job import JobKind, NewJob, Settled, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.routing import partition_of


class Scope:
    """One scope, from the grant of its lease to its settle.

    Attributes:
        owner: of its intents.
        position: how far its partition's log reached when it was granted.
        since_ns: the instant after that reply: whatever began before may have missed what the scope must see (P1).
        own, serves: the keys it writes, with an intent and without; among the former those of what it opens.
    """

    def __init__(self, process: Process, slots: Iterable[Slot], opens: Iterable[Opening] = ()) -> None:
        several = {slot.key: slot for slot in slots}
        self.own: dict[str, Slot | None] = {
            key: slot for key, slot in several.items() if slot.family.during_write == "load"
        }
        self.own |= {name: None for what in opens for name in open_names(*what, process.partitions)}
        self.serves = {key: slot for key, slot in several.items() if slot.family.during_write == "serve"}
        self._process = process
        self._planted: list[str] = []
        home = next((slot.partition for slot in several.values()), -1)
        id = process.new_id(home)
        self.home = partition_of(id, process.partitions) if home < 0 else home
        self._job = NewJob(
            id=id, task="writing", kind=JobKind.WRITING, writes=tuple(self.own), serves=tuple(self.serves)
        )
        self._holder: Holder
        self.owner: Owner
        self.position = 0
        self.since_ns = 0

    @property
    def instance(self) -> str:
        """The process instance whose lease it is under."""
        return self._holder.instance.id

    def names(self) -> str:
        """Return its keys, for a message."""
        return ", ".join(shown_keys((*self.own, *self.serves))) or "no key"

    # -- its beginning

    async def begin(self) -> None:
        """Plant its intents.

        Raises:
            StoreUnavailable: nothing stands, or falls with the next heartbeat: write nothing. LeaseLost: the same.
        """
        process, job = self._process, self._job
        self._holder, grant = await self._open()
        self.since_ns = process.clock.instant_ns()
        self.position = grant.news.tail.position
        self.owner = Owner(self.home, job.id, grant.fence)
        try:
            await self._plant(key for key in self.own if partition_of(key, process.partitions) != self.home)
        except BaseException as error:
            ending = own_task(self._give_up(self._holder, grant.fence))
            if isinstance(error, Exception):  # who was cancelled is not kept waiting
                await asyncio.shield(ending)
            raise
        process.cache.told(self.own)
        if process.cache.lineage is not None:
            for key in self.own:
                process.cache.lineage.note(What.PLANTED, key, job=job.id, task=job.task, position=self.position)

    async def _open(self) -> tuple[Holder, Grant]:
        process, job, home = self._process, self._job, self.home
        for _ in range(2):
            holder = await process.holder(process.settings.lease)
            holder.asks(home, job.id)
            sent_ns = process.clock.instant_ns()
            partition = process.store.partitions[home]
            asking = own_task(partition.open_scope(holder.instance.id, job, process.since(home)))
            try:
                grant = await asyncio.shield(asking)
            except BaseException:
                own_task(self._undo(holder, asking))  # it may be granted yet, and nobody would end it
                raise
            process.heard(home, grant.news, sent_ns)
            if grant.fence:
                holder.granted(home, job.id, grant.fence)
                return holder, grant
            holder.ended(home, job.id)
            holder.lost = True  # the store forgot this instance, as after a pause longer than its lease: enrol anew
        raise LeaseLost(f"no lease could be had for writing {self.names()}: write nothing")

    async def _undo(self, holder: Holder, asking: asyncio.Task[Grant]) -> None:
        """Nobody waits for the scope any more: end it as soon as it is there."""
        try:
            grant = await asking
            if grant.fence:
                await self._give_up(holder, grant.fence)
        except StoreUnavailable:
            pass  # whoever entered has met it, too
        finally:
            holder.abandon(self.home, self._job.id)

    async def _give_up(self, holder: Holder, fence: int) -> None:
        job = self._job
        failed = Settlement(job.id, fence, JobEvent.FAIL, writes=job.writes, serves=job.serves)
        with suppress(NotReplicated):  # whoever entered is told of what kept him out
            await settle(self._process, holder, self.home, failed)

    async def _plant(self, several: Iterable[str]) -> None:
        process, there = self._process, dict[int, list[str]]()
        for key in several:
            there.setdefault(partition_of(key, process.partitions), []).append(key)
        for index, keys in sorted(there.items()):
            sent_ns = process.clock.instant_ns()
            planted = await process.store.partitions[index].plant(self.instance, self.owner, keys, process.since(index))
            process.heard(index, planted.news, sent_ns)
            if planted.refusal is not None:
                raise LeaseLost(f"the lease of writing {self.names()} was lost before it began: write nothing")

    async def plant(self, slots: Iterable[Slot]) -> None:
        """Plant intents on more keys. Raises as `begin` does."""
        more = {slot.key: slot for slot in slots if slot.key not in self.own and slot.key not in self.serves}
        late = {key: slot for key, slot in more.items() if slot.family.during_write == "load"}
        self.serves |= {key: slot for key, slot in more.items() if key not in late}
        # Noted first: if the call is cut off, the settle voids what it does not find (P9).
        self.own |= late
        self._planted += late
        await self._plant(late)
        self._process.cache.told(late)

    # -- its end

    async def end(self, session: Session, *, success: bool, unsure: bool = False) -> Settled | None:
        """Settle it with what its session holds. Returns None if the store does not answer: then its lease ends it.

        Raises NotReplicated: it was settled.
        """
        process, owner = self._process, self.owner
        session.close()
        effects = session.effects(success=success)
        settlement = Settlement(
            owner.job,
            owner.fence,
            JobEvent.SUCCEED if success else JobEvent.FAIL,
            puts=effects.puts,
            tags=effects.tags,
            families=effects.families,
            versions=effects.versions,
            closes=effects.closes,
            planted=tuple(dict.fromkeys((*effects.planted, *self._planted))),
            writes=tuple(self.own),
            serves=tuple(self.serves),
            unsure=unsure,
        )
        sent_ns = process.clock.instant_ns()
        settled = await settle(process, self._holder, owner.home, settlement)
        if settled is not None and self._holder.is_here:
            process.cache.told()
            process.cache.settles.heard(session, settled, partition=owner.home, sent_ns=sent_ns)
            await process.housekeeping.used(owner.home)
        return settled

    def abandon(self) -> None:
        """Let the store end it as if this process had died: what it wrote may have been committed (P18)."""
        self._holder.abandon(self.home, self._job.id)
