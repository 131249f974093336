"""Jobs that a worker does not know: laid aside, given back, never dropped (a rolling deploy)."""

from __future__ import annotations

from tests.clock import SECOND, START_US
from tests.conformance.world import LINE, A, B, World, job

from selaras._contracts.limits import LAID_ASIDE_PER_TURN, UNROUTABLE_US
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

NEW = frozenset({"work", "new"})


async def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(world: World) -> None:
    old, new = await world.worker(), await world.worker()
    await world.enqueue(job(A, task="new"), job(B))

    from_old = await old.turn()
    from_new = await new.claims(tasks=NEW)

    assert [claim.job for claim in from_old.claims] == [B]
    assert not from_old.more
    assert [(claim.job, claim.number) for claim in from_new] == [(A, 1)]


async def test_jobs_that_were_laid_aside_keep_their_priority_and_place(world: World) -> None:
    old, new = await world.worker(), await world.worker()
    await world.enqueue(job(A, task="new", priority=1), job(B))
    await old.claims(limit=0)

    claims = await new.claims(tasks=NEW)

    assert [claim.job for claim in claims] == [A, B]


async def test_a_stray_is_counted_and_tells_since_when(world: World) -> None:
    old = await world.worker()
    await world.enqueue(job(A, task="new"))
    world.clock.advance(SECOND)
    await old.claims()

    (queue,) = await world.home.queues()

    assert (queue.apart, queue.counts) == (1, {"ready": 1})
    assert (await world.record(A)).strayed_us == START_US


async def test_what_a_worker_has_no_room_for_is_passed_by_and_nobody_is_missed_for_it(world: World) -> None:
    worker = await world.worker(lease_us=2 * UNROUTABLE_US)
    await world.enqueue(job(A, task="new", priority=1), job(B))

    reply = await worker.turn(full=NEW - {"work"})

    assert ([claim.job for claim in reply.claims], reply.more) == ([B], False)
    record = await world.record(A)
    assert (record.state, record.strayed_us) == (JobState.READY, 0)
    assert (await world.pass_time(UNROUTABLE_US)).unroutable == 0
    (queue,) = await world.home.queues()
    assert queue.apart == 1


async def test_what_was_passed_by_is_had_in_its_old_order_once_there_is_room(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, task="new", priority=1), job(B), job("c", task="new"))
    await worker.claims(limit=0, full=NEW - {"work"})

    claims = await worker.claims(tasks=NEW)

    assert [claim.job for claim in claims] == [A, B, "c"]
    assert [claim.strayed_us for claim in claims] == [0, 0, 0]


async def test_a_turn_passes_no_more_by_than_a_bound_and_says_that_it_goes_on(world: World) -> None:
    worker = await world.worker()
    await world.home.enqueue([job(f"n{number}", task="new") for number in range(LAID_ASIDE_PER_TURN + 50)], START)
    await world.enqueue(job(B))

    replies = [await worker.turn(limit=1, full=NEW - {"work"}) for _ in range(2)]

    assert [([claim.job for claim in reply.claims], reply.more) for reply in replies] == [([], True), ([B], False)]


async def test_a_stray_that_no_worker_knows_for_long_is_reported_once(world: World) -> None:
    old = await world.worker(lease_us=2 * UNROUTABLE_US)
    await world.enqueue(job(A, task="new"), job(B, task="new"))
    await old.claims()

    reported = [(await world.pass_time(step)).unroutable for step in (UNROUTABLE_US - 1, 1, 1)]

    assert reported == [0, 2, 0]
    record = await world.record(A)
    assert (record.state, record.reason) == (JobState.READY, "unroutable: no worker knows task 'new'")


async def test_a_stray_with_a_past_is_reported_as_well(world: World) -> None:
    new, old = await world.worker(lease_us=2 * UNROUTABLE_US), await world.worker(lease_us=2 * UNROUTABLE_US)
    await world.enqueue(job(A, task="new"))
    (claim,) = await new.claims(tasks=NEW)
    await new.end(claim, JobEvent.RETRY, reason="not yet")
    await old.claims()

    assert (await world.pass_time(UNROUTABLE_US)).unroutable == 1


async def test_a_job_whose_arguments_do_not_bind_is_given_back_uncounted_and_says_since_when(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    numbers, strayed = [], []
    for _ in range(3):
        claim = await worker.claim()
        numbers.append(claim.number)
        strayed.append(claim.strayed_us)
        await worker.end(claim, JobEvent.GIVE_BACK, delay_us=SECOND)
        world.clock.advance(SECOND)

    assert numbers == [1, 1, 1]
    assert strayed == [0, START_US, START_US]


async def test_a_stray_head_can_be_cancelled_and_its_line_goes_on(world: World) -> None:
    old = await world.worker()
    await world.enqueue(job(A, task="new", line=LINE), job(B, line=LINE))
    await old.claims()

    await world.home.cancel(A, "nobody knows it")

    assert [claim.job for claim in await old.claims()] == [B]
