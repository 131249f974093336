"""An event loop of many simulated processes: one at a time runs, which one is drawn, and time is only counted.

A *strand* is what runs by itself in a process: its event loop, or its other threads. Whatever is scheduled belongs to the
strand of the context in which it was scheduled. Within a strand everything happens in asyncio's own order; between strands
the seed decides. So a process can be frozen or killed between any two steps, and the code in it is the product's own.

Threads are real threads that never run side by side: a baton passes between them and the loop, and where one would wait
(an `Event`, a `join`) it gives the baton back and is waited for in virtual time.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import heapq
import itertools
import threading
from asyncio import Future, Task
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

STEP_NS: Final = 1_000
"""What one step costs in virtual time: no two steps happen at one instant."""

BURST_MOST: Final = 4
_START_NS: Final = 3_600_000_000_000
_KEPT_TASKS: Final = 256


class Step:
    """One call that is due, now or later."""

    __slots__ = ("args", "at_ns", "call", "context", "gone", "strand")

    def __init__(
        self, call: Callable[..., object], args: tuple[Any, ...], context: Context, strand: Strand, at_ns: int = 0
    ) -> None:
        self.call = call
        self.args = args
        self.context = context
        self.strand = strand
        self.at_ns = at_ns
        self.gone = False

    def cancel(self) -> None:
        """As of asyncio's handles."""
        self.gone = True

    def cancelled(self) -> bool:
        """As of asyncio's handles."""
        return self.gone

    def when(self) -> float:
        """As of asyncio's timers."""
        return self.at_ns / 1e9


class Strand:
    """What runs by itself in a process. `frozen`: so many reasons for it to stand still."""

    __slots__ = ("dead", "frozen", "lane", "listed", "loop", "ready")

    def __init__(self, loop: Loop, lane: Lane | None) -> None:
        self.loop = loop
        self.lane = lane
        self.ready: deque[Step] = deque()
        self.frozen = 0
        self.dead = False
        self.listed = False

    def push(self, step: Step) -> None:
        """Let a step run here as soon as this strand comes round."""
        if self.dead:
            return
        self.ready.append(step)
        if not self.listed and not self.frozen:
            self.listed = True
            self.loop.runnable.append(self)

    def thaw(self) -> None:
        """One reason less to stand still."""
        self.frozen -= 1
        if not self.frozen and self.ready and not self.listed and not self.dead:
            self.listed = True
            self.loop.runnable.append(self)


