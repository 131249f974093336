"""What many wait for ends in bounded steps (L13), and whoever waits is told the truth, however long it takes."""

from __future__ import annotations

from tests.clock import SECOND
from tests.conformance.world import A, B, C, Worker, World, after, job, local, remote

from selaras._contracts.limits import TOLD_PER_STEP
from selaras._core.jobs.job import Edge, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

MANY = 2 * TOLD_PER_STEP + 200
CHILDREN = [local(f"child-{number}-") for number in range(MANY)]


async def fan_out(world: World, count: int = MANY, edge: Edge = Edge.AFTER, parent: str = A) -> None:
    """Enqueue so many jobs that wait for one."""
    for first in range(0, count, 500):
        ids = CHILDREN[first : min(first + 500, count)]
        await world.enqueue(*(job(id, queue="late", parents=after(parent, edge)) for id in ids))


async def counts(world: World, queue: str = "late") -> dict[str, int]:
    (found,) = (one for one in await world.home.queues() if one.name == queue)
    return found.counts


async def end_parent(world: World, event: JobEvent = JobEvent.SUCCEED, **options: object) -> Worker:
    worker = await world.worker()
    await world.enqueue_one(A, **options)
    await fan_out(world)
    await worker.run(event, result=b"r")
    return worker


async def tend_to_the_end(world: World) -> int:
    rounds = 1
    while (await world.tend()).again:
        rounds += 1
    return rounds


async def test_l13_who_waits_is_told_step_by_step(world: World) -> None:
    await end_parent(world)
    assert await counts(world) == {"ready": TOLD_PER_STEP, "blocked": MANY - TOLD_PER_STEP}

    tended = await world.tend()
    assert tended.again
    assert await counts(world) == {"ready": 2 * TOLD_PER_STEP, "blocked": 200}

    assert not (await world.tend()).again
    assert await counts(world) == {"ready": MANY}


async def test_l13_turns_go_on_telling_and_say_that_more_may_come(world: World) -> None:
    worker = await end_parent(world)
    blocked = []
    while True:
        reply = await worker.turn(limit=1)  # of the other queue: nothing is there for it
        blocked.append((await counts(world)).get("blocked", 0))
        if not reply.more:
            break

    assert blocked == [200, 0]


async def test_l13_another_end_tells_its_own_at_once_and_leaves_the_rest_to_their_steps(world: World) -> None:
    await end_parent(world)
    await world.enqueue_one(B, delay_us=SECOND)
    await world.enqueue_one(C, parents=after(B, Edge.FINISHED))

    await world.home.cancel(B, "by hand")

    assert await world.state(C) is JobState.READY
    assert await counts(world) == {"ready": TOLD_PER_STEP, "blocked": MANY - TOLD_PER_STEP}


async def test_l13_who_waits_is_told_in_the_order_of_coming(world: World) -> None:
    await end_parent(world)
    await tend_to_the_end(world)
    worker = await world.worker(queues=("late",))

    claims = [claim.job for _ in range(0, MANY, 500) for claim in await worker.claims(limit=500)]

    assert claims == CHILDREN


async def test_l13_a_job_is_kept_until_all_were_told(world: World) -> None:
    """Else those who were not would hear that it is not known, and be cancelled."""
    await end_parent(world, result_ttl_us=0)
    world.clock.advance(SECOND)
    await world.home.purge([JobState.SUCCEEDED], "", 10)
    assert await world.knows(A)

    await tend_to_the_end(world)
    await world.tend()

    assert await counts(world) == {"ready": MANY}
    assert not await world.knows(A)


async def test_l13_values_reach_the_last_one(world: World) -> None:
    worker = await world.worker(queues=("default", "late"))
    await world.enqueue_one(A)
    await fan_out(world, TOLD_PER_STEP + 1, Edge.VALUE)
    await worker.run(result=b"r")
    await tend_to_the_end(world)

    claims = [claim for _ in range(3) for claim in await worker.claims(limit=500)]

    assert [claim.input for claim in claims] == [b"r"] * (TOLD_PER_STEP + 1)


async def test_l13_a_cancelled_parent_takes_all_with_it(world: World) -> None:
    await world.enqueue_one(A, delay_us=SECOND)
    await fan_out(world)

    await world.home.cancel(A, "by hand")

    assert await counts(world) == {"cancelled": TOLD_PER_STEP, "blocked": MANY - TOLD_PER_STEP}
    assert await tend_to_the_end(world) == 2
    assert await counts(world) == {"cancelled": MANY}
    assert (await world.record(CHILDREN[-1])).reason == f"parent {A} cancelled"


