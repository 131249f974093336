"""A cached family: a function whose body is the datastore read."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from selaras._app.declared.specs import FamilySpec
from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.values.key import BlockingKey, Key
from selaras._app.values.writing import BlockingWriting, Writing
from selaras._cache.family import MISSING, Slot
from selaras._core.errors import ConfigurationError, SelarasError
from selaras._core.positions import Scope
from selaras._core.signature import Arguments

P = ParamSpec("P")
Q = ParamSpec("Q")
V = TypeVar("V")
O = TypeVar("O")  # noqa: E741 - of the object that a method is called on

C = TypeVar("C", bound=Callable[..., Any])

BatchLoader = Callable[[list[Any]], Awaitable[Sequence[V]]]


def _awaited(function: C) -> C:
    """Let those who ask know that what it returns is awaited: web frameworks run other functions in a thread."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001 - all there is, before
    return function


class Binding(Generic[V]):
    """A family with some of its parameters renamed: `product.by(id="sku")` takes its `id` from the task's `sku`."""

    __slots__ = ("family", "names")

    def __init__(self, family: FamilySpec, names: dict[str, str]) -> None:
        self.family = family
        self.names = names

    def __repr__(self) -> str:
        return f"{self.family.name}.by({', '.join(f'{ours}={theirs!r}' for ours, theirs in self.names.items())})"


class Whole:
    """All values of a family: `product.all()`."""

    __slots__ = ("_program", "family")

    def __init__(self, program: Program, family: FamilySpec) -> None:
        self._program = program
        self.family = family

    def __repr__(self) -> str:
        return f"{self.family.name}.all()"

    @property
    def sync(self) -> BlockingWhole:
        """The twin of which every call blocks."""
        return BlockingWhole(self)

    async def invalidate(self) -> None:
        """Void every value of the family: now, and inside a job or scope again when that succeeds."""
        process = self._program.process()
        await process.open()
        await process.cache.invalidate(families=[self.family.name])

    def writing(self) -> Writing:
        """Write many values at once, outside of a task's declaration: `async with product.all().writing(): ...` around
        the transaction. Until its end no value of the family is stored.
        """
        return Writing(self._program, opens=[(Scope.FAMILY, self.family.name)])


class BlockingWhole:
    """All values of a family: `product.all()`."""

    __slots__ = ("aio",)

    def __init__(self, aio: Whole) -> None:
        self.aio = aio

    def __repr__(self) -> str:
        return repr(self.aio)

    def invalidate(self) -> None:
        """Void every value of the family: now, and inside a job or scope again when that succeeds."""
        wait_for(self.aio.invalidate)

    def writing(self) -> BlockingWriting:
        """Write many values at once, outside of a task's declaration: `with product.all().writing(): ...` around the
        transaction.
        """
        return BlockingWriting(self.aio.writing())


