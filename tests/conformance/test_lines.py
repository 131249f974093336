"""Lines: one at a time, in order, and never blocked by a job that cannot run (P21)."""

from __future__ import annotations

import pytest
from tests.clock import SECOND
from tests.conformance.world import GRACE, LEASE, LINE, LINE2, A, B, C, K, World, job, local

from selaras._contracts.limits import LOCK_ACCEPT_US
from selaras._core.jobs.job import Attempt, Fate, JobKind, NewJob, Refusal, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

READY, HELD, RUNNING, SCHEDULED = JobState.READY, JobState.HELD, JobState.RUNNING, JobState.SCHEDULED

LOCK, LOCK2 = local("lock-1"), local("lock-2")


async def test_the_jobs_of_a_line_run_one_at_a_time_in_order(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE), job(C, line=LINE))

    order = []
    for _ in range(3):
        claims = await worker.claims()
        assert len(claims) == 1
        order.append((await worker.end(claims[0])).job)

    assert order == [A, B, C]


async def test_a_promoted_job_has_the_place_at_which_it_joined(world: World) -> None:
    """L10: the next in a line does not wait behind all that was enqueued while it stood there."""
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE), job(C))
    first = await worker.claim()
    await worker.end(first)

    order = [(await worker.claim()).job for _ in range(2)]

    assert (first.job, order) == (A, [B, C])


async def test_only_the_head_of_a_line_is_ready(world: World) -> None:
    await world.enqueue(job(A, line=LINE), job(B, line=LINE), job(C, line=LINE2))

    assert await world.states(A, B, C) == [READY, HELD, READY]


async def test_higher_priority_takes_the_head_s_place_while_nobody_runs(world: World) -> None:
    await world.enqueue(job(A, line=LINE), job(B, line=LINE, priority=1))

    assert await world.states(A, B) == [HELD, READY]


async def test_higher_priority_waits_for_the_job_that_runs(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE))
    claim = await worker.claim()
    await world.enqueue(job(C, line=LINE, priority=1))

    held = await world.states(A, B, C)
    await worker.end(claim)

    assert held == [RUNNING, HELD, HELD]
    assert await world.states(B, C) == [HELD, READY]


async def test_p21_every_exit_of_the_head_promotes_the_next(world: World) -> None:
    worker = await world.worker()
    members = [local(f"member-{i}") for i in range(6)]
    await world.enqueue(*(job(name, line=LINE, expires_in_us=60 * SECOND * (i == 2)) for i, name in enumerate(members)))

    await worker.run()
    claimed = await world.state(members[1])
    await world.home.cancel(members[1], "by hand")
    cancelled = await world.state(members[2])
    await world.pass_time(60 * SECOND)
    expired = await world.state(members[3])
    await world.home.purge([READY], "", 1)
    purged = await world.state(members[4])
    await world.home.pause("default", paused=True)
    await world.enqueue(job(A, line=LINE, queue="mail"))
    await world.worker(queues=("mail",))
    await world.tend()

    assert [claimed, cancelled, expired, purged] == [READY] * 4
    assert await world.states(*members[4:], A) == [HELD, HELD, READY]


async def test_p21_a_head_in_a_paused_queue_does_not_block_its_line(world: World) -> None:
    worker = await world.worker(queues=("default", "mail"))
    await world.enqueue(job(A, line=LINE, queue="mail"), job(B, line=LINE))

    await world.home.pause("mail", paused=True)
    first = await worker.claim(queues=("default", "mail"))
    await worker.end(first)
    await world.home.pause("mail", paused=False)
    second = await worker.claim(queues=("default", "mail"))

    assert [claim.job for claim in (first, second)] == [B, A]


async def test_p21_a_head_in_a_queue_that_nobody_serves_does_not_block_its_line(world: World) -> None:
    worker = await world.worker(queues=("default",))
    await world.enqueue(job(A, line=LINE, queue="nobody"), job(B, line=LINE))
    await world.tend()

    claims = await worker.claims()

    assert [claim.job for claim in claims] == [B]


