"""`Read(...)`: a parameter that is read before the body starts."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from selaras._app.values.cached import Binding, BlockingCached, Cached
from selaras._core.errors import ConfigurationError

V = TypeVar("V")


class Reads:
    """The default value that stands for a read."""

    __slots__ = ("binding",)

    def __init__(self, binding: Binding[Any]) -> None:
        self.binding = binding

    def __repr__(self) -> str:
        return f"Read({self.binding.family.name})"


def Read(source: Cached[..., V] | BlockingCached[..., V] | Binding[V]) -> V:  # noqa: N802 - it reads as a declaration, like a class
    """Declare that a parameter is the cached value of the task's other arguments, matched by name.

    It is read before the body starts, warmed with the whole batch of claimed jobs; if the task writes that key, it is
    the value from just before.

    Raises:
        ConfigurationError: it is no cached family.
    """
    if isinstance(source, BlockingCached):
        source = source.aio
    if not isinstance(source, (Cached, Binding)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"Read({source!r}): give a function declared with @app.cached, or its .by(...)")
    binding = source if isinstance(source, Binding) else Binding[V](source.family, {})
    return cast(V, Reads(binding))
