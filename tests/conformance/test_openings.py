"""Tags and families that are written as a whole: open from the claim to the settle (P7, P12, L14)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clock import SECOND
from tests.conformance.world import K2, LEASE, WIDEST, A, B, K, World, job, local, put

from selaras._contracts.limits import INTENT_GRACE_US, SHUT_FILL_US
from selaras._contracts.partition import Fill, Owner, ReadRequest
from selaras._core.cache.entry import Busy, Hit, Miss, Standing
from selaras._core.cache.opening import open_name, open_names, opened_by, shown_keys
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START, Scope
from selaras._core.routing import partition_of

TAG = open_name(Scope.TAG, "t", 0)
FAMILY = open_name(Scope.FAMILY, "f", 0)
OTHER = open_name(Scope.FAMILY, "g", 0)
BORN: dict[str, Any] = {"tags": ("s", "t"), "family": "f"}
"""What the values of these tests bear."""

each_name = pytest.mark.parametrize("name", [TAG, FAMILY], ids=["tag", "family"])


# -- a datastore that answers late (P13)


@each_name
async def test_p13_a_bulk_write_may_stop_fills_for_a_while(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()
    await worker.end(claim, closes=((name, SECOND),))

    early = await world.miss(K)
    filled = await world.fill(early, put(K, b"v0", **BORN))  # what a replica still says
    other = await world.fill(await world.miss(K2), put(K2, b"v0", tags=("s",), family="g"))
    world.clock.advance(SECOND)

    assert (filled, other) == (False, True)
    assert await world.fill(await world.miss(K), put(K, b"v1", **BORN))
    assert await world.value(K) == b"v1"


@each_name
async def test_p13_voiding_a_tag_or_family_may_stop_fills_for_a_while(world: World, name: str) -> None:
    scope, text = opened_by(name) or (Scope.KEY, "")
    names = {"tags" if scope is Scope.TAG else "families": (text,)}
    token = await world.miss(K)
    await world.invalidate(**names, closes=((name, SECOND),))

    assert not await world.fill(token, put(K, b"v0", **BORN))
    assert not await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    world.clock.advance(SECOND)
    await world.tend()
    assert await world.fill(await world.miss(K), put(K, b"v1", **BORN))


@each_name
async def test_p13_the_longest_of_several_closings_counts(world: World, name: str) -> None:
    await world.invalidate(closes=((name, 3 * SECOND),))
    await world.invalidate(closes=((name, SECOND), (OTHER, SECOND)))
    world.clock.advance(2 * SECOND)

    assert not await world.fill(await world.miss(K), put(K, b"v0", **BORN))


async def test_p13_a_name_of_another_partition_is_closed_with_the_settle(world: World) -> None:
    if len(world.store.partitions) == 1:
        pytest.skip("there is no other")
    worker = await world.worker()
    elsewhere, key = open_name(Scope.FAMILY, "f", 1), local("far", 1)
    await world.enqueue(job(A, writes=(FAMILY, elsewhere)))
    claim = await worker.claim()
    await worker.end(claim, closes=((FAMILY, SECOND), (elsewhere, SECOND)))
    there = world.store.partitions[1]
    for effect in (await world.home.outbox(10)).effects:
        await there.accept([effect])

    look = (await there.read([ReadRequest(key, "f", LEASE)], START)).looks[0]
    assert isinstance(look, Miss)
    filled = await there.fill([Fill(put(key, b"v0", **BORN), look.token)], START)

    assert filled.stored == (None,)


# -- what a claim plants


@each_name
async def test_p7_the_claim_voids_what_bears_it_by_one_event(world: World, name: str) -> None:
    worker = await world.worker()
    await world.cache(K, **BORN)
    await world.enqueue(job(A, writes=(name,)))
    since = await world.tail()

    await worker.claim()

    assert await world.value(K) is None
    scope, text = opened_by(name) or (Scope.KEY, "")
    news = await world.home.events_since(since)
    assert [(event.scope, event.name) for event in news.events] == [(scope, text)]
    assert news.tail.position == since.position + 1


@each_name
async def test_p7_nothing_that_bears_it_is_stored_while_it_stands(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()
    token = await world.miss(K)  # what it bears is known only when it is loaded

    filled = await world.fill(token, put(K, b"v0", **BORN))
    await worker.end(claim)

    assert not filled
    assert await world.value(K) is None


@each_name
async def test_p12_a_load_that_began_while_it_stood_is_not_stored_after_it(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()
    token = await world.miss(K)  # R loads v0; A commits v1 and settles

    await worker.end(claim)

    assert not await world.fill(token, put(K, b"v0", **BORN))


@each_name
async def test_p12_a_load_that_began_before_the_claim_is_not_stored(world: World, name: str) -> None:
    worker = await world.worker()
    token = await world.miss(K)
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()

    during = await world.fill(token, put(K, b"v0", **BORN))
    await worker.end(claim)

    assert not during


@each_name
async def test_what_does_not_bear_it_is_cached_as_ever(world: World, name: str) -> None:
    worker = await world.worker()
    await world.cache(K, tags=("other",), family="g")
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()

    before = await world.value(K)
    await world.invalidate(K)
    await world.cache(K, b"v2", tags=("other",), family="g")
    during = await world.value(K)
    await worker.end(claim)

    assert (before, during, await world.value(K)) == (b"v0", b"v2", b"v2")


@each_name
async def test_what_is_stored_after_the_settle_stays(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    await worker.run()

    await world.cache(K, b"v1", **BORN)

    assert await world.value(K) == b"v1"


@each_name
async def test_p7_it_stays_open_until_the_last_of_its_writers_has_settled(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)), job(B, writes=(name,)))
    a, b = await worker.claims()

    await worker.end(b)
    during = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await worker.end(a)
    await world.cache(K, b"v1", **BORN)

    assert not during
    assert await world.value(K) == b"v1"


@pytest.mark.parametrize("names", [{"tags": ("t",)}, {"families": ("f",)}, {"keys": (K,)}])
@each_name
async def test_p7_no_invalidation_closes_it(world: World, name: str, names: dict[str, tuple[str, ...]]) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    await worker.claim()

    await world.invalidate(*names.get("keys", ()), **{kind: some for kind, some in names.items() if kind != "keys"})

    assert len(await world.home.intents(name)) == 1
    assert not await world.fill(await world.miss(K), put(K, b"v0", **BORN))


@each_name
async def test_one_that_closes_leaves_another_open(world: World, name: str) -> None:
    worker = await world.worker()
    other = FAMILY if name == TAG else TAG
    await world.enqueue(job(A, writes=(name,)), job(B, writes=(other,)))
    a, _ = await worker.claims()

    await worker.end(a)

    assert not await world.fill(await world.miss(K), put(K, b"v0", **BORN))


# -- puts


@each_name
async def test_p8_a_put_that_bears_what_another_writes_is_an_invalidation(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(name,)))
    a = await worker.claim()
    await worker.claim()
    since = await world.tail()

    settled = await worker.end(a, puts=(put(K, b"v1", **BORN),))

    assert settled.stored == ()
    assert await world.value(K) is None
    assert await world.events(since) == [K]


@pytest.mark.parametrize("writes", [(K, TAG), (TAG, K)])
async def test_p8_a_put_that_bears_what_its_own_job_writes_is_an_invalidation(
    world: World, writes: tuple[str, ...]
) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=writes))
    claim = await worker.claim()

    settled = await worker.end(claim, puts=(put(K, b"v1", **BORN),))

    assert settled.stored == ()
    assert await world.value(K) is None


async def test_p10_an_attempt_that_never_started_closes_what_it_opened(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, **BORN)
    await world.enqueue(job(A, writes=(TAG, K)))
    claim = await worker.claim()

    await worker.end(claim, JobEvent.RELEASE, started=False)

    assert await world.home.intents(TAG) == ()
    assert await world.value(K) is None
    await world.cache(K, b"v1", **BORN)
    assert await world.value(K) == b"v1"


# -- ends


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.CANCEL, JobEvent.RELEASE])
@each_name
async def test_every_end_closes_it(world: World, name: str, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))

    await worker.run(event, delay_us=LEASE)

    assert await world.home.intents(name) == ()
    await world.cache(K, b"v1", **BORN)
    assert await world.value(K) == b"v1"


@each_name
async def test_p18_a_lost_attempt_leaves_it_open_to_the_next(world: World, name: str) -> None:
    lost, worker = await world.worker("lost"), await world.worker(lease_us=10 * LEASE)
    await world.enqueue(job(A, writes=(name,)))
    await lost.claim()
    await world.lose_workers()

    before = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    world.clock.advance(SHUT_FILL_US)
    claim = await worker.claim()
    during = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await worker.end(claim)
    await world.cache(K, b"v1", **BORN)

    assert (before, during) == (False, False)
    assert await world.value(K) == b"v1"


@each_name
async def test_p18_after_the_last_lost_attempt_it_stands_a_grace_and_voids(world: World, name: str) -> None:
    lost = await world.worker("lost")
    await world.enqueue(job(A, writes=(name,), max_lost=1))
    await lost.claim()
    await world.lose_workers()

    await world.tend()
    during = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    world.clock.advance(INTENT_GRACE_US)
    token = await world.miss(K)
    await world.tend()

    assert not during
    assert await world.home.intents(name) == ()
    assert not await world.fill(token, put(K, b"v0", **BORN))
    await world.cache(K, b"v1", **BORN)
    assert await world.value(K) == b"v1"


@each_name
async def test_p20_a_store_that_lost_events_leaves_it_open(world: World, name: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(name,)))
    claim = await worker.claim()
    await world.invalidate(tags=("another",))

    world.home.lose_memory(events=1)  # type: ignore[attr-defined]
    filled = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await worker.end(claim)

    assert not filled
    assert await world.fill(await world.miss(K), put(K, b"v1", **BORN))


@each_name
async def test_g4_a_late_settle_voids_what_it_may_have_written(world: World, name: str) -> None:
    lost, worker = await world.worker("lost"), await world.worker(lease_us=10 * LEASE)
    await world.enqueue(job(A, writes=(name,)))
    zombie = await lost.claim()
    await world.lose_workers()
    await worker.run()
    await world.cache(K, b"v1", **BORN)

    await lost.end(zombie, writes=(name,))

    assert await world.value(K) is None


@each_name
async def test_p14_planting_it_during_a_run_opens_it(world: World, name: str) -> None:
    worker = await world.worker()
    await world.cache(K, **BORN)
    await world.enqueue(job(A))
    claim = await worker.claim()

    await world.home.plant(worker.id, Owner(0, claim.job, claim.fence), [name], START)
    voided = await world.value(K)
    during = await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await worker.end(claim, planted=(name,))
    await world.cache(K, b"v1", **BORN)

    assert (voided, during) == (None, False)
    assert await world.value(K) == b"v1"


async def test_p9_a_settle_that_does_not_find_it_voids(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, **BORN)
    await world.enqueue(job(A))
    claim = await worker.claim()

    await worker.end(claim, planted=(TAG,))

    assert await world.value(K) is None


# -- readers while it is open


async def test_those_who_come_after_a_refused_fill_do_not_wait_for_each_other(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(TAG,)))
    claim = await worker.claim()
    await world.fill(await world.miss(K), put(K, b"v0", **BORN))

    look = await world.look(K)
    world.clock.advance(SHUT_FILL_US)
    await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await worker.end(claim)

    assert look == Standing()
    assert await world.miss(K)  # and nothing of that is left when it closes


async def test_a_key_that_is_shut_is_not_being_loaded(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(TAG,)))
    await worker.claim()
    await world.fill(await world.miss(K), put(K, b"v0", **BORN))
    await world.tend()

    assert await world.look(K, lease_us=0) == Standing()
    assert (await world.home.cache_stats()).tokens == 0
    await world.invalidate(K)
    assert await world.look(K, lease_us=0) == Busy(0)


async def test_an_entry_stays_though_its_renewal_would_bear_what_is_open(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, b"v1")
    found = await world.look(K)
    assert isinstance(found, Hit)
    await world.enqueue(job(A, writes=(TAG,)))
    await worker.claim()
    renewed = await world.look(K, renews=found.entry.stamp)
    assert isinstance(renewed, Hit)

    filled = await world.fill(renewed.token, put(K, b"v2", **BORN))

    assert not filled
    assert await world.value(K) == b"v1"


# -- names


def test_an_open_name_lives_in_its_partition() -> None:
    names = open_names(Scope.TAG, "category:7", WIDEST)

    assert [partition_of(name, WIDEST) for name in names] == list(range(WIDEST))
    assert {opened_by(name) for name in names} == {(Scope.TAG, "category:7")}
    assert shown_keys((*names, local("product:1"))) == ("tag category:7", local("product:1"))


@pytest.mark.parametrize("key", ["", "product:1", "\x1f", "\x1fid:a", "\x1f0:0:a", "\x1fx:1:a", "1:1:a"])
def test_other_names_open_nothing(key: str) -> None:
    assert opened_by(key) is None
    assert 0 <= partition_of(key, WIDEST) < WIDEST
