"""One waiting job a unique key: kept, replaced, freed in every end, and met again by a retry."""

from __future__ import annotations

import pytest
from tests.clock import SECOND
from tests.conformance.world import LINE, A, B, C, D, World, after, job, local

from selaras._core.jobs.job import Admission, Edge, NewJob, OnConflict, Refusal, UniqueUntil
from selaras._core.jobs.states import JobEvent, JobState

U = local("reprice:42")


def unique(id: str, /, **options: object) -> NewJob:
    return job(id, unique=U, **options)


async def test_a_second_request_is_answered_with_the_waiting_twin(world: World) -> None:
    await world.enqueue(unique(A, payload=b"1"))

    (second,) = await world.enqueue(unique(B, payload=b"2"))

    assert second == Admission(A, JobState.READY, created=False)
    assert not await world.knows(B)


async def test_a_request_is_not_swallowed_by_a_twin_that_has_started(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))
    await worker.claim()

    (second,) = await world.enqueue(unique(B))

    assert second == Admission(B, JobState.READY)


async def test_on_wish_the_key_is_kept_until_the_twin_has_finished(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, unique_until=UniqueUntil.FINISHED))
    claim = await worker.claim()

    (during,) = await world.enqueue(unique(B))
    await worker.end(claim)
    (afterwards,) = await world.enqueue(unique(C))

    assert during == Admission(A, JobState.RUNNING, created=False)
    assert afterwards == Admission(C, JobState.READY)


async def test_replacing_gives_the_waiting_twin_the_latest_arguments_under_its_old_id(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, payload=b"old", priority=1), job(B, priority=2))

    (second,) = await world.enqueue(unique(C, payload=b"new", priority=3, on_conflict=OnConflict.REPLACE))

    assert second == Admission(A, JobState.READY, created=False, replaced=True)
    assert [(claim.job, claim.payload) for claim in await worker.claims()] == [(A, b"new"), (B, b"")]


async def test_replacing_may_delay_a_ready_twin_and_hurry_a_delayed_one(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))

    (delayed,) = await world.enqueue(unique(B, delay_us=SECOND, on_conflict=OnConflict.REPLACE))
    none = await worker.claims()
    (hurried,) = await world.enqueue(unique(C, on_conflict=OnConflict.REPLACE))

    assert (delayed.state, none, hurried.state) == (JobState.SCHEDULED, (), JobState.READY)
    assert (await worker.claim()).job == A


async def test_replacing_a_twin_in_a_line_lets_the_line_go_on(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, line=LINE), job(B, line=LINE))

    await world.enqueue(unique(C, line="", on_conflict=OnConflict.REPLACE))

    assert {claim.job for claim in await worker.claims()} == {A, B}


async def test_a_replaced_twin_waits_for_its_old_parents_and_the_new_ones(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(B), job(D), unique(A, parents=after(B)))

    (second,) = await world.enqueue(
        unique(C, on_conflict=OnConflict.REPLACE, parents=after(D, Edge.VALUE), payload=b"new")
    )
    claims = {claim.job: claim for claim in await worker.claims()}
    await worker.end(claims[B])
    still = await world.state(A)
    await worker.end(claims[D], result=b"d")

    assert (second.state, still) == (JobState.BLOCKED, JobState.BLOCKED)
    last = await worker.claim()
    assert (last.job, last.payload, last.input) == (A, b"new", b"d")


async def test_a_running_twin_is_not_replaced(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, unique_until=UniqueUntil.FINISHED, payload=b"old"))
    await worker.claim()

    (second,) = await world.enqueue(unique(B, on_conflict=OnConflict.REPLACE, payload=b"new"))

    assert second == Admission(A, JobState.RUNNING, created=False)
    assert (await world.record(A)).payload == b"old"


@pytest.mark.parametrize("event", [JobEvent.SUCCEED, JobEvent.FAIL, JobEvent.CANCEL])
async def test_br024_every_end_of_the_twin_frees_the_key(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, unique_until=UniqueUntil.FINISHED))

    await worker.run(event)

    assert (await world.enqueue(unique(B)))[0].created


async def test_br024_a_killed_worker_frees_the_key_or_the_twin_lives(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A, unique_until=UniqueUntil.FINISHED, max_lost=2))
    await worker.claim()
    await world.lose_workers()

    (while_it_lives,) = await world.enqueue(unique(B))
    second = await world.worker()
    await second.claim()
    await world.lose_workers()
    (once_it_is_dead,) = await world.enqueue(unique(C))

    assert while_it_lives == Admission(A, JobState.READY, created=False)
    assert await world.state(A) is JobState.FAILED
    assert once_it_is_dead.created


async def test_br024_a_cancelled_an_expired_and_a_purged_twin_free_the_key(world: World) -> None:
    await world.enqueue(unique(A))
    await world.home.cancel(A, "by hand")
    (second,) = await world.enqueue(unique(B, expires_in_us=SECOND))
    await world.pass_time(SECOND)
    (third,) = await world.enqueue(unique(C))
    await world.home.purge([JobState.READY], "", 10)
    (fourth,) = await world.enqueue(unique(D))

    assert [second.created, third.created, fourth.created] == [True, True, True]


@pytest.mark.parametrize("event", [JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.RELEASE, JobEvent.GIVE_BACK])
async def test_br028_a_retried_twin_that_meets_a_newer_one_is_superseded(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))
    claim = await worker.claim()
    await world.enqueue(unique(B))

    settled = await worker.end(claim, event, delay_us=SECOND)

    assert settled.state is JobState.CANCELLED
    assert (await world.record(A)).reason == f"superseded by {B}"
    assert (await worker.claim()).job == B


async def test_br028_a_lost_twin_that_meets_a_newer_one_is_superseded(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))
    await worker.claim()
    await world.enqueue(unique(B))

    await world.lose_workers()

    assert await world.states(A, B) == [JobState.CANCELLED, JobState.READY]


async def test_a_retried_twin_without_a_newer_one_holds_the_key_again(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))

    await worker.run(JobEvent.RETRY, delay_us=SECOND)

    assert (await world.enqueue(unique(B)))[0] == Admission(A, JobState.SCHEDULED, created=False)


async def test_a_failed_job_is_not_revived_beside_a_twin_that_holds_its_key(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(unique(A))
    await worker.run(JobEvent.FAIL)
    await world.enqueue(unique(B))

    refused = await world.home.revive(A)
    await worker.run()
    revived = await world.home.revive(A)

    assert (refused.id, refused.refusal) == (B, Refusal.WRONG_STATE)
    assert (revived.state, revived.refusal) == (JobState.READY, None)
    assert (await world.enqueue(unique(C)))[0].id == A
