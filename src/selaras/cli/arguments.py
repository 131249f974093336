"""Reads what was typed in a shell as a function's arguments, by its annotations."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from selaras._core.codec import UNREADABLE
from selaras.cli.exits import Misused


def read_arguments(
    function: Callable[..., Any] | Sequence[inspect.Parameter], types: Mapping[str, Any], texts: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read texts, in order or as `name=value`, as arguments of a function, or of its parameters, which are of `types`.

    A text is read as its parameter's type: `42` is a number for an `int` and text for a `str`. Containers and
    parameters without a type are read as JSON; what is no JSON is text.

    Raises:
        Misused: naming the parameter and what it takes.
    """
    parameters = list(inspect.signature(function).parameters.values()) if callable(function) else function
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, is_named, value = text.partition("=")
        if is_named and name in named:
            kwargs[name] = read_value(name, value, types.get(name, Any))
        elif len(args) < len(positional):
            next_one = positional[len(args)].name
            if is_named and name.isidentifier() and next_one in named:
                raise Misused(
                    f"there is no parameter {name!r}: it takes {_listed(parameters)}; if {text!r} is meant as it stands, write "
                    f"{next_one}={text}"
                )
            args.append(read_value(next_one, text, types.get(next_one, Any)))
        elif rest is not None:
            args.append(read_value(rest.name, text, types.get(rest.name, Any)))
        else:
            given = f"it takes {len(positional)} ({_listed(positional)})" if positional else "it takes none"
            raise Misused(f"{text!r} is one argument too many: {given}")
    return tuple(args), kwargs


def _listed(parameters: Iterable[inspect.Parameter]) -> str:
    return ", ".join(it.name for it in parameters) or "none"


def read_value(name: str, text: str, annotation: Any) -> Any:
    """Read one text as a value of this type. Raises Misused."""
    if annotation in (Any, object):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    try:
        return msgspec.convert(text, annotation, strict=False)
    except (msgspec.ValidationError, TypeError, UnicodeError):
        pass
    try:
        return msgspec.json.decode(text, type=annotation, strict=False)
    except UNREADABLE:
        said = getattr(annotation, "__name__", None) or str(annotation)
        raise Misused(f"{name}={text!r} is no {said}") from None