async def test_p21_who_joins_a_line_lets_its_first_be_the_head_once_its_queue_is_served(world: World) -> None:
    """Housekeeping would come to it, too."""
    await world.worker(queues=("default",))
    await world.enqueue(job(A, line=LINE, queue="mail"), job(B, line=LINE))
    before = await world.states(A, B)
    await world.worker(queues=("mail",))

    await world.enqueue(job(C, line=LINE))

    assert before == [JobState.HELD, JobState.READY]
    assert await world.states(A, B, C) == [JobState.READY, JobState.HELD, JobState.HELD]


async def test_p21_a_head_in_a_paused_queue_does_not_block_a_lock(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))
    await world.home.pause("default", paused=True)

    assert await world.hold(worker, LOCK, LINE)


async def test_an_unserved_line_keeps_its_order(world: World) -> None:
    await world.enqueue(job(A, line=LINE, queue="nobody"), job(B, line=LINE, queue="nothing"))
    await world.tend()

    assert await world.states(A, B) == [READY, HELD]


@pytest.mark.parametrize("event", [JobEvent.RETRY, JobEvent.SNOOZE])
async def test_p21_a_retry_gives_the_line_up_and_joins_its_tail(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE), job(C, line=LINE))
    claim = await worker.claim()

    await worker.end(claim, event, delay_us=SECOND)
    during = await world.states(A, B, C)
    world.clock.advance(SECOND)
    order = [(await worker.run()).job for _ in range(3)]

    assert during == [SCHEDULED, READY, HELD]
    assert order == [B, C, A]


async def test_p21_an_ordered_retry_keeps_the_line_while_it_backs_off(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE, ordered=True), job(B, line=LINE))
    await worker.run(JobEvent.RETRY, delay_us=SECOND)
    await world.enqueue(job(C, line=LINE, priority=9))

    during = await worker.claims()
    world.clock.advance(SECOND)
    order = [(await worker.run()).job for _ in range(3)]

    assert not during
    assert order == [A, C, B]


async def test_p21_an_ordered_retry_that_is_cancelled_frees_the_line(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE, ordered=True), job(B, line=LINE))
    await worker.run(JobEvent.RETRY, delay_us=SECOND)

    await world.home.cancel(A, "by hand")

    assert await world.states(A, B) == [JobState.CANCELLED, READY]


@pytest.mark.parametrize("event", [JobEvent.RELEASE, JobEvent.GIVE_BACK])
async def test_a_job_that_was_given_back_has_its_old_place_in_the_line(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE))

    await worker.run(event)

    assert await world.states(A, B) == [READY, HELD]


async def test_a_lost_job_has_its_old_place_in_the_line(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE))
    await worker.claim()

    await world.lose_workers()

    assert await world.states(A, B) == [READY, HELD]


async def test_a_line_is_forgotten_when_nobody_stands_in_it(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))
    await worker.run()

    await world.enqueue(job(B, line=LINE))

    assert await world.state(B) is READY


# -- locks for code outside jobs


async def test_a_free_line_grants_a_lock_at_once_and_holds_jobs_back(world: World) -> None:
    worker = await world.worker()

    fence = await world.hold(worker, LOCK, LINE)
    await world.enqueue(job(A, line=LINE))
    held = await world.state(A)
    await world.home.settle(worker.id, [_released(LOCK, fence)], START)

    assert fence
    assert (held, await world.state(A)) == (HELD, READY)


async def test_a_lock_waits_for_the_job_that_runs_and_stands_before_later_ones(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))
    claim = await worker.claim()

    waiting = await world.hold(worker, LOCK, LINE)
    await world.enqueue(job(B, line=LINE))
    await worker.end(claim)
    granted = await world.hold(worker, LOCK, LINE)

    assert not waiting
    assert granted > claim.fence
    assert await world.state(B) is HELD


