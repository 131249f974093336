"""What can be said of one enqueue, beside the task's own arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, cast

from msgspec import Struct

from selaras._app.jobs.job import BlockingJob, Job
from selaras._app.setup.checks import count, rank, word, yes_or_no
from selaras._core.cache.key import checked_name
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError
from selaras._core.jobs.job import Edge, OnConflict, UniqueUntil

After: TypeAlias = Job[Any] | str
"""A job, or its id."""


class CommonOptions(TypedDict, total=False):
    """What can be said of an enqueue in either face, with the defaults of `options_from`."""

    delay: Duration | None
    at: datetime | None
    priority: int | None
    id: str | None
    unique: str | None
    unique_until: Literal["started", "finished"]
    on_conflict: Literal["keep", "replace"]
    queue: str | None
    retries: int | None
    timeout: Duration | None
    expires: Duration | None
    result_ttl: Duration | None
    now: bool


class EnqueueOptions(CommonOptions, total=False):
    """What `task.options(...)` takes."""

    after: After | Sequence[After]
    after_finished: After | Sequence[After]


class BlockingEnqueueOptions(CommonOptions, total=False):
    """What it takes where nothing can be awaited."""

    after: BlockingJob[Any] | str | Sequence[BlockingJob[Any] | str]
    after_finished: BlockingJob[Any] | str | Sequence[BlockingJob[Any] | str]


class Options(Struct, frozen=True, kw_only=True):
    """Resolved options; None: as the task says. Times in microseconds, instants since 1970."""

    delay_us: int = 0
    due_us: int = 0
    priority: int | None = None
    id: str = ""
    unique: str = ""
    unique_until: UniqueUntil = UniqueUntil.STARTED
    on_conflict: OnConflict = OnConflict.KEEP
    parents: tuple[tuple[After, Edge], ...] = ()
    queue: str | None = None
    retries: int | None = None
    timeout_us: int | None = None
    expires_us: int | None = None
    result_ttl_us: int | None = None
    now: bool = False


NO_OPTIONS = Options()


def options_from(
    *,
    delay: Duration | None = None,
    at: datetime | None = None,
    priority: int | None = None,
    id: str | None = None,
    unique: str | None = None,
    unique_until: Literal["started", "finished"] = "started",
    on_conflict: Literal["keep", "replace"] = "keep",
    after: After | Sequence[After] = (),
    after_finished: After | Sequence[After] = (),
    queue: str | None = None,
    retries: int | None = None,
    timeout: Duration | None = None,
    expires: Duration | None = None,
    result_ttl: Duration | None = None,
    now: bool = False,
) -> Options:
    """Check and resolve what the caller said.

    Raises:
        ConfigurationError: naming the option and what to give instead.
    """
    if delay is not None and at is not None:
        raise ConfigurationError("give delay= or at=, not both")
    until = UniqueUntil(word(unique_until, UniqueUntil, option="unique_until"))
    conflict = OnConflict(word(on_conflict, OnConflict, option="on_conflict"))
    if unique is None and (until, conflict) != (UniqueUntil.STARTED, OnConflict.KEEP):
        said = f"on_conflict={on_conflict!r}" if conflict is OnConflict.REPLACE else f"unique_until={unique_until!r}"
        raise ConfigurationError(f"{said} is about the unique key, and none is named: add unique='...'")
    parents = (*_parents("after", after, Edge.AFTER), *_parents("after_finished", after_finished, Edge.FINISHED))
    if id is not None and any((one if isinstance(one, str) else one.id) == id for one, _ in parents):
        raise ConfigurationError(f"id={id!r} is named by after= or after_finished=, too: the job would wait for itself")
    return Options(
        delay_us=0 if delay is None else _delay_us(delay),
        due_us=0 if at is None else _instant_us(at),
        priority=None if priority is None else rank(priority, option="priority"),
        id="" if id is None else checked_name(id, what="job id"),
        unique="" if unique is None else checked_name(unique, what="unique key"),
        unique_until=until,
        on_conflict=conflict,
        parents=parents,
        queue=None if queue is None else checked_name(queue, what="queue"),
        retries=None if retries is None else count(retries, option="retries"),
        timeout_us=None if timeout is None else duration_us(timeout, name="timeout"),
        expires_us=None if expires is None else duration_us(expires, name="expires"),
        result_ttl_us=None if result_ttl is None else duration_us(result_ttl, name="result_ttl"),
        now=yes_or_no(now, option="now"),
    )


def _delay_us(delay: object) -> int:
    if isinstance(delay, (datetime, date)):
        raise ConfigurationError(f"delay={delay!r} is an instant: give it as at=, with a time zone")
    return duration_us(cast(Duration, delay), name="delay")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def _instant_us(at: object) -> int:
    if not isinstance(at, datetime):
        raise ConfigurationError(f"at={at!r}: give a datetime with a time zone")
    if at.tzinfo is None or at.utcoffset() is None:
        raise ConfigurationError(
            f"at={at!r} has no time zone, so it names no instant: give one with tzinfo, such as datetime.now(UTC)"
        )
    # Arithmetic in integers: a float of seconds loses microseconds beyond 2033. Past instants are due now.
    return max(1, (at - _EPOCH) // _US)


def _parents(option: str, after: Any, edge: Edge) -> list[tuple[After, Edge]]:
    many = isinstance(after, Iterable) and not isinstance(after, (Job, str))
    several: list[Any] = list(cast("Iterable[Any]", after)) if many else [after]
    for one in several:
        if not isinstance(one, (Job, str)):
            raise ConfigurationError(f"{option}={one!r}: give a job, its id, or a list of them")
        if isinstance(one, str):
            checked_name(one, what="job id")
    return [(one, edge) for one in several]
