"""One attempt: from a claim to the settlement that its end means."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.info import instant
from selaras._app.jobs.lines import HELD, Hold
from selaras._app.process.current import CURRENT, CurrentJob
from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._app.process.resources import JOB, Openings
from selaras._cache.family import MISSING, Slot
from selaras._cache.session import SESSION, Session
from selaras._contracts.host import Executors, Mode, ProcessDied, Stop
from selaras._core.errors import NotEncodable
from selaras._core.jobs.job import Claim, Settlement
from selaras._core.jobs.outcome import Cancelled, End, Raised, Released, Returned, TimedOut, Unstorable, settlement_of
from selaras._core.jobs.retry import Policy
from selaras._core.jobs.states import JobEvent
from selaras._core.signature import Arguments


class AttemptRun(Struct, eq=False):
    """One attempt, prepared. See `Run`.

    Attributes:
        reads, warms: see `Places`.
        headers: what middleware gave the job when it was enqueued.
        report: takes what its body says of itself.
    """

    program: Program
    process: Process
    spec: TaskSpec
    claim: Claim
    partition: int
    arguments: Arguments
    policy: Policy
    mode: Mode
    timeout_us: int
    session: Session
    reads: tuple[tuple[str, Slot], ...]
    warms: tuple[Slot, ...]
    headers: Mapping[str, str]
    report: Callable[[AttemptRun, bytes], None]
    stopping: Stop | None = None
    hold: Hold | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # while its body runs
    _opened: Openings | None = None

    # -- what the body can ask

    def current(self) -> CurrentJob:
        """Make what `current_job()` returns."""
        claim = self.claim
        deadline = instant(self.process.clock.wall_us() + self.timeout_us) if self.timeout_us else None
        return CurrentJob(
            claim.job,
            claim.task,
            claim.queue,
            claim.number,
            claim.fence,
            deadline,
            self._say,
        )

    def _say(self, data: bytes) -> None:
        self.report(self, data)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """See `RunningJob`."""
        assert self._loop is not None, "its body runs"
        return self._loop

    def opened(self) -> Openings:
        """See `RunningJob`."""
        if self._opened is None:
            self._opened = Openings(self.loop)
        return self._opened

    # -- the run

    async def execute(self, executors: Executors) -> Settlement:
        """See `Run`."""
        if self.stopping is not None:
            return self.unstarted()
        if self.mode is Mode.PROCESS:
            return await self._in_process(executors)
        self._enter()
        try:
            value = await self._run_body(executors)
        except asyncio.CancelledError as error:
            if self._is_cancelled_from_outside():
                raise
            return await self._ended(Raised(error))
        except BaseException as error:  # noqa: BLE001 - a body may raise anything; that is its outcome
            return await self._ended(Raised(_without_our_frames(error)))
        if self._opened is not None:
            try:
                await self._close_resources()
            except BaseException as error:  # noqa: BLE001 - what a resource raises at its end belongs to the job
                return self._settlement(Raised(error))
        return self._ended_well(value)

    def _is_cancelled_from_outside(self) -> bool:
        """Say whether somebody cancelled the task who isn't the worker, as a loop does that ends."""
        task = asyncio.current_task()
        return self.stopping is None and task is not None and task.cancelling() > 0

    def unstarted(self) -> Settlement:
        """See `Run`."""
        return self._settlement(Released(started=False))

    def cut_off(self) -> Settlement:
        """See `Run`."""
        assert self.stopping is not None
        return self._settlement(_stopped(self.stopping))

    def _enter(self) -> None:
        """Make the context of the attempt: it has one of its own, so nothing needs to be undone."""
        SESSION.set(self.session)
        CURRENT.set(self.current)
        JOB.set(self)
        self._loop = asyncio.get_running_loop()
        claim = self.claim
        if claim.line:
            self.hold = Hold(claim.fence)
            HELD.set({claim.line: self.hold})

    async def _run_body(self, executors: Executors) -> Any:
        arguments = self.arguments
        kwargs = arguments.kwargs
        if self.reads:
            missing = self._read_at_hand(kwargs)
            if missing:
                await self._read(missing, kwargs)
        self.session.started = True
        if self.program.around_run:
            return await self._around(lambda: self._call(executors, arguments.args, kwargs))
        if self.mode is Mode.LOOP:
            return await self.spec.function(*arguments.args, **kwargs)
        return await self._call(executors, arguments.args, kwargs)

    def _read_at_hand(self, into: dict[str, Any]) -> list[tuple[str, Slot]]:
        """Read the parameters that need no waiting: after warming most often all. Returns the others."""
        hit = self.process.cache.hit
        missing: list[tuple[str, Slot]] = []
        for name, slot in self.reads:
            value = hit(slot)
            if value is MISSING:
                missing.append((name, slot))
            else:
                into[name] = value
        return missing

    async def _read(self, missing: list[tuple[str, Slot]], into: dict[str, Any]) -> None:
        cache = self.process.cache
        if len(missing) == 1:  # that of the key it writes, most often
            name, slot = missing[0]
            into[name] = (await cache.read(slot)).value
            return
        values = await cache.get_many([slot for _, slot in missing])
        for (name, _), value in zip(missing, values, strict=True):
            into[name] = value

    async def _call(self, executors: Executors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = self.spec.function
        if self.mode is Mode.LOOP:
            return await function(*args, **kwargs)
        # Whatever the function raises comes back as a value: StopIteration and SystemExit have meanings of their
        # own on the way through a future.
        outcome = await executors.in_thread(lambda: _caught(function, args, kwargs))
        if isinstance(outcome, _Caught):
            raise outcome.error
        return outcome

    async def _around(self, body: Callable[[], Awaitable[object]]) -> Any:
        proceed = body
        current = self.current()
        for middleware in reversed(self.program.around_run):
            proceed = _wrapped(middleware.run, current, self.headers, proceed)
        return await proceed()

    # -- its end

    def _ended_well(self, value: Any) -> Settlement:
        try:
            result = self.spec.result.encode(value, path="result")
        except NotEncodable as error:
            return self._settlement(Unstorable(str(error)))
        most = self.program.settings.max_result
        if most and len(result) > most:
            reason = (
                f"result too large: {len(result):,} bytes, and max_result is {most:,}: store it and return its name"
            )
            return self._settlement(Unstorable(reason))
        return self._settlement(Returned(result))

    async def _ended(self, end: End) -> Settlement:
        if self._opened is not None:
            try:
                await self._close_resources()
            except BaseException:  # noqa: BLE001, S110 - the body's own end is the one to tell
                pass
        return self._settlement(end)

    async def _close_resources(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _settlement(self, end: End) -> Settlement:
        claim, session = self.claim, self.session
        # What is left of the body adds nothing from here on: the end is told from what there is now.
        session.close()
        if self.hold is not None:
            self.hold.open = False
        if self.stopping is not None and not isinstance(end, Released):
            end = _stopped(self.stopping)
        if type(end) is Returned:
            settlement = Settlement(claim.job, claim.fence, JobEvent.SUCCEED, result=end.result)
        else:
            settlement = settlement_of(claim, end, self.policy, self.process.entropy)
        success = settlement.event is JobEvent.SUCCEED
        if not (
            claim.writes
            or claim.serves
            or session.puts
            or session.planted
            or session.tags
            or session.families
            or session.versions
            or session.children
        ):
            return settlement
        effects = session.effects(success=success)
        return replace(
            settlement,
            puts=effects.puts,
            tags=effects.tags,
            families=effects.families,
            versions=effects.versions,
            closes=effects.closes,
            planted=effects.planted,
            writes=claim.writes,
            serves=claim.serves,
            unsure=settlement.started and self._is_unsure(),
            children=tuple(session.children) if success else (),
        )

    def _is_unsure(self) -> bool:
        """Say whether a write may be on its way still: it was stopped from outside while it waited for something.

        A coroutine may have waited for a commit that goes on in a thread or in a server, and so may a child process
        that was killed. A function in a thread is never interrupted: it has ended by itself, after its last write.
        """
        if self.stopping is None:
            return False
        if self.mode is Mode.PROCESS:
            return True
        return self.session.started and (self.mode is Mode.LOOP or bool(self.program.around_run))

    # -- in a child process

    async def _in_process(self, executors: Executors) -> Settlement:
        request = msgspec.msgpack.encode(
            Request(self.claim, self.partition, self.session.since_ns, self.session.asked_ns, self.session.instance)
        )
        try:
            answer = await executors.in_process(request, self._say)
        except asyncio.CancelledError as error:
            if self._is_cancelled_from_outside():
                raise
            return self._settlement(Raised(error))
        except ProcessDied as error:
            # Lost, as with a worker: it may have committed, so its intents must pass to the next attempt (P18).
            return Settlement(self.claim.job, self.claim.fence, JobEvent.LOSE, reason=str(error))
        settlement = _SETTLEMENTS.decode(answer)
        if self.stopping is None:
            return settlement
        # It had ended when it was told to: what it did is known, and nothing of it is on its way.
        return replace(
            self._settlement(_stopped(self.stopping)),
            tags=settlement.tags,
            families=settlement.families,
            planted=settlement.planted,
            closes=settlement.closes,
            unsure=False,
        )


class Request(Struct, frozen=True, array_like=True):
    """An attempt on its way to a child process. `since_ns` and `asked_ns` are of the machine's clock, the same in every
    process.
    """

    claim: Claim
    partition: int
    since_ns: int
    asked_ns: int
    instance: str


_SETTLEMENTS = msgspec.msgpack.Decoder(Settlement)


class _Caught:
    """What a plain function raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _caught(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - a body may raise anything; that is its outcome
        return _Caught(error)


def _without_our_frames(error: BaseException) -> BaseException:
    """Let an exception's traceback begin in the program's own code, if it came from there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


_OURS: Final = str(Path(__file__).parents[1]) + os.sep


def _wrapped(
    around: Callable[[CurrentJob, Mapping[str, str], Callable[[], Awaitable[object]]], Awaitable[object]],
    current: CurrentJob,
    headers: Mapping[str, str],
    proceed: Callable[[], Awaitable[object]],
) -> Callable[[], Awaitable[object]]:
    return lambda: around(current, headers, proceed)


def _stopped(stop: Stop) -> End:
    match stop:
        case Stop.TIMEOUT:
            return TimedOut()
        case Stop.CANCEL:
            return Cancelled()
        case Stop.SHUTDOWN:
            return Released(started=True)
        case Stop.LOST:
            return Released(started=True, reason="the lease was lost")