class Cached(Generic[P, V]):
    """A family of cached values; calling it reads through the tiers.

    Attributes:
        name: its name in the store.
        fn: the bare loader.
    """

    def __init__(self, program: Program, family: FamilySpec) -> None:
        self._program = program
        self.family = family
        self.name = family.name
        self.fn: Callable[P, Any] = family.function
        self.__doc__ = family.function.__doc__
        self.__name__: str = getattr(family.function, "__name__", family.name)
        self.__module__ = family.function.__module__
        self.__wrapped__ = family.function  # its signature is that of this

    def __repr__(self) -> str:
        return f"<cached {self.name}>"

    @property
    def sync(self) -> BlockingCached[P, V]:
        """The twin of which every call blocks."""
        return BlockingCached(self)

    @_awaited
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, V]:
        """Read through: local tier, shared tier, loader.

        How fresh the value must be is fixed when this is called, not when it is awaited.
        """
        process = self._program.process()
        slot = self.family.slot(args, kwargs, process.partitions)
        if process.opened:
            value = process.cache.hit(slot)
            if value is not MISSING:
                return _at_once(value)
        return self._read(slot)

    def at_hand(self, *args: P.args, **kwargs: P.kwargs) -> tuple[V] | None:
        """Return the value if the local tier may serve it without waiting, alone in a tuple. From any thread."""
        process = self._program.process()
        if not process.opened:
            return None
        value: Any = process.cache.hit(self.family.slot(args, kwargs, process.partitions))
        return None if value is MISSING else (value,)

    async def _read(self, slot: Slot) -> V:
        process = self._program.process()
        if not process.opened:
            await process.open_to_read()
        value: V = await process.cache.get(slot)
        return value

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Key[V]:
        """Return the key of these arguments; every spelling of a call is one key."""
        return Key(self._program, self.family.slot(args, kwargs, self._program.process().partitions))

    def by(self, **names: str) -> Binding[V]:
        """Rename parameters for `writes=`, `reads=`, `lock=` and `Read`: family parameter = task parameter."""
        return Binding(self.family, names)

    def all(self) -> Whole:
        """Return all its values, for `writes=` and to void them or write them at once."""
        return Whole(self._program, self.family)

    def batch(self, loader: BatchLoader[V], /) -> BatchLoader[V]:
        """Give the family a loader for many keys at once; a decorator.

        It gets a list, an item a key: the argument, or a tuple of them if the family has several. It returns as
        many values, in the same order.
        """
        if self.family.is_method:
            raise ConfigurationError(
                f"{self.name} is a method: a batch loader could not know of which object each value is. Load in a function of "
                "its own, or in a @staticmethod below @app.cached"
            )
        name, single = self.name, len(self.family.signature.parameters) == 1

        async def load_many(several: Sequence[Arguments]) -> Sequence[V]:
            named = [tuple(arguments.named().values()) for arguments in several]
            values = await loader([parts[0] for parts in named] if single else list(named))
            if len(values) != len(several):
                raise SelarasError(
                    f"the batch loader of {name!r} was asked for {len(several)} values and gave {len(values)}"
                )
            return values

        self.family.family.load_many = load_many
        return loader

    async def invalidate_all(self) -> None:
        """Void every value of the family: now, and inside a job or scope again when that succeeds."""
        await self.all().invalidate()


class CachedMethod(Cached[P, V]):
    """A family whose loader is a method: `shop.product` is what it is on that object, `Shop.product` all of it."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(self: CachedMethod[Concatenate[O, Q], V], instance: O, owner: type, /) -> BoundCached[Q, V]: ...
    def __get__(self, instance: Any, owner: type, /) -> Any:
        """Return it as it is called on an object."""
        return self if instance is None else BoundCached(self, instance)


class BoundCached(Generic[P, V]):
    """A cached method of one object: `shop.product`.

    Attributes:
        cached: the family, whose first argument is the object: `Shop.product`.
    """

    __slots__ = ("_object", "cached")

    def __init__(self, cached: Cached[..., V], of: object) -> None:
        self.cached = cached
        self._object = of

    def __repr__(self) -> str:
        return f"<cached {self.cached.name} of {self._object!r}>"

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the method on this object."""
        return _without_first(self.cached.fn)

    @property
    def sync(self) -> BlockingBoundCached[P, V]:
        """The twin of which every call blocks."""
        return BlockingBoundCached(self.cached.sync, self._object)

    @_awaited
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, V]:
        """Read through. See `Cached`."""
        return self.cached(self._object, *args, **kwargs)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Key[V]:
        """Return the key of these arguments for this object."""
        return self.cached.key(self._object, *args, **kwargs)


