"""Cancelling by hand, in every state a job may stand in (BR-104)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clock import SECOND
from tests.conformance.world import LINE, A, B, World, after, job, local

from selaras._core.jobs.job import Attempt
from selaras._core.jobs.states import JobEvent, JobState

CANCELLED = JobState.CANCELLED


@pytest.mark.parametrize("state", [JobState.READY, JobState.SCHEDULED, JobState.BLOCKED, JobState.HELD])
async def test_br104_a_waiting_job_never_starts(world: World, state: JobState) -> None:
    worker = await world.worker()
    unique = local("unique")
    await world.enqueue(job(B, line=LINE))
    options: dict[JobState, dict[str, Any]] = {
        JobState.READY: {},
        JobState.SCHEDULED: {"delay_us": SECOND},
        JobState.BLOCKED: {"parents": after(B)},
        JobState.HELD: {"line": LINE},
    }
    admission = await world.enqueue_one(A, unique=unique, **options[state])

    answer = await world.home.cancel(A, "not wanted any more")
    await worker.run()
    world.clock.advance(SECOND)

    assert admission.state is state
    assert answer == (CANCELLED, True)
    assert (await world.record(A)).reason == "not wanted any more"
    assert not await worker.claims()
    assert (await world.enqueue_one(local("next"), unique=unique)).created


async def test_br104_a_running_job_is_asked_and_its_worker_is_told(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    answer = await world.home.cancel(A, "not wanted any more")
    attempt = Attempt(A, claim.fence)

    assert answer == (JobState.RUNNING, True)
    assert (await world.record(A)).cancel_requested
    assert (await worker.turn()).cancels == worker.beat(claim).cancels == (attempt,)
    assert (await other.turn()).cancels == other.beat().cancels == ()


async def test_br104_a_second_cancel_of_a_running_job_does_nothing_more(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.claim()
    await world.home.cancel(A, "first")

    answer = await world.home.cancel(A, "second")

    assert answer == (JobState.RUNNING, False)


@pytest.mark.parametrize("event", [JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.RELEASE, JobEvent.GIVE_BACK])
async def test_a_job_that_was_asked_to_end_does_not_run_again(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.cancel(A, "not wanted any more")

    settled = await worker.end(claim, event, reason="something else")

    assert settled.state is CANCELLED
    assert (await world.record(A)).reason == "not wanted any more"


async def test_the_end_of_a_cancelled_body_keeps_the_reason_of_whoever_cancelled_it(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.cancel(A, "not wanted any more")

    await worker.end(claim, JobEvent.CANCEL)

    assert (await world.record(A)).reason == "not wanted any more"


async def test_a_body_that_succeeds_before_it_hears_of_the_cancel_has_succeeded(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.cancel(A, "too late")

    settled = await worker.end(claim, result=b"r")

    assert settled.state is JobState.SUCCEEDED
    assert (await world.record(A)).result == b"r"


async def test_br104_a_cancelled_job_of_a_dead_worker_is_cancelled_after_its_lease(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE))
    await worker.claim()
    await world.home.cancel(A, "not wanted any more")

    await world.lose_workers()

    assert await world.states(A, B) == [CANCELLED, JobState.READY]
    assert (await world.record(A)).reason == "not wanted any more"


@pytest.mark.parametrize("event", [JobEvent.SUCCEED, JobEvent.FAIL, JobEvent.CANCEL])
async def test_br104_an_ended_job_says_where_it_stands(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.run(event)
    before = await world.record(A)

    answer = await world.home.cancel(A, "too late")

    assert answer == (before.state, False)
    assert await world.record(A) == before


async def test_br104_an_unknown_job_is_told_apart_from_an_ended_one(world: World) -> None:
    assert await world.home.cancel(A, "who?") == (None, False)


async def test_a_job_that_failed_while_it_was_asked_to_end_starts_clean_when_it_is_revived(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.cancel(A, "not wanted any more")
    await worker.end(claim, JobEvent.FAIL)

    await world.home.revive(A)
    await worker.claim()

    assert (await worker.turn()).cancels == ()
    assert (await world.record(A)).cancel_requested is False