class Lane:
    """A simulated process, as the loop knows it: the strand of its event loop, and that of its other threads."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.main = Strand(loop, self)
        self.side = Strand(loop, self)
        self.context = copy_context()
        self.context.run(_PLACE.set, self.main)
        self.side_context = copy_context()
        self.side_context.run(_PLACE.set, self.side)
        self.tasks: list[Task[Any]] = []
        self.tasks_most = _KEPT_TASKS
        loop.lanes.append(self)

    @property
    def dead(self) -> bool:
        """Whether it was killed, or has ended."""
        return self.main.dead

    def begin(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        """Run a coroutine in this process."""
        task: Task[T] = self.loop.create_task(work, context=self.context.copy())
        return task

    def kill(self) -> None:
        """Let nothing of it run any more."""
        for strand in (self.main, self.side):
            strand.dead = True
            strand.ready.clear()

    def freeze(self, *, threads: bool) -> None:
        """Let it stand still; without its threads as when a body blocks the loop, with them as by SIGSTOP."""
        self.main.frozen += 1
        if threads:
            self.side.frozen += 1

    def thaw(self, *, threads: bool) -> None:
        """Let it go on."""
        self.main.thaw()
        if threads:
            self.side.thaw()


_PLACE: ContextVar[Strand] = ContextVar("simulation_place")


class Killed(BaseException):
    """Ends a thread whose world is over."""


class Loop:
    """The loop, as far as asyncio asks of one. `now_ns` is the only time there is; `on_error` hears of what no task caught."""

    def __init__(self, chance: Random, on_error: Callable[[dict[str, Any]], None]) -> None:
        self.now_ns = _START_NS
        self.halted = False
        self.steps = 0
        self.runnable: list[Strand] = []
        self.lanes: list[Lane] = []
        self.threads: list[SimulatedThread] = []
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.outside = Strand(self, None)
        self._draw = chance.random
        self._timers: list[tuple[int, int, Step]] = []
        self._numbers = itertools.count()
        self._on_error = on_error
        self._closed = False
        self._open = Context()
        self._open.run(_PLACE.set, self.outside)

    # -- running

    def run_until(self, until_ns: int) -> None:
        """Run until an instant, or until `halted`."""
        self._step_in()
        runnable, timers, draw = self.runnable, self._timers, self._draw
        try:
            while not self.halted:
                while timers and timers[0][0] <= self.now_ns:
                    step = heapq.heappop(timers)[2]
                    if not step.gone:
                        step.strand.push(step)
                if not runnable:
                    while timers and (timers[0][2].gone or timers[0][2].strand.dead):
                        heapq.heappop(timers)
                    if not timers or timers[0][0] > until_ns:
                        self.now_ns = until_ns
                        return
                    self.now_ns = timers[0][0]
                    continue
                at = int(draw() * len(runnable))
                strand = runnable[at]
                self._burst(strand, 1 + int(draw() * BURST_MOST))
                if not strand.ready or strand.frozen:
                    last = runnable.pop()
                    if last is not strand:
                        runnable[at] = last
                    strand.listed = False
                if self.now_ns > until_ns:
                    return
        finally:
            asyncio._set_running_loop(None)

    def _step_in(self) -> None:
        loop: Any = self
        asyncio._set_running_loop(loop)
        _running.clear()
        _running.append(self)

    def _burst(self, strand: Strand, most: int) -> None:
        ready = strand.ready
        while most and ready and not strand.frozen:
            step = ready.popleft()
            most -= 1
            if step.gone:
                continue
            self.steps += 1
            self.now_ns += STEP_NS
            try:
                step.context.run(step.call, *step.args)
            except Exception as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"in {step.call!r}", "exception": error})

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """See asyncio."""
        return self.now_ns / 1e9

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See asyncio."""
        context = context or copy_context()
        strand = context.get(_PLACE, self.outside)
        step = Step(callback, args, context, strand)
        strand.push(step)
        return step

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See asyncio; whoever calls from another thread of a process means its event loop."""
        context = context or copy_context()
        strand = context.get(_PLACE, self.outside)
        if strand.lane is not None and strand is strand.lane.side:
            strand = strand.lane.main
            context.run(_PLACE.set, strand)
        step = Step(callback, args, context, strand)
        strand.push(step)
        return step

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """See asyncio."""
        return self._call_at(self.now_ns + max(0, round(delay * 1e9)), callback, args, context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See asyncio."""
        return self._call_at(round(when * 1e9), callback, args, context)

    def _call_at(
        self, at_ns: int, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> Step:
        context = context or copy_context()
        step = Step(callback, args, context, context.get(_PLACE, self.outside), at_ns)
        heapq.heappush(self._timers, (at_ns, next(self._numbers), step))
        return step

    def outside_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Step:
        """Call in the world outside of all processes: on the way, in a server, by fate."""
        at_ns = self.now_ns + max(0, round(delay * 1e9))
        step = Step(callback, args, self._open, self.outside, at_ns)
        heapq.heappush(self._timers, (at_ns, next(self._numbers), step))
        return step

    def create_future(self) -> Future[Any]:
        """See asyncio."""
        loop: Any = self
        return Future(loop=loop)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        """See asyncio."""
        loop: Any = self
        task: Task[Any] = Task(coro, loop=loop, context=context, name="")
        lane = (context.get(_PLACE, self.outside) if context else _PLACE.get(self.outside)).lane
        if lane is not None:
            # Held: what a killed process was doing must not be tidied up by the collector.
            lane.tasks.append(task)
            if len(lane.tasks) > lane.tasks_most:
                lane.tasks = [one for one in lane.tasks if not one.done()]
                lane.tasks_most = max(_KEPT_TASKS, 2 * len(lane.tasks))
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Future[T]:
        """See asyncio; a thread each."""
        del executor
        future: Future[T] = self.create_future()

        def run() -> None:
            try:
                value = func(*args)
            except Exception as error:  # noqa: BLE001 - it goes to whoever waits
                self.call_soon_threadsafe(_fail, future, error)
            else:
                self.call_soon_threadsafe(land, future, value)

        SimulatedThread(target=run).start()
        return future

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def is_running(self) -> bool:
        """See asyncio."""
        return True

    def is_closed(self) -> bool:
        """See asyncio."""
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio."""
        if not self._closed:
            self._on_error(context)

    # -- the end

    def shut(self) -> None:
        """End the world: threads, and what every task still had open, without a step more of it."""
        for strand in [self.outside, *(strand for lane in self.lanes for strand in (lane.main, lane.side))]:
            strand.dead = True
            strand.ready.clear()
        self._timers.clear()
        self.runnable.clear()
        self._closed = True
        self._step_in()
        try:
            for thread in self.threads:
                thread.kill()
            for lane in self.lanes:
                for task in lane.tasks:
                    if not task.done():
                        _close(task)
        finally:
            asyncio._set_running_loop(None)


def _close(task: Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined] # it is left where it stands, on purpose
    coroutine: Any = task.get_coro()
    for _ in range(8):  # what awaits in its clean-up is closed again
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 - a killed process has no clean-up
            continue
        return


def land(future: Future[Any], value: Any) -> None:
    """Give a future its value, if anybody still waits for one."""
    if not future.done():
        future.set_result(value)


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


_running: list[Loop] = []
_here = threading.local()


def _loop() -> Loop:
    assert _running, "only inside of a world"
    return _running[0]


class SimulatedThread:
    """Stands in for `threading.Thread` in a simulated process."""

    def __init__(
        self,
        target: Callable[..., object],
        name: str = "",
        args: tuple[Any, ...] = (),
        *,
        daemon: bool = True,
    ) -> None:
        del daemon
        self.name = name
        self.ident: int | None = None
        self._call = target
        self._args = args
        self._loop = _loop()
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self._begun = self._ended = self._killed = False
        self._ticket = 0
        self._joining: list[Event] = []
        self._lane: Lane | None = None

    def start(self) -> None:
        """See threading."""
        strand = _PLACE.get(self._loop.outside)
        self._lane = strand.lane
        self._begun = True
        self._loop.threads.append(self)
        self.wake_soon(self._ticket)

    def is_alive(self) -> bool:
        """See threading."""
        return self._begun and not self._ended

    def join(self, timeout: float | None = None) -> None:
        """See threading."""
        if self.is_alive():
            ended = Event()
            self._joining.append(ended)
            ended.wait(timeout)

    # -- the baton

    def wake_soon(self, ticket: int) -> None:
        """Let it go on, unless it has gone on since it took this ticket."""
        lane = self._lane
        strand, context = (self._loop.outside, Context()) if lane is None else (lane.side, lane.side_context.copy())
        strand.push(Step(self._switch, (ticket,), context, strand))

    def _switch(self, ticket: int) -> None:
        if ticket != self._ticket or self._ended:
            return
        self._ticket += 1
        if self.ident is None:
            self.ident = -1
            context = Context() if self._lane is None else self._lane.side_context.copy()
            _thread.start_new_thread(context.run, (self._run,))
        else:
            self._go.release()
        self._loop.baton.acquire()

    def _run(self) -> None:
        self.ident = _thread.get_ident()
        _here.thread = self
        try:
            if not self._killed:
                self._call(*self._args)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - as a thread's hook would hear it
            self._loop.call_exception_handler({"message": f"in thread {self.name}", "exception": error})
        finally:
            self._ended = True
            for event in self._joining:
                event.set()
            self._loop.baton.release()

    def pause(self, timeout: float | None) -> None:
        """Give the baton back until woken, or until the time is over."""
        ticket = self._ticket
        timer = None
        if timeout is not None:
            lane = self._lane
            context = Context() if lane is None else lane.side_context.copy()
            timer = self._loop.call_later(timeout, self._switch, ticket, context=context)
        self._loop.baton.release()
        self._go.acquire()
        if timer is not None:
            timer.cancel()
        if self._killed:
            raise Killed

    @property
    def ticket(self) -> int:
        """What whoever wakes it must show."""
        return self._ticket

    def kill(self) -> None:
        """End it where it waits."""
        self._killed = True
        while self.is_alive() and self.ident is not None:
            self._go.release()
            self._loop.baton.acquire()


class Event:
    """Stands in for `threading.Event`: a simulated thread waits in virtual time."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def is_set(self) -> bool:
        """See threading."""
        return self._set

    def set(self) -> None:
        """See threading."""
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread, ticket in waiting:
            thread.wake_soon(ticket)

    def clear(self) -> None:
        """See threading."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """See threading. The loop itself never waits."""
        thread: SimulatedThread | None = getattr(_here, "thread", None)
        if self._set or thread is None:
            return self._set
        me = thread, thread.ticket
        self._waiting.append(me)
        thread.pause(timeout)
        with contextlib.suppress(ValueError):
            self._waiting.remove(me)
        return self._set
