"""What a cached family may be made of: functions, static methods, methods, partial and callable objects; and how they
are called.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from msgspec import Struct

from selaras._app.declared.lifetimes import OldValue
from selaras._core.errors import ConfigurationError
from selaras._core.signature import Arguments


class Absent:
    """Stands for the object of a method where only what is part of the key is known: its place can be named, and nothing
    loaded.
    """

    def __init__(self, family: str) -> None:
        self.family = family


SelfKey: TypeAlias = str | Callable[[Any], object]
"""What of a method's object is part of the key: an attribute's name, or a function of the object."""


class Loader(Struct, frozen=True):
    """What a family is made of.

    Attributes:
        name: its own, if it has one; of a method with its class's before it.
        is_method: it is called on an object, its first argument.
    """

    function: Callable[..., Any]
    name: str
    is_method: bool = False


def loader_of(given: Any) -> Loader:
    """Read what `@app.cached` decorates. Raises ConfigurationError for what can be no loader."""
    static = isinstance(given, staticmethod)
    function: Any = given.__func__ if isinstance(given, staticmethod) else given
    name = str(getattr(function, "__name__", ""))
    if isinstance(function, (classmethod, property)) or not callable(function):
        raise ConfigurationError(
            f"@app.cached decorates a function, not {function!r}"
            + (
                ": of a class method make a @staticmethod, below @app.cached"
                if isinstance(function, classmethod)
                else ""
            )
        )
    called = _called(function)
    check_parameters(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ConfigurationError(
            f"family {name or repr(function)!r} is a generator function: a value is returned once; return a list instead"
        )
    owner = str(getattr(function, "__qualname__", "")).rpartition(".")[0]
    is_method = not static and inspect.isfunction(function) and bool(owner) and not owner.endswith("<locals>")
    return Loader(function, f"{owner.rpartition('<locals>.')[2]}.{name}" if is_method else name, is_method)


def check_parameters(function: Callable[..., Any]) -> None:
    """Raise ConfigurationError for what does not say which parameters it takes, as some of Python's own classes."""
    try:
        inspect.signature(function)
    except ValueError:
        raise ConfigurationError(
            f"{function!r} does not say which parameters it takes: write a function of your own that calls it"
        ) from None


def of_self(loader: Loader, self_key: object, *, said: bool) -> Callable[[Any], object] | None:
    """Return what of a method's object is part of the key; None: nothing is.

    Args:
        said: there is a `self_key`.

    Raises:
        ConfigurationError: it is needed, and is not said, or the other way round.
    """
    name = loader.name
    if not loader.is_method:
        if said:
            raise ConfigurationError(
                f"family {name!r}: self_key={self_key!r} is for methods, and this is a function: all its parameters are part "
                "of the key"
            )
        return None
    first = next(iter(inspect.signature(loader.function).parameters), None)
    if first is None:
        raise ConfigurationError(
            f"family {name!r} belongs to a class and takes no object: put @staticmethod below @app.cached"
        )
    if not said:
        raise ConfigurationError(
            f"family {name!r} belongs to a class, and its {first!r} as part of a key would be an address in memory that no "
            f"other process could find: say with self_key='id' which attribute of it stands for it in the key, or with "
            f"self_key=None that values are the same whatever the object. If it takes no object, put @staticmethod below "
            f"@app.cached"
        )
    if self_key is None or callable(self_key):
        return self_key
    if not isinstance(self_key, str) or not self_key:
        raise ConfigurationError(
            f"family {name!r}: self_key={self_key!r}: give the name of an attribute, a function of the object, or None"
        )
    return attrgetter(self_key)


def calling(function: Callable[..., Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """Return what calls it with bound arguments: on the loop, or in a thread if it is a plain one."""
    if inspect.iscoroutinefunction(_called(function)):

        async def load(arguments: Arguments) -> Any:
            return await function(*_present(arguments), **arguments.kwargs)
    else:

        async def load(arguments: Arguments) -> Any:
            value = await asyncio.to_thread(function, *_present(arguments), **arguments.kwargs)
            # A plain function around a coroutine one, such as a decorator's.
            return await value if inspect.isawaitable(value) else value

    return load


def _present(arguments: Arguments) -> tuple[Any, ...]:
    args = arguments.args
    if args and isinstance(args[0], Absent):
        raise ConfigurationError(
            f"{args[0].family} is a method, and loading a value needs its object, which only the program has: nothing is "
            f"cached here now; read it in the program once, or write the loader as a function"
        )
    return args


def calling_with(function: Callable[..., Any], old: str) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """As `calling`, with the value known until now."""

    async def load_again(arguments: Arguments, value: Any) -> Any:
        return await calling(partial(function, **{old: value}))(arguments)

    return load_again


def old_parameter(family: str, parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Return the parameter that takes the old value, if there is one. Raises ConfigurationError."""
    named: list[str] = [name for name, parameter in parameters.items() if isinstance(parameter.default, OldValue)]
    if not named:
        return None
    if len(named) > 1 or parameters[named[0]].kind is not inspect.Parameter.KEYWORD_ONLY:
        raise ConfigurationError(
            f"family {family!r}: {', '.join(named)}: one parameter after a `*` takes the old value: "
            f"`*, {named[0]}: … | None = Old()`"
        )
    return named[0]


def _called(function: Any) -> Any:
    """Return the function that a call of it runs."""
    while isinstance(function, partial):
        function = function.func
    is_object = not inspect.isroutine(function) and not inspect.isclass(function)
    return type(function).__call__ if is_object else function
