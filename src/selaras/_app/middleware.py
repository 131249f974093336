"""Middleware: code of the program's own around every enqueue and every run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from selaras._app.current import CurrentJob
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
