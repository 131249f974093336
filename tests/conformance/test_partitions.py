"""Effects that reach other partitions: the outbox, the directory, orphans (P17, P22). Stores of four partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import LINE, LOAD, A, B, K, Worker, World, after, job, local, put, remote

from selaras._contracts.limits import INTENT_GRACE_US, ORPHAN_US, SHUT_FILL_US
from selaras._contracts.partition import (
    Admit,
    AnyEffect,
    Fill,
    FreeUnique,
    Invalidation,
    Owner,
    Parted,
    Partition,
    ReadRequest,
    Register,
    Resolve,
    Void,
)
from selaras._contracts.store import Store
from selaras._core.cache.entry import Hit, Intent, Look, Miss, Standing
from selaras._core.cache.opening import open_names
from selaras._core.jobs.job import Attempt, Claim, Edge, Fate, Refusal, Settlement, UniqueUntil
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START, Scope
from selaras._core.routing import id_entry

R = remote("product(99)")
REMOTE_JOB = remote("job-z")


@pytest.fixture
async def world(store: Store, clock: VirtualClock) -> AsyncIterator[World]:
    if len(store.partitions) == 1:
        pytest.skip("about several partitions")
    world = World(store, clock)
    await world.begin()
    yield world
    world.close()


def _there(world: World) -> Partition:
    return world.store.partitions[1]


async def _look(world: World, key: str = R) -> Look:
    (look,) = (await _there(world).read([ReadRequest(key, "", LOAD)], START)).looks
    return look


async def _deliver(world: World, *, times: int = 1) -> list[AnyEffect]:
    """Carry every partition's outbox to where it belongs."""
    carried: list[AnyEffect] = []
    for partition in world.store.partitions:
        effects = (await partition.outbox(100)).effects
        for _ in range(times):
            for effect in effects:
                await world.store.partitions[effect.to].accept([effect])
        await partition.delivered([effect.id for effect in effects])
        carried += effects
    return carried


async def _running_with_remote_intent(world: World) -> tuple[Worker, Claim]:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K, R)))
    claim = await worker.claim()
    await _there(world).plant(worker.id, Owner(0, A, claim.fence), claim.elsewhere, START)
    return worker, claim


# -- intents elsewhere


async def test_p17_a_claim_names_the_written_keys_of_other_partitions_and_plants_none_of_them(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K, R)))

    claim = await worker.claim()

    assert claim.elsewhere == (R,)
    assert not await _there(world).intents(R)


async def test_p17_a_remote_intent_stands_until_the_outbox_resolves_it_after_the_settle(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)

    reply = await worker.turn(Settlement(A, claim.fence, JobEvent.SUCCEED))
    between = await _look(world)
    carried = await _deliver(world)

    assert reply.outbox
    assert between == Standing()
    ids = [effect.id for effect in carried]
    assert carried == [Resolve(id=ids[0] if ids else 0, to=1, sender=0, owner=Owner(0, A, claim.fence), keys=(R,))]
    assert isinstance(await _look(world), Miss)


async def test_p17_a_tag_is_open_elsewhere_until_the_outbox_resolves_it_after_the_settle(world: World) -> None:
    worker, there = await world.worker(), _there(world)
    names = open_names(Scope.TAG, "t", len(world.store.partitions))
    await world.enqueue(job(A, writes=names))
    claim = await worker.claim()
    await there.plant(worker.id, Owner(0, A, claim.fence), names[1:2], START)

    async def stores(token: int) -> bool:
        reply = await there.fill([Fill(put(R, b"v1", tags=("t",)), token)], START)
        return reply.stored[0] is not None

    async def missed() -> int:
        world.clock.advance(SHUT_FILL_US)
        look = await _look(world)
        assert isinstance(look, Miss)
        return look.token

    during = await stores(await missed())
    await worker.end(claim)
    settled = await stores(await missed())
    token = await missed()
    await _deliver(world)

    assert claim.elsewhere == names[1:]
    assert (during, settled, await stores(token)) == (False, False, False)
    assert await there.intents(names[1]) == ()
    assert await stores(await missed())


async def test_p17_a_put_elsewhere_is_stored_by_the_outbox_over_its_clean_intent(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)

    await worker.end(claim, puts=(put(R, b"v1"),))
    await _deliver(world)

    look = await _look(world)
    assert isinstance(look, Hit)
    assert look.entry.value == b"v1"


