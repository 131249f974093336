"""What is known of a job, for people and programs that look at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec import Struct

from selaras._app.jobs.meta import decode_meta
from selaras._app.process.current import Progress
from selaras._app.process.program import Program
from selaras._core.cache.opening import shown_keys
from selaras._core.codec import UNREADABLE, CorruptBytes
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import Ended, JobRecord
from selaras._core.jobs.states import JobState
from selaras._core.signature import Unbindable

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)
_PROGRESS: Final = msgspec.msgpack.Decoder(Progress)


class JobInfo(Struct, frozen=True, kw_only=True):
    """All that is known of a job now. Instants are UTC.

    Attributes:
        arguments: for people, secrets masked; None when this program does not know the task or cannot read them.
        failure: how the last attempt ended that did not succeed.
        waits_for: ids of the jobs it is blocked by; `stuck_on` is the one that failed, of them or of those that they wait for.
    """

    id: str
    task: str
    queue: str
    state: JobState
    priority: int
    attempt: int
    lost: int
    created_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    arguments: str | None
    failure: Failure | None
    reason: str
    progress: Progress | None
    line: str
    unique: str
    writes: tuple[str, ...]
    waits_for: tuple[str, ...]
    stuck_on: str
    cancel_requested: bool
    history: tuple[Ended, ...]


def info_of(program: Program, record: JobRecord, *, stuck_on: str = "") -> JobInfo:
    """Show a record."""
    return JobInfo(
        id=record.id,
        task=record.task,
        queue=record.queue,
        state=record.state,
        priority=record.priority,
        attempt=record.attempt,
        lost=record.lost,
        created_at=instant(record.created_us) or _EPOCH,
        due_at=instant(record.due_us),
        started_at=instant(record.started_us),
        ended_at=instant(record.ended_us),
        arguments=shown_arguments(program, record),
        failure=Failure.decode(record.error) if record.error else None,
        reason=record.reason,
        progress=shown_progress(record),
        line=record.line,
        unique=record.unique,
        writes=shown_keys(record.writes),
        waits_for=tuple(parent.job for parent in record.parents),
        stuck_on=stuck_on or record.stuck_on,
        cancel_requested=record.cancel_requested,
        history=record.history,
    )


def shown_arguments(program: Program, record: JobRecord) -> str | None:
    """Render a job's arguments for people, secrets masked; None if this program can't read them."""
    spec = program.registry.find_task(record.task)
    if spec is None:
        return None
    try:
        signature = spec.rest if decode_meta(record.meta).follows else spec.signature
        return signature.describe(signature.decode(record.payload))
    except (CorruptBytes, Unbindable, ValueError):
        return None


def shown_progress(record: JobRecord) -> Progress | None:
    """Return what a body said of its progress."""
    if not record.progress:
        return None
    try:
        return _PROGRESS.decode(record.progress)
    except UNREADABLE:
        return None


def instant(us: int) -> datetime | None:
    """Return an instant of the store in UTC; None for none."""
    if not us:
        return None
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST
