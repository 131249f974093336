"""The short way: what is not written when a job passes its line, and what tells how it stands all the same."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import structs
from tests.clock import SECOND, VirtualClock
from tests.sqlite.opened import claim, opened, worker

from selaras._contracts.partition import TurnRequest
from selaras._core.jobs.job import Attempt, JobRecord, NewJob, Parent, Put, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._stores.sqlite.partition import SqlitePartition


def lined(number: int, task: str = "work") -> NewJob:
    return NewJob(id=f"job-{number}", task=task, line="product:1", writes=("product:1",), payload=b"p")


async def end(partition: SqlitePartition, attempt: Attempt, **more: Any) -> None:
    settlement = Settlement(attempt.job, attempt.fence, JobEvent.SUCCEED, result=b"r", **more)
    [settled] = (await partition.settle("w", [settlement], START)).settled
    assert settled.refusal is None, settled


async def record_of(partition: SqlitePartition, number: int) -> JobRecord:
    record, _ = await partition.job(f"job-{number}", START)
    assert record is not None
    return record


async def states(partition: SqlitePartition, count: int) -> list[JobState]:
    records = [await record_of(partition, number) for number in range(count)]
    return [record.state for record in records]


def rows(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as con:
        return con.execute("SELECT * FROM jobs ORDER BY number").fetchall()


async def test_a_job_that_passes_its_line_is_written_once(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await worker(partition)
        await partition.enqueue([lined(number) for number in range(3)], START)
        first = rows(path)

        assert await states(partition, 3) == [JobState.READY, JobState.HELD, JobState.HELD]
        for number in range(3):
            [attempt] = await claim(partition, number + 1)
            ended = [JobState.SUCCEEDED] * number
            waiting = [JobState.HELD] * (2 - number)
            assert await states(partition, 3) == [*ended, JobState.RUNNING, *waiting]
            await end(partition, attempt)
            assert await states(partition, 3) == [*ended, JobState.SUCCEEDED, *[JobState.READY, *waiting][: 2 - number]]

        assert rows(path) == first


async def test_the_head_that_was_passed_its_line_is_ready_since_then(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        began = clock.wall_us()
        await partition.enqueue([lined(0), lined(1)], START)
        [attempt] = await claim(partition)
        clock.advance(5 * SECOND)
        await end(partition, attempt)
        clock.advance(7 * SECOND)

        [queue] = await partition.queues()

        assert queue.counts == {"ready": 1, "succeeded": 1}
        assert abs(queue.oldest_ready_us - began - 5 * SECOND) < SECOND


async def test_a_head_that_no_worker_knows_has_strayed_since_it_was_passed_its_line(
    folder: Path, clock: VirtualClock
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        began = clock.wall_us()
        await partition.enqueue([lined(0), lined(1, task="unknown")], START)
        [attempt] = await claim(partition)
        clock.advance(5 * SECOND)
        await end(partition, attempt)
        clock.advance(7 * SECOND)

        assert await claim(partition, 2) == ()

        record = await record_of(partition, 1)
        assert abs(record.strayed_us - began - 5 * SECOND) < SECOND
        request = TurnRequest(
            instance="w", number=3, since=START, queues=("default",), tasks=frozenset({"unknown"}), limit=1
        )
        assert [one.job for one in (await partition.turn(request)).claims] == ["job-1"]


async def test_what_it_puts_is_stored_with_its_end(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        await partition.enqueue([lined(0), lined(1)], START)
        [attempt] = await claim(partition)
        put = Put("product:1", b"new", checksum=1, family="product", tags=(), expires_in_us=0)

        await end(partition, attempt, puts=(put,))

        assert (await partition.cache_stats()).entries == 1
        assert (await partition.cache_stats()).intents == 0


async def test_a_head_that_is_cancelled_in_the_same_transaction_leaves_its_line(
    folder: Path, clock: VirtualClock
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        await partition.enqueue([lined(number) for number in range(3)], START)
        [attempt] = await claim(partition)
        settlement = Settlement(attempt.job, attempt.fence, JobEvent.SUCCEED)

        _, cancelled = await asyncio.gather(
            partition.settle("w", [settlement], START),
            partition.cancel("job-1", "no more"),
        )
        assert cancelled == (JobState.CANCELLED, True)

        assert await states(partition, 3) == [JobState.SUCCEEDED, JobState.CANCELLED, JobState.READY]
        assert [one.job for one in await claim(partition, 2)] == ["job-2"]


async def test_a_head_that_somebody_waits_for_in_the_same_verb_takes_the_long_way(
    folder: Path, clock: VirtualClock
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        await partition.enqueue([lined(0), NewJob(id="job-1", task="work"), lined(2)], START)
        first, second = await claim(partition)
        child = NewJob(id="job-3", task="work", parents=(Parent("job-2"),))
        settlements = (
            Settlement(first.job, first.fence, JobEvent.SUCCEED),  # it passes its line to job-2
            Settlement(second.job, second.fence, JobEvent.SUCCEED, children=(child,)),
        )

        request = TurnRequest(
            instance="w", number=2, since=START, settlements=settlements, queues=("default",), tasks=frozenset({"work"})
        )
        reply = await partition.turn(structs.replace(request, limit=10))

        assert [one.job for one in reply.claims] == ["job-2"]
        assert await states(partition, 4) == [
            JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.RUNNING, JobState.BLOCKED,
        ]  # fmt: skip
        [attempt] = [Attempt(one.job, one.fence) for one in reply.claims]
        await end(partition, attempt)
        assert (await states(partition, 4))[2:] == [JobState.SUCCEEDED, JobState.READY]