async def test_p17_only_a_success_sends_its_puts_elsewhere(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)

    await worker.end(claim, JobEvent.FAIL, puts=(put(R, b"rolled back"),))
    await _deliver(world)

    assert isinstance(await _look(world), Miss)


async def test_p17_a_reaper_settles_at_home_first_so_a_zombie_s_remote_key_stays_closed(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)
    await world.pass_time(15 * SECOND)  # A pauses; the reaper looks once
    worker.beat(claim)  # A wakes, and renews in time
    await world.pass_time(2 * SECOND)

    look = await _look(world)  # R would fill v0; A commits v1 and settles fine
    settled = await worker.end(claim)

    assert look == Standing()
    assert settled.refusal is None


async def test_p18_remote_intents_of_the_last_lost_attempt_stand_a_grace_then_void(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(R,), max_lost=1))
    claim = await worker.claim()
    await _there(world).plant(worker.id, Owner(0, A, claim.fence), (R,), START)

    await world.lose_workers()
    await _deliver(world)
    standing = await _look(world)
    world.clock.advance(INTENT_GRACE_US)
    await _there(world).tend(100)

    assert standing == Standing()
    assert isinstance(await _look(world), Miss)


async def test_p18_a_remote_intent_passes_to_the_next_attempt(world: World) -> None:
    await _running_with_remote_intent(world)
    await world.lose_workers()
    carried = await _deliver(world)
    second = await world.worker()
    claim = await second.claim()

    await _there(world).plant(second.id, Owner(0, A, claim.fence), (R,), START)
    (intent,) = await _there(world).intents(R)
    await second.end(claim)
    await _deliver(world)

    assert carried == []
    assert (intent.fence, intent.clean) == (claim.fence, False)
    assert not await _there(world).intents(R)


async def test_a_late_word_about_a_dead_attempt_does_not_fell_the_intent_of_a_later_one(world: World) -> None:
    worker = await world.worker()
    later = Owner(0, A, 200)
    await _there(world).plant(worker.id, later, (R,), START)

    await _there(world).accept([Resolve(id=1, to=1, owner=Owner(0, A, 100), keys=(R,), stand_us=SECOND)])
    world.clock.advance(SECOND)
    await _there(world).tend(100)

    assert [intent.fence for intent in await _there(world).intents(R)] == [200]


async def test_p17_an_intent_of_another_home_that_stood_long_is_asked_after(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)
    world.clock.advance(ORPHAN_US - 1)
    young = (await _there(world).tend(100)).orphans
    world.clock.advance(1)

    old = (await _there(world).tend(100)).orphans
    running = await world.home.fates([Attempt(one.job, one.fence) for one in old])
    await worker.end(claim)
    settled = await world.home.fates([Attempt(one.job, one.fence) for one in old])

    assert young == ()
    assert old == (Intent(R, 0, A, claim.fence),)
    assert (running, settled) == ((Fate.RUNNING,), (Fate.SETTLED,))
    assert (await world.home.tend(100)).orphans == ()


async def test_keys_invalidated_elsewhere_go_through_the_outbox(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, serves=(R,)))
    await _fill_there(world)

    await worker.run()
    (effect,) = await _deliver(world)

    assert isinstance(effect, Void)
    assert effect.names.keys == (R,)
    assert isinstance(await _look(world), Miss)


async def test_a_lost_attempt_s_served_keys_elsewhere_are_voided(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, serves=(R,)))
    await _fill_there(world)
    await worker.claim()

    await world.lose_workers()
    await _deliver(world)

    assert await _look(world) == Standing()  # and closed: a write of it may still land


async def test_g4_a_refused_settle_voids_its_keys_elsewhere(world: World) -> None:
    worker, claim = await _running_with_remote_intent(world)
    await worker.end(claim)
    await _deliver(world)
    await _fill_there(world)

    late = await worker.end(claim, writes=(K, R), puts=(put(R, b"late"),))
    await _deliver(world)

    assert late.refusal is Refusal.LEASE_LOST
    assert isinstance(await _look(world), Miss)


# -- dependents and children elsewhere