def _without_first(method: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(method)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


async def _at_once(value: V) -> V:  # noqa: RUF029 - a hit waits for nothing, and is awaited like a miss
    return value


class CachedDecorator(Protocol):
    """What `app.cached(...)` returns."""

    @overload
    def __call__(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> Cached[P, V]: ...
    @overload
    def __call__(self, loader: Callable[P, V], /) -> Cached[P, V]: ...


class CachedMethodDecorator(Protocol):
    """What `app.cached(self_key=...)` returns."""

    @overload
    def __call__(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> CachedMethod[P, V]: ...
    @overload
    def __call__(self, loader: Callable[P, V], /) -> CachedMethod[P, V]: ...


class BlockingCached(Generic[P, V]):
    """A family of cached values; calling it reads through the tiers. See `selaras.Cached`.

    Attributes:
        fn: the bare loader.
    """

    def __init__(self, aio: Cached[P, V]) -> None:
        self.aio = aio
        self.fn: Callable[P, Any] = aio.fn
        self.name = aio.name
        self.__doc__ = aio.__doc__
        self.__name__ = aio.__name__
        self.__module__ = aio.__module__
        self.__wrapped__ = aio.__wrapped__

    def __repr__(self) -> str:
        return repr(self.aio)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Read through: local tier, shared tier, loader."""
        found = self.aio.at_hand(*args, **kwargs)
        return wait_for(lambda: self.aio(*args, **kwargs)) if found is None else found[0]

    def key(self, *args: P.args, **kwargs: P.kwargs) -> BlockingKey[V]:
        """Return the key of these arguments; every spelling of a call is one key."""
        return BlockingKey(self.aio.key(*args, **kwargs))

    def by(self, **names: str) -> Binding[V]:
        """Rename parameters for `writes=`, `reads=`, `lock=` and `Read`: family parameter = task parameter."""
        return self.aio.by(**names)

    def all(self) -> BlockingWhole:
        """Return all its values, for `writes=` and to void them or write them at once."""
        return BlockingWhole(self.aio.all())

    def batch(self, loader: Callable[[list[Any]], Sequence[V]], /) -> Callable[[list[Any]], Sequence[V]]:
        """Give the family a loader for many keys at once; a decorator. See `selaras.Cached.batch`."""

        async def load(arguments: list[Any]) -> Sequence[V]:
            return await asyncio.to_thread(loader, arguments)

        self.aio.batch(load)
        return loader

    def invalidate_all(self) -> None:
        """Void every value of the family: now, and inside a job or scope again when that succeeds."""
        wait_for(self.aio.invalidate_all)


class BlockingCachedMethod(BlockingCached[P, V]):
    """A family whose loader is a method; see `CachedMethod`."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: BlockingCachedMethod[Concatenate[O, Q], V], instance: O, owner: type, /
    ) -> BlockingBoundCached[Q, V]: ...
    def __get__(self, instance: Any, owner: type, /) -> Any:
        """Return it as it is called on an object."""
        return self if instance is None else BlockingBoundCached(self, instance)


class BlockingBoundCached(Generic[P, V]):
    """A cached method of one object; see `BoundCached`."""

    __slots__ = ("_object", "cached")

    def __init__(self, cached: BlockingCached[..., V], of: object) -> None:
        self.cached = cached
        self._object = of

    def __repr__(self) -> str:
        return f"<cached {self.cached.name} of {self._object!r}>"

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the method on this object."""
        return _without_first(self.cached.fn)

    @property
    def aio(self) -> BoundCached[P, V]:
        """The twin of which every call is awaited."""
        return BoundCached(self.cached.aio, self._object)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Read through. See `BlockingCached`."""
        return self.cached(self._object, *args, **kwargs)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> BlockingKey[V]:
        """Return the key of these arguments for this object."""
        return self.cached.key(self._object, *args, **kwargs)


class BlockingCachedDecorator(Protocol):
    """What `app.cached(...)` returns."""

    @overload
    def __call__(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> BlockingCached[P, V]: ...
    @overload
    def __call__(self, loader: Callable[P, V], /) -> BlockingCached[P, V]: ...


class BlockingCachedMethodDecorator(Protocol):
    """What `app.cached(self_key=...)` returns."""

    @overload
    def __call__(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> BlockingCachedMethod[P, V]: ...
    @overload
    def __call__(self, loader: Callable[P, V], /) -> BlockingCachedMethod[P, V]: ...
