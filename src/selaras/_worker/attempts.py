"""The attempts a worker holds: those that run, each in a task and a context of its own, and the few that wait.

    placed ─> waiting ─> running ─> ended ─> settled
                 │          │ told to stop (timeout, cancel, lost, shutdown): it ends, and says how
                 │          └─ ignores it: cancelled again and again; at the limit of patience a coroutine is
                 │             cut off, anything else is given up as lost
                 └─ given back unstarted (shutdown, a lease that lapsed, no slot came free soon)

Timeouts are not timers: `look` goes over what runs, a few times a second.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextvars import copy_context
from typing import Any, Final, Protocol

from msgspec import Struct

from selaras._contracts.clock import Clock
from selaras._contracts.host import Executors, Mode, Run, Stop
from selaras._contracts.observer import Observer
from selaras._core.events import AttemptAbandoned, AttemptEnded, AttemptStopped
from selaras._core.jobs.job import Attempt, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._worker.telling import tell
from selaras._worker.wary import LAPSED, Wary, lost

AHEAD_NS: Final = 40_000_000
"""So much work, as far as recent bodies were short, waits here ready to start: it hides the turn's latency, and no
job waits behind others much longer than it would have waited in the store. Half of it made turns a third smaller
and cost a tenth more of the processor a job."""

AHEAD_MOST: Final = 1_000
WAITS_MOST: Final = 5
"""What was claimed ahead and did not start before so many looks, a quarter of a second, is given back: bodies turned
out longer than those before, and other workers may have slots. Looks, not time: a loop that was blocked looks late,
and its bodies may end as late."""

RAN_WEIGHT: Final = 1 / 16
"""Of the last body's time in what is taken for the time of a body."""

AGAIN_NS: Final = 200_000_000
"""A body that swallowed a cancel is cancelled again after so long."""

SHARE_LEAST: Final = 0.02
"""A mode that hardly any claims have been of is taken to be of so many: it may limit how many are claimed, but not by much."""


class Home(Protocol):
    """The partition's side of an attempt: where it was claimed and will be settled."""

    index: int
    fresh_until_ns: int

    def ended(self, held: Held | None, settlement: Settlement) -> None:
        """Take an end, to be settled with the next turn."""
        ...

    def abandon(self, held: Held) -> None:
        """Give an attempt up as lost while its body goes on (P19)."""
        ...


class Held(Struct, eq=False):
    """An attempt this process answers for, from its claim to the answer to its settlement.

    Attributes:
        started_ns: 0: its body has not begun.
        placed: the number of the look before it had to wait for a slot.
        deadline_ns: when it is told to stop; 0: never.
        stop: why it was told to stop, None while it was not; `stopped_ns`: when.
        abandoned: it ignored every stop, and was given up.
    """

    run: Run
    home: Home
    mode: Mode
    started_ns: int = 0
    placed: int = 0
    deadline_ns: int = 0
    stop: Stop | None = None
    stopped_ns: int = 0
    cancelled_ns: int = 0
    abandoned: bool = False
    task: Task[None] | None = None
    coroutine: Coroutine[Any, Any, None] | None = None

    @property
    def attempt(self) -> Attempt:
        """The names under which the store knows it."""
        return Attempt(self.run.claim.job, self.run.claim.fence)


class Slots:
    """Room for bodies of one mode. `free` may be negative for a moment, never for long."""

    __slots__ = ("free", "ran_ns", "share", "total", "waiting")

    def __init__(self, total: int, share: float) -> None:
        self.total = total
        self.free = total
        self.waiting: deque[Held] = deque()
        self.share = share  # of recent claims that were of this mode
        self.ran_ns = 0.0  # how long bodies took of late

    def ahead(self, per_second: float) -> float:
        """Return how many more than there are free slots surely start soon, where bodies of all modes end at this rate.

        The rate alone says little: bodies that began together end together, and take long all the same. Slots that are
        all in use can end no more than their number in the time of a body.
        """
        share = self.share * per_second
        most = min(share, self.total * 1e9 / self.ran_ns) if self.ran_ns else share
        return min(AHEAD_MOST, most * AHEAD_NS / 1e9)


