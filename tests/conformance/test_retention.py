"""How long things wait and are kept: expiry, retention, revival and purge."""

from __future__ import annotations

import pytest
from tests.clock import SECOND, START_US
from tests.conformance.world import LINE, A, B, C, D, K, World, after, job, local

from selaras._contracts.partition import JobFilter
from selaras._core.jobs.job import Edge, Refusal
from selaras._core.jobs.states import JobEvent, JobState

EXPIRED, READY = JobState.EXPIRED, JobState.READY
MINUTE = 60 * SECOND


# -- expiry


@pytest.mark.parametrize(
    "options",
    [{}, {"delay_us": 2 * MINUTE}, {"parents": after(B)}, {"line": LINE}],
    ids=["ready", "scheduled", "blocked", "held"],
)
async def test_a_job_that_waited_too_long_is_expired(world: World, options: dict[str, object]) -> None:
    await world.enqueue(job(B, line=LINE), job(A, expires_in_us=MINUTE, **options))

    early = await world.pass_time(MINUTE - 1)
    late = await world.pass_time(1)

    assert (early.expired, late.expired) == (0, 1)
    record = await world.record(A)
    assert (record.state, record.reason, record.ended_us) == (EXPIRED, "it waited too long", START_US + MINUTE)


async def test_an_expired_job_is_not_claimed_even_before_anybody_tended(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, expires_in_us=MINUTE, line=LINE), job(B, line=LINE), job(C, expires_in_us=MINUTE))
    world.clock.advance(MINUTE)

    claims = await worker.claims()

    assert [claim.job for claim in claims] == [B]
    assert await world.state(A) is EXPIRED


async def test_a_job_that_has_started_does_not_expire_while_it_runs_or_waits_to_run_again(world: World) -> None:
    worker = await world.worker(lease_us=10 * MINUTE)
    await world.enqueue(job(A, expires_in_us=MINUTE), job(B, expires_in_us=MINUTE))
    a, _ = await worker.claims()
    await worker.end(a, JobEvent.RETRY, delay_us=2 * MINUTE)

    await world.pass_time(MINUTE)

    assert await world.states(A, B) == [JobState.SCHEDULED, JobState.RUNNING]


async def test_a_job_that_was_given_back_unstarted_may_still_expire(world: World) -> None:
    worker = await world.worker(lease_us=10 * MINUTE)
    await world.enqueue(job(A, expires_in_us=MINUTE))
    await worker.run(JobEvent.RELEASE, started=False)

    await world.pass_time(MINUTE)

    assert await world.state(A) is EXPIRED


async def test_the_expiry_of_a_parent_and_of_its_child_end_each_once(world: World) -> None:
    await world.enqueue(job(A, expires_in_us=MINUTE), job(B, expires_in_us=MINUTE, parents=after(A)))

    tended = await world.pass_time(MINUTE)

    assert tended.expired == 1
    assert await world.states(A, B) == [EXPIRED, JobState.CANCELLED]


# -- retention


async def test_an_ended_job_is_forgotten_after_its_retention(world: World) -> None:
    worker = await world.worker(lease_us=100 * MINUTE)
    await world.enqueue(job(A, result_ttl_us=MINUTE), job(B, failed_ttl_us=2 * MINUTE))
    await worker.run()
    await worker.run(JobEvent.FAIL)

    purged = [(await world.pass_time(step)).purged for step in (MINUTE - 1, 1, MINUTE - 1, 1)]

    assert purged == [0, 1, 0, 1]
    assert [await world.knows(name) for name in (A, B)] == [False, False]


async def test_a_result_that_is_not_to_be_kept_is_gone_at_the_next_round(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, result_ttl_us=0))
    await worker.run(result=b"r")

    await world.tend()

    assert not await world.knows(A)


async def test_housekeeping_is_bounded_and_says_when_more_is_waiting(world: World) -> None:
    worker = await world.worker()
    names = [local(f"many-{i}") for i in range(5)]
    await world.enqueue(*(job(name, result_ttl_us=0) for name in names))
    for claim in await worker.claims():
        await worker.end(claim)

    rounds = [await world.tend(2) for _ in range(4)]

    assert [one.purged for one in rounds] == [2, 2, 1, 0]
    assert [one.again for one in rounds] == [True, True, False, False]


