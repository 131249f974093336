"""A job not enqueued yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.job import BlockingJob, Job
from selaras._app.jobs.neighbours import warn_of_neighbours
from selaras._app.jobs.options import Options
from selaras._app.jobs.placing import Placed, Planned, payload_of, place
from selaras._app.process.portal import aio_of, wait_for
from selaras._app.process.program import Program
from selaras._core.errors import ConfigurationError
from selaras._core.shapes import can_become
from selaras._core.signature import Arguments

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
R_step = TypeVar("R_step", covariant=True)


class Step(Protocol[T_contra, P, R_step]):
    """A task whose first argument can be the value of the step before it; `task` and `task.options(...)` both are."""

    def call(self, first: T_contra, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_step]:
        """Bind the arguments."""
        ...


class Call(Struct, Generic[R_co], eq=False):
    """A task with its arguments and options; arguments are checked, coerced and encoded already: what changes in them
    afterwards is not enqueued. Not changed by enqueueing.
    """

    program: Program
    spec: TaskSpec
    arguments: Arguments
    options: Options
    before: Call[Any] | None = None
    payload: bytes = b""  # encoded already, which is how it was checked

    def __repr__(self) -> str:
        return f"<call {self.spec.name}({self.spec.signature.describe(self.arguments)})>"

    @property
    def sync(self) -> BlockingCall[R_co]:
        """The twin of which every call blocks."""
        return BlockingCall(self)

    def then(self, step: Step[R_co, P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Follow this by another task, whose first argument is this one's value. The new call stands for the chain.

        Its job is the last step: what waits for it waits for all; to cancel it cancels no step before it.

        Raises:
            ConfigurationError: it is no task, its key or line is named by that first argument, which nobody knows yet, or
                that can be no value of what this one returns.
        """
        # Its first argument is not there yet, so it binds by another signature than its own `call`.
        follow = getattr(step, "follow", None)
        if follow is None:
            raise ConfigurationError(
                f"then({step!r}): give a task, or task.options(...), and its other arguments after it"
            )
        call: Call[R] = follow(self, args, kwargs)
        return call

    async def enqueue(self) -> Job[R_co]:
        """Enqueue it, and the steps before it. Returns the job of the last step.

        Raises:
            IdConflict: the id belongs to another task or other arguments; nothing was enqueued.
            StoreUnavailable: nothing was enqueued.
        """
        return (await enqueue_calls(self.program, (self,)))[0]


def checked_call(program: Program, spec: TaskSpec, args: Any, kwargs: Any, options: Options) -> Call[Any]:
    """Make the call of a task. Raises as `Task.call` does."""
    arguments = spec.bind(args, kwargs)
    return Call(program, spec, arguments, options, None, payload_of(program, spec.signature, arguments))


def following(
    program: Program, spec: TaskSpec, options: Options, before: Call[Any], args: Any, kwargs: Any
) -> Call[Any]:
    """Make the call of a step whose first argument is the value of `before`."""
    first = next(iter(spec.signature.parameters), None)
    if first is None:
        raise ConfigurationError(f"task {spec.name!r} takes no argument, so it cannot follow by then()")
    if first in spec.needed_parameters():
        raise ConfigurationError(
            f"task {spec.name!r} names its key or line by {first!r}, its first parameter, which then() fills with a value "
            f"nobody knows yet: put another parameter first, or enqueue it from the step before"
        )
    _check_meet(before.spec, spec, first)
    arguments = spec.rest.bind(args, kwargs)
    return Call(program, spec, arguments, options, before, payload_of(program, spec.rest, arguments))


def _check_meet(before: TaskSpec, spec: TaskSpec, first: str) -> None:
    """Refuse a step that can take no value of the one before. Annotations that say nothing yet are left to the run."""
    try:
        given, taken = before.result.shape, spec.first.shape
    except (ConfigurationError, NameError):
        return
    if not can_become(given, taken):
        raise ConfigurationError(
            f"task {spec.name!r} cannot follow {before.name!r}: its first parameter, {first!r}, takes {taken.name}, "
            f"and {before.name!r} returns {given.name}"
        )


def checked_calls(calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Return the calls of an `enqueue_many`. Raises ConfigurationError for what is none."""
    several = list(calls)
    for one in several:
        if not isinstance(one, Call):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
            raise ConfigurationError(
                f"enqueue_many was given {one!r}, which is no call: say which arguments, as in "
                f"{getattr(one, 'name', 'task')}.call(...)"
            )
    return several


async def enqueue_calls(program: Program, calls: Sequence[Call[R]]) -> list[Job[R]]:
    """Enqueue calls, with the steps before them, in one step a partition. Returns one job a call, in order."""
    planned: list[Planned] = []
    last: list[int] = []
    for call in calls:
        _plan(call, planned)
        last.append(len(planned) - 1)
    if not program.looked_around:
        process = program.process()
        await process.open()
        await warn_of_neighbours(program, process)
    placed = await place(program, planned)
    return [_job(program, call, placed[index]) for call, index in zip(calls, last, strict=True)]


def _plan(call: Call[Any], planned: list[Planned]) -> Planned:
    """Plan the steps before a call, then the call."""
    follows = None if call.before is None else _plan(call.before, planned)
    one = Planned(call.spec, call.arguments, call.options, follows, call.payload)
    planned.append(one)
    return one


def _job(program: Program, call: Call[R], placed: Placed) -> Job[R]:
    return Job(program, placed.id, call.spec.name, placed.created, placed.replaced, placed.home, placed.held)


class BlockingStep(Protocol[T_contra, P, R_step]):
    """A task whose first argument can be the value of the step before it; `task` and `task.options(...)` both are."""

    def call(self, first: T_contra, /, *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R_step]:
        """Bind the arguments."""
        ...


class BlockingCall(Generic[R_co]):
    """A job not enqueued yet; see `selaras.Call`."""

    __slots__ = ("aio",)

    def __init__(self, aio: Call[R_co]) -> None:
        self.aio = aio

    def __repr__(self) -> str:
        return repr(self.aio)

    def then(self, step: BlockingStep[R_co, P, R], /, *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R]:
        """Follow this by another task, whose first argument is this one's value. The new call stands for the chain."""
        following: Any = aio_of(step)
        call: Call[R] = self.aio.then(following, *args, **kwargs)
        return BlockingCall(call)

    def enqueue(self) -> BlockingJob[R_co]:
        """Enqueue it, and the steps before it. Returns the job of the last step."""
        return BlockingJob(wait_for(self.aio.enqueue))
