"""Jobs as a test sees them, and how they are told when an assertion fails."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from msgspec import Struct

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.info import instant
from selaras._app.jobs.meta import decode_meta
from selaras._app.process.program import Program
from selaras._contracts.partition import JobFilter
from selaras._core.codec import CorruptBytes
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import JobRecord
from selaras._core.jobs.states import JobState
from selaras._core.signature import Arguments, Unbindable
from selaras._stores.memory.store import MemoryStore

T = TypeVar("T")

_ALL: Final = 1_000_000
_TOLD_MOST: Final = 20


class JobError(Struct, frozen=True):
    """What a body raised."""

    job: str
    task: str
    attempt: int
    error: BaseException


class SeenJob(Struct, frozen=True, kw_only=True):
    """A job, when the test looked.

    Attributes:
        arguments: by name, defaults applied; None if the app cannot read them.
        due_at: when it becomes, or became, due.
        result: what it returned; None also if it has not.
        failure: how the last attempt ended that did not succeed.
        call: for people: `reprice(id=42, factor=1.1)`, secrets masked.
    """

    id: str
    task: str
    queue: str
    state: JobState
    priority: int
    arguments: dict[str, Any] | None
    attempt: int
    due_at: datetime | None
    due_us: int
    line: str
    unique: str
    result: Any
    failure: Failure | None
    reason: str
    call: str


def seen_jobs(program: Program, store: MemoryStore) -> list[SeenJob]:
    """Return every job of a memory store, the oldest first."""
    records = [
        record for partition in store.partitions for record in at_once(partition.jobs(JobFilter(limit=_ALL))).jobs[::-1]
    ]
    return [_seen(program, record) for record in sorted(records, key=lambda record: record.created_us)]


def at_once(answer: Coroutine[Any, Any, T]) -> T:
    """Return what a verb of the memory store answers: it never waits, so a plain function may ask."""
    try:
        answer.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    answer.close()
    raise AssertionError("the memory store waited")


def _seen(program: Program, record: JobRecord) -> SeenJob:
    spec = program.registry.tasks.get(record.task)
    arguments, call = _read(spec, record)
    return SeenJob(
        id=record.id,
        task=record.task,
        queue=record.queue,
        state=record.state,
        priority=record.priority,
        arguments=arguments,
        attempt=record.attempt,
        due_at=instant(record.due_us),
        due_us=record.due_us,
        line=record.line,
        unique=record.unique,
        result=spec.result.decode(record.result) if spec and record.result is not None else None,
        failure=Failure.decode(record.error) if record.error else None,
        reason=record.reason,
        call=call,
    )


def _read(spec: TaskSpec | None, record: JobRecord) -> tuple[dict[str, Any] | None, str]:
    if spec is None:
        return None, f"{record.task}(…)"
    try:
        signature = spec.rest if decode_meta(record.meta).follows else spec.signature
        arguments = signature.decode(record.payload)
    except (CorruptBytes, Unbindable, ValueError):
        return None, f"{record.task}(…)"
    return arguments.named(), f"{record.task}({signature.describe(arguments)})"


def say_call(spec: TaskSpec, arguments: Arguments) -> str:
    """Say a call as a person would write it."""
    return f"{spec.name}({spec.signature.describe(arguments)})"


def say_jobs(jobs: Sequence[SeenJob], task: str) -> str:
    """List jobs for a message, those of `task` first."""
    if not jobs:
        return "No job was enqueued at all."
    mine = [job for job in jobs if job.task == task]
    others = [job for job in jobs if job.task != task]
    said = list(_block(f"jobs of {task}", mine)) if mine else [f"There is no job of {task}."] if task else []
    return "\n".join([*said, *_block("other jobs" if task else "jobs", others)])


def _block(title: str, jobs: Sequence[SeenJob]) -> Iterable[str]:
    if not jobs:
        return
    yield f"{title}:"
    for job in jobs[-_TOLD_MOST:]:
        yield f"  {job.call}  {job.state.value}{f', queue {job.queue}' if job.queue != 'default' else ''}"
    if len(jobs) > _TOLD_MOST:
        yield f"  and {len(jobs) - _TOLD_MOST} before them"
