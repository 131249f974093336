"""Intents and puts: what stands in a key's place while it is written (P7-P10, P14)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clock import SECOND
from tests.conformance.world import K2, LINE2, A, B, C, K, World, job, local, put

from selaras._contracts.partition import Owner
from selaras._core.cache.entry import Hit, Intent, Standing
from selaras._core.jobs.job import Attempt, Claim, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START

SCOPE = local("scope")
STANDING = Standing()


def _owner(claim: Claim) -> Owner:
    return Owner(0, claim.job, claim.fence)


# -- P7: a set of intents


async def test_p7_a_key_stays_closed_until_the_last_of_its_writers_has_settled(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K,)))
    a, b = await worker.claims()

    await worker.end(b)
    look = await world.look(K)  # R would fill v0 here; A commits v1 and settles silently
    await worker.end(a)

    assert look == STANDING
    assert await world.value(K) is None
    assert await world.miss(K)


async def test_p7_a_settle_removes_only_its_own_intent(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K,)))
    a, b = await worker.claims()

    await worker.end(a, JobEvent.FAIL)

    assert [(one.job, one.fence) for one in await world.home.intents(K)] == [(B, b.fence)]


@pytest.mark.parametrize("names", [{"keys": (K,)}, {"tags": ("t",)}, {"families": ("f",)}])
async def test_p7_no_invalidation_removes_an_intent(world: World, names: dict[str, tuple[str, ...]]) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    await worker.claim()

    await world.invalidate(*names.get("keys", ()), **{kind: value for kind, value in names.items() if kind != "keys"})

    assert await world.look(K) == STANDING
    assert len(await world.home.intents(K)) == 1


async def test_p7_a_token_granted_before_the_claim_fills_nothing(world: World) -> None:
    worker = await world.worker()
    token = await world.miss(K)
    await world.enqueue(job(A, writes=(K,)))
    await worker.claim()

    filled = await world.fill(token, put(K, b"v0"))

    assert not filled
    assert await world.look(K) == STANDING


async def test_p7_a_settled_key_can_be_cached_again_without_another_event(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()
    since = await world.tail()

    await worker.end(claim)
    await world.cache(K, b"v1")

    assert await world.events(since) == []
    assert await world.value(K) == b"v1"


# -- P8: clean intents and puts


async def test_p8_a_put_over_a_sole_clean_intent_is_stored_with_the_settle(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()

    settled = await worker.end(claim, puts=(put(K, b"v1", tags=("t",), version=3, expires_in_us=9 * SECOND),))

    look = await world.look(K)
    assert isinstance(look, Hit)
    assert (look.entry.value, look.entry.tags, look.entry.version) == (b"v1", ("t",), 3)
    assert look.entry.expires_in_us == 9 * SECOND
    assert settled.stored == ((K, look.entry.position, look.entry.stamp),)


@pytest.mark.parametrize("names", [{"keys": (K,)}, {"tags": ("t",)}, {"families": ("f",)}])
async def test_p8_a_put_is_not_stored_over_an_invalidation_from_outside(
    world: World, names: dict[str, tuple[str, ...]]
) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()  # A commits v1; then code outside commits v2, and invalidates
    await world.invalidate(*names.get("keys", ()), **{kind: value for kind, value in names.items() if kind != "keys"})
    since = await world.tail()

    settled = await worker.end(claim, puts=(put(K, b"v1", tags=("t",), family="f"),))

    assert settled.stored == ()
    assert await world.value(K) is None
    assert await world.events(since) == [K]


@pytest.mark.parametrize("last", [A, B])
async def test_p8_of_two_writers_at_once_neither_put_is_stored(world: World, last: str) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K,)))
    claims = {claim.job: claim for claim in await worker.claims()}

    first = A if last == B else B
    settled = [await worker.end(claims[name], puts=(put(K, name.encode()),)) for name in (first, last)]

    assert [one.stored for one in settled] == [(), ()]
    assert await world.value(K) is None


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.CANCEL, JobEvent.RELEASE])
async def test_p8_only_a_success_stores_its_puts(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))

    settled = await worker.run(event, puts=(put(K, b"never committed"),))

    assert settled.stored == ()
    assert await world.value(K) is None


async def test_p8_a_put_of_a_key_that_was_not_declared_is_an_invalidation(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A))
    claim = await worker.claim()
    since = await world.tail()

    settled = await worker.end(claim, puts=(put(K, b"v1"),))

    assert settled.stored == ()
    assert await world.value(K) is None
    assert await world.events(since) == [K]


async def test_p8_a_put_of_a_served_key_is_an_invalidation(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, serves=(K,)))
    claim = await worker.claim()
    since = await world.tail()

    await worker.end(claim, puts=(put(K, b"v1"),))

    assert await world.value(K) is None
    assert await world.events(since) == [K]


async def test_p8_a_put_below_the_floor_is_an_invalidation(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()
    await world.invalidate(versions=((K, 5),))

    settled = await worker.end(claim, puts=(put(K, b"v4", version=4),))

    assert settled.stored == ()
    assert await world.value(K) is None


# -- P3: positions of stored values


async def test_p3_a_value_stored_by_a_settle_has_the_position_before_the_same_turn_s_claims(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    a = await worker.claim()
    await world.enqueue(job(C, writes=(K,)))

    reply = await worker.turn(_success(a, puts=(put(K, b"v1"),)))

    # One turn settles A and claims C on K. L1 may take (v1, position): C's event must lie after it.
    ((key, position, _),) = reply.settled[0].stored
    assert key == K
    assert [event.position for event in reply.news.events if event.name == K] == [position + 1]
    assert reply.claims[0].position == reply.news.tail.position > position


async def test_p3_each_value_stored_in_a_turn_has_a_position_of_its_own(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K2,)))
    a, b = await worker.claims()

    reply = await worker.turn(
        _success(a, puts=(put(K, b"v1"),), keys=(local("other"),)), _success(b, puts=(put(K2, b"v1"),))
    )

    (first,), (second,) = (settled.stored for settled in reply.settled)
    assert second[1] == first[1] + 1


async def test_p4_values_of_one_position_are_ordered_by_their_stamps(world: World) -> None:
    await world.cache(K)
    first = await world.look(K)
    assert isinstance(first, Hit)
    refilled = await world.look(K, distrust=first.entry.stamp)
    await world.fill(refilled.token, put(K, b"v0"))  # type: ignore[union-attr]

    second = await world.look(K)

    assert isinstance(second, Hit)
    assert second.entry.position == first.entry.position
    assert second.entry.stamp > first.entry.stamp


# -- P9: a resolve that does not find its own intent voids


async def test_p9_a_writing_scope_that_outlived_its_lease_voids_when_it_ends(world: World) -> None:
    paused = await world.worker()
    scope = await world.scope(paused, SCOPE, K)  # writing(42) plants, the process pauses past its lease
    await world.lose_workers()
    await world.pass_time(60 * SECOND)
    await world.cache(K, b"v0")  # R misses and loads v0; the writer commits v1 and leaves the block
    since = await world.tail()

    reply = await world.home.settle(paused.id, [_success(scope, writes=(K,))], since)

    assert reply.settled[0].refusal is not None
    assert [event.name for event in reply.news.events] == [K]
    assert await world.value(K) is None


async def test_p9_a_resolve_without_an_intent_voids_tokens_and_makes_others_unclean(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, writes=(K2,)))
    a, b = await worker.claims()
    token = await world.miss(K)

    await worker.end(a, planted=(K, K2))  # it says that it planted there, and there is nothing of it

    assert not await world.fill(token, put(K, b"v0"))
    assert [intent.clean for intent in await world.home.intents(K2)] == [False]
    assert (await worker.end(b, puts=(put(K2, b"v1"),))).stored == ()


# -- P10: the pre-image


async def test_p10_the_sole_owner_s_claim_carries_what_its_intent_replaced(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, b"v0", expires_in_us=60 * SECOND)
    await world.enqueue(job(A, writes=(K, K2), wants_preimage=True))
    world.clock.advance(SECOND)

    claim = await worker.claim()

    ((key, entry),) = claim.preimages
    assert (key, entry.value, entry.expires_in_us) == (K, b"v0", 59 * SECOND)


async def test_p10_nobody_who_did_not_ask_gets_a_preimage(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))

    assert (await worker.claim()).preimages == ()


async def test_p10_there_is_no_preimage_while_another_intent_stands(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K,), wants_preimage=True))

    _, b = await worker.claims()

    assert b.preimages == ()


async def test_p10_an_expired_or_voided_value_is_no_preimage(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, expires_in_us=SECOND)
    await world.cache(K2, tags=("t",))
    world.clock.advance(SECOND)
    await world.invalidate(tags=("t",))
    await world.enqueue(job(A, writes=(K, K2), wants_preimage=True))

    assert (await worker.claim()).preimages == ()


async def test_p10_an_attempt_that_never_started_gives_the_value_back(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, b"v0", expires_in_us=60 * SECOND)
    before = await world.look(K)
    await world.enqueue(job(A, writes=(K,)))
    world.clock.advance(SECOND)

    await worker.run(JobEvent.RELEASE, started=False)

    look = await world.look(K)
    assert isinstance(look, Hit)
    assert isinstance(before, Hit)
    assert (look.entry.value, look.entry.expires_in_us) == (b"v0", 59 * SECOND)
    assert look.entry.position == (await world.tail()).position
    assert look.entry.stamp > before.entry.stamp


@pytest.mark.parametrize("touch", ["key", "tag", "family", "intent"])
async def test_p10_a_preimage_does_not_return_once_anything_touched_its_key(world: World, touch: str) -> None:
    worker = await world.worker()
    await world.cache(K, tags=("t",), family="f")
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()

    match touch:
        case "key":
            await world.invalidate(K)
        case "tag":
            await world.invalidate(tags=("t",))
        case "family":
            await world.invalidate(families=("f",))
        case _:
            await world.scope(worker, SCOPE, K)
    await worker.end(claim, JobEvent.RELEASE, started=False)

    assert await world.value(K) is None
    assert len(await world.home.intents(K)) == (touch == "intent")


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.CANCEL, JobEvent.RELEASE])
async def test_p10_an_attempt_that_started_takes_the_preimage_with_it(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)))

    await worker.run(event)

    assert await world.value(K) is None
    assert not await world.home.intents(K)


# -- P14: an invalidation inside a job


async def test_p14_an_invalidation_inside_a_job_plants_now_and_is_resolved_at_the_settle(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A))
    claim = await worker.claim()
    since = await world.tail()

    planted = await world.home.plant(worker.id, _owner(claim), (K,), since)
    during = await world.look(K)  # not refilled before the commit
    await worker.end(claim, planted=(K,))

    assert [event.name for event in planted.news.events] == [K]
    assert (planted.refusal, during) == (None, STANDING)
    assert await world.miss(K)


async def test_p14_what_an_attempt_has_planted_goes_with_its_settle_though_that_does_not_name_it(world: World) -> None:
    """It never heard that it had: the reply was lost."""
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.plant(worker.id, _owner(claim), (K, K2), START)

    await worker.end(claim)

    assert await world.home.intents(K) == await world.home.intents(K2) == ()
    assert await world.miss(K)


async def test_p14_a_planted_key_may_be_put(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    await world.home.plant(worker.id, _owner(claim), (K,), START)

    settled = await worker.end(claim, planted=(K,), puts=(put(K, b"v1"),))

    assert len(settled.stored) == 1
    assert await world.value(K) == b"v1"


async def test_p14_an_attempt_s_own_invalidation_leaves_its_intent_clean_but_takes_the_preimage(world: World) -> None:
    worker = await world.worker()
    await world.cache(K)
    await world.enqueue(job(A, writes=(K,)), job(B, writes=(K2,)))
    a, b = await worker.claims()
    await world.home.plant(worker.id, _owner(a), (K,), START)
    await world.home.plant(worker.id, _owner(b), (K2,), START)

    released = await worker.end(a, JobEvent.RELEASE, started=False)
    settled = await worker.end(b, puts=(put(K2, b"v1"),))

    assert (released.refusal, await world.value(K)) == (None, None)
    assert (len(settled.stored), await world.value(K2)) == (1, b"v1")


async def test_p14_an_attempt_s_own_invalidation_does_not_hide_a_tag_that_was_voided_before_it(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()
    await world.invalidate(tags=("t",))
    await world.home.plant(worker.id, _owner(claim), (K,), START)

    settled = await worker.end(claim, puts=(put(K, b"v1", tags=("t",)),))

    assert settled.stored == ()


async def test_p14_only_a_running_attempt_plants_at_home(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    await world.cache(K)
    await world.enqueue(job(A))
    claim = await worker.claim()

    by_another = await world.home.plant(other.id, _owner(claim), (K,), START)
    await worker.end(claim)
    too_late = await world.home.plant(worker.id, _owner(claim), (K,), START)

    assert by_another.refusal is not None
    assert too_late.refusal is not None
    assert await world.value(K) == b"v0"


async def test_p14_an_intent_of_another_home_is_planted_without_asking_and_names_its_home(world: World) -> None:
    worker = await world.worker()

    await world.home.plant(worker.id, Owner(3, A, 77), (K,), START)

    assert await world.home.intents(K) == (Intent(K, 3, A, 77, clean=True, until_us=0),)


async def test_g4_an_older_attempt_cannot_plant_over_a_later_one_of_its_job(world: World) -> None:
    worker = await world.worker()
    await world.home.plant(worker.id, Owner(3, A, 77), (K,), START)

    late = await world.home.plant(worker.id, Owner(3, A, 76), (K, K2), START)

    assert late.refusal is not None
    assert [intent.fence for intent in await world.home.intents(K)] == [77]
    assert not await world.home.intents(K2)


async def test_planting_where_another_stands_makes_both_unclean(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,), line=LINE2))
    await worker.claim()

    await world.scope(worker, SCOPE, K)

    assert [intent.clean for intent in await world.home.intents(K)] == [False, False]


# -- writing() scopes


async def test_a_writing_scope_may_put(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)

    reply = await world.home.settle(worker.id, [_success(scope, puts=(put(K, b"v1"),))], START)

    assert len(reply.settled[0].stored) == 1
    assert await world.value(K) == b"v1"


async def test_a_writing_scope_that_raised_stores_nothing(world: World) -> None:
    worker = await world.worker()
    scope = await world.scope(worker, SCOPE, K)

    await world.home.settle(
        worker.id, [Settlement(SCOPE, scope.fence, JobEvent.FAIL, puts=(put(K, b"rolled back"),))], START
    )

    assert await world.value(K) is None
    assert not await world.home.intents(K)


async def test_a_crashed_writing_scope_keeps_its_key_closed_for_a_grace(world: World) -> None:
    worker = await world.worker()
    await world.scope(worker, SCOPE, K)

    await world.lose_workers()
    standing = await world.look(K)
    await world.pass_time(30 * SECOND)

    assert standing == STANDING
    assert await world.miss(K)


def _success(attempt: Claim | Attempt, **effects: Any) -> Settlement:
    return Settlement(attempt.job, attempt.fence, JobEvent.SUCCEED, **effects)
