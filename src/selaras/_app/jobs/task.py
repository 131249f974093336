"""A task: a function that can run as a job."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.call import BlockingCall, Call, checked_call, following
from selaras._app.jobs.here import run_here
from selaras._app.jobs.job import BlockingJob, Job
from selaras._app.jobs.options import NO_OPTIONS, BlockingEnqueueOptions, EnqueueOptions, Options, options_from
from selaras._app.process.portal import aio_of, wait_for
from selaras._app.process.program import Program
from selaras._app.setup.checks import known

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Prepared(Generic[P, R_co]):
    """A task with options."""

    __slots__ = ("_options", "_program", "_spec")

    def __init__(self, program: Program, spec: TaskSpec, options: Options) -> None:
        self._program = program
        self._spec = spec
        self._options = options

    @property
    def sync(self) -> BlockingPrepared[P, R_co]:
        """The twin of which every call blocks."""
        return BlockingPrepared(self)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Check and coerce the arguments; enqueue nothing yet.

        Raises:
            TypeError: the arguments do not fit the signature.
            NotEncodable: one could not come back equal and of the same type.
        """
        return checked_call(self._program, self._spec, args, kwargs, self._options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Check the arguments and enqueue the job. Raises as `call` and `Call.enqueue` do."""
        call: Call[R_co] = Call(self._program, self._spec, self._spec.bind(args, kwargs), self._options)
        return await call.enqueue()

    def follow(self, before: Call[Any], args: Any, kwargs: Any) -> Call[R_co]:
        """Bind as the step after `before`, whose value is the first argument; see `Call.then`."""
        return following(self._program, self._spec, self._options, before, args, kwargs)


class Task(Generic[P, R_co]):
    """A function that can run as a job.

    Attributes:
        name: its name in the store.
        fn: the bare function: no lock, no intent, no queue.
    """

    def __init__(self, program: Program, spec: TaskSpec) -> None:
        self._program = program
        self.spec = spec
        self.name = spec.name
        self.fn: Callable[P, Any] = spec.function
        self._plain: Prepared[P, R_co] = Prepared(program, spec, NO_OPTIONS)
        self.__doc__ = spec.function.__doc__
        self.__name__ = spec.function.__name__
        self.__module__ = spec.function.__module__

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def sync(self) -> BlockingTask[P, R_co]:
        """The twin of which every call blocks."""
        return BlockingTask(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it here and now, under its lock and with its intents. What the body raises is raised."""
        value: R_co = await run_here(self._program, self.spec, self.spec.bind(args, kwargs))
        return value

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Check the arguments and enqueue the job.

        Raises:
            TypeError: the arguments do not fit the signature.
            NotEncodable: one could not come back equal and of the same type.
            StoreUnavailable: nothing was enqueued.
        """
        call: Call[R_co] = Call(self._program, self.spec, self.spec.signature.bind(args, kwargs), NO_OPTIONS)
        return await call.enqueue()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Check and coerce the arguments; enqueue nothing yet. Raises as `enqueue` does."""
        return checked_call(self._program, self.spec, args, kwargs, NO_OPTIONS)

    def follow(self, before: Call[Any], args: Any, kwargs: Any) -> Call[R_co]:
        """Bind as the step after `before`, whose value is the first argument; see `Call.then`."""
        return self._plain.follow(before, args, kwargs)

    def options(self, **said: Unpack[EnqueueOptions]) -> Prepared[P, R_co]:
        """Say how its next enqueue differs from the task's declaration.

        Args:
            delay: run it so much later. at: run it then; needs a time zone.
            priority: higher runs earlier.
            id: a name of your own: the same id again is the same job.
            unique: at most one waiting job of this key; until it starts, or until it is finished.
            on_conflict: "keep" the waiting twin, or "replace" its arguments by these.
            after: run it when these have succeeded. after_finished: when these have ended, however.
            expires: drop it if it has not started by then; 0: never, whatever the task says.
            now: inside a job or scope: do not wait for that to succeed.

        Raises:
            ConfigurationError: naming the option and what to give instead.
        """
        known(said, EnqueueOptions, where="task.options()")
        return Prepared(self._program, self.spec, options_from(**said))

    def job(self, id: str) -> Job[R_co]:
        """Stand for the job of this id, which may or may not exist."""
        return Job(self._program, id, self.name, False)


class TaskDecorator(Protocol):
    """What `app.task(...)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BlockingPrepared(Generic[P, R_co]):
    """A task with options."""

    __slots__ = ("aio",)

    def __init__(self, aio: Prepared[P, R_co]) -> None:
        self.aio = aio

    def call(self, *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R_co]:
        """Check and coerce the arguments; enqueue nothing yet."""
        return BlockingCall(self.aio.call(*args, **kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJob[R_co]:
        """Check the arguments and enqueue the job."""
        return BlockingCall(self.aio.call(*args, **kwargs)).enqueue()


class BlockingTask(Generic[P, R_co]):
    """A function that can run as a job; see `selaras.Task`.

    Attributes:
        fn: the bare function: no lock, no intent, no queue.
    """

    def __init__(self, aio: Task[P, R_co]) -> None:
        self.aio = aio
        self.fn: Callable[P, Any] = aio.fn
        self.name = aio.name
        self.__doc__ = aio.__doc__
        self.__name__ = aio.__name__
        self.__module__ = aio.__module__

    def __repr__(self) -> str:
        return repr(self.aio)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, under its lock and with its intents, and wait. What the body raises is raised."""
        return wait_for(lambda: self.aio(*args, **kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingJob[R_co]:
        """Check the arguments and enqueue the job."""
        return BlockingCall(self.aio.call(*args, **kwargs)).enqueue()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> BlockingCall[R_co]:
        """Check and coerce the arguments; enqueue nothing yet."""
        return BlockingCall(self.aio.call(*args, **kwargs))

    def options(self, **said: Unpack[BlockingEnqueueOptions]) -> BlockingPrepared[P, R_co]:
        """Say how its next enqueue differs from the task's declaration; see `selaras.Task.options`."""
        translated: Any = {name: aio_of(value) for name, value in said.items()}
        return BlockingPrepared(self.aio.options(**translated))

    def job(self, id: str) -> BlockingJob[R_co]:
        """Stand for the job of this id, which may or may not exist."""
        return BlockingJob(self.aio.job(id))


class BlockingTaskDecorator(Protocol):
    """What `app.task(...)` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> BlockingTask[P, R]: ...