async def test_asking_again_for_a_lock_that_is_held_returns_the_same_fence(world: World) -> None:
    worker = await world.worker()

    fences = [await world.hold(worker, LOCK, LINE) for _ in range(2)]

    assert fences[0] == fences[1] > 0


async def test_p21_a_lock_that_is_not_fetched_passes_to_the_next(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))
    claim = await worker.claim()
    await world.hold(worker, LOCK, LINE)
    await world.enqueue(job(B, line=LINE))
    await worker.end(claim)

    before = await world.state(B)
    await world.pass_time(LOCK_ACCEPT_US)

    assert (before, await world.state(B)) == (HELD, READY)


async def test_a_lock_is_never_handed_to_a_worker(world: World) -> None:
    worker = await world.worker()
    first = await world.hold(worker, LOCK, LINE)
    await world.hold(worker, LOCK2, LINE)
    await world.home.settle(worker.id, [_released(LOCK, first)], START)

    reply = await worker.turn(tasks=frozenset({"lock", "work"}))

    assert (reply.claims, reply.more) == ((), False)
    assert await world.hold(worker, LOCK2, LINE)


async def test_a_lock_of_a_lost_worker_passes_on(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    fence = await world.hold(worker, LOCK, LINE)
    await world.hold(other, LOCK2, LINE)
    world.clock.advance(LEASE)
    other.beat()
    await world.tend()
    await world.pass_time(GRACE)

    passed = await world.hold(other, LOCK2, LINE)
    late = await world.home.settle(worker.id, [_released(LOCK, fence)], START)

    assert passed > fence
    assert late.settled[0].refusal is Refusal.LEASE_LOST


async def test_a_heartbeat_that_does_not_name_a_lock_keeps_it(world: World) -> None:
    worker = await world.worker()
    fence = await world.hold(worker, LOCK, LINE)

    reply = worker.beat()

    assert reply.enrolled
    assert await world.home.fates([Attempt(LOCK, fence)]) == (Fate.RUNNING,)


async def test_a_lock_is_refused_to_an_instance_that_is_not_enrolled(world: World) -> None:
    asked = NewJob(id=LOCK, task="lock", kind=JobKind.LOCK, line=LINE)

    grant = await world.home.acquire("stranger", asked, START)

    assert (grant.fence, grant.refusal) == (0, Refusal.LEASE_LOST)


async def test_a_lock_cannot_take_the_place_of_a_job_of_the_same_id(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE))

    grant = await world.home.acquire(worker.id, NewJob(id=A, task="lock", kind=JobKind.LOCK, line=LINE), START)

    assert (grant.fence, grant.refusal) == (0, Refusal.ID_CONFLICT)
    assert await world.state(A) is READY


async def test_a_waiting_lock_that_is_given_up_leaves_the_line(world: World) -> None:
    worker = await world.worker()
    fence = await world.hold(worker, LOCK, LINE)
    await world.hold(worker, LOCK2, LINE)
    await world.enqueue(job(A, line=LINE))

    await world.home.cancel(LOCK2, "given up")
    await world.home.settle(worker.id, [_released(LOCK, fence)], START)

    assert await world.state(A) is READY


async def test_a_lock_leaves_nothing_behind(world: World) -> None:
    worker = await world.worker()
    fence = await world.hold(worker, LOCK, LINE)

    await world.home.settle(worker.id, [_released(LOCK, fence)], START)

    assert not await world.knows(LOCK)


async def test_a_lock_with_written_keys_keeps_them_out_of_the_cache(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)

    fence = await world.hold(worker, LOCK, LINE, writes=(K,))
    during = await world.home.intents(K)
    await world.home.settle(worker.id, [_released(LOCK, fence)], START)

    assert [intent.fence for intent in during] == [fence]
    assert not await world.home.intents(K)
    assert await world.value(K) is None


def _released(id: str, fence: int) -> Settlement:
    return Settlement(id, fence, JobEvent.SUCCEED)
