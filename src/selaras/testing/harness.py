"""The app under test: its store in memory, its clock in the test's hand, its jobs run when the test says so."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from random import Random
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from selaras._app.app import BlockingSelaras, Selaras
from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.task import BlockingTask, Task
from selaras._app.process.current import CurrentJob
from selaras._app.process.middleware import Middleware
from selaras._app.process.portal import aio_of, wait_for
from selaras._app.process.process import Process
from selaras._app.process.resources import BlockingResource, Resource
from selaras._app.setup.checks import word
from selaras._contracts.host import Mode
from selaras._contracts.partition import HeartbeatRequest
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError, WouldDeadlock
from selaras._core.jobs.job import JobRecord
from selaras._core.jobs.states import JobState
from selaras._core.outcomes import Outcome
from selaras._stores.memory.store import MemoryStore
from selaras.testing.clock import VirtualClock
from selaras.testing.seen import JobError, SeenJob, at_once, say_call, say_jobs, seen_jobs

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_TEND_LIMIT: Final = 1_000
_STILL_S: Final = 0.2
"""Time stands still while jobs run, so that a test can tell instants exactly. Whoever still waits after so long (a body
that polls, one that sleeps by the app's clock) waits for time itself: then it flows."""
_FLOW_S: Final = 0.005
_WAITS: Final = (JobState.READY, JobState.HELD, JobState.SCHEDULED, JobState.BLOCKED)
_OTHERS_S: Final = 1.0
"""Whoever waits for a job beside other tasks gives them so long to run it."""


class Harness:
    """An app in a test. Made by `harness(app)`.

    Attributes:
        app: the app; while this is entered, all it does happens on a memory store of this harness.
        clock: the only time there is; `advance` moves it and runs what becomes due.
        errors: what bodies raised, in order; see also `run`.
        sync: `run` and `advance` for tests that are plain functions.
    """

    def __init__(self, app: Selaras | BlockingSelaras, *, partitions: int, start: datetime | None, seed: int) -> None:
        self.app: Selaras = aio_of(app)
        self._blocking = isinstance(app, BlockingSelaras)
        self.clock = VirtualClock() if start is None else VirtualClock(start)
        self.errors: list[JobError] = []
        self.sync = SyncHarness(self)
        self._store = MemoryStore(self.clock, partitions=partitions, entropy=Random(seed))
        self._entropy = Random(seed)
        self._ran: list[str] = []
        self._told = 0  # errors that an AssertionError has told already
        self._undo = ExitStack()
        self._process: Process | None = None

    # -- entering

    async def __aenter__(self) -> Self:
        self._enter()
        await self._settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    def __enter__(self) -> Self:
        if _loop_runs():
            raise ConfigurationError(
                "in a coroutine it is `async with harness(app)`: what was opened is closed by awaiting"
            )
        self._enter()
        wait_for(self._settle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(self._leave)

    async def _settle(self) -> None:
        """Count as a user, so that a loop that ends before the test does not close the store."""
        self._the_process().enter()

    async def _leave(self) -> None:
        process = self._the_process()
        try:
            await process.leave()
        finally:
            self._undo.close()

    def _enter(self) -> None:
        if self._process is not None:
            raise ConfigurationError("a harness is entered once; make another one: harness(app)")
        program = self.app.program
        program.registry.complete()
        self._process = Process(self._store, self.clock, self._entropy, program.settings, program.registry)
        self._undo.enter_context(program.processes.standing_in(self._process))
        self._undo.enter_context(self._listening())
        self._undo.enter_context(self._here())
        self._undo.enter_context(self._watching())

    @contextmanager
    def _watching(self) -> Generator[None]:
        program = self.app.program
        program.while_waiting = self._refuse_waiting
        try:
            yield
        finally:
            program.while_waiting = None

    def _refuse_waiting(self, record: JobRecord, waited_s: float) -> None:
        """Jobs run when the test says so: waiting for one would be for ever, unless somebody else may say it yet."""
        served = (one for partition in self._store.partitions for one in at_once(partition.instances()))
        if record.state not in _WAITS or any(record.queue in one.queues for one in served):
            return
        alone = len(asyncio.all_tasks()) == 1
        if not alone and waited_s < _OTHERS_S:
            return
        verb = "advance(...)" if record.state is JobState.SCHEDULED else "run()"
        call = f"t.sync.{verb}" if self._blocking else f"await t.{verb}"
        raise WouldDeadlock(
            f"job {record.id} is {record.state.value}; call `{call}` first: in a test nobody else runs it"
        )

    @contextmanager
    def _listening(self) -> Generator[None]:
        program = self.app.program
        before = program.around_run
        program.around_run = (_Catcher(self._ran, self.errors), *before)
        try:
            yield
        finally:
            program.around_run = before

    @contextmanager
    def _here(self) -> Generator[None]:
        """Run bodies of child processes in this one: a child would find neither this store nor this clock."""
        tasks = [task for task in self.app.registry.tasks.values() if task.mode is Mode.PROCESS]
        for task in tasks:
            task.mode = Mode.LOOP if inspect.iscoroutinefunction(task.function) else Mode.THREAD
        try:
            yield
        finally:
            for task in tasks:
                task.mode = Mode.PROCESS

    # -- looking

    def jobs(
        self,
        task: Task[..., Any] | BlockingTask[..., Any] | str | None = None,
        *,
        state: JobState | str | None = None,
    ) -> list[SeenJob]:
        """Return the jobs there are, the oldest first: of one task, in one state, or all. Ended ones are kept as long as
        the app keeps them.

        Raises:
            ConfigurationError: the app has no such task, or there is no such state: of these there never are any.
        """
        seen = seen_jobs(self.app.program, self._store)
        name = None if task is None else self._name_of(task, seen)
        wanted = None if state is None else JobState(word(state, JobState, option="state"))
        return [job for job in seen if name in (None, job.task) and wanted in (None, job.state)]

    def _name_of(self, task: object, seen: list[SeenJob]) -> str:
        """Return the name of a task. What names none would have no jobs whatever happens."""
        tasks = self.app.registry.tasks
        if isinstance(task, str):
            name, is_there = task, task in tasks or any(job.task == task for job in seen)
        else:
            spec = _spec_of(task)
            name, is_there = spec.name, tasks.get(spec.name) is spec
        if not is_there:
            known = ", ".join(sorted(tasks)) or "none"
            raise ConfigurationError(f"jobs({task!r}): the app has no such task; its tasks are {known}")
        return name

    def assert_enqueued(self, task: Task[P, R] | BlockingTask[P, R], *args: P.args, **kwargs: P.kwargs) -> SeenJob:
        """Assert that this call was enqueued (it may have run meanwhile); return its job, the latest if there are several.

        Arguments are compared after defaults and coercion, so every spelling of a call is the same.
        """
        spec = _spec_of(task)
        wanted = spec.bind(args, kwargs)
        found = [job for job in self.jobs(task) if job.arguments == wanted.named()]
        if not found:
            raise AssertionError(f"{say_call(spec, wanted)} was not enqueued.\n{say_jobs(self.jobs(), spec.name)}")
        return found[-1]

    def assert_not_enqueued(self, task: Task[P, R] | BlockingTask[P, R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Assert that this call was not enqueued. That no job of a task was: `assert not t.jobs(task)`."""
        spec = _spec_of(task)
        wanted = spec.bind(args, kwargs)
        found = [job for job in self.jobs(task) if job.arguments == wanted.named()]
        if found:
            raise AssertionError(f"{say_call(spec, wanted)} was enqueued.\n{say_jobs(found, spec.name)}")

    # -- acting

    def override(self, resource: Resource[T] | BlockingResource[T], fake: T) -> None:
        """Let `await resource()` be `fake` until the harness is left; before anything has opened the real one."""
        process = self._the_process()
        if process.openings.has(resource.name):
            raise ConfigurationError(f"resource {resource.name!r} is open already: override it before its first use")
        self._undo.enter_context(resource.override(lambda: fake))

    async def run(self, *, allow_errors: bool = False, timeout: float = 30.0) -> list[SeenJob]:
        """Run jobs, by a real worker, until none is ready. Time does not move: what is due later stays.

        Returns the jobs that ran, in the order in which they began.

        Args:
            allow_errors: bodies may raise. Otherwise that is an AssertionError, caused by what the first one raised;
                raising `Retry`, `Snooze` or `Fail` is no error.
            timeout: seconds of real time; then AssertionError, naming the jobs that still run.
        """
        began = len(self._ran)
        await self._work(timeout)
        return self._since(began, allow_errors=allow_errors)

    async def advance(self, by: Duration, *, allow_errors: bool = False, timeout: float = 30.0) -> list[SeenJob]:
        """Move time on by `by` ("5m", seconds, a timedelta), and run what becomes due, each job at its own instant.

        Leases of scopes and locks that the test holds are renewed on the way. Returns and raises as `run` does.
        """
        began = len(self._ran)
        end_ns = self.clock.instant_ns() + duration_us(by, name="by") * 1_000
        await self._work(timeout)
        while self.clock.instant_ns() < end_ns:
            self.clock.move_to(min(self._next_due_ns(), end_ns))
            await self._keep_house()
            await self._work(timeout)
        return self._since(began, allow_errors=allow_errors)

    def _since(self, began: int, *, allow_errors: bool) -> list[SeenJob]:
        new, self._told = self.errors[self._told :], len(self.errors)
        if new and not allow_errors:
            raise AssertionError(_say_errors(new)) from new[0].error
        by_id = {job.id: job for job in self.jobs()}
        return [by_id[id] for id in dict.fromkeys(self._ran[began:]) if id in by_id]

    async def _work(self, timeout: float) -> None:
        if not any(job.state in (JobState.READY, JobState.SCHEDULED) for job in self.jobs()):
            return
        flowing = asyncio.get_running_loop().create_task(self._flow())
        worker = self.app.worker(queues=self._queues(), burst=True, name="harness")
        try:
            async with asyncio.timeout(timeout):
                await worker.run()
        except TimeoutError:
            running = [job for job in self.jobs() if job.state is JobState.RUNNING]
            raise AssertionError(f"jobs still ran after {timeout:g} s.\n{say_jobs(running, '')}") from None
        finally:
            flowing.cancel()

    async def _flow(self) -> None:
        await asyncio.sleep(_STILL_S)
        before = time.monotonic()
        while True:
            await asyncio.sleep(_FLOW_S)
            now = time.monotonic()
            self.clock.move(now - before)
            before = now

    def _queues(self) -> list[str]:
        declared = {task.queue for task in self.app.registry.tasks.values()}
        return sorted(declared | {job.queue for job in self.jobs()})

    def _next_due_ns(self) -> int:
        """Return the instant at which the next scheduled job is due; far away if there is none."""
        wall_us, now_ns = self.clock.wall_us(), self.clock.instant_ns()
        due_us = [job.due_us for job in self.jobs() if job.state is JobState.SCHEDULED]
        return now_ns + (min(due_us) - wall_us) * 1_000 if due_us else 2**63

    async def _keep_house(self) -> None:
        """Do what running workers do beside running jobs: renew leases, expire, purge."""
        pulse = self._store.pulse()
        for partition in self._store.partitions:
            for instance in await partition.instances():
                pulse.beat(partition.index, HeartbeatRequest(instance=instance.id, last_turn=0))
            while (await partition.tend(_TEND_LIMIT)).again:
                pass

    def _the_process(self) -> Process:
        if self._process is None:
            raise ConfigurationError("enter it first: `async with harness(app) as t:`")
        return self._process


class SyncHarness:
    """`t.sync`: the waiting ones of a harness's methods, for tests that are plain functions."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def run(self, *, allow_errors: bool = False, timeout: float = 30.0) -> list[SeenJob]:
        """See `Harness.run`."""
        return wait_for(lambda: self._harness.run(allow_errors=allow_errors, timeout=timeout))

    def advance(self, by: Duration, *, allow_errors: bool = False, timeout: float = 30.0) -> list[SeenJob]:
        """See `Harness.advance`."""
        return wait_for(lambda: self._harness.advance(by, allow_errors=allow_errors, timeout=timeout))


class _Catcher(Middleware):
    """Notes which jobs run and what they raise; changes nothing."""

    def __init__(self, ran: list[str], errors: list[JobError]) -> None:
        self._ran = ran
        self._errors = errors

    async def run(
        self, job: CurrentJob, headers: Mapping[str, str], proceed: Callable[[], Awaitable[object]]
    ) -> object:
        """See `Middleware`."""
        self._ran.append(job.id)
        try:
            return await proceed()
        except (Outcome, asyncio.CancelledError):
            raise
        except BaseException as error:
            self._errors.append(JobError(job.id, job.task, job.attempt, error))
            raise


def harness(
    app: Selaras | BlockingSelaras, *, partitions: int = 1, start: datetime | None = None, seed: int = 0
) -> Harness:
    """Put an app on a memory store and a virtual clock for the length of a test.

    `async with harness(app) as t:` in coroutines, `with harness(app) as t:` and `t.sync` in plain functions. Everything
    the program does through the app meanwhile happens there, its jobs run when the test says so, by the code of real
    workers (those with `executor="process"` in this process). Afterwards the app is as it was.

    Args:
        app: the app, async or blocking.
        partitions: of the store.
        start: the instant at which the clock starts; 2026-01-01 00:00 UTC by default.
        seed: of generated ids and jitter, so that a test repeats itself.
    """
    return Harness(app, partitions=partitions, start=start, seed=seed)


def _spec_of(task: object) -> TaskSpec:
    aio: object = aio_of(task)
    if not isinstance(aio, Task):
        raise ConfigurationError(f"{task!r} is no task of the app: give one, as it was declared")
    spec: TaskSpec = aio.spec
    return spec


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _say_errors(errors: list[JobError]) -> str:
    said = [f"{len(errors)} attempt{'s' if len(errors) > 1 else ''} raised (allow_errors=True accepts that):"]
    for one in errors:
        text = "".join(traceback.format_exception_only(one.error)).strip()
        said.append(f"  {one.task} {one.job}, attempt {one.attempt}: {text}")
    return "\n".join(said)
