"""The signature of a task or loader: binds, coerces, encodes, and renders cache keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from selaras._core.codec import CorruptBytes
from selaras._core.errors import NotEncodable, SelarasError


class Unbindable(SelarasError):
    """A stored payload does not fit the parameters this program's function has; says what is missing or extra."""


class Arguments(Struct, frozen=True):
    """A call's arguments in canonical form: defaults applied, coerced; `function(*args, **kwargs)` is the call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    names: tuple[str, ...] = ()

    def named(self) -> dict[str, Any]:
        """Return the value of each parameter by its name (`*args` as a tuple, `**kwargs` as a dict)."""
        return {**dict(zip(self.names, self.args, strict=False)), **self.kwargs}


class Signature:
    """What a function accepts.

    Attributes:
        parameters: their names, in order, without the skipped ones.
        returns: the resolved return annotation, of a coroutine its result; Any if it cannot be known.
    """

    def __init__(self, function: Callable[..., Any], skip: frozenset[str], ignore: frozenset[str]) -> None:
        self._signature = inspect.signature(function)
        self.parameters = tuple(name for name in self._signature.parameters if name not in skip)
        self.returns: Any = Any

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        skip: frozenset[str] = frozenset(),
        ignore: frozenset[str] = frozenset(),
    ) -> Signature:
        """Read a function's signature. `skip`: parameters that no caller gives; `ignore`: not part of cache keys."""
        return cls(function, skip, ignore)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Bind a call: TypeError as Python would raise it, NotEncodable where a value does not fit its annotation."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return Arguments(bound.args, bound.kwargs, self.parameters)

    def without_first(self) -> Signature:
        """The signature of a call whose first argument comes later: the value of the step before (`then`)."""
        return self

    def with_first(self, value: Any, arguments: Arguments) -> Arguments:
        """Complete the arguments that `without_first` bound or decoded with the first one."""
        return Arguments((value, *arguments.args), arguments.kwargs, self.parameters)

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """`key_parts(bind(args, kwargs))`, remembered by the raw arguments."""
        return self.key_parts(self.bind(args, kwargs))

    def key_parts(self, arguments: Arguments) -> str:
        """Render arguments for a cache key: percent-encoded; two calls share it only if they are the same call."""
        return ",".join(map(repr, arguments.args))

    def describe(self, arguments: Arguments) -> str:
        """Render arguments for people: cut to a bound, secrets masked."""
        return ", ".join(map(repr, arguments.args))

    def encode(self, arguments: Arguments, *, most: int = 1_048_576) -> bytes:
        """Return the payload: NotEncodable names the path, such as `args[0]['x']`."""
        try:
            return b"\x01" + msgspec.msgpack.encode([arguments.args, arguments.kwargs])
        except (TypeError, OverflowError) as error:
            raise NotEncodable(str(error)) from error

    def decode(self, payload: bytes) -> Arguments:
        """Return what `encode` took: CorruptBytes, or Unbindable when the parameters have changed since."""
        try:
            args, kwargs = msgspec.msgpack.decode(payload[1:])
        except (msgspec.DecodeError, ValueError) as error:
            raise CorruptBytes(str(error)) from error
        return Arguments(tuple(args), kwargs, self.parameters)
