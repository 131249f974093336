"""What a body can know of the attempt it runs in."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.errors import ConfigurationError, SelarasError
from selaras._core.jobs.failure import MESSAGE_MOST, cut

_AMOUNT_MOST: Final = 2**53
"""Up to here every whole number is a float, too, in whatever shows it."""


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
        """Say how far the job is; goes out with the worker's next turn, the latest wins. Never waits.

        Args:
            done: of `total`, in units of your own; from 0.
            total: 0: unknown.
            message: a line for people; a long one is cut.

        Raises:
            ConfigurationError: naming the argument and what to give instead.
        """
        if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
            raise ConfigurationError(f"progress(message={message!r}): give a text")
        said = Progress(_amount(done, "done"), _amount(total, "total"), cut(message, MESSAGE_MOST))
        self._report(msgspec.msgpack.encode(said))


def _amount(value: object, argument: str) -> float:
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not 0 <= value <= _AMOUNT_MOST  # and no nan, which is neither
    ):
        raise ConfigurationError(f"progress({argument}={value!r}): give a number from 0 to {_AMOUNT_MOST:,}")
    return value


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
