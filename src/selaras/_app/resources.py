"""Resources: what is opened once a process (or once a job), closed with it, and replaced in tests."""

from __future__ import annotations

import inspect
from asyncio import Lock
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from selaras._app.portal import wait_for
from selaras._core.errors import ConfigurationError, SelarasError

T = TypeVar("T")

Lifetime: TypeAlias = Literal["process", "job"]
Factory: TypeAlias = Callable[[], Any]


class Opened:
    """Resources that are open together and closed together, in reverse order."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._values: dict[str, Any] = {}
        self._locks: dict[str, Lock] = {}

    async def get(self, name: str, factory: Factory) -> Any:
        """Return a resource, opening it at first need; callers that come meanwhile wait for the same one."""
        if name in self._values:
            return self._values[name]
        async with self._locks.setdefault(name, Lock()):
            if name not in self._values:
                self._values[name] = await _enter(self._stack, factory)
            return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    async def close(self) -> None:
        """Close all; each is closed whatever the others raise."""
        self._values.clear()
        await self._stack.aclose()


JOB: ContextVar[Callable[[], Opened] | None] = ContextVar("selaras_job_resources", default=None)
"""Makes the resources of the job that runs here: most jobs open none."""


class Resources:
    """The resources a program declares, and what takes their place in tests."""

    def __init__(self, opened: Callable[[], Opened]) -> None:
        self._opened = opened
        self._declared: dict[str, Factory] = {}
        self.overrides: dict[str, Factory] = {}

    def declare(self, name: str, factory: Factory) -> None:
        """Add one; a name is declared once."""
        if name in self._declared:
            raise ConfigurationError(f"two resources are called {name!r}")
        self._declared[name] = factory

    async def get(self, name: str, lifetime: Lifetime) -> Any:
        """Return an open resource."""
        if lifetime == "process":
            opened = self._opened()
        else:
            job = JOB.get()
            if job is None:
                raise SelarasError(f"resource {name!r} lives as long as a job, and no job runs here")
            opened = job()
        return await opened.get(name, self.overrides.get(name) or self._declared[name])


class Resource(Generic[T]):
    """A resource: `await db()` is the open one."""

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
    """A resource: `db()` is the open one, the same for every thread; see `selaras.Resource`."""

    def __init__(self, aio: Resource[T]) -> None:
        self.aio = aio
        self.name = aio.name
        self.__doc__ = aio.__doc__

    def __repr__(self) -> str:
        return repr(self.aio)

    def __call__(self) -> T:
        """Return the open resource, opening it at first need."""

        async def get() -> T:
            return await self.aio()

        return wait_for(get)

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
