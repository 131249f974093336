"""Turns are numbered, heartbeats say what was received (P16), bells ring for new work."""

from __future__ import annotations

from tests.clock import SECOND
from tests.conformance.world import LEASE, A, B, C, D, K, World, job

from selaras._core.jobs.job import Attempt, Settlement
from selaras._core.jobs.states import JobEvent, JobState

READY, RUNNING, SUCCEEDED = JobState.READY, JobState.RUNNING, JobState.SUCCEEDED


async def test_p16_a_repeated_turn_returns_the_same_claims_and_outcomes_with_fresh_news(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    a = await worker.claim()
    success = Settlement(A, a.fence, JobEvent.SUCCEED, result=b"r")
    first = await worker.send(success)
    await world.invalidate(K)

    again = await worker.repeat(worker.number, success)

    assert again.claims == first.claims
    assert again.settled == first.settled
    assert [one.refusal for one in again.settled] == [None]
    assert [event.name for event in again.news.events] == [K]
    assert await world.states(A, B) == [SUCCEEDED, RUNNING]


async def test_p16_a_repeated_turn_executes_nothing_again(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    await worker.send(limit=1)

    again = await worker.repeat(worker.number, limit=1)

    assert [claim.job for claim in again.claims] == [A]
    assert await world.states(A, B) == [RUNNING, READY]


async def test_p16_a_repeat_names_only_claims_that_still_stand(world: World) -> None:
    """Else a body would start that runs elsewhere, or has ended."""
    worker, other = await world.worker(), await world.worker()
    await world.enqueue(job(A), job(B), job(C), job(D, writes=(K,)))
    first = await worker.send(limit=4)
    a, _, c, d = first.claims
    await worker.send(
        Settlement(A, a.fence, JobEvent.SUCCEED), Settlement(D, d.fence, JobEvent.RETRY, delay_us=SECOND), limit=0
    )
    worker.beat(c)  # B was never received, as far as the worker knows
    (again,) = await other.claims(limit=1)

    repeated = await worker.repeat(1, limit=4)

    assert (again.job, again.number) == (B, 1)
    assert repeated.claims == (c,)


async def test_p16_a_turn_that_was_acknowledged_is_forgotten_and_does_nothing_any_more(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.turn()
    await worker.turn()
    await world.enqueue(job(B))

    late = await worker.repeat(1, Settlement(A, 1, JobEvent.SUCCEED))

    assert (late.claims, late.settled) == ((), ())
    assert await world.states(A, B) == [RUNNING, READY]


async def test_p16_two_turns_in_flight_may_arrive_in_either_order(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    a = await worker.claim()

    await worker.repeat(3)
    overtaken = await worker.repeat(2, Settlement(A, a.fence, JobEvent.SUCCEED))

    assert [one.state for one in overtaken.settled] == [SUCCEEDED]


async def test_p16_what_a_lost_reply_claimed_is_released_uncounted_by_the_next_heartbeat(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B))
    await worker.send(limit=1)  # claims A for X; the reply is lost; X reconnects, and goes on
    reply = await worker.turn(limit=1)

    worker.beat(*reply.claims)

    record = await world.record(A)
    assert (record.state, record.attempt, record.lost) == (READY, 0, 0)
    assert await world.state(B) is RUNNING
    assert not await world.home.intents(K)


async def test_p16_a_heartbeat_leaves_alone_what_a_later_turn_claimed(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.send()  # its reply is on its way while the heartbeat goes out

    worker.beat(last_turn=worker.number - 1)

    assert await world.state(A) is RUNNING


async def test_a_heartbeat_tells_which_attempts_are_no_longer_its_own(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    a, b = await worker.claims()
    await worker.end(a)

    reply = worker.beat(a, b)

    assert (reply.enrolled, reply.lost) == (True, (Attempt(A, a.fence),))


async def test_an_instance_that_was_never_enrolled_claims_nothing(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    worker.id = "stranger"

    reply = await worker.turn()

    assert (reply.enrolled, reply.claims) == (False, ())
    assert await world.state(A) is READY


async def test_enrolling_again_renews_the_lease_and_forgets_no_turn(world: World) -> None:
    worker = await world.worker("one")
    await world.enqueue(job(A), job(B))
    first = await worker.send(limit=1)
    await world.pass_time(LEASE)

    await world.worker("one")
    again = await worker.repeat(worker.number, limit=1)
    tended = await world.pass_time(2 * SECOND)

    assert again.claims == first.claims
    assert (tended.suspected, tended.lost) == (0, 0)


async def test_each_instance_counts_its_own_turns(world: World) -> None:
    one, other = await world.worker(), await world.worker()
    await world.enqueue(job(A), job(B))

    claims = [await one.claims(limit=1), await other.claims(limit=1)]

    assert [claim.job for (claim,) in claims] == [A, B]


# -- bells


async def test_an_idle_worker_s_bell_rings_for_new_work(world: World) -> None:
    bell = world.store.bell()
    try:
        worker = await world.worker(bell=bell.address)
        await worker.turn(idle=True)

        await world.enqueue(job(A))

        assert await bell.wait(5)
    finally:
        bell.close()


async def test_a_turn_that_leaves_work_rings_the_next_idle_worker(world: World) -> None:
    bells = [world.store.bell() for _ in range(2)]
    try:
        first, second = [await world.worker(bell=bell.address) for bell in bells]
        await first.turn(idle=True)
        await second.turn(idle=True)
        await world.enqueue(job(A), job(B), job(C))  # rings one of them

        reply = await first.turn(limit=1)

        assert reply.more
        assert await bells[1].wait(5)
    finally:
        for bell in bells:
            bell.close()


async def test_a_bell_can_be_rung_by_its_own_process_and_remembers_it(world: World) -> None:
    bell = world.store.bell()
    try:
        bell.ring()

        assert await bell.wait(5)
    finally:
        bell.close()


async def test_a_worker_is_rung_when_one_of_its_jobs_is_cancelled(world: World) -> None:
    bell = world.store.bell()
    try:
        worker = await world.worker(bell=bell.address)
        await world.enqueue(job(A))
        await worker.claim()

        await world.home.cancel(A, "by hand")

        assert await bell.wait(5)
    finally:
        bell.close()