async def test_nothing_is_left_of_jobs_of_every_kind_of_end(world: World) -> None:
    worker = await world.worker()
    ttl = {"result_ttl_us": 0, "failed_ttl_us": 0}
    await world.enqueue(
        job(A, line=LINE, writes=(K,), **ttl),
        job(B, unique=local("u"), **ttl),
        job(C, parents=after(A, Edge.VALUE), **ttl),
        job(D, delay_us=SECOND, **ttl),
    )
    for claim in await worker.claims():
        await worker.end(claim, JobEvent.SUCCEED if claim.job == A else JobEvent.FAIL)
    await worker.run()
    await world.home.cancel(D, "by hand")

    await world.tend()

    assert (await world.home.jobs(JobFilter())).jobs == ()
    assert [queue.counts for queue in await world.home.queues()] == [{}]
    assert (await world.home.cache_stats()).intents == 0


# -- revival


async def test_a_revived_job_has_a_fresh_budget_and_keeps_its_history(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, expires_in_us=MINUTE))
    await worker.run(JobEvent.RETRY)
    await worker.run(JobEvent.FAIL, error=b"e", reason="r")
    world.clock.advance(MINUTE)

    admission = await world.home.revive(A)

    record = await world.record(A)
    assert (admission.id, admission.state, admission.refusal) == (A, READY, None)
    assert (record.attempt, record.lost, record.error, record.reason) == (0, 0, None, "")
    assert (record.ended_us, record.keep_until_us) == (0, 0)
    assert [one.event for one in record.history] == [JobEvent.RETRY, JobEvent.FAIL]
    await world.tend()
    assert (await worker.claim()).number == 1


async def test_a_revived_job_joins_its_line_at_the_tail(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))
    await worker.run(JobEvent.FAIL)
    await world.enqueue(job(B, line=LINE))

    admission = await world.home.revive(A)

    assert admission.state is JobState.HELD


@pytest.mark.parametrize("event", [JobEvent.SUCCEED, JobEvent.CANCEL, JobEvent.RETRY])
async def test_only_a_failed_job_is_revived(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.run(event)
    before = await world.record(A)

    admission = await world.home.revive(A)

    assert (admission.state, admission.refusal) == (before.state, Refusal.WRONG_STATE)
    assert await world.record(A) == before


async def test_an_unknown_job_cannot_be_revived(world: World) -> None:
    assert (await world.home.revive(A)).refusal is Refusal.UNKNOWN_JOB


# -- purge


async def test_a_purge_deletes_jobs_of_the_wanted_states_and_queue_oldest_first(world: World) -> None:
    await world.enqueue(job(A), job(B, queue="mail"), job(C), job(D, delay_us=SECOND))

    purged = await world.home.purge([READY], "default", 1)

    assert purged == 1
    assert [await world.knows(name) for name in (A, B, C, D)] == [False, True, True, True]


async def test_a_purge_leaves_running_jobs_alone(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    purged = await world.home.purge(list(JobState), "", 10)

    assert purged == 0
    assert (await worker.end(claim)).state is JobState.SUCCEEDED


async def test_a_purged_job_frees_its_line_and_tells_its_dependents(world: World) -> None:
    await world.enqueue(job(A, line=LINE), job(B, line=LINE, queue="mail"), job(C, queue="mail", parents=after(A)))
    await world.enqueue(job(D, queue="mail", parents=after(A, Edge.FINISHED)))

    await world.home.purge([READY], "default", 10)

    assert await world.states(B, C, D) == [READY, JobState.CANCELLED, READY]
    assert (await world.record(C)).reason == f"parent {A} is not known: never enqueued, or no longer kept"


async def test_a_purge_of_a_parent_and_its_child_together_counts_both(world: World) -> None:
    await world.enqueue(job(A), job(B, parents=after(A)))

    purged = await world.home.purge([READY, JobState.BLOCKED], "", 10)

    assert purged == 2
    assert [await world.knows(name) for name in (A, B)] == [False, False]