async def test_l13_a_scope_that_raised_takes_all_with_it(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, A, "a key")
    await fan_out(world, edge=Edge.SCOPE)

    await world.home.settle(worker.id, [Settlement(scope.job, scope.fence, JobEvent.FAIL)], START)
    await tend_to_the_end(world)

    assert await counts(world) == {"cancelled": MANY}


async def test_l13_a_long_chain_ends_with_its_first(world: World) -> None:
    """Each end is the next one's: neither depth nor length is a bound."""
    await world.enqueue_one(A, delay_us=SECOND)
    parents = [A, *CHILDREN]
    for first in range(0, MANY, 500):
        some = range(first, min(first + 500, MANY))
        await world.enqueue(*(job(CHILDREN[i], queue="late", parents=after(parents[i])) for i in some))

    await world.home.cancel(A, "by hand")
    await tend_to_the_end(world)

    assert await counts(world) == {"cancelled": MANY}


async def test_l13_a_failure_that_is_retried_while_it_is_told_holds_nobody_up(world: World) -> None:
    worker = await end_parent(world, JobEvent.FAIL)
    assert (await world.record(CHILDREN[0])).stuck_on == A
    assert (await world.record(CHILDREN[-1])).stuck_on == ""

    await world.home.revive(A)
    await tend_to_the_end(world)

    assert {(await world.record(id)).stuck_on for id in (CHILDREN[0], CHILDREN[TOLD_PER_STEP], CHILDREN[-1])} == {""}
    await worker.run()
    await tend_to_the_end(world)
    assert await counts(world) == {"ready": MANY}


async def test_l13_a_failure_is_told_to_all_and_lets_them_wait_for_a_retry(world: World) -> None:
    worker = await end_parent(world, JobEvent.FAIL)
    await tend_to_the_end(world)
    assert (await world.record(CHILDREN[-1])).stuck_on == A

    await world.home.revive(A)
    await worker.run()
    await tend_to_the_end(world)

    assert await counts(world) == {"ready": MANY}


async def test_l13_who_waits_for_a_purged_job_hears_of_it(world: World) -> None:
    await world.enqueue_one(A, delay_us=SECOND)
    await fan_out(world)

    assert await world.home.purge([JobState.SCHEDULED], "", 10) == 1
    await tend_to_the_end(world)

    assert await counts(world) == {"cancelled": MANY}
    assert "not known" in (await world.record(CHILDREN[-1])).reason


async def test_l13_a_new_job_of_a_purged_one_s_id_is_another(world: World) -> None:
    await world.enqueue_one(A, delay_us=SECOND)
    await fan_out(world)
    await world.home.purge([JobState.SCHEDULED], "", 10)
    await world.enqueue(job(A, delay_us=SECOND), job(B, parents=after(A)))

    await tend_to_the_end(world)

    assert await counts(world) == {"cancelled": MANY}
    assert await world.state(B) is JobState.BLOCKED


async def test_l13_dependents_elsewhere_are_told_in_the_same_steps(world: World) -> None:
    if len(world.store.partitions) == 1:
        return
    worker = await world.worker()
    await world.enqueue_one(A)
    there = world.store.partitions[1]
    ids = [remote(f"child-{number}-") for number in range(TOLD_PER_STEP + 200)]
    for first in range(0, len(ids), 500):
        await there.enqueue([job(id, queue="late", parents=after(A)) for id in ids[first : first + 500]], START)
    await relay(world, 1, 0)
    await worker.run()

    first = await relay(world, 0, 1)
    await tend_to_the_end(world)
    second = await relay(world, 0, 1)

    assert (first, second) == (TOLD_PER_STEP, 200)
    (late,) = (one for one in await there.queues() if one.name == "late")
    assert late.counts == {"ready": len(ids)}


async def relay(world: World, here: int, there: int) -> int:
    """Deliver what waits in an outbox; returns how many effects that were."""
    delivered = 0
    while effects := (await world.store.partitions[here].outbox(500)).effects:
        await world.store.partitions[there].accept(effects)
        await world.store.partitions[here].delivered([effect.id for effect in effects])
        delivered += len(effects)
    return delivered
