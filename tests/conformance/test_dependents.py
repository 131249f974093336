"""What waits for what: after, value, finished and scope."""

from __future__ import annotations

import pytest
from tests.clock import SECOND
from tests.conformance.world import LEASE, LINE, A, B, C, D, K, Worker, World, after, job, local

from selaras._contracts.partition import JobFilter
from selaras._core.jobs.job import Attempt, Edge, Fate, Parent, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

BLOCKED, READY, CANCELLED, FAILED = JobState.BLOCKED, JobState.READY, JobState.CANCELLED, JobState.FAILED

SCOPE = local("scope")


async def _end(world: World, worker: Worker, how: str) -> None:
    """End job A."""
    match how:
        case "succeeded" | "failed" | "cancelled while it ran":
            events = {"succeeded": JobEvent.SUCCEED, "failed": JobEvent.FAIL}
            await worker.run(events.get(how, JobEvent.CANCEL), result=b"from a" if how == "succeeded" else None)
        case "cancelled":
            await world.home.cancel(A, "by hand")
        case "expired":
            await world.pass_time(SECOND)
        case "lost for good":
            await worker.claim()
            await world.lose_workers()
        case _:
            await world.home.purge([READY], "", 10)


OUTCOMES = {
    # how A ends: where dependents stand that wait by AFTER and VALUE, and by FINISHED
    "succeeded": (READY, READY),
    "failed": (BLOCKED, READY),
    "lost for good": (BLOCKED, READY),
    "cancelled": (CANCELLED, READY),
    "cancelled while it ran": (CANCELLED, READY),
    "expired": (CANCELLED, READY),
    "purged": (CANCELLED, READY),
}


@pytest.mark.parametrize("how", OUTCOMES)
@pytest.mark.parametrize("early", [True, False], ids=["enqueued before", "enqueued after"])
async def test_dependents_follow_the_end_of_their_parent(world: World, how: str, early: bool) -> None:
    worker = await world.worker()
    children = [
        job(B, parents=after(A), queue="aside"),
        job(C, parents=after(A, Edge.VALUE), queue="aside"),
        job(D, parents=after(A, Edge.FINISHED), queue="aside"),
    ]
    await world.enqueue(job(A, expires_in_us=SECOND, max_lost=1))

    if early:
        await world.enqueue(*children)
    await _end(world, worker, how)
    if not early:
        await world.enqueue(*children)

    bound, free = OUTCOMES[how]
    assert await world.states(B, C, D) == [bound, bound, free]


async def test_a_dependent_waits_for_all_its_parents(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B), job(C, parents=(Parent(A), Parent(B, Edge.FINISHED))))
    a, b = await worker.claims()

    await worker.end(a)
    between = await world.record(C)
    await worker.end(b, JobEvent.FAIL)

    assert (between.state, between.parents) == (BLOCKED, (Parent(B, Edge.FINISHED),))
    assert (await world.record(C)).parents == ()
    assert await world.state(C) is READY


async def test_a_parent_named_twice_gives_both_the_wait_and_the_value(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=(Parent(A), Parent(A, Edge.VALUE))))
    await worker.run(result=b"from a")

    assert (await worker.claim()).input == b"from a"


async def test_the_value_of_a_parent_is_the_input_of_its_dependent(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=after(A, Edge.VALUE)), job(C, parents=after(A)))
    await worker.run(result=b"from a")

    inputs = {claim.job: claim.input for claim in await worker.claims()}

    assert inputs == {B: b"from a", C: None}


async def test_a_parent_without_a_result_gives_no_input(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=after(A, Edge.VALUE)))
    await worker.run(result=None)

    assert (await worker.claim()).input is None


async def test_br033_a_result_is_kept_until_the_dependent_that_needs_it_has_run(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(
        job(A, result_ttl_us=0), job(B, parents=after(A, Edge.VALUE), delay_us=3_600 * SECOND, max_lost=5)
    )
    await worker.run(result=b"from a")
    await world.pass_time(3_600 * SECOND)
    gone = not await world.knows(A)
    worker = await world.worker()

    first = await worker.claim()
    await worker.end(first, JobEvent.RETRY)
    second = await worker.claim()
    await world.lose_workers()
    third = await (await world.worker()).claim()

    assert gone
    assert [claim.input for claim in (first, second, third)] == [b"from a"] * 3


async def test_a_dependent_of_a_failed_parent_says_so_and_goes_on_when_the_parent_is_revived(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=after(A, Edge.VALUE)))
    await worker.run(JobEvent.FAIL)
    stuck = await world.record(B)

    await world.home.revive(A)
    hoping = await world.record(B)
    await worker.run(result=b"at last")

    assert (stuck.state, stuck.stuck_on, stuck.reason) == (BLOCKED, A, f"parent {A} failed")
    assert (hoping.state, hoping.stuck_on, hoping.reason) == (BLOCKED, "", "")
    assert (await worker.claim()).input == b"at last"


async def test_a_dependent_of_two_failed_parents_is_stuck_until_both_go_on(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B), job(C, parents=(Parent(A), Parent(B))))
    a, b = await worker.claims()
    await worker.end(a, JobEvent.FAIL)
    await worker.end(b, JobEvent.FAIL)

    first = (await world.record(C)).stuck_on
    await world.home.revive(A)
    second = (await world.record(C)).stuck_on
    await world.home.revive(B)
    third = (await world.record(C)).stuck_on

    assert (first, second, third) == (A, B, "")


