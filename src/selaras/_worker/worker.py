"""A worker: takes jobs from the partitions of a store and runs them, until it is told to stop.

    enrolling ─> working ─> closing ─> ended
                  │   ▲        first signal, stop(), burst with nothing left: claims no more, gives back what
     lease lost ──┘   │        never started, lets bodies finish within the grace, then tells them to stop
     new instance ────┘     second signal, halt(): at once

It does not end for a reason that passes: a store that is away is asked again until it is back.
"""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio import AbstractEventLoop, Event
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import get_ident
from typing import Final, NoReturn

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.host import Host, Mode, Stop
from selaras._contracts.observer import Observer
from selaras._contracts.partition import Instance
from selaras._contracts.store import Bell, Store
from selaras._core.errors import StoreUnavailable
from selaras._core.events import (
    AttemptAbandoned,
    Recycling,
    Reenrolled,
    StoreBack,
    StoreLost,
    Trouble,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from selaras._core.jobs.job import DEFAULT_QUEUE
from selaras._worker.attempts import Held, Roster
from selaras._worker.company import Company
from selaras._worker.exits import Exit
from selaras._worker.keeper import Keeper
from selaras._worker.loops import calm_collector
from selaras._worker.processes import Processes
from selaras._worker.scout import Scout
from selaras._worker.shutdown import LAST_ACT_MOST, end_process, give_back_everything
from selaras._worker.signals import heard_by
from selaras._worker.telling import Silence, tell
from selaras._worker.tenure import Tenure
from selaras._worker.threads import Threads
from selaras._worker.turning import AGAIN, Crew
from selaras._worker.waiting import Alarm, within
from selaras._worker.wary import Wary
from selaras._worker.watch import Watch

TICK: Final = 0.05
"""Deadlines are looked at so often while something runs."""

PROGRESS_TICKS: Final = 10

BELL_MOST: Final = 1.0
FLUSH_MOST: Final = 5.0
"""At the end the store gets so long to answer to the last settlements."""

HALT_MOST: Final = 0.5


class Worker:
    """Runs the host's tasks from `queues`.

    Args:
        store: open.
        name: for people; never vouches for anything.
        concurrency, threads, processes: bodies at once, by where they run.
        lease_us: how long the store waits for a sign of life; `heartbeat_us`: how often one is sent.
        grace_us: how long bodies may go on after a stop was asked for.
        patience_us: how long a body may go on after it was told to stop, before it is given up as lost.
        warm_ahead: so many jobs that wait are looked at while there is no room for them, and what they will read is
            brought; 0: none.
        burst: stop when there is nothing left to do.
        owns_process: this process is here for the worker alone: it hears signals, and may be ended by it, when a
            body that cannot be stopped must be given back, or blocks the loop for good.
    """

    def __init__(
        self,
        store: Store,
        host: Host,
        clock: Clock,
        entropy: Entropy,
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        name: str = "",
        concurrency: int = 100,
        threads: int = 16,
        processes: int = 2,
        lease_us: int = 15_000_000,
        heartbeat_us: int = 5_000_000,
        grace_us: int = 25_000_000,
        patience_us: int = 5_000_000,
        warm_ahead: int = 0,
        burst: bool = False,
        observer: Observer | None = None,
        owns_process: bool = False,
    ) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        self._now = clock.instant_ns
        self._entropy = entropy
        self._queues = tuple(queues)
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._room = {Mode.LOOP: concurrency, Mode.THREAD: threads, Mode.PROCESS: processes}
        self._lease_us = lease_us
        self._heartbeat_us = heartbeat_us
        self._grace_us = grace_us
        self._patience_us = patience_us
        self._burst = burst
        self._observer = observer or Silence()
        self._wary = Wary(host, self._observer)
        self._owns_process = owns_process
        self._loop: AbstractEventLoop | None = None
        self._told = Event()
        self._renewing = Event()
        self._installed = Event()  # set when a tenure begins
        self._told_hard = Event()
        self._reason = ""
        self._code = Exit.STOPPED
        self._signals = 0
        self._end_by_ns = 0  # when the process must be gone, even if its loop is blocked; 0: not asked to stop
        self._told_back = 0  # attempts that were told to end when grace was over
        self._lost: tuple[str, int] | None = None  # the instance before, and how many bodies it had
        self._tenures: list[Tenure] = []  # the last one is current; the others are leaving
        self._crew: Crew | None = None
        self._warm_ahead = warm_ahead
        self._scout = Scout(store.partitions, host, clock, self._observer, queues=self._queues, most=warm_ahead)
        self._keeper = Keeper(store.partitions, host, clock, entropy, self._observer, lease_us=lease_us)

    # -- from outside

    def stop(self, reason: str = "asked to", code: Exit = Exit.STOPPED) -> None:
        """Stop in order; from any thread. The first reason stands."""
        if self._end_by_ns:
            return
        self._reason, self._code = reason, code
        self._end_by_ns = self._now() + (self._grace_us + 2 * self._patience_us) * 1_000 + int(FLUSH_MOST * 1e9)
        self._on_loop(self._claim_nothing_more)

    def halt(self, reason: str = "asked to, hard") -> None:
        """Stop at once: nothing is waited for; from any thread."""
        self._reason = self._reason or reason
        self._end_by_ns = self._end_by_ns or self._now()
        self._on_loop(self._told_hard.set)
        self._on_loop(self._told.set)

    def _failed(self, where: str) -> None:
        self.stop(f"{where} failed", Exit.FAILED)

    def _claim_nothing_more(self) -> None:
        for tenure in self._tenures:
            for turner in tenure.turners:
                turner.close()
        self._told.set()

    def _on_loop(self, call: Callable[[], object]) -> None:
        """Do it on the worker's loop: at once, if this is that loop, so that nothing is claimed after it."""
        loop = self._loop
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if loop is None or loop is here:
            call()
            return
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # it is closed: the worker has ended
            pass

    def _signalled(self, name: str) -> None:
        self._signals += 1
        if self._signals == 1:
            self.stop(name)
        elif self._owns_process:
            self._leave(Exit.HALTED, seconds=HALT_MOST)
        else:
            self.halt(name)

    # -- the whole run

    async def run(self) -> Exit:
        """Work until told to stop. Returns how it ended; of a process it owns it may end that itself instead."""
        self._loop = asyncio.get_running_loop()
        if self._owns_process:
            calm_collector()
        with heard_by(self._signalled) if self._owns_process else nullcontext():
            serving = self._loop.create_task(self._serve())
            try:
                return await asyncio.shield(serving)
            except asyncio.CancelledError:
                self.halt("cancelled")
                await asyncio.wait((serving,))
                raise

    async def _serve(self) -> Exit:
        company = Company(self._observer, self._failed)
        bell = self._store.bell()
        threads = Threads(self._room[Mode.THREAD], asyncio.get_running_loop())
        processes = Processes(self._host.servant, self._clock, self._observer)
        crew = self._crew = self._make_crew(company, Placing(threads, processes))
        watch = self._make_watch(crew)
        try:
            if await self._enrol(bell):
                watch.start(get_ident())
                self._begin_services(bell, crew)
                await self._told.wait()
            return await self._wind_down(crew)
        finally:
            watch.stop()
            for tenure in self._tenures:
                tenure.heart.stop(timeout=0)
            await company.end()
            await processes.close()
            threads.close()
            bell.close()

    def _make_crew(self, company: Company, executors: Placing) -> Crew:
        roster = Roster(
            self._clock,
            executors,
            self._observer,
            self._wary,
            slots=self._room,
            modes=self._host.tasks,
            patience_ns=self._patience_us * 1_000,
        )
        return Crew(
            clock=self._clock,
            entropy=self._entropy,
            host=self._host,
            wary=self._wary,
            roster=roster,
            observer=self._observer,
            company=company,
            answered=Event(),
            alarm=Alarm(self._clock),
            queues=self._queues,
            partitions=len(self._store.partitions),
            lease_ns=self._lease_us * 1_000,
        )

    def _make_watch(self, crew: Crew) -> Watch:
        return Watch(
            asyncio.get_running_loop(),
            self._clock,
            crew.roster,
            self._observer,
            patience_ns=self._patience_us * 1_000,
            on_blocked=self._blocked,
            on_look=self._look_at_the_end,
        )

    # -- enrolment

    async def _enrol(self, bell: Bell) -> bool:
        """Become an instance that no store has seen. Returns False if told to stop before that."""
        crew = self._crew
        assert crew is not None
        tries, away_ns = 0, 0
        while not self._told.is_set():
            instance = self._new_instance(bell)
            sent_ns = self._now()
            try:
                # Side by side: while one is held up the lease in another must not run out before it is renewed.
                await asyncio.gather(*(partition.enroll(instance) for partition in self._store.partitions))
            except StoreUnavailable as error:
                if not away_ns:
                    away_ns = sent_ns
                    tell(self._observer, StoreLost(partition=-1, error=str(error)))
                tries += 1
                await within(self._clock, AGAIN.delay_us(tries, self._entropy) / 1_000_000, self._told)
                continue
            if away_ns:
                tell(self._observer, StoreBack(partition=-1, away_us=(self._now() - away_ns) // 1_000))
            self._take_office(crew, instance, sent_ns)
            return True
        return False

    def _new_instance(self, bell: Bell) -> Instance:
        return Instance(
            # A name never vouches for what an earlier process of that name held (BR-010).
            id=f"{os.getpid()}-{self._entropy.getrandbits(64):016x}",
            lease_us=self._lease_us,
            name=self._name,
            pid=os.getpid(),
            host=socket.gethostname(),
            queues=self._queues,
            tasks=tuple(sorted(self._host.tasks)),
            bell=bell.address,
        )

    def _take_office(self, crew: Crew, instance: Instance, enrolled_ns: int) -> None:
        tenure = Tenure(
            self._store,
            crew,
            asyncio.get_running_loop(),
            instance,
            enrolled_ns=enrolled_ns,
            beat_every_us=self._heartbeat_us,
            on_lost=self._on_lost,
            on_outbox=self._keeper.relay_soon,
            on_full=self._scout.ring,
        )
        self._tenures.append(tenure)
        self._installed.set()
        self._host.enrolled(instance)
        tell(self._observer, self._arrival(instance))
        tenure.begin()

    def _arrival(self, instance: Instance) -> WorkerStarted | Reenrolled:
        if self._lost:
            was, running = self._lost
            return Reenrolled(was=was, instance=instance.id, running=running)
        return WorkerStarted(
            instance=instance.id, name=self._name, queues=self._queues, tasks=instance.tasks, pid=instance.pid
        )

    def _on_lost(self, tenure: Tenure) -> None:
        """The store let the instance go: stop what runs, and go on as another."""
        crew = self._crew
        assert crew is not None
        tenure.close()
        running = sum(1 for held in crew.roster if held.home in tenure.turners)
        for turner in tenure.turners:
            crew.roster.stop_all(Stop.LOST, turner)
        self._lost = tenure.instance.id, running
        crew.company.spawn(self._see_off(tenure))
        if not self._told.is_set():
            self._renewing.set()

    async def _renew(self, bell: Bell) -> None:
        while True:
            await self._renewing.wait()
            self._renewing.clear()
            await self._enrol(bell)

    async def _see_off(self, tenure: Tenure) -> None:
        """Wait for the last body of a lost instance, then let the partitions that still know it forget it.

        Until then its heart goes on: it keeps the leases of bodies that other partitions have not lost (P19), and
        tells which ones were given up.
        """
        crew = self._crew
        assert crew is not None
        while not tenure.over:
            crew.answered.clear()
            await crew.answered.wait()
        tenure.heart.stop(timeout=0)
        await tenure.dismiss()
        # Somebody is always in office, also while the store does not answer and no successor can be enrolled.
        while self._tenures[-1] is tenure:
            self._installed.clear()
            await self._installed.wait()
        self._tenures.remove(tenure)

    # -- services

    def _begin_services(self, bell: Bell, crew: Crew) -> None:
        spawn = crew.company.spawn
        spawn(self._listen(bell))
        spawn(self._keep_time(crew))
        spawn(self._tick(crew))
        spawn(self._renew(bell))
        for partition in self._store.partitions:
            spawn(self._keeper.tend(partition, crew.roster.occupied.is_set))
        if crew.partitions > 1:
            spawn(self._keeper.relay())
        if self._warm_ahead:
            spawn(self._scout.run(lambda: crew.roster.room() <= 0))
        if self._burst:
            spawn(self._stop_when_done(crew))

    async def _listen(self, bell: Bell) -> None:
        """Pass the bell on."""
        while True:
            try:
                rung = await bell.wait(BELL_MOST)
            except Exception as error:  # noqa: BLE001 - a bell is a hint: without it the clock wakes us
                tell(self._observer, Trouble(where="the bell", error=f"{type(error).__name__}: {error}"))
                rung = frozenset(range(len(self._store.partitions)))
                await self._clock.sleep(BELL_MOST)
            tenure = self._tenures[-1]
            for partition in rung:
                tenure.turners[partition].ring()
            tenure.look_at_leases(self._now())

    async def _keep_time(self, crew: Crew) -> None:
        """Wake turners whose time has come: a scheduled job, or the look of an idle worker."""
        while True:
            await crew.alarm.wait(min(turner.next_due_ns() for turner in self._tenures[-1].turners))
            now = self._now()
            for turner in self._tenures[-1].turners:
                turner.look(now)

    async def _tick(self, crew: Crew) -> None:
        """Look at deadlines, leases and progress while something runs."""
        ticks = 0
        while True:
            await crew.roster.occupied.wait()
            await self._clock.sleep(TICK)
            ticks += 1
            crew.roster.look()
            for tenure in self._tenures:
                for turner in tenure.turners:
                    turner.tick()
            current = self._tenures[-1]
            current.look_at_leases(self._now())
            if ticks % PROGRESS_TICKS == 0:
                for turner in current.turners:
                    turner.report(self._wary.progress(turner.index))
            if self._owns_process and crew.roster.stuck(Mode.THREAD):
                self.stop("every thread is held by a body that was given up", Exit.RECYCLED)

    async def _stop_when_done(self, crew: Crew) -> None:
        looked_after = 0  # the turners have looked after so many deliveries
        while True:
            tenure = self._tenures[-1]
            if tenure.idle and not tenure.lost and self._keeper.quiet:
                may_be_more = crew.partitions > 1 and await self._may_have_relayed()
                if not may_be_more and looked_after == self._keeper.relayed:
                    self.stop("nothing is left to do")
                    return
                looked_after = self._keeper.relayed
                for turner in tenure.turners:
                    turner.ring()
            crew.answered.clear()
            await crew.answered.wait()

    async def _may_have_relayed(self) -> bool:
        try:
            return await self._host.relay()
        except Exception as error:  # noqa: BLE001 - what waits in an outbox may be work: it is asked for again
            if not isinstance(error, StoreUnavailable):  # of that the turns tell
                self._wary.report("relaying between partitions", error)
            await self._clock.sleep(TICK)
            return True

    # -- the end

    async def _wind_down(self, crew: Crew) -> Exit:
        """Let bodies finish, stop those that do not, settle everything, and be forgotten by the store."""
        roster = crew.roster
        hard = self._told_hard.is_set()
        tell(self._observer, WorkerStopping(reason=self._reason, running=len(roster.running), hard=hard))
        for tenure in self._tenures:
            tenure.close()
        grace, patience = self._grace_us / 1_000_000, self._patience_us / 1_000_000
        if not await within(self._clock, grace, roster.emptied, self._told_hard):
            self._told_back = roster.stop_all(Stop.SHUTDOWN)
            await within(self._clock, patience, roster.emptied, self._told_hard)
        if self._told_hard.is_set():
            return self._end_hard(roster)
        settled = await self._flush(crew)
        if roster.running and self._owns_process:
            self._leave(self._code)
        # What threads of an embedded worker still run must not be given back before they have ended.
        heard = settled and not roster.running and all([await tenure.dismiss() for tenure in self._tenures])
        code = self._code if heard else Exit.LEFT
        tell(self._observer, WorkerStopped(code=code, given_back=self._told_back, unheard=not heard))
        return code

    async def _flush(self, crew: Crew) -> bool:
        """Wait until every end is settled. Returns whether it was."""
        end_ns = self._now() + int(FLUSH_MOST * 1e9)
        while not all(tenure.quiet for tenure in self._tenures):
            crew.answered.clear()
            left = (end_ns - self._now()) / 1e9
            if not await within(self._clock, left, crew.answered, self._told_hard) or self._told_hard.is_set():
                return False
        return True

    def _end_hard(self, roster: Roster) -> Exit:
        if self._owns_process:
            self._leave(Exit.HALTED, seconds=HALT_MOST)
        roster.stop_all(Stop.SHUTDOWN)
        tell(self._observer, WorkerStopped(code=Exit.HALTED))
        return Exit.HALTED

    def _leave(self, code: Exit, culprit: Held | None = None, *, seconds: float = LAST_ACT_MOST) -> NoReturn:
        """Give back what runs, as the very last act of this process. From the loop's or the watch's thread."""
        heard, left = True, tuple(self._crew.roster) if self._crew else ()
        # Those that were told and have not ended are in both.
        given_back = self._told_back + sum(1 for held in left if held.stop is not Stop.SHUTDOWN)
        if self._tenures:
            tenure = self._tenures[-1]
            leaving = [turner.last_words(culprit) for turner in tenure.turners]
            heard = give_back_everything(self._store, tenure.instance.id, leaving, seconds=seconds)
        code = code if heard or code is not Exit.STOPPED else Exit.LEFT
        if self._crew and heard:
            for held in left:
                if held.started_ns and not held.abandoned and held is not culprit:
                    self._crew.roster.tell_left(held)
        tell(self._observer, WorkerStopped(code=code, given_back=given_back, unheard=not heard))
        end_process(code)

    # -- the watch's thread

    def _blocked(self, held: Held) -> None:
        """A body blocks the loop past its timeout and every patience."""
        claim = held.run.claim
        held.abandoned = True
        over_us = (self._now() - held.deadline_ns) // 1_000
        event = AttemptAbandoned(job=claim.job, task=claim.task, mode=held.mode.value, over_us=over_us)
        tell(self._observer, event)
        if self._owns_process:
            tell(self._observer, Recycling(job=claim.job, task=claim.task))
            self._leave(Exit.RECYCLED, held)
        held.home.abandon(held)

    def _look_at_the_end(self) -> None:
        """A loop that is blocked cannot end the process in time; this thread can."""
        if self._owns_process and 0 < self._end_by_ns <= self._now():
            self._leave(self._code)


class Placing:
    """Where plain functions run: see `Executors`."""

    def __init__(self, threads: Threads, processes: Processes) -> None:
        self.in_thread = threads.call
        self.in_process = processes.call
