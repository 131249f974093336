"""Lost workers: leases, two looks, and what passes on (P18, P19)."""

from __future__ import annotations

import pytest
from tests.clock import SECOND
from tests.conformance.world import GRACE, K2, LEASE, LINE, A, B, C, D, K, World, after, job, local, put

from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.partition import Owner
from selaras._core.cache.entry import Standing
from selaras._core.jobs.job import Abandoned, Attempt, Claim, Edge, Refusal, Settlement
from selaras._core.jobs.states import JobEvent, JobState

READY, RUNNING, FAILED = JobState.READY, JobState.RUNNING, JobState.FAILED


async def test_a_job_of_a_lost_worker_is_ready_again_and_counted_as_lost(world: World) -> None:
    worker, other = await world.worker(), await world.worker("other", lease_us=10 * LEASE)
    await world.enqueue(job(A))
    first = await worker.claim()

    await world.lose_workers()
    second = await other.claim()

    assert (second.job, second.number, second.lost) == (A, 1, 1)
    assert second.fence > first.fence


async def test_p19_an_expired_lease_is_looked_at_twice_a_grace_apart(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    in_time = await world.pass_time(LEASE - 1)
    first = await world.pass_time(1)
    too_soon = await world.pass_time(GRACE - 1)
    running = await world.state(A)
    second = await world.pass_time(1)

    assert [(look.suspected, look.lost) for look in (in_time, first, too_soon, second)] == [
        (0, 0),
        (1, 0),
        (0, 0),
        (0, 1),
    ]
    assert (running, await world.state(A)) == (RUNNING, READY)
    assert worker.beat(claim).lost == (Attempt(A, claim.fence),)


async def test_p19_a_heartbeat_that_was_only_held_up_keeps_everything(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.pass_time(LEASE + 3_600 * SECOND)  # nobody could reach the partition, the reaper neither

    reply = worker.beat(claim)
    await world.pass_time(GRACE)

    assert (reply.enrolled, reply.lost) == (True, ())
    assert await world.state(A) is RUNNING
    assert (await worker.end(claim)).state is JobState.SUCCEEDED


async def test_p19_suspicion_is_forgotten_by_a_heartbeat(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.pass_time(LEASE)
    worker.beat(claim)

    again = await world.pass_time(LEASE)
    soon = await world.pass_time(GRACE - 1)

    assert (again.suspected, again.lost) == (1, 0)
    assert (soon.suspected, soon.lost) == (0, 0)
    assert await world.state(A) is RUNNING


async def test_a_heartbeat_renews_everything_a_process_holds(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    claims = await worker.claims()

    for _ in range(5):
        world.clock.advance(LEASE - 1)
        worker.beat(*claims)
        await world.tend()

    assert await world.states(A, B) == [RUNNING, RUNNING]


async def test_p19_a_body_that_cannot_be_ended_is_given_up_while_its_process_lives(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    a, b = await worker.claims()

    worker.beat(a, b, abandoned=(Abandoned(A, a.fence, "its process died: exit code 3"),))

    assert await world.states(A, B) == [READY, RUNNING]
    record = await world.record(A)
    assert (record.lost, record.reason) == (1, "its process died: exit code 3")
    assert [one.reason for one in record.history] == [record.reason]


async def test_a_job_that_is_given_up_for_good_says_how_its_last_attempt_ended(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, max_lost=2))

    worker.beat(abandoned=(Abandoned(A, (await worker.claim()).fence),))
    worker.beat(abandoned=(Abandoned(A, (await worker.claim()).fence, "its process died: exit code 3"),))

    record = await world.record(A)
    assert (record.state, record.reason) == (
        FAILED,
        "worker lost 2 times; the last time: its process died: exit code 3",
    )


async def test_p19_settles_that_the_main_connection_cannot_deliver_go_with_the_heartbeat(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    reply = worker.beat(settlements=(_success(claim),))

    assert [one.state for one in reply.settled] == [JobState.SUCCEEDED]
    assert await world.state(A) is JobState.SUCCEEDED


async def test_a_lost_process_is_told_so_and_nothing_it_sends_counts(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    a, _ = await worker.claims()
    await world.lose_workers()

    beat = worker.beat(a)
    turn = await worker.turn(_success(a))

    assert (beat.enrolled, beat.lost) == (False, (Attempt(A, a.fence),))
    assert (turn.enrolled, turn.claims, turn.settled[0].refusal) == (False, (), Refusal.LEASE_LOST)
    assert await world.states(A, B) == [READY, READY]


@pytest.mark.parametrize("between", ["its registration is pruned", "it restarts under its old name at once"])
async def test_br010_a_lease_belongs_to_the_process_not_to_its_name(world: World, between: str) -> None:
    dead = await world.worker("first-start", name="pod-1")
    await world.enqueue(job(A))
    await dead.claim()

    restarted = await world.worker("second-start", name="pod-1")
    for _ in range(4):
        world.clock.advance(LEASE // 3)
        restarted.beat()
        await world.tend()
    await world.pass_time(GRACE)

    assert await world.state(A) is READY
    assert [instance.id for instance in await world.home.instances()] == [restarted.id]


async def test_br011_a_job_that_kills_its_worker_again_and_again_ends_with_the_dead_letters(world: World) -> None:
    await world.enqueue(job(A, priority=9, max_lost=3), job(B))
    starts = 0
    while await world.state(A) is not FAILED:
        worker = await world.worker()
        claim = await worker.claim()
        starts += claim.job == A
        await world.lose_workers()

    record = await world.record(A)
    assert starts == 3
    assert (record.lost, record.reason) == (3, "worker lost 3 times")
    assert [one.event for one in record.history] == [JobEvent.LOSE] * 3
    assert (await (await world.worker()).claim()).job == B


async def test_br012_a_worker_lost_in_the_last_allowed_attempt_ends_the_job_for_everybody(world: World) -> None:
    unique = local("unique")
    worker = await world.worker()
    await world.enqueue(job(A, max_lost=1, unique=unique, line=LINE, writes=(K,)))
    await world.enqueue(job(B, parents=after(A)), job(C, parents=after(A, Edge.FINISHED)), job(D, line=LINE))
    await worker.claim()

    await world.lose_workers()
    await world.pass_time(INTENT_GRACE_US)

    assert await world.states(A, C, D) == [FAILED, READY, READY]
    assert (await world.record(B)).stuck_on == A
    assert (await world.enqueue_one(local("next"), unique=unique)).created
    assert (await world.home.cache_stats()).intents == 0


async def test_br047_whoever_reaps_may_die_and_another_one_reaps(world: World) -> None:
    worker, reaper = await world.worker(), await world.worker()
    await world.enqueue(job(A))
    await worker.claim()
    world.clock.advance(LEASE)
    await world.tend()  # the reaper looked once, and was killed
    del reaper

    tended = await world.pass_time(GRACE)

    assert tended.lost == 1
    assert await world.state(A) is READY


async def test_br048_of_many_reapers_one_takes_each_job_back(world: World) -> None:
    worker = await world.worker()
    names = [local(f"many-{i}") for i in range(10)]
    await world.enqueue(*(job(name) for name in names))
    await worker.claims()
    await world.pass_time(LEASE)
    world.clock.advance(GRACE)

    lost = [(await world.tend()).lost for _ in range(8)]

    assert lost == [10, 0, 0, 0, 0, 0, 0, 0]
    assert [(await world.record(name)).lost for name in names] == [1] * 10


async def test_a_stopped_worker_gives_back_what_it_holds_uncounted(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    await world.enqueue(job(A))
    await worker.claim()

    await world.home.dismiss(worker.id)
    again = await other.claim()

    assert (again.job, again.number, again.lost) == (A, 1, 0)
    assert worker.beat().enrolled is False


# -- P18: what passes on


async def test_p18_the_intents_of_a_lost_attempt_pass_to_the_next_one(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))
    first = await worker.claim()

    await world.lose_workers()
    waiting = await world.look(K)
    between = await world.home.intents(K)
    other = await world.worker()
    second = await other.claim()
    taken_over = await world.home.intents(K)
    await other.end(second)

    assert waiting == Standing()
    assert [(intent.fence, intent.clean) for intent in between] == [(first.fence, False)]
    assert [(intent.fence, intent.clean) for intent in taken_over] == [(second.fence, False)]
    assert not await world.home.intents(K)


@pytest.mark.parametrize("how", ["unstarted", "given back", "never received"])
@pytest.mark.parametrize("before", ["lost", "unsure"])
async def test_p18_an_attempt_that_did_nothing_leaves_the_intents_of_the_one_before_it(
    world: World, before: str, how: str
) -> None:
    worker, zombie = await world.worker("other", lease_us=10 * LEASE), await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    first = await zombie.claim()
    if before == "lost":
        await world.lose_workers()
    else:
        await zombie.end(first, JobEvent.RETRY, unsure=True)

    match how:
        case "unstarted":
            await worker.end(await worker.claim(), JobEvent.RELEASE, started=False)
        case "given back":
            await worker.end(await worker.claim(), JobEvent.GIVE_BACK)
        case _:
            await worker.send(limit=1)
            worker.beat()
    between = await world.look(K)
    await worker.run()

    assert between == Standing()
    assert not await world.home.intents(K)


async def test_p18_the_intents_of_the_last_lost_attempt_stand_a_grace_then_void(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,), max_lost=1))
    await worker.claim()
    await world.lose_workers()
    ended = world.clock.wall_us()

    await world.pass_time(INTENT_GRACE_US - 1)
    standing = await world.home.intents(K)
    since = await world.tail()
    await world.pass_time(1)

    assert [intent.until_us for intent in standing] == [ended + INTENT_GRACE_US]
    assert not await world.home.intents(K)
    assert await world.events(since) == [K]


@pytest.mark.parametrize("how", ["cancelled", "purged", "ended by its next attempt"])
async def test_l12_a_lost_job_that_ends_while_it_waits_leaves_no_intent_for_ever(world: World, how: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,), queue="q"))
    await worker.claims(queues=("q",))
    await world.lose_workers()

    match how:
        case "cancelled":
            await world.home.cancel(A, "by hand")
        case "purged":
            await world.home.purge([READY], "", 10)
        case _:
            other = await world.worker()
            await other.end((await other.claims(queues=("q",)))[0], JobEvent.CANCEL)
    await world.pass_time(INTENT_GRACE_US)

    assert not await world.home.intents(K)


async def test_l12_an_intent_planted_by_a_lost_attempt_alone_does_not_stand_for_ever(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    first = await worker.claim()
    await world.home.plant(worker.id, _owner(first), (K2,), await world.tail())
    await world.lose_workers()

    other = await world.worker()
    await other.run()  # the second attempt did not touch K2
    standing = await world.home.intents(K2)
    since = await world.tail()
    await world.pass_time(INTENT_GRACE_US)

    assert [intent.fence for intent in standing] == [first.fence]
    assert not await world.home.intents(K2)
    assert await world.events(since) == [K2]


async def test_p18_a_revived_job_keeps_the_intents_that_its_new_attempt_planted(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,), max_lost=1))
    await worker.claim()
    await world.lose_workers()
    await world.home.revive(A)
    other = await world.worker(lease_us=10 * INTENT_GRACE_US)
    await other.claim()

    await world.pass_time(INTENT_GRACE_US)

    assert await world.look(K) == Standing()


async def test_p18_a_lost_attempt_s_preimage_goes_with_it_for_it_may_have_written(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,), wants_preimage=True))
    first = await worker.claim()
    await world.lose_workers()

    second = await (await world.worker()).claim()

    assert [entry.value for _, entry in first.preimages] == [b"v0"]
    assert second.preimages == ()


