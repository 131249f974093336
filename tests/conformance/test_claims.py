"""Who is handed which job, in which order, and with what."""

from __future__ import annotations

import pytest
from tests.clock import SECOND, START_US
from tests.conformance.world import K2, LINE, A, B, C, D, K, World, after, job

from selaras._core.cache.entry import Hit, Standing
from selaras._core.jobs.job import Settlement
from selaras._core.jobs.states import JobEvent, JobState


async def test_a_claim_carries_what_the_worker_needs(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, payload=b"p", meta=b"m", priority=2, line=LINE, ordered=True, writes=(K,), serves=(K2,)))
    world.clock.advance(SECOND)

    claim = await worker.claim()

    assert (claim.job, claim.task, claim.payload, claim.meta) == (A, "work", b"p", b"m")
    assert (claim.number, claim.lost, claim.priority, claim.created_us) == (1, 0, 2, START_US)
    assert (claim.line, claim.ordered, claim.writes, claim.serves) == (LINE, True, (K,), (K2,))
    assert (claim.elsewhere, claim.preimages, claim.input, claim.positions, claim.strayed_us) == ((), (), None, (), 0)


async def test_a_claimed_job_is_running_under_its_fence(world: World) -> None:
    worker = await world.worker()
    await world.enqueue_one(A)

    claim = await worker.claim()

    record = await world.record(A)
    assert (record.state, record.attempt, record.instance) == (JobState.RUNNING, 1, worker.id)
    assert (record.fence, record.started_us) == (claim.fence, START_US)


async def test_higher_priority_comes_first_then_who_became_ready_first(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, priority=-1), job(B), job(C, priority=5), job(D))

    claims = await worker.claims()

    assert [claim.job for claim in claims] == [C, B, D, A]


async def test_a_job_that_waited_for_its_time_stands_behind_those_that_were_ready_before(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, delay_us=SECOND))
    await world.enqueue(job(B))
    world.clock.advance(SECOND)

    claims = await worker.claims()

    assert [claim.job for claim in claims] == [B, A]


async def test_no_more_is_claimed_than_wanted_and_the_rest_is_announced(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B), job(C))

    first = await worker.turn(limit=2)
    second = await worker.turn(limit=2)

    assert [len(first.claims), len(second.claims)] == [2, 1]
    assert [first.more, second.more] == [True, False]


async def test_only_the_named_queues_are_served(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, queue="mail"), job(B, queue="default"))

    nothing = await worker.claims(queues=())
    mail = await worker.claims(queues=("mail",))

    assert not nothing
    assert [claim.job for claim in mail] == [A]


async def test_queues_served_together_are_one_order(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, queue="x"), job(B, queue="y", priority=1), job(C, queue="x"))

    claims = await worker.claims(queues=("x", "y"))

    assert [claim.job for claim in claims] == [B, A, C]


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await world.home.pause("default", paused=True)

    paused = await worker.turn()
    await world.home.pause("default", paused=False)
    resumed = await worker.claims()

    assert (paused.claims, paused.more) == ((), False)
    assert [claim.job for claim in resumed] == [A]


async def test_a_job_is_handed_to_one_worker_only(world: World) -> None:
    one, other = await world.worker(), await world.worker()
    await world.enqueue_one(A)

    claims = [*await one.claims(), *await other.claims()]

    assert [claim.job for claim in claims] == [A]


async def test_p15_every_claim_has_a_higher_fence_than_any_before(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    fences = []
    for _ in range(3):
        claims = await worker.claims()
        fences += [claim.fence for claim in claims]
        for claim in claims:
            await worker.end(claim, JobEvent.RETRY)

    assert fences == sorted(set(fences))


async def test_p15_a_fence_is_not_used_again_after_a_purge_and_a_new_job_of_the_same_id(world: World) -> None:
    worker = await world.worker()
    await world.enqueue_one(A)
    first = await worker.claim()
    await worker.end(first)
    await world.home.purge([JobState.SUCCEEDED], "", 10)
    world.clock.jump(-3_600 * SECOND)
    await world.enqueue_one(A)

    second = await worker.claim()
    late = await worker.end(first, JobEvent.FAIL)

    assert second.fence > first.fence
    assert late.refusal is not None
    assert await world.state(A) is JobState.RUNNING


async def test_l2_a_turn_settles_before_it_claims(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, line=LINE), job(B, line=LINE), job(C, parents=after(A)))
    first = await worker.claim()

    reply = await worker.turn(Settlement(A, first.fence, JobEvent.SUCCEED))

    assert {claim.job for claim in reply.claims} == {B, C}


async def test_l2_a_turn_lets_due_jobs_go_on_before_it_claims(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, delay_us=SECOND), job(B))
    world.clock.advance(SECOND)

    claims = await worker.claims()

    assert {claim.job for claim in claims} == {A, B}


async def test_p1_a_claim_names_the_tail_of_the_reply_that_carries_it(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K2,)))

    reply = await worker.turn()

    assert [claim.position for claim in reply.claims] == [reply.news.tail.position] * 2


async def test_g1_a_claim_hears_the_effects_of_every_settle_before_it(world: World) -> None:
    one, other = await world.worker(), await world.worker()
    await world.cache(K2)
    await world.enqueue(job(A))
    claim = await one.claim()
    other.cursor = await world.tail()

    await one.end(claim, keys=(K2,))
    await world.enqueue(job(B))
    reply = await other.turn()

    assert [event.name for event in reply.news.events] == [K2]
    assert reply.claims[0].position >= reply.news.events[0].position


async def test_l3_a_claim_plants_an_intent_and_one_event_a_written_key(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K, K2)))
    since = await world.tail()

    claim = await worker.claim()

    assert await world.events(since) == [K, K2]
    assert [await world.look(key) for key in (K, K2)] == [Standing(), Standing()]
    (intent,) = await world.home.intents(K)
    assert (intent.home, intent.job, intent.fence, intent.clean) == (0, A, claim.fence, True)


async def test_a_served_key_gets_no_intent_and_shows_the_old_value_until_the_settle(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, serves=(K,)))
    claim = await worker.claim()

    during = await world.look(K)
    since = await world.tail()
    await worker.end(claim)

    assert isinstance(during, Hit)
    assert await world.events(since) == [K]
    assert await world.value(K) is None


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.CANCEL, JobEvent.RELEASE])
async def test_p10_every_end_of_an_attempt_invalidates_a_served_key(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, serves=(K,)))

    await worker.run(event)

    assert await world.value(K) is None


async def test_progress_is_noted_while_the_attempt_holds(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    await world.enqueue_one(A)
    claim = await worker.claim()

    await worker.turn(progress=((A, claim.fence, b"50%"), (B, 1, b"?")))
    await other.turn(progress=((A, claim.fence, b"90%"),))
    await worker.turn(progress=((A, claim.fence + 1, b"99%"),))

    assert (await world.record(A)).progress == b"50%"