async def test_p22_a_dependent_is_blocked_first_then_registered_at_its_parent(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    await _there(world).enqueue([job(REMOTE_JOB, parents=after(A, Edge.VALUE))], START)
    before = await _state_there(world)
    registered = await _deliver(world)
    await worker.run(result=b"from a", keys=(K,))
    told = await _deliver(world)

    assert before is JobState.BLOCKED
    assert [type(effect) for effect in registered] == [Register]
    assert [type(effect) for effect in told] == [Parted]
    assert await _state_there(world) is JobState.READY
    claim = (await worker.turn(partition=1)).claims[0]
    assert claim.input == b"from a"
    assert claim.positions == ((0, (await world.tail()).position),)


async def test_p22_registering_at_a_settled_parent_releases_at_once(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.run(result=b"from a")

    await _there(world).enqueue([job(REMOTE_JOB, parents=after(A))], START)
    await _deliver(world)
    await _deliver(world)

    assert await _state_there(world) is JobState.READY


async def test_p22_a_parent_that_is_not_known_cancels_its_dependent(world: World) -> None:
    await _there(world).enqueue([job(REMOTE_JOB, parents=after(A))], START)
    await _deliver(world)
    await _deliver(world)

    assert await _state_there(world) is JobState.CANCELLED


async def test_p22_l11_deliveries_that_arrive_twice_move_no_job_twice(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await _there(world).enqueue([job(REMOTE_JOB, parents=after(A, Edge.FINISHED))], START)
    await _deliver(world, times=2)
    await worker.run()
    await _deliver(world, times=2)
    (claim,) = (await worker.turn(partition=1)).claims
    await _deliver(world, times=2)

    assert claim.job == REMOTE_JOB
    assert await _state_there(world) is JobState.RUNNING


async def test_a_child_at_home_elsewhere_is_enqueued_there_and_must_see_its_parent_s_effects(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    settled = await worker.run(children=(job(REMOTE_JOB, positions=((0, 1), (3, 9))),), keys=(K,))
    (effect,) = await _deliver(world, times=2)
    (claim,) = (await worker.turn(partition=1)).claims

    assert [(child.id, child.created) for child in settled.children] == [(REMOTE_JOB, True)]
    assert isinstance(effect, Admit)
    assert claim.positions == ((0, (await world.tail()).position), (3, 9))


async def test_a_child_whose_line_lives_elsewhere_lives_there(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    await worker.run(children=(job(B, line=remote("line")),))
    (effect,) = await _deliver(world)

    assert effect.to == 1
    assert not await world.knows(B)


# -- the outbox


async def test_the_outbox_is_read_in_order_and_keeps_what_was_not_delivered(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    children = tuple(job(remote(f"child-{number}")) for number in range(3))
    await worker.run(children=children)

    first = (await world.home.outbox(2)).effects
    await world.home.delivered([first[0].id])
    rest = (await world.home.outbox(10)).effects
    await world.home.delivered([effect.id for effect in (*first, *rest)])

    assert len(first) == 2
    assert [effect.job.id for effect in rest if isinstance(effect, Admit)] == [child.id for child in children[1:]]
    assert [effect.id for effect in (*first, *rest)] == sorted(effect.id for effect in (*first, *rest))
    assert (await world.home.outbox(10)).effects == ()
    assert not (await worker.turn()).outbox


# -- the directory


async def test_p22_a_directory_entry_is_taken_once(world: World) -> None:
    first = await world.home.reserve("unique", A, 2, "")
    again = await world.home.reserve("unique", A, 3, "")
    other = await world.home.reserve("unique", B, 1, "")

    assert (first.job, first.home, first.mine) == (A, 2, True)
    assert (again.job, again.home, again.mine) == (A, 2, True)
    assert (other.job, other.home, other.mine) == (A, 2, False)


async def test_p22_an_entry_that_dangles_can_be_replaced(world: World) -> None:
    await world.home.reserve("unique", A, 2, "")

    wrong = await world.home.reserve("unique", B, 1, "someone else")
    right = await world.home.reserve("unique", B, 1, A)

    assert (wrong.mine, right.mine, right.home) == (False, True, 1)


async def test_p22_a_unique_key_is_one_whether_its_job_lives_here_or_elsewhere(world: World) -> None:
    unique = local("unique")
    await world.home.reserve(unique, REMOTE_JOB, 1, "")

    refused = await world.enqueue_one(A, unique=unique)
    await world.home.accept([FreeUnique(id=1, to=0, unique=unique, job=REMOTE_JOB)])
    admitted = await world.enqueue_one(B, unique=unique)
    taken = await world.home.reserve(unique, REMOTE_JOB, 1, "")

    assert (refused.id, refused.created) == (REMOTE_JOB, False)
    assert admitted.created
    assert (taken.job, taken.home, taken.mine) == (B, 0, False)


async def test_p22_a_job_elsewhere_frees_its_unique_key_through_the_outbox(world: World) -> None:
    unique = local("unique")
    await world.home.reserve(unique, REMOTE_JOB, 1, "")
    await _there(world).enqueue([job(REMOTE_JOB, unique=unique)], START)
    worker = await world.worker()

    await worker.turn(partition=1)
    await _deliver(world)

    assert (await world.home.reserve(unique, A, 0, "")).mine


async def test_p22_freeing_a_key_that_another_job_holds_by_now_does_nothing(world: World) -> None:
    unique = local("unique")
    await world.enqueue_one(A, unique=unique)

    await world.home.accept([FreeUnique(id=1, to=0, unique=unique, job=REMOTE_JOB)])

    assert (await world.enqueue_one(B, unique=unique)).id == A


# -- a job that waits again, and whose unique key another partition keeps

NAME = remote("reprice:42", 2)
NEWER = remote("job-newer", 1)
NAMES = 2
"""The partition that keeps the name; A lives in partition 0, its newer twin in 1."""


async def _carry(world: World) -> list[AnyEffect]:
    """Deliver until nothing waits."""
    carried: list[AnyEffect] = []
    while some := await _deliver(world):
        carried += some
    return carried


async def _begun(world: World, **options: Any) -> tuple[Worker, Claim]:
    """Let A begin, and its name be free."""
    await world.store.partitions[NAMES].reserve(NAME, A, 0, "")
    await world.enqueue(job(A, unique=NAME, **options))
    worker = await world.worker()
    claim = await worker.claim()
    await _carry(world)
    return worker, claim


async def _twin_comes(world: World, **options: Any) -> None:
    assert (await world.store.partitions[NAMES].reserve(NAME, NEWER, 1, "")).mine
    await _there(world).enqueue([job(NEWER, unique=NAME, **options)], START)


async def _holder(world: World) -> str:
    return (await world.store.partitions[NAMES].reserve(NAME, "nobody", 3, "")).job


@pytest.mark.parametrize("event", [JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.RELEASE, JobEvent.LOSE])
async def test_p22_a_job_that_waits_again_gives_way_to_a_newer_twin_elsewhere(world: World, event: JobEvent) -> None:
    worker, claim = await _begun(world)
    await _twin_comes(world)

    if event is JobEvent.LOSE:
        await world.lose_workers()
    else:
        await worker.end(claim, event, delay_us=SECOND)
    await _carry(world)

    record = await world.record(A)
    assert (record.state, record.reason) == (JobState.CANCELLED, f"superseded by {NEWER}")
    assert await _holder(world) == NEWER


async def test_p22_a_job_that_waits_again_has_its_name_again_if_nobody_else_has(world: World) -> None:
    worker, claim = await _begun(world)

    await worker.end(claim, JobEvent.RETRY, delay_us=SECOND)
    await _carry(world)

    assert (await world.record(A)).state is JobState.SCHEDULED
    assert await _holder(world) == A


async def test_p22_a_twin_that_has_begun_has_no_right_to_the_name_any_more(world: World) -> None:
    worker, claim = await _begun(world)
    await _twin_comes(world)
    await worker.turn(partition=1)  # its name is not told to be free yet

    await worker.end(claim, JobEvent.RETRY, delay_us=SECOND)
    await _carry(world)

    assert (await world.record(A)).state is JobState.SCHEDULED
    assert await _holder(world) == A


async def test_p22_a_twin_that_keeps_its_name_until_it_has_finished_has_a_right_to_it_while_it_runs(
    world: World,
) -> None:
    worker, claim = await _begun(world)
    await _twin_comes(world, unique_until=UniqueUntil.FINISHED)
    await worker.turn(partition=1)

    await worker.end(claim, JobEvent.RETRY, delay_us=SECOND)
    await _carry(world)

    assert (await world.record(A)).state is JobState.CANCELLED


@pytest.mark.parametrize("home", [0, 1])
async def test_p22_no_job_is_dropped_for_a_twin_that_never_came(world: World, home: int) -> None:
    """Its producer died between taking the name and enqueueing; within a partition, too."""
    name = remote("reprice:43", home)
    names = world.store.partitions[home]
    await names.reserve(name, A, 0, "")
    await world.enqueue(job(A, unique=name))
    worker = await world.worker()
    claim = await worker.claim()
    await _carry(world)
    assert (await names.reserve(name, NEWER, 1, "")).mine

    await worker.end(claim, JobEvent.RETRY)
    await _carry(world)

    assert (await world.record(A)).state is JobState.READY


async def test_p22_a_job_that_has_begun_again_is_not_taken_back(world: World) -> None:
    worker, claim = await _begun(world)
    await _twin_comes(world)

    await worker.end(claim, JobEvent.RELEASE)
    await worker.claim()
    await _carry(world)

    assert (await world.record(A)).state is JobState.RUNNING


async def test_p22_a_job_revived_by_hand_gives_way_too(world: World) -> None:
    worker, claim = await _begun(world)
    await worker.end(claim, JobEvent.FAIL)
    await _carry(world)
    await _twin_comes(world)

    await world.home.revive(A)
    await _carry(world)

    assert (await world.record(A)).reason == f"superseded by {NEWER}"


# -- ids of one's own


@pytest.mark.parametrize("how", ["its retention is over", "it is purged"])
@pytest.mark.parametrize("home", [0, 1])
async def test_p22_the_entry_of_an_id_is_freed_when_its_job_is_forgotten(world: World, how: str, home: int) -> None:
    id = remote("order-7", home)  # the job stands in a line of partition 0, wherever its id points to
    entry, names = id_entry(id), world.store.partitions[home]
    await names.reserve(entry, id, 0, "")
    await world.enqueue(job(id, line=LINE, result_ttl_us=SECOND))
    await (await world.worker()).run()
    kept = await names.reserve(entry, id, 3, "")

    if how == "it is purged":
        await world.home.purge([JobState.SUCCEEDED], "", 10)
    else:
        await world.pass_time(SECOND)
    await _carry(world)

    assert kept.home == 0
    assert (await names.reserve(entry, id, 3, "")).home == 3


async def test_p22_the_entry_of_an_id_that_lives_elsewhere_by_now_stays(world: World) -> None:
    id = remote("order-7")
    entry, names = id_entry(id), _there(world)
    await world.enqueue(job(id, line=LINE, result_ttl_us=SECOND))
    await (await world.worker()).run()
    await names.reserve(entry, id, 3, "")

    await world.pass_time(SECOND)
    await _carry(world)

    assert (await names.reserve(entry, id, 0, "")).home == 3


async def test_p12_a_tag_voided_in_one_partition_is_not_voided_in_another(world: World) -> None:
    await _fill_there(world, tags=("t",))

    await world.invalidate(tags=("t",))
    still = await _look(world)
    await _there(world).accept([Void(id=1, to=1, names=Invalidation((), ("t",)))])

    assert isinstance(still, Hit)
    assert isinstance(await _look(world), Miss)


async def test_partitions_have_logs_and_counters_of_their_own(world: World) -> None:
    before = [await partition.events_since(START) for partition in world.store.partitions]
    await world.invalidate(K)

    after_it = [await partition.events_since(START) for partition in world.store.partitions]

    moved = [new.tail.position - old.tail.position for old, new in zip(before, after_it, strict=True)]
    assert moved == [1] + [0] * (len(moved) - 1)


async def _state_there(world: World) -> JobState:
    record, _ = await _there(world).job(REMOTE_JOB, START)
    assert record is not None
    return record.state


async def _fill_there(world: World, tags: tuple[str, ...] = ()) -> None:
    look = await _look(world)
    assert isinstance(look, Miss)
    await _there(world).fill([Fill(put(R, b"v0", tags=tags), look.token)], START)


# -- bells


async def test_a_bell_rings_for_the_partition_that_has_work_and_for_no_other(world: World) -> None:
    bell = world.store.bell()
    try:
        worker = await world.worker(bell=bell.address)
        for partition in world.store.partitions:
            await worker.turn(partition=partition.index, idle=True)
        while await bell.wait(0.1):  # somebody had to look, when it was first listened to
            pass

        await _there(world).enqueue([job(REMOTE_JOB)], START)

        assert await bell.wait(5) == {1}
        assert not await bell.wait(0.05)
        bell.ring()
        assert await bell.wait(5) == set(range(len(world.store.partitions)))
    finally:
        bell.close()


async def test_a_bell_that_rings_as_the_time_is_over_is_heard_then_or_the_next_time(world: World) -> None:
    bell = world.store.bell()
    loop = asyncio.get_running_loop()
    try:
        while await bell.wait(0.05):
            pass

        waiting = asyncio.ensure_future(bell.wait(0.001))
        await asyncio.sleep(0)
        loop.call_later(0.001, bell.ring)
        time.sleep(0.01)  # both times are over before the loop looks again

        assert await waiting or await bell.wait(0.05)
    finally:
        bell.close()
