"""Resolves a function's annotations, each on its own, however late its names appear."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType, FunctionType
from typing import Any, Final

_WORD: Final = re.compile(r"[^\W\d]\w*")


class Hints:
    """The annotations of one function.

    An annotation may be text (`from __future__ import annotations`) that names a class which is defined later, locally,
    or only for the type checker. So nothing is resolved until somebody asks, and what cannot be resolved then
    is Any: it spoils its own parameter and no other.

    Attributes:
        unresolved: parameter -> why its annotation was not understood.
    """

    def __init__(self, function: Callable[..., Any], annotations: Mapping[str, Any]) -> None:
        """Call it where the function is being declared: local names are looked up in the frames around."""
        target = inspect.unwrap(function)
        while isinstance(target, partial):
            target = inspect.unwrap(target.func)
        target = getattr(target, "__func__", target)
        if not inspect.isroutine(target) and not inspect.isclass(target):
            target = type(target).__call__  # an object that can be called
        self._annotations = annotations
        self._globals: dict[str, Any] = getattr(target, "__globals__", {})
        self._locals = _locals_of(target, annotations)
        self.unresolved: dict[str, str] = {}

    def ready(self) -> bool:
        """Say whether every name in the annotations is defined by now."""
        try:
            for annotation in self._annotations.values():
                self._evaluated(annotation)
        except Exception:  # noqa: BLE001 - an annotation is any expression at all
            return False
        return True

    def resolve(self, name: str) -> Any:
        """Return a parameter's annotation, or Any and a note in `unresolved`."""
        try:
            return self._evaluated(self._annotations.get(name, Any))
        except Exception as error:  # noqa: BLE001 - an annotation is any expression at all
            self.unresolved[name] = f"{type(error).__name__}: {error}"
            return Any

    def _evaluated(self, annotation: Any) -> Any:
        if annotation is inspect.Parameter.empty:
            return Any
        holder = _Holder()
        holder.__annotations__ = {"it": annotation}
        return typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]


class _Holder:
    """Carries one annotation to `get_type_hints`, which resolves all of an object's or none."""


def _locals_of(target: Any, annotations: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {parameter.__name__: parameter for parameter in getattr(target, "__type_params__", ())}
    if not isinstance(target, FunctionType):
        return known
    words = {word for text in annotations.values() for word in _WORD.findall(_text(text))}
    for frame in _frames_around(target, inspect.currentframe()):
        for name in words.intersection(frame.f_locals):
            known.setdefault(name, frame.f_locals[name])
    for name, cell in zip(target.__code__.co_freevars, target.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:
            continue  # it has no value yet
    return known


def _frames_around(target: FunctionType, frame: FrameType | None) -> list[FrameType]:
    """Return the running frames of the functions that `target` is written in, the innermost first."""
    outer = {
        target.__qualname__[: match.start()] for match in re.finditer(r"\.<locals>\.|\.(?=[^.]+$)", target.__qualname__)
    }
    found: list[FrameType] = []
    while frame is not None and outer:
        if frame.f_globals is target.__globals__ and frame.f_code.co_qualname in outer:
            found.append(frame)
        frame = frame.f_back
    return found


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else repr(annotation)
