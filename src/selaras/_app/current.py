"""What a body can know of the attempt it runs in."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime

import msgspec
from msgspec import Struct

from selaras._core.errors import SelarasError


class Progress(Struct, frozen=True, array_like=True):
    """How far a job says it is: `done` of `total` (0: unknown), and a line for people."""

    done: float
    total: float = 0
    message: str = ""


class CurrentJob:
    """The attempt that runs here.

    Attributes:
        attempt: counted from 1.
        fence: grows with every claim of the job; for the datastore's own `where fence <= :fence`.
        deadline: when the worker ends the body; None: never.
    """

    __slots__ = ("_report", "attempt", "deadline", "fence", "id", "queue", "task")

    def __init__(
        self,
        id: str,
        task: str,
        queue: str,
        attempt: int,
        fence: int,
        deadline: datetime | None,
        report: Callable[[bytes], None],
    ) -> None:
        self.id = id
        self.task = task
        self.queue = queue
        self.attempt = attempt
        self.fence = fence
        self.deadline = deadline
        self._report = report

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}, attempt {self.attempt}>"

    def progress(self, done: float, total: float = 0, message: str = "") -> None:
        """Say how far the job is; goes out with the worker's next turn, the latest wins. Never waits."""
        self._report(msgspec.msgpack.encode(Progress(done, total, message)))


CURRENT: ContextVar[Callable[[], CurrentJob] | None] = ContextVar("selaras_current", default=None)
"""Makes the current job when it is asked for: most bodies never ask."""


def _begin_outside() -> None:
    """A forked child is not its parent's job."""
    CURRENT.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_outside)


def current_job() -> CurrentJob:
    """Return the job that runs here.

    Raises:
        SelarasError: outside of a job.
    """
    make = CURRENT.get()
    if make is None:
        raise SelarasError("current_job() was called outside of a job")
    return make()