async def test_a_job_enqueued_after_a_failed_parent_waits_for_its_revival(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.run(JobEvent.FAIL)

    await world.enqueue(job(B, parents=after(A)))
    stuck = await world.record(B)
    await world.home.revive(A)
    await worker.run()

    assert (stuck.state, stuck.stuck_on) == (BLOCKED, A)
    assert await world.state(B) is READY


async def test_the_end_of_a_failed_parent_s_retention_cancels_its_dependents(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, failed_ttl_us=SECOND), job(B, parents=after(A)), job(C, parents=after(B)))
    await worker.run(JobEvent.FAIL)

    await world.pass_time(SECOND)

    assert await world.states(B, C) == [CANCELLED, CANCELLED]
    assert (await world.record(B)).reason == f"parent {A} is not known: never enqueued, or no longer kept"
    assert (await world.record(C)).reason == f"parent {B} cancelled"


async def test_a_job_that_waits_for_an_unknown_parent_is_cancelled_unless_it_only_waits_for_its_end(
    world: World,
) -> None:
    await world.enqueue(job(B, parents=after(A)), job(C, parents=after(A, Edge.FINISHED)))

    assert await world.states(B, C) == [CANCELLED, READY]


async def test_a_cancelled_chain_falls_to_its_last_link(world: World) -> None:
    await world.enqueue(
        job(A), job(B, parents=after(A)), job(C, parents=after(B)), job(D, parents=after(C, Edge.FINISHED))
    )

    await world.home.cancel(A, "by hand")

    assert await world.states(A, B, C, D) == [CANCELLED, CANCELLED, CANCELLED, READY]


async def test_a_retry_of_the_parent_does_not_release_its_dependents(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=after(A, Edge.FINISHED)))

    for event in (JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.RELEASE):
        await worker.run(event)

    assert await world.state(B) is BLOCKED


async def test_a_released_dependent_waits_for_its_time_and_its_line(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(D, line=LINE))
    await worker.claim()
    await world.enqueue(job(A), job(B, parents=after(A), delay_us=SECOND), job(C, parents=after(A), line=LINE))

    await worker.run()

    assert await world.states(B, C) == [JobState.SCHEDULED, JobState.HELD]


async def test_a_dependent_carries_the_position_its_parent_s_effects_reached(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, positions=((1, 7), (2, 3))), job(B, parents=after(A), positions=((1, 5), (2, 9))))
    await worker.run(keys=(K,))
    reached = (await world.tail()).position

    claim = await worker.claim()

    assert claim.positions == ((0, reached), (1, 7), (2, 9))


# -- scopes


async def test_jobs_made_in_a_scope_are_released_when_it_succeeds(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)
    await world.enqueue(job(A, parents=after(SCOPE, Edge.SCOPE)))
    during = await world.state(A)

    await _settle_scope(world, worker, scope, JobEvent.SUCCEED)

    assert (during, await world.state(A)) == (BLOCKED, READY)


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.CANCEL])
async def test_jobs_made_in_a_scope_that_raised_are_dropped(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)
    await world.enqueue(job(A, parents=after(SCOPE, Edge.SCOPE)))

    await _settle_scope(world, worker, scope, event)

    assert await world.state(A) is CANCELLED
    assert (await world.record(A)).reason == "the transaction or writing() scope that enqueued it was rolled back"
    assert await world.state(SCOPE) is CANCELLED


async def test_jobs_made_in_a_scope_that_crashed_are_released_since_its_commit_may_have_happened(world: World) -> None:
    worker = await world.worker()
    await world.scope(worker, SCOPE, K)
    await world.enqueue(job(A, parents=after(SCOPE, Edge.SCOPE)))

    await world.lose_workers()

    assert await world.state(A) is READY


@pytest.mark.parametrize(("event", "state"), [(JobEvent.SUCCEED, READY), (JobEvent.FAIL, CANCELLED)])
async def test_p22_a_job_that_is_registered_after_its_scope_ended_still_learns_how(
    world: World, event: JobEvent, state: JobState
) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)
    await _settle_scope(world, worker, scope, event)

    await world.enqueue(job(A, parents=after(SCOPE, Edge.SCOPE)))

    assert await world.state(A) is state


async def test_a_scope_of_an_orderly_stopped_process_counts_as_crashed(world: World) -> None:
    worker = await world.worker()
    await world.scope(worker, SCOPE, K)
    await world.enqueue(job(A, parents=after(SCOPE, Edge.SCOPE)))

    await world.home.dismiss(worker.id)

    assert await world.state(A) is READY
    assert len(await world.home.intents(K)) == 1


async def test_a_scope_is_renewed_by_the_heartbeat_of_its_process(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)
    for _ in range(5):
        world.clock.advance(LEASE - 1)
        worker.beat(scope)
        await world.tend()

    assert await world.home.fates([scope]) == (Fate.RUNNING,)


async def test_opening_a_scope_again_is_the_same_scope_until_it_has_ended(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)

    again = await world.scope(worker, SCOPE, K)
    await _settle_scope(world, worker, scope, JobEvent.SUCCEED)

    assert again == scope
    assert await world.hold(worker, SCOPE, "") == 0


async def test_scopes_and_locks_are_not_shown_as_jobs(world: World) -> None:
    worker = await world.worker()
    await world.scope(worker, SCOPE, K)
    await world.hold(worker, local("lock"), LINE)
    await world.enqueue(job(A))

    page = await world.home.jobs(JobFilter())
    (queue,) = await world.home.queues()

    assert [record.id for record in page.jobs] == [A]
    assert queue.counts == {"ready": 1}


async def _settle_scope(world: World, worker: Worker, scope: Attempt, event: JobEvent) -> None:
    reply = await world.home.settle(worker.id, [Settlement(scope.job, scope.fence, event)], START)
    assert reply.settled[0].refusal is None
