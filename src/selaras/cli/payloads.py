"""Arguments, results and errors of a job, for people: no value of the program is built, secrets stay masked."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from selaras._app.jobs.info import shown_progress
from selaras._app.process.current import Progress
from selaras._core.codec import CorruptBytes, peek
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import JobKind, JobRecord
from selaras.cli.output import one_line


class Unreadable(Struct, frozen=True):
    """Bytes that nobody can read: shown instead of a value (they are kept as they are)."""

    unreadable: str
    bytes: int


def arguments_of(job: JobRecord) -> dict[str, Any]:
    """Return a job's arguments by name; a payload that is none as one thing that cannot be read."""
    if job.kind is not JobKind.TASK:  # a scope or a lock takes none
        return {}
    try:
        found = peek(job.payload)
    except CorruptBytes as error:
        return {"payload": Unreadable(str(error), len(job.payload))}
    if not isinstance(found, dict):
        return {"payload": found}
    return {str(name): value for name, value in cast("dict[object, Any]", found).items()}


def result_of(job: JobRecord) -> Any:
    """Return what the job returned; None also if it has no result."""
    if job.result is None:
        return None
    try:
        return peek(job.result)
    except CorruptBytes as error:
        return Unreadable(str(error), len(job.result))


def error_of(job: JobRecord) -> Failure | None:
    """Return how the last attempt that did not succeed ended."""
    return Failure.decode(job.error) if job.error else None


def error_text(failure: Failure) -> str:
    """Say an error on one line."""
    return one_line(f"{failure.type}: {failure.message}" if failure.message else failure.type)


def progress_of(job: JobRecord) -> Progress | None:
    """Return how far the job says it is."""
    return shown_progress(job)