class Roster:
    """What runs and what waits to run, over all partitions of one worker.

    Args:
        slots: how many bodies of each mode run at once.
        modes: the program's tasks; says what claims will probably be, until there have been some.
        patience_ns: how long a body may go on after it was told to stop, before it is closed and given up.
    """

    def __init__(
        self,
        clock: Clock,
        executors: Executors,
        observer: Observer,
        wary: Wary,
        *,
        slots: Mapping[Mode, int],
        modes: Mapping[str, Mode],
        patience_ns: int,
    ) -> None:
        self._now = clock.instant_ns
        self._executors = executors
        self._observer = observer
        self._wary = wary
        self._patience_ns = patience_ns
        self._context = copy_context()
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._tells = observer.wants_attempts
        counts = {mode: sum(1 for each in modes.values() if each is mode) for mode in Mode}
        total = sum(counts.values()) or 1
        self._slots = {mode: Slots(slots[mode], counts[mode] / total) for mode in Mode if counts[mode]}
        self._mixed = len(self._slots) > 1
        self._full: frozenset[Mode] = frozenset()  # modes that were not claimed of lately
        self.running: set[Held] = set()
        self.waiting = 0
        self.requested = 0  # asked for, or on its way here: room that is taken
        self.finished = 0  # bodies ended since the start: what rates are measured by
        self.per_second = 0.0
        self._measured = (self._now(), 0)
        self._looks = 0
        self.emptied = asyncio.Event()  # nothing runs
        self.emptied.set()
        self.occupied = asyncio.Event()  # something runs

    # -- room

    def room(self) -> int:
        """Return how many more claims can be placed: free slots, and a little ahead as far as bodies are short."""
        if not self._mixed:
            for slots in self._slots.values():
                return slots.free - len(slots.waiting) + int(slots.ahead(self.per_second)) - self.requested
            return 0
        rooms = self._rooms()
        total = sum(share for _, share in rooms.values())
        return int(min((room * total / share for room, share in rooms.values()), default=0)) - self.requested

    def full(self) -> frozenset[Mode]:
        """Return the modes that have no room, where others have: to claim of these would keep the others waiting.

        What is placed from here on says nothing of how many claims are theirs.
        """
        if self._mixed:
            self._full = frozenset(self._slots.keys() - self._rooms().keys())
        return self._full

    def _rooms(self) -> dict[Mode, tuple[float, float]]:
        """Return the room of each mode that has some, and its share of claims, or what little could be."""
        rooms = {
            mode: (slots.free - len(slots.waiting) + slots.ahead(self.per_second), max(slots.share, SHARE_LEAST))
            for mode, slots in self._slots.items()
        }
        return {mode: each for mode, each in rooms.items() if each[0] >= 1}

    def measure(self) -> None:
        """Take the rate at which bodies end; called at each turn."""
        since_ns, finished = self._measured
        now = self._now()
        if now - since_ns < 1_000_000:
            return
        rate = (self.finished - finished) * 1e9 / (now - since_ns)
        self.per_second = (self.per_second + rate) / 2
        self._measured = now, self.finished

    # -- in

    def place(self, batch: list[Held]) -> None:
        """Start attempts as far as there are slots; the others wait."""
        if self._mixed:
            self._note_mix(batch)
        for held in batch:
            slots = self._slots.get(held.mode) or self._slots_for(held.mode)
            if slots.free > 0:
                slots.free -= 1
                self._start(held)
            else:
                held.placed = self._looks
                slots.waiting.append(held)
                self.waiting += 1

    def _slots_for(self, mode: Mode) -> Slots:
        """A run said another mode than its task does: it gets a slot of its own kind, one at a time."""
        slots = self._slots[mode] = Slots(1, 0.0)
        self._mixed = True
        return slots

    def _note_mix(self, batch: list[Held]) -> None:
        asked = [mode for mode in self._slots if mode not in self._full]
        theirs = max(SHARE_LEAST, sum(self._slots[mode].share for mode in asked))
        for mode in asked:
            share = sum(1 for held in batch if held.mode is mode) / len(batch)
            self._slots[mode].share = 0.7 * self._slots[mode].share + 0.3 * share * theirs

    def _start(self, held: Held) -> None:
        was_empty = not self.running
        self.running.add(held)
        held.coroutine = coroutine = self._live(held)
        # A context of its own, not a copy of that of the attempt whose end made room: variables must not leak.
        held.task = self._loop.create_task(coroutine, context=self._context.copy())
        if was_empty:  # whoever waits for that comes after the body
            self.emptied.clear()
            self.occupied.set()

    # -- a body

    async def _live(self, held: Held) -> None:
        held.started_ns = now = self._now()
        run = held.run
        if held.stop is not None or now >= held.home.fresh_until_ns:  # P18: a lease that may be over starts nothing
            settlement = self._wary.unstarted(run, "" if held.stop is not None else LAPSED)
        else:
            if run.timeout_us:
                held.deadline_ns = now + run.timeout_us * 1_000
            try:
                settlement = await run.execute(self._executors)
            except BaseException as error:  # noqa: BLE001 - the host broke its promise, or the body was cut off
                settlement = self._broken(held, error)
        self._end(held, settlement)

    def _broken(self, held: Held, error: BaseException) -> Settlement:
        if held.abandoned and held.stop is not None:
            return self._wary.cut_off(held.run)
        claim = held.run.claim
        self._wary.report(f"running {claim.task} {claim.job}", error)
        return lost(claim, f"the worker could not run it: {type(error).__name__}")

    def _end(self, held: Held, settlement: Settlement) -> None:
        slots = self._slots[held.mode]
        ran_ns = self._now() - held.started_ns
        slots.ran_ns += (ran_ns - slots.ran_ns) * RAN_WEIGHT if slots.ran_ns else ran_ns
        self.finished += 1
        self.running.discard(held)
        held.task = held.coroutine = None
        if slots.waiting:
            self.waiting -= 1
            self._start(slots.waiting.popleft())
        else:
            slots.free += 1
            if not self.running:
                self.occupied.clear()
                self.emptied.set()
        if self._tells or settlement.event is not JobEvent.SUCCEED:
            self._tell_end(held, settlement)
        held.home.ended(held, settlement)

    def _tell_end(self, held: Held, settlement: Settlement) -> None:
        claim = held.run.claim
        ran_us = (self._now() - held.started_ns) // 1_000
        ended = AttemptEnded(
            job=claim.job,
            task=claim.task,
            queue=claim.queue,
            number=claim.number,
            event=settlement.event,
            reason=settlement.reason,
            ran_us=ran_us,
            error=settlement.error,
            stop=held.stop.value if held.stop else "",
        )
        tell(self._observer, ended)

    def tell_left(self, held: Held) -> None:
        """Tell that a body ends with its process, and was given back; from any thread."""
        claim = held.run.claim
        reason = "the worker stopped, and its process ended with it"
        self._tell_end(held, Settlement(claim.job, claim.fence, JobEvent.RELEASE, reason=reason))

    # -- stopping

    def give_back_waiting(self, home: Home | None = None, reason: str = "") -> None:
        """Settle what never started as released, at once; of one partition, or of all. `reason`: as `Wary.unstarted`."""
        for slots in self._slots.values():
            back = [held for held in slots.waiting if home is None or held.home is home]
            if back:
                slots.waiting = deque(held for held in slots.waiting if not (home is None or held.home is home))
            self.waiting -= len(back)
            for held in back:
                held.home.ended(held, self._wary.unstarted(held.run, reason))

    def stop(self, held: Held, why: Stop) -> None:
        """Tell a body to end; the first reason stands. A body that has not begun will not begin."""
        if held.stop is not None or (held.started_ns and held.task is None):  # told already, or ended
            return
        held.stop = held.run.stopping = why
        held.stopped_ns = held.cancelled_ns = now = self._now()
        claim = held.run.claim
        ran_us = (now - held.started_ns) // 1_000 if held.started_ns else 0
        tell(self._observer, AttemptStopped(job=claim.job, task=claim.task, stop=why.value, ran_us=ran_us))
        if held.task is None:
            self._give_back_one(held)
        elif held.started_ns:
            held.task.cancel()

    def _give_back_late(self) -> None:
        for slots in self._slots.values():
            while slots.waiting and self._looks - slots.waiting[0].placed > WAITS_MOST:
                held = slots.waiting.popleft()
                self.waiting -= 1
                self.per_second = 0.0  # so that it is not claimed again at once
                held.home.ended(held, self._wary.unstarted(held.run, "no slot came free for it in time"))

    def _give_back_one(self, held: Held) -> None:
        slots = self._slots.get(held.mode)
        if slots and held in slots.waiting:  # otherwise it is being prepared, and will not begin
            slots.waiting.remove(held)
            self.waiting -= 1
            held.home.ended(held, self._wary.unstarted(held.run))

    def stop_all(self, why: Stop, home: Home | None = None) -> int:
        """Tell every running body, of one partition or of all. Returns how many were told."""
        told = [held for held in self.running if held.stop is None and (home is None or held.home is home)]
        for held in told:
            self.stop(held, why)
        return len(told)

    def look(self) -> None:
        """Enforce deadlines, go on stopping those that did not stop, and give back what waits in vain. Called a few
        times a second.
        """
        now = self._now()
        self._looks += 1
        if self.waiting:
            self._give_back_late()
        for held in tuple(self.running):
            if held.stop is None:
                if 0 < held.deadline_ns <= now:
                    self.stop(held, Stop.TIMEOUT)
            elif not held.abandoned:
                self._insist(held, now)

    def _insist(self, held: Held, now: int) -> None:
        if held.task is None or not held.started_ns:
            return
        over_ns = now - held.stopped_ns
        if over_ns >= self._patience_ns:
            if held.stop is not Stop.SHUTDOWN or held.mode is Mode.LOOP:  # a thread is given back as the last act
                self._give_up(held, over_ns)
        elif held.mode is Mode.LOOP and now - held.cancelled_ns >= AGAIN_NS:
            held.cancelled_ns = now
            held.task.cancel()

    def _give_up(self, held: Held, over_ns: int) -> None:
        held.abandoned = True
        claim = held.run.claim
        event = AttemptAbandoned(job=claim.job, task=claim.task, mode=held.mode.value, over_us=over_ns // 1_000)
        tell(self._observer, event)
        if held.mode is Mode.LOOP:
            self._cut_off(held)
        if held in self.running:
            held.home.abandon(held)

    def _cut_off(self, held: Held) -> None:
        """End a coroutine that swallows every cancel; it settles as what it was stopped for.

        GeneratorExit passes `except CancelledError` and `except Exception`; a body that swallows even that is left
        standing where it awaits, and nothing resumes it. The task has nothing left to run, and is let go.
        """
        task, coroutine = held.task, held.coroutine
        assert task is not None
        assert coroutine is not None
        try:
            coroutine.close()
        except (RuntimeError, ValueError):  # it awaits in its own clean-up
            return
        task.add_done_callback(_drop_outcome)
        task.cancel()

    # -- questions

    def stuck(self, mode: Mode) -> bool:
        """Say whether every slot of this mode is held by a body that was given up: nothing of it can run here."""
        slots = self._slots.get(mode)
        return slots is not None and 0 < slots.total <= sum(
            1 for held in self.running if held.abandoned and held.mode is mode
        )

    def find(self, task: Task[Any] | None) -> Held | None:
        """Return the attempt whose body runs in `task`; from any thread."""
        if task is None:
            return None
        return next((held for held in tuple(self.running) if held.task is task), None)

    def __iter__(self) -> Iterator[Held]:
        yield from tuple(self.running)


def _drop_outcome(task: Task[None]) -> None:
    if not task.cancelled():
        task.exception()
