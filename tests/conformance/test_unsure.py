"""What may still land: attempts that were stopped from outside, what is named late, what arrives twice (P13, P17, P18, P22)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import LEASE, LINE, LOAD, A, K, World, after, job, local, put, remote

from selaras._contracts.limits import INTENT_GRACE_US, ORPHAN_US
from selaras._contracts.partition import (
    AnyEffect,
    Fill,
    Invalidation,
    Owner,
    Partition,
    ReadRequest,
    Register,
    Resolve,
    Void,
)
from selaras._contracts.store import Store
from selaras._core.cache.entry import Hit, Look, Miss, Standing
from selaras._core.jobs.job import Attempt, Claim, Edge, Fate
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

R = remote("product(99)")
REMOTE_JOB = remote("job-z")
LOCK, SCOPE = local("lock"), local("scope")


@pytest.fixture
async def far(store: Store, clock: VirtualClock) -> AsyncIterator[World]:
    """Give a world of several partitions."""
    if len(store.partitions) == 1:
        pytest.skip("about several partitions")
    world = World(store, clock)
    await world.begin()
    yield world
    world.close()


def _there(world: World) -> Partition:
    return world.store.partitions[1]


async def _deliver(world: World) -> list[AnyEffect]:
    carried: list[AnyEffect] = []
    for partition in world.store.partitions:
        effects = (await partition.outbox(100)).effects
        for effect in effects:
            await world.store.partitions[effect.to].accept([effect])
        await partition.delivered([effect.id for effect in effects])
        carried += effects
    return carried


async def _fate(world: World, claim: Claim) -> Fate:
    (fate,) = await world.home.fates([Attempt(claim.job, claim.fence)])
    return fate


# -- unsure settles


async def test_p18_an_unsure_attempt_s_intents_pass_to_the_next_one(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,), wants_preimage=True))
    first = await worker.claim()

    await worker.end(first, JobEvent.RETRY, unsure=True)
    between = await world.look(K)
    second = await worker.claim()
    (intent,) = await world.home.intents(K)
    await worker.end(second, puts=(put(K, b"v2"),))

    assert between == Standing()
    assert (intent.fence, intent.clean) == (second.fence, False)
    assert await world.value(K) is None  # the first one's write may have come later than the value
    assert not await world.home.intents(K)


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.CANCEL])
async def test_p18_without_a_next_attempt_they_stand_a_grace_then_void(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    await worker.run(event, unsure=True)
    tail = await world.tail()

    standing = await world.look(K)
    await world.pass_time(INTENT_GRACE_US)

    assert standing == Standing()
    assert K in await world.events(tail)
    assert isinstance(await world.look(K), Miss)


async def test_p18_what_an_unsure_attempt_planted_stands_until_its_job_ends(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    first = await worker.claim()
    await world.home.plant(worker.id, Owner(0, A, first.fence), (K,), START)
    await worker.end(first, JobEvent.RETRY, unsure=True, planted=(K,))

    await worker.run()
    standing = await world.look(K)
    await world.pass_time(INTENT_GRACE_US)

    assert standing == Standing()
    assert isinstance(await world.look(K), Miss)


async def test_a_success_is_never_unsure(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))

    await worker.run(unsure=True, puts=(put(K, b"v1"),))

    assert await world.value(K) == b"v1"


async def test_p18_an_unsure_attempt_s_keys_elsewhere_stand_a_grace_too(far: World) -> None:
    worker = await far.worker()
    planted = remote("planted")
    await far.enqueue(job(A, writes=(R,)))
    claim = await worker.claim()
    await _there(far).plant(worker.id, Owner(0, A, claim.fence), (R, planted), START)

    await worker.end(claim, JobEvent.FAIL, unsure=True, planted=(planted,))
    (effect,) = await _deliver(far)
    intents = [one for key in (R, planted) for one in await _there(far).intents(key)]

    assert isinstance(effect, Resolve)
    assert (set(effect.keys), effect.stand_us) == ({R, planted}, INTENT_GRACE_US)
    assert [intent.until_us > 0 for intent in intents] == [True, True]


async def test_p18_an_attempt_that_did_nothing_leaves_the_keys_elsewhere_to_the_next_one(far: World) -> None:
    worker = await far.worker()
    await far.enqueue(job(A, writes=(R,)))
    first = await worker.claim()
    await _there(far).plant(worker.id, Owner(0, A, first.fence), (R,), START)
    await worker.end(first, JobEvent.RETRY, unsure=True)
    second = await worker.claim()
    await _there(far).plant(worker.id, Owner(0, A, second.fence), (R,), START)

    await worker.end(second, JobEvent.RELEASE, started=False)
    await _deliver(far)
    (intent,) = await _there(far).intents(R)

    assert intent.fence == second.fence
    assert await _fate(far, second) is Fate.PENDING  # whoever asks after it lets it stand


# -- keys that are served on: no intent guards them


@pytest.mark.parametrize("how", ["unsure", "lost", "refused"])
async def test_p18_a_served_key_that_may_still_be_written_is_closed_to_fills_for_a_grace(
    world: World, how: str
) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, serves=(K,)))
    claim = await worker.claim()

    match how:
        case "unsure":
            await worker.end(claim, JobEvent.RETRY, unsure=True)
        case "lost":
            await world.lose_workers()
        case _:
            await worker.end(Attempt(A, claim.fence + 1), JobEvent.CANCEL, serves=(K,), unsure=True)
    closed = await world.look(K)  # the write lands now
    world.clock.advance(INTENT_GRACE_US)

    assert closed == Standing()
    assert isinstance(await world.look(K), Miss)


@pytest.mark.parametrize("how", ["unsure", "lost"])
async def test_p18_so_is_a_served_key_of_another_partition(far: World, how: str) -> None:
    worker = await far.worker()
    await far.enqueue(job(A, serves=(R,)))
    claim = await worker.claim()

    if how == "unsure":
        await worker.end(claim, JobEvent.FAIL, unsure=True)
    else:
        await far.lose_workers()
    await _deliver(far)
    closed: tuple[Look, ...] = (await _there(far).read([ReadRequest(R, "", LOAD)], START)).looks

    assert closed == (Standing(),)


async def test_a_served_key_is_open_again_after_an_end_that_is_sure(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, serves=(K,)))

    await worker.run(JobEvent.FAIL)

    assert isinstance(await world.look(K), Miss)


# -- fates


async def test_p17_an_attempt_s_fate_is_told_by_what_its_home_is_sure_of(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, max_lost=1))
    retried = await worker.claim()
    running = await _fate(world, retried)
    await worker.end(retried, JobEvent.RETRY)
    unsure = await worker.claim()
    await worker.end(unsure, JobEvent.RETRY, unsure=True)
    waiting = await _fate(world, unsure)
    lost = await worker.claim()

    await world.lose_workers()

    assert (running, waiting) == (Fate.RUNNING, Fate.PENDING)
    assert [await _fate(world, one) for one in (retried, unsure, lost)] == [Fate.SETTLED, Fate.GONE, Fate.GONE]
    assert await world.home.fates([Attempt("nobody", 1)]) == (Fate.GONE,)


# -- names of a refused settle, floors elsewhere


async def test_g4_a_refused_settle_voids_served_keys(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)

    await worker.end(Attempt(A, 1), serves=(K,))

    assert await world.value(K) is None


async def test_p13_a_floor_is_set_in_the_partition_of_its_key(far: World) -> None:
    worker = await far.worker()
    other = remote("other")
    await far.enqueue(job(A, writes=(R,)))
    claim = await worker.claim()
    await _there(far).plant(worker.id, Owner(0, A, claim.fence), (R,), START)

    await worker.end(claim, versions=((R, 5), (other, 7)), closes=((other, SECOND),))
    resolve, void = await _deliver(far)
    looks: tuple[Look, ...] = (await _there(far).read([ReadRequest(R, "", LOAD), ReadRequest(other)], START)).looks

    assert isinstance(resolve, Resolve)
    assert resolve.versions == ((R, 5),)
    assert isinstance(void, Void)
    assert void.names == Invalidation((), versions=((other, 7),), closes=((other, SECOND),))
    assert isinstance(looks[0], Miss)
    assert (looks[0].floor, looks[1]) == (5, Standing(7))


# -- scopes that nobody answers for


async def test_p16_a_scope_that_a_heartbeat_does_not_name_is_lost(world: World) -> None:
    worker = await world.worker()
    world.clock.advance(SECOND)
    scope = await world.scope(worker, SCOPE, K)
    world.clock.advance(SECOND)
    worker.beat(names_scopes=True)  # it may be older than the scope
    young = await world.home.fates([scope])
    worker.beat(scopes=(Attempt(SCOPE, 0),), names_scopes=True)
    named = await world.home.fates([scope])

    worker.beat(names_scopes=False)
    unsaid = await world.home.fates([scope])
    worker.beat(names_scopes=True)

    assert (young, named, unsaid) == ((Fate.RUNNING,),) * 3
    assert await world.home.fates([scope]) == (Fate.GONE,)
    assert await world.look(K) == Standing()


async def test_p16_a_scope_asked_for_at_the_instant_of_the_heartbeat_before_may_be_younger_than_it(
    world: World,
) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)
    worker.beat(names_scopes=False)

    worker.beat(names_scopes=True)

    assert await world.home.fates([scope]) == (Fate.RUNNING,)


async def test_p16_a_lock_in_line_that_nobody_waits_for_leaves_it(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    world.clock.advance(SECOND)
    assert await world.hold(other, local("held"), LINE)
    assert not await world.hold(worker, LOCK, LINE)
    world.clock.advance(SECOND)
    for beat in (worker.beat, other.beat):
        beat(names_scopes=False)

    other.beat(scopes=(Attempt(local("held"), 0),), names_scopes=True)
    kept = await world.knows(LOCK)
    worker.beat(scopes=(), names_scopes=True)

    assert kept
    assert not await world.knows(LOCK)
    assert await world.knows(local("held"))


# -- deliveries


async def test_l11_a_second_delivery_that_comes_late_does_nothing(far: World) -> None:
    worker = await far.worker()
    await far.enqueue(job(A, serves=(R,)))
    await worker.run()
    late = await _deliver(far)
    (look,) = (await _there(far).read([ReadRequest(R, "", LOAD)], START)).looks
    assert isinstance(look, Miss)
    await _there(far).fill([Fill(put(R, b"v1"), look.token)], START)

    await _there(far).accept(late)

    (look,) = (await _there(far).read([ReadRequest(R, "", LOAD)], START)).looks
    assert isinstance(look, Hit)


async def test_l11_effects_of_a_sender_that_lost_its_memory_are_news(far: World) -> None:
    worker = await far.worker()
    await far.enqueue(job(A, serves=(R,)))
    await worker.run()
    (before,) = await _deliver(far)

    far.home.lose_memory(events=1)  # type: ignore[attr-defined]
    await far.enqueue(job(local("again"), serves=(R,)))
    await worker.run()
    (later,) = await _deliver(far)

    assert (before.sender, later.sender) == (0, 0)
    assert later.id > before.id


async def test_p22_old_blocked_jobs_are_registered_again_at_parents_elsewhere(far: World) -> None:
    worker = await far.worker("", lease_us=10 * LEASE)
    await far.enqueue(job(A))
    await _there(far).enqueue([job(REMOTE_JOB, parents=after(A, Edge.FINISHED))], START)
    lost = (await _there(far).outbox(10)).effects
    await _there(far).delivered([effect.id for effect in lost])
    await worker.run()
    far.clock.advance(ORPHAN_US - 1)
    await _there(far).tend(10)
    young = (await _there(far).outbox(10)).effects
    far.clock.advance(1)

    await _there(far).tend(10)
    await _there(far).tend(10)
    again = (await _there(far).outbox(10)).effects
    await _deliver(far)
    await _deliver(far)

    assert young == ()
    assert [type(effect) for effect in again] == [Register]
    record, _ = await _there(far).job(REMOTE_JOB, START)
    assert record is not None
    assert record.state is JobState.READY
