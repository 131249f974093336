"""Resources: what is opened once a process (or once a job), closed with it, and replaced in tests."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import AbstractEventLoop, Lock
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import Lock as ThreadLock
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary, ref

from selaras._app.process.portal import at_end, wait_for
from selaras._core.errors import ConfigurationError, SelarasError

T = TypeVar("T")

Lifetime: TypeAlias = Literal["process", "job"]
Factory: TypeAlias = Callable[[], Any]


class Opened:
    """Resources that are open together and closed together, in reverse order, on the loop that they belong to."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._stack = AsyncExitStack()
        self._values: dict[str, Any] = {}
        self._locks: dict[str, Lock] = {}

    async def get(self, name: str, factory: Factory) -> Any:
        """Return a resource, opening it at first need; callers that come meanwhile wait for the same one."""
        if name in self._values:
            return self._values[name]
        return await self._there(lambda: self._open(name, factory))

    async def _open(self, name: str, factory: Factory) -> Any:
        async with self._locks.setdefault(name, Lock()):
            if name not in self._values:
                self._values[name] = await _enter(self._stack, factory)
            return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    async def close(self) -> None:
        """Close all; each is closed whatever the others raise."""
        await self._there(self._close)

    async def _close(self) -> None:
        self._values.clear()
        await self._stack.aclose()

    async def _there(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run on its loop, or here if that has ended."""
        loop = self._loop()
        if loop is None or loop is asyncio.get_running_loop() or not loop.is_running():
            return await work()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), loop))


class Openings:
    """What is open for a process, or for a job: each loop has its own, since what was opened on one is of no use on another.

    Threads are given that of a home, a loop whose end closes it: that of their job's worker, or the first that has entered
    the app. What they open where there is none is open on the portal, and closed at the program's end if not before.
    """

    def __init__(self, *homes: AbstractEventLoop) -> None:
        self._lock = ThreadLock()
        self._opened: WeakKeyDictionary[AbstractEventLoop, Opened] = WeakKeyDictionary()
        self._homes = list(homes)

    def settle(self) -> None:
        """Make the running loop a home, until it leaves as often as it settled."""
        with self._lock:
            self._homes.append(asyncio.get_running_loop())

    async def leave(self) -> None:
        """Close what is open on the running loop, unless it is still a home."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._homes:
                self._homes.remove(loop)
            stays = loop in self._homes
        if not stays:
            await self.close_here()

    def of(self, job: RunningJob | None, *, threads: bool) -> Opened:
        """Return what is open for code on the running loop, or for the thread on whose behalf it runs, within a job or not."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if threads:
                homes = [home for home in self._homes if home.is_running()]
                loop = job.loop if job is not None and job.loop in homes else next(iter(homes), loop)
            opened = self._opened.get(loop)
            if opened is None:
                opened = self._opened[loop] = Opened(loop)
                at_end(loop, opened.close)
            return opened

    def has(self, name: str) -> bool:
        """Say whether a resource is open on any loop."""
        with self._lock:
            return any(name in opened for opened in self._opened.values())

    async def close_here(self) -> None:
        """Close what is open on the running loop."""
        with self._lock:
            opened = self._opened.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened.close()

    async def close(self) -> None:
        """Close what is open on any loop; each is closed whatever the others raise."""
        with self._lock:
            every = list(self._opened.values())
            self._opened.clear()
        async with AsyncExitStack() as stack:
            for opened in every:
                stack.push_async_callback(opened.close)


class RunningJob(Protocol):
    """The job that runs here, as far as resources go."""

    @property
    def loop(self) -> AbstractEventLoop:
        """The loop it runs on, or that waits for its thread."""
        ...

    def opened(self) -> Openings:
        """Return what is open as long as it runs, made at first need: most jobs open nothing."""
        ...


JOB: ContextVar[RunningJob | None] = ContextVar("selaras_job_resources", default=None)


class Resources:
    """The resources a program declares, and what takes their place in tests."""

    def __init__(self, openings: Callable[[], Openings]) -> None:
        self._openings = openings
        self._declared: dict[str, Factory] = {}
        self.overrides: dict[str, Factory] = {}

    def declare(self, name: str, factory: Factory) -> None:
        """Add one; a name is declared once."""
        if name in self._declared:
            raise ConfigurationError(f"two resources are called {name!r}")
        self._declared[name] = factory

    async def get(self, name: str, lifetime: Lifetime, *, threads: bool = False) -> Any:
        """Return an open resource; `threads`: for a thread's use, not for that of the running loop."""
        job = JOB.get()
        if lifetime == "process":
            openings = self._openings()
        elif job is None:
            raise SelarasError(f"resource {name!r} lives as long as a job, and no job runs here")
        else:
            openings = job.opened()
        return await openings.of(job, threads=threads).get(name, self.overrides.get(name) or self._declared[name])


class Resource(Generic[T]):
    """A resource: `await db()` is the open one of the running loop."""

    def __init__(self, resources: Resources, name: str, lifetime: Lifetime, factory: Factory) -> None:
        self._resources = resources
        self.name = name
        self.lifetime: Lifetime = lifetime
        self.__doc__ = factory.__doc__

    def __repr__(self) -> str:
        return f"<resource {self.name}>"

    @property
    def sync(self) -> BlockingResource[T]:
        """The twin of which every call blocks."""
        return BlockingResource(self)

    def __call__(self) -> Awaitable[T]:
        """Return the open resource, opening it at first need."""
        return self._resources.get(self.name, self.lifetime)

    def for_threads(self) -> Coroutine[Any, Any, T]:
        """Return the open resource that threads share, opening it at first need on the loop it belongs to."""
        return self._resources.get(self.name, self.lifetime, threads=True)

    @contextmanager
    def override(
        self, factory: Callable[[], AsyncIterator[T]] | Callable[[], Iterator[T]] | Callable[[], T]
    ) -> Generator[None]:
        """Use another factory while this is entered, for what is opened meanwhile."""
        before = self._resources.overrides.get(self.name)
        self._resources.overrides[self.name] = factory
        try:
            yield
        finally:
            if before is None:
                del self._resources.overrides[self.name]
            else:
                self._resources.overrides[self.name] = before


class ResourceDecorator(Protocol):
    """What `app.resource(...)` returns."""

    @overload
    def __call__(self, factory: Callable[[], AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def __call__(self, factory: Callable[[], Iterator[T]], /) -> Resource[T]: ...


async def _enter(stack: AsyncExitStack, factory: Factory) -> Any:
    if inspect.isasyncgenfunction(factory):
        return await stack.enter_async_context(asynccontextmanager(factory)())
    if inspect.isgeneratorfunction(factory):
        return stack.enter_context(contextmanager(factory)())
    value = factory()
    return await value if inspect.isawaitable(value) else value


class BlockingResource(Generic[T]):
    """A resource: `db()` is the open one, the same for every thread, and for coroutines of the worker; see `selaras.Resource`."""

    def __init__(self, aio: Resource[T]) -> None:
        self.aio = aio
        self.name = aio.name
        self.__doc__ = aio.__doc__

    def __repr__(self) -> str:
        return repr(self.aio)

    def __call__(self) -> T:
        """Return the open resource, opening it at first need."""
        return wait_for(self.aio.for_threads)

    @contextmanager
    def override(
        self, factory: Callable[[], AsyncIterator[T]] | Callable[[], Iterator[T]] | Callable[[], T]
    ) -> Generator[None]:
        """Use another factory while this is entered, for what is opened meanwhile."""
        with self.aio.override(factory):
            yield


class BlockingResourceDecorator(Protocol):
    """What `app.resource(...)` returns."""

    @overload
    def __call__(self, factory: Callable[[], AsyncIterator[T]], /) -> BlockingResource[T]: ...
    @overload
    def __call__(self, factory: Callable[[], Iterator[T]], /) -> BlockingResource[T]: ...
