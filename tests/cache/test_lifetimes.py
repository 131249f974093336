"""Lives of values: adaptive, renewed ahead of their end, and served past it where that is allowed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.cache.world import Process, World, begin
from tests.clock import SECOND

from selaras._cache.breaker import Breaker
from selaras._core.cache.lifetimes import Adaptive, Past, early_us, note_of
from selaras._core.errors import StoreUnavailable
from selaras._core.outcomes import NotModified

HOUR = 3_600 * SECOND
RULE = Adaptive(10 * SECOND, HOUR)


# -- the rule


def test_a_key_that_stays_unchanged_lives_longer_and_longer_up_to_the_bound() -> None:
    past, ttls = Past(), []
    for _ in range(60):
        ttls.append(RULE.ttl_us(past, RULE.first_us))
        past = past.unchanged(ttls[-1])

    assert ttls[0] == RULE.min_us
    assert all(earlier < later for earlier, later in itertools.pairwise(ttls) if later < RULE.max_us)
    assert RULE.ttl_us(past.unchanged(100 * HOUR), RULE.first_us) == RULE.max_us


def test_a_change_shrinks_the_life_at_once() -> None:
    old = Past(age_us=10 * HOUR)

    before, after = (RULE.ttl_us(past, RULE.first_us) for past in (old, old.changed(0)))

    assert before == HOUR
    assert after <= before * 0.6


def test_changes_at_one_pace_give_a_share_of_it_whatever_was_before() -> None:
    past = Past(age_us=10 * HOUR)
    for _ in range(12):
        past = past.changed(600 * SECOND)

    assert RULE.ttl_us(past, RULE.first_us) == pytest.approx(0.1 * 600 * SECOND, rel=0.5)


def test_lives_are_spread_and_never_beyond_the_bounds() -> None:
    past = Past(age_us=2 * HOUR)
    ttls = [RULE.ttl_us(past, RULE.first_us, chance) for chance in (0.0, 0.5, 0.999)]

    assert ttls[0] < ttls[1] < ttls[2]
    assert RULE.ttl_us(Past(age_us=100 * HOUR), RULE.first_us, 0.999) == RULE.max_us
    assert RULE.ttl_us(Past(), RULE.first_us, 0.0) == RULE.min_us


def test_longer_loads_begin_earlier() -> None:
    assert early_us(400_000, 1.0, 0.0) == 0
    assert early_us(400_000, 1.0, 0.63212) == pytest.approx(400_000, rel=0.001)
    assert early_us(400_000, 2.0, 0.63212) == pytest.approx(800_000, rel=0.001)


# -- adaptive lives, in the tiers


async def _ttl(world: World, process: Process) -> float:
    entry, _ = await process.cache._loading.glance(world.slot())
    assert entry is not None
    left_us = note_of(entry.note).left_us(entry.expires_in_us)
    assert left_us is not None
    return left_us / SECOND


async def test_a_value_found_unchanged_lives_longer_and_a_changed_one_less(world: World) -> None:
    world.like(adaptive=RULE)
    process = await world.process("p")
    await process.get()
    first = await _ttl(world, process)
    for _ in range(6):
        world.advance(await _ttl(world, process) + 1)
        await process.get()
    grown = await _ttl(world, process)
    world.data.rows[42] = 1
    world.advance(grown + 1)

    assert await process.get() == 1
    assert first == pytest.approx(10, abs=1)
    assert grown > 1.5 * first
    assert await _ttl(world, process) < grown


async def test_what_one_process_saw_of_a_key_another_one_goes_on_with(world: World) -> None:
    world.like(adaptive=RULE)
    one, other = await world.process("p"), await world.process("q")
    await one.get()
    for _ in range(6):
        world.advance(await _ttl(world, one) + 1)
        await one.get()
    grown = await _ttl(world, one)
    world.advance(grown + 1)

    await other.get()

    assert await _ttl(world, other) > grown


async def test_an_invalidation_shrinks_the_life_of_what_is_loaded_after_it(world: World) -> None:
    world.like(adaptive=RULE)
    process = await world.process("p")
    await process.get()
    for _ in range(8):
        world.advance(await _ttl(world, process) + 1)
        await process.get()
    grown = await _ttl(world, process)

    await process.cache.invalidate([world.slot()])
    await process.get()  # the same value: the invalidation alone says that it changes

    assert await _ttl(world, process) < 0.8 * grown


async def test_a_value_put_by_a_job_goes_on_with_the_past_in_its_pre_image(world: World) -> None:
    world.like(adaptive=RULE)
    one, other = await world.process("p"), await world.process("q")
    await one.get()
    for _ in range(8):
        world.advance(await _ttl(world, one) + 1)
        await one.get()
    grown = await _ttl(world, one)
    job = await other.claim("a", writes=[world.slot()])
    job.started = True
    await other.within(job, other.cache.put(world.slot(), 1))
    await other.settle(job)

    assert await other.tier() == "local"
    assert 10.5 < await _ttl(world, other) < grown


# -- ahead of the end


async def test_a_value_is_loaded_anew_ahead_of_its_end_by_one_process_while_all_are_served(world: World) -> None:
    world.like(ttl_us=10 * SECOND, load_us=4 * SECOND)
    one, other = await world.process("p"), await world.process("q")
    assert (await one.get(), await other.get()) == (0, 0)
    world.data.rows[42] = 1
    held = world.data.hold()
    world.advance(9)

    served = [await one.get(), await other.get(), await one.get()]
    await held.done.wait()
    await world.idle()

    assert served == [0, 0, 0]
    assert world.data.loads == 2
    held.release()
    await world.until(lambda: world.family.counts.early == 1)
    world.advance(2)
    assert (await one.get(), await other.get()) == (1, 1)
    assert world.data.loads == 2


async def test_with_beta_0_nothing_is_loaded_ahead(world: World) -> None:
    world.like(ttl_us=10 * SECOND, load_us=4 * SECOND, beta=0)
    process = await world.process("p")
    await process.get()
    world.advance(9.9)

    await process.get()
    await world.idle()

    assert world.data.loads == 1


async def test_what_is_voided_while_it_is_loaded_ahead_is_not_stored(world: World) -> None:
    world.like(ttl_us=10 * SECOND, load_us=4 * SECOND)
    one, other = await world.process("p"), await world.process("q")
    await one.get()
    held = world.data.hold()
    world.advance(9)
    await one.get()
    await held.done.wait()  # it has read 0
    world.data.rows[42] = 1
    await other.cache.invalidate([world.slot()])

    held.release()
    await world.until(lambda: world.family.counts.refused == 1)

    assert (await other.get(), await one.get(fresh="strict")) == (1, 1)


# -- past the end


def _stale(world: World, **options: Any) -> None:
    world.like(**{"ttl_us": 10 * SECOND, "beta": 0, **options})


async def test_a_value_past_its_ttl_is_served_while_it_is_loaded_anew(world: World) -> None:
    _stale(world, stale_while_revalidate_us=30 * SECOND)
    process = await world.process("p")
    await process.get()
    world.data.rows[42] = 1
    held = world.data.hold()
    world.advance(12)

    reading = await process.read()

    assert (reading.value, reading.tier, reading.age_us) == (0, "stale", 12 * SECOND)
    assert "2.000 s ago" in reading.why
    held.release()
    await world.until(lambda: not process.cache.stats()["flights"])
    assert await process.get() == 1


async def test_readers_that_come_during_a_long_load_are_served_as_well(world: World) -> None:
    _stale(world, stale_while_revalidate_us=30 * SECOND)
    process = await world.process("p")
    await process.get()
    held = world.data.hold()
    world.advance(12)
    assert await process.tier() == "stale"
    world.advance(1.5)  # too late to join what began then

    assert await process.tier() == "stale"
    assert world.data.loads == 2
    held.release()


async def test_a_value_past_its_ttl_is_served_for_so_long_and_no_longer(world: World) -> None:
    _stale(world, stale_while_revalidate_us=5 * SECOND)
    process = await world.process("p")
    await process.get()
    world.advance(15)

    assert await process.tier() == "loader"


async def test_who_needs_more_is_not_served_past_the_ttl(world: World) -> None:
    _stale(world, stale_while_revalidate_us=30 * SECOND, stale_if_error_us=30 * SECOND)
    process = await world.process("p")
    await process.get()
    world.advance(12)
    world.data.error = ValueError("the datastore is down")
    job = await process.claim("b")

    for fresh, session in (("strict", None), ("causal", None), (None, job)):
        with pytest.raises(ValueError, match="down"):
            await process.get(fresh=fresh, session=session)
    assert await process.tier() == "stale"


async def test_a_value_past_its_ttl_is_served_if_it_cannot_be_loaded(world: World) -> None:
    _stale(world, stale_if_error_us=30 * SECOND)
    process = await world.process("p")
    await process.get()
    world.advance(12)
    world.data.error = ValueError("the datastore is down")

    assert await process.tier() == "stale"
    world.advance(30)
    with pytest.raises(ValueError, match="down"):
        await process.get()


@pytest.mark.parametrize("how", ["key", "tag", "family", "intent"])
async def test_what_was_voided_is_never_served_past_its_ttl(world: World, how: str) -> None:
    _stale(
        world,
        stale_while_revalidate_us=30 * SECOND,
        stale_if_error_us=30 * SECOND,
        tags=lambda _arguments, _value: ("t",),
    )
    process, other = await world.process("p"), await world.process("q")
    await process.get()
    world.advance(12)
    match how:
        case "key":
            await other.cache.invalidate([world.slot()])
        case "tag":
            await other.cache.invalidate(tags=["t"])
        case "family":
            await other.cache.invalidate(families=["product"])
        case _:
            await other.claim("a", writes=[world.slot()])
    world.data.error = ValueError("the datastore is down")

    with pytest.raises(ValueError, match="down"):
        await process.get()


async def test_what_is_voided_during_the_load_is_not_served_when_the_load_fails(world: World) -> None:
    _stale(world, stale_if_error_us=30 * SECOND)
    process, other = await world.process("p"), await world.process("q")
    await process.get()
    world.advance(12)
    world.data.error = ValueError("the datastore is down")
    held = world.data.hold()
    reading = begin(process.get())
    await held.done.wait()
    await other.cache.invalidate([world.slot()])

    held.release()

    with pytest.raises(ValueError, match="down"):
        await reading


async def test_after_the_soft_timeout_a_stale_value_is_returned_and_the_load_goes_on(world: World) -> None:
    _stale(world, stale_if_error_us=30 * SECOND, soft_timeout_us=SECOND // 2)
    process = await world.process("p")
    await process.get()
    world.data.rows[42] = 1
    world.advance(12)
    held = world.data.hold()
    reading = begin(process.read())
    await held.done.wait()
    await world.idle()
    assert not reading.done()

    world.advance(0.5)

    assert (await reading).tier == "stale"
    held.release()
    await world.until(lambda: not process.cache.stats()["flights"])
    assert await process.get() == 1
    assert world.data.loads == 2


async def test_a_load_past_the_hard_timeout_is_an_error(world: World) -> None:
    world.like(hard_timeout_us=SECOND)
    process = await world.process("p")
    held = world.data.hold()
    reading = begin(process.get())
    await held.done.wait()

    world.advance(1)

    with pytest.raises(TimeoutError, match=r"product:42.*hard_timeout, 1 s"):
        await reading
    assert await process.get() == 0


# -- what a loader is given


async def test_a_loader_is_given_the_old_value_and_may_say_that_it_still_stands(world: World) -> None:
    given: list[Any] = []

    async def load_again(row: Any, old: Any) -> Any:
        given.append(old)
        if old is not None and old == world.data.rows.get(row):
            raise NotModified
        return await world.data.load(row)

    world.like(ttl_us=10 * SECOND, load_again=load_again)
    world.data.rows[42] = 7
    process = await world.process("p")
    got = []
    for _ in range(3):
        got.append(await process.get())
        world.advance(11)
    world.data.rows[42] = 8
    got.append(await process.get())
    await process.cache.invalidate([world.slot()])
    got.append(await process.get())

    assert got == [7, 7, 7, 8, 8]
    assert given == [None, 7, 7, 7, None]
    assert world.data.loads == 3
    assert world.family.counts.unchanged == 2


async def test_a_loader_that_was_given_nothing_cannot_say_so(world: World) -> None:
    async def load_again(row: Any, old: Any) -> Any:
        raise NotModified

    world.like(load_again=load_again)
    process = await world.process("p")

    with pytest.raises(RuntimeError, match=r"product:42 says NotModified"):
        await process.get()


# -- when the shared tier does not answer


def test_a_breaker_lets_one_request_go_when_its_time_is_over() -> None:
    breaker = Breaker()
    assert breaker.lets(0)
    assert breaker.failed(0)
    opens_ns = 50_000_000
    let_go = [breaker.lets(now) for now in (0, opens_ns - 1, opens_ns, opens_ns, opens_ns + 1)]
    assert not breaker.failed(opens_ns)

    assert let_go == [False, False, True, False, False]
    assert not breaker.lets(opens_ns + 2 * opens_ns - 1)  # twice as long
    breaker.answered(1)
    assert not breaker.open_us


def test_an_answer_that_comes_too_late_does_not_close_a_breaker() -> None:
    breaker = Breaker()
    breaker.slow_ns = 1_000
    breaker.failed(0)

    breaker.answered(1_001)
    assert breaker.open_us
    breaker.answered(1_000)
    assert not breaker.open_us


async def test_a_shared_tier_that_does_not_answer_in_time_is_passed(world: World) -> None:
    world.options = {"slow_us": 20_000}
    process = await world.process("p")
    world.data.rows[42] = 1
    process.partition().hold("read")

    reading = await process.read()

    assert (reading.value, reading.tier, reading.position) == (1, "loader", None)
    assert reading.why == "the store does not answer"
    process.partition().down = True
    with pytest.raises(StoreUnavailable):  # writing does not go on without it
        await process.cache.invalidate([world.slot()])


async def test_while_the_store_is_away_a_family_loads_so_many_at_once(world: World) -> None:
    world.like(fallback_loads=2)
    process = await world.process("p")
    process.partition().down = True
    held = [world.data.hold() for _ in range(5)]

    readings = [begin(process.get(row)) for row in range(5)]
    await held[1].done.wait()
    await world.idle()

    assert world.data.loads == 2
    for one in held:
        one.release()
    assert await asyncio.gather(*readings) == [0] * 5
