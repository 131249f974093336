"""Asks every partition and puts the answers together, for whoever looks at a store from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from selaras._cache.lineage import Lineage
from selaras._contracts.partition import CacheStats, Instance, Invalidation, JobFilter, JobPage, Partition, QueueStats
from selaras._contracts.store import Store
from selaras._core.cache.lineage import What
from selaras._core.jobs.failure import kept_reason
from selaras._core.jobs.job import Admission, JobKind, JobRecord, Refusal
from selaras._core.jobs.states import JobState
from selaras._core.positions import START
from selaras._core.routing import partition_of

T = TypeVar("T")

_PAGE = 500


LONG_US = 10_000_000
"""A job that has been writing for so long is shown as one that keeps readers off their caches."""


class Found(Struct, frozen=True):
    """A job, and the partition it is at home in."""

    job: JobRecord
    partition: Partition


class Listing(Struct, frozen=True):
    """The newest jobs that match; `more`: there are others."""

    jobs: tuple[JobRecord, ...]
    more: bool


class Cancelled(Struct, frozen=True):
    """What a cancel came to: the state the job is in now (None: no such job), and whether this call did it."""

    state: JobState | None
    did: bool


async def find_job(store: Store, id: str) -> Found | None:
    """Look a job up by its id, wherever its line put it."""
    answers = await _ask(store, lambda partition: partition.job(id, START))
    for partition, (job, _) in zip(store.partitions, answers, strict=True):
        if job is not None:
            return Found(job, partition)
    return None


async def long_writers(store: Store, now_us: int) -> tuple[JobRecord, ...]:
    """Return jobs and scopes that have long been writing keys, tags or families, the longest first; of the newest ones that
    run.
    """
    pages = await asyncio.gather(_running(store, JobKind.TASK), _running(store, JobKind.WRITING))
    jobs = [job for page in chain(*pages) for job in page.jobs if job.writes and now_us - job.started_us >= LONG_US]
    return tuple(sorted(jobs, key=lambda job: job.started_us))


async def _running(store: Store, kind: JobKind) -> list[JobPage]:
    which = JobFilter(kind=kind, states=(JobState.RUNNING,), limit=_PAGE)
    return await _ask(store, lambda partition: partition.jobs(which))


async def list_jobs(store: Store, which: JobFilter) -> Listing:
    """List the newest jobs that match, over all partitions."""
    pages = await _ask(store, lambda partition: partition.jobs(which))
    jobs = sorted((job for page in pages for job in page.jobs), key=lambda job: -job.created_us)
    more = len(jobs) > which.limit or any(page.cursor for page in pages)
    return Listing(tuple(jobs[: which.limit]), more)


async def every_job(store: Store, which: JobFilter) -> AsyncIterator[Found]:
    """Go through all jobs that match, page by page, partition by partition; `which.limit` is not looked at."""
    for partition in store.partitions:
        cursor = 0
        while True:
            page = await partition.jobs(replace(which, before=cursor, limit=_PAGE))
            for job in page.jobs:
                yield Found(job, partition)
            cursor = page.cursor
            if not cursor:
                break


async def line_holder(partition: Partition, line: str) -> JobRecord | None:
    """Return the job that holds a line: it runs, or is about to. None: a lock or a back-off."""
    cursor = 0
    while True:
        which = JobFilter(states=(JobState.RUNNING, JobState.READY), before=cursor, limit=_PAGE)
        page = await partition.jobs(which)
        for job in page.jobs:
            if job.line == line:
                return job
        cursor = page.cursor
        if not cursor:
            return None


async def cancel_job(store: Store, id: str, reason: str) -> Cancelled:
    """Cancel a job by its id, wherever it lives; of a running one: ask it to end."""
    found = await find_job(store, id)
    if found is None:
        return Cancelled(None, did=False)
    state, did = await found.partition.cancel(id, kept_reason(reason))
    return Cancelled(state, did)


async def revive_job(store: Store, id: str) -> Admission:
    """Retry a failed job by hand, wherever it lives."""
    found = await find_job(store, id)
    if found is None:
        return Admission(id, JobState.FAILED, created=False, refusal=Refusal.UNKNOWN_JOB)
    return await found.partition.revive(id)


async def purge_jobs(store: Store, states: Sequence[JobState], queue: str) -> int:
    """Delete all jobs in `states` (of `queue`, or "" for all) that nobody runs. Returns how many."""
    purged = 0
    for partition in store.partitions:
        while count := await partition.purge(states, queue, _PAGE):
            purged += count
    return purged


async def queue_stats(store: Store) -> tuple[QueueStats, ...]:
    """Every queue, its numbers summed over the partitions."""
    merged: dict[str, QueueStats] = {}
    for stats in await _ask(store, lambda partition: partition.queues()):
        for queue in stats:
            known = merged.get(queue.name)
            merged[queue.name] = _sum_of(known, queue) if known else queue
    return tuple(merged[name] for name in sorted(merged))


def _sum_of(one: QueueStats, other: QueueStats) -> QueueStats:
    oldest = [us for us in (one.oldest_ready_us, other.oldest_ready_us) if us]
    return QueueStats(
        name=one.name,
        counts={
            state.value: count
            for state in JobState
            if (count := one.counts.get(state.value, 0) + other.counts.get(state.value, 0))
        },
        paused=one.paused or other.paused,
        # A worker is enrolled in every partition: it is one worker, not one a partition.
        workers=max(one.workers, other.workers),
        oldest_ready_us=min(oldest, default=0),
        apart=one.apart + other.apart,
    )


async def pause_queue(store: Store, queue: str, *, paused: bool) -> None:
    """Stop or resume claims from a queue, everywhere."""
    await _ask(store, lambda partition: partition.pause(queue, paused=paused))


async def live_instances(store: Store) -> tuple[Instance, ...]:
    """Every live process, once."""
    answers = await _ask(store, lambda partition: partition.instances())
    return tuple({instance.id: instance for answer in answers for instance in answer}.values())


async def cache_stats(store: Store) -> tuple[CacheStats, ...]:
    """The shared tier at a glance, one a partition."""
    return tuple(await _ask(store, lambda partition: partition.cache_stats()))


async def _ask(store: Store, question: Callable[[Partition], Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*(question(partition) for partition in store.partitions)))


async def invalidate_key(store: Store, key: str, lineage: Lineage | None) -> None:
    """Void one value by the text of its key."""
    partition = store.partitions[partition_of(key, len(store.partitions))]
    news = await partition.invalidate(Invalidation(keys=(key,)), START)
    if lineage is not None:
        lineage.note_here(What.VOIDED, key, position=news.tail.position)