async def test_q7_a_zombie_can_only_void(world: World) -> None:
    zombie = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    first = await zombie.claim()
    await world.lose_workers()
    healthy = await world.worker()
    second = await healthy.claim()
    await world.cache(K2)
    await healthy.end(second)
    await world.cache(K, b"v2")

    since = await world.tail()
    late = await zombie.end(first, puts=(put(K, b"v1"),), writes=(K,), keys=(K2,), children=(job(B),))

    assert late.refusal is Refusal.LEASE_LOST
    assert (late.stored, late.children) == ((), ())
    assert await world.events(since) == [K, K2]
    assert (await world.value(K), await world.value(K2)) == (None, None)
    assert not await world.knows(B)


async def test_g4_a_zombie_cannot_plant_any_more(world: World) -> None:
    zombie = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    first = await zombie.claim()
    await world.lose_workers()
    await world.cache(K2)

    planted = await world.home.plant(zombie.id, _owner(first), (K2,), await world.tail())

    assert planted.refusal is Refusal.LEASE_LOST
    assert await world.value(K2) == b"v0"


async def test_q2_a_worker_killed_between_its_commit_and_its_settle_leaves_no_stale_value(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))
    await worker.claim()

    during = await world.look(K)  # the worker commits v1, and is killed
    await world.lose_workers()
    waiting = await world.look(K)
    await (await world.worker()).run()

    assert during == waiting == Standing()
    assert await world.value(K) is None


def _success(claim: Claim) -> Settlement:
    return Settlement(claim.job, claim.fence, JobEvent.SUCCEED)


def _owner(claim: Claim) -> Owner:
    return Owner(0, claim.job, claim.fence)
