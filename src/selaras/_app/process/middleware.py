"""Middleware: code of the program's own around every enqueue and every run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from selaras._app.process.current import CurrentJob
from selaras._core.errors import ConfigurationError
from selaras._core.jobs.job import Admission


class Message(Struct, frozen=True):
    """A job on its way into the queue. `headers` travel with it: `msgspec.structs.replace(message, headers={...})`."""

    id: str
    task: str
    queue: str
    headers: Mapping[str, str]


class Middleware:
    """Override what you need; what isn't overridden costs nothing.

    The first in the list is the outermost. An exception of an `enqueue` reaches the caller and nothing is enqueued
    unless `proceed` had returned; an exception of a `run` is the attempt's failure.
    """

    async def enqueue(self, message: Message, proceed: Callable[[Message], Awaitable[Admission]]) -> Admission:
        """Go around one enqueue; call `proceed` once, with the message or a changed one."""
        return await proceed(message)

    async def run(
        self, job: CurrentJob, headers: Mapping[str, str], proceed: Callable[[], Awaitable[object]]
    ) -> object:
        """Go around one run of a body; call `proceed` once and return what it returned."""
        return await proceed()


def checked_middleware(several: object) -> tuple[Middleware, ...]:
    """Return what a program gave as `middleware=`. Raises ConfigurationError for what is none."""
    if not isinstance(several, (list, tuple)):
        raise ConfigurationError(f"middleware={several!r}: give a list of objects of classes derived from Middleware")
    return tuple(_checked(one) for one in cast("list[Any]", several))


def _checked(one: object) -> Middleware:
    if inspect.isclass(one):
        raise ConfigurationError(f"middleware=[{one.__name__}] is a class: give an object of it, {one.__name__}()")
    if not isinstance(one, Middleware):
        raise ConfigurationError(
            f"middleware=[{one!r}]: give an object of a class derived from Middleware, with a method enqueue or run"
        )
    return one
