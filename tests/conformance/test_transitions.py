"""Every pair of state and event: the table is what the store does, and the store does nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.clock import SECOND
from tests.conformance.world import LINE, A, B, C, D, Worker, World, after, job, local

from selaras._core.jobs.job import Attempt
from selaras._core.jobs.lifecycle import SETTLING, TRANSITIONS
from selaras._core.jobs.states import JobEvent, JobState

U = local("unique")
SOON = 60 * SECOND

Happening = Callable[[World, Worker], Awaitable[object]]


async def _reach(world: World, worker: Worker, state: JobState, max_lost: int) -> None:
    """Bring job A, which stands in a line, into a state."""
    options: dict[str, Any] = {"line": LINE, "unique": U, "expires_in_us": 2 * SOON, "max_lost": max_lost}
    match state:
        case JobState.BLOCKED:
            await world.enqueue(job(B, queue="aside"), job(A, parents=after(B), **options))
        case JobState.SCHEDULED:
            await world.enqueue(job(A, delay_us=SOON, **options))
        case JobState.HELD:
            await world.enqueue(job(D, line=LINE, queue="aside"), job(A, **options))
        case JobState.EXPIRED:
            await world.enqueue(job(A, **{**options, "expires_in_us": 1}))
            await world.pass_time(1)
        case JobState.CANCELLED:
            await world.enqueue(job(A, **options))
            await world.home.cancel(A, "by hand")
        case JobState.READY:
            await world.enqueue(job(A, **options))
        case JobState.RUNNING:
            await world.enqueue(job(A, **options))
            await worker.claim()
        case JobState.SUCCEEDED | JobState.FAILED:
            await world.enqueue(job(A, **options))
            await worker.run(JobEvent.SUCCEED if state is JobState.SUCCEEDED else JobEvent.FAIL)


def _settling(event: JobEvent) -> Happening:
    async def settle(world: World, worker: Worker) -> object:
        return await worker.end(Attempt(A, (await world.record(A)).fence), event)

    return settle


async def _end_of(world: World, worker: Worker, other: str) -> None:
    """End a job that stands in A's way, if there is one."""
    if await world.knows(other):
        for claim in await worker.claims(queues=("aside",)):
            await worker.end(claim)


async def _come_due(world: World, worker: Worker) -> None:
    await world.pass_time(SOON)


async def _cancel(world: World, worker: Worker) -> None:
    await world.home.cancel(A, "by hand")
    await _settling(JobEvent.CANCEL)(world, worker)


async def _supersede(world: World, worker: Worker) -> None:
    await world.enqueue(job(C, unique=U, queue="aside"))
    await _settling(JobEvent.RETRY)(world, worker)


HAPPENINGS: dict[JobEvent, Happening] = {
    **{event: _settling(event) for event in SETTLING - {JobEvent.CANCEL}},
    JobEvent.UNBLOCK: lambda world, worker: _end_of(world, worker, B),
    JobEvent.DUE: _come_due,
    JobEvent.HOLD: lambda world, worker: world.enqueue(job(C, line=LINE, priority=1, queue="aside")),
    JobEvent.PROMOTE: lambda world, worker: _end_of(world, worker, D),
    JobEvent.CLAIM: lambda world, worker: worker.claims(),
    JobEvent.LOSE: lambda world, worker: world.lose_workers(),
    JobEvent.EXHAUST: lambda world, worker: world.lose_workers(),
    JobEvent.CANCEL: _cancel,
    JobEvent.SUPERSEDE: _supersede,
    JobEvent.EXPIRE: lambda world, worker: world.pass_time(2 * SOON),
    JobEvent.REVIVE: lambda world, worker: world.home.revive(A),
}


@pytest.mark.parametrize("store", ["memory-1", "sqlite-1"], indirect=True)  # a job's life is one partition's
@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
async def test_a_job_moves_as_the_table_says_or_not_at_all(world: World, state: JobState, event: JobEvent) -> None:
    worker = await world.worker(queues=("default", "aside"))
    worker.queues = ("default",)
    await _reach(world, worker, state, max_lost=1 if event is JobEvent.EXHAUST else 2)
    assert await world.state(A) is state

    await HAPPENINGS[event](world, worker)

    assert await world.state(A) in TRANSITIONS.get((state, event), {state})


def test_every_event_can_be_made_to_happen() -> None:
    assert set(HAPPENINGS) == set(JobEvent)
