"""How coordinated caches go stale, step by step: each interleaving is forced, and does not work here.

The letters are those of the catalogue of races; each is met in real caches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cache.world import World, begin
from tests.clock import SECOND
from tests.stores import KINDS, clear_servers

from selaras._cache.family import MISSING
from selaras._core.codec import codec_of
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.states import JobEvent


@pytest.fixture(params=[kind for kind in KINDS if kind.endswith("-1")])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """One partition, on every kind of store."""
    async with World(request.param, tmp_path) as world:
        yield world
    clear_servers()


async def test_f1_a_late_fill_of_the_shared_tier_is_refused(world: World) -> None:
    a, w = await world.process("a"), await world.process("w")
    held = world.data.hold()
    reading = begin(a.get())  # misses, reads the old value
    await held.done.wait()
    world.data.rows[42] = 2
    await w.cache.invalidate([world.slot()])

    held.release()
    await reading

    assert (await w.get(), await a.get()) == (2, 2)


async def test_f2_a_late_reply_does_not_fill_the_local_tier_after_the_news_overtook_it(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await b.get() == 0
    held = a.partition().hold("read")
    reading = begin(a.get())
    await held.done.wait()
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])
    await a.catch_up()  # by another connection, before the reply

    held.release()

    assert await reading == 0
    assert await a.get() == 2


async def test_f3_a_none_that_is_not_true_any_more_is_not_stored(world: World) -> None:
    world.like(codec=codec_of(int | None))
    world.data.rows[42] = None
    a, b = await world.process("a"), await world.process("b")
    held = world.data.hold()
    reading = begin(a.get())
    await held.done.wait()
    world.data.rows[42] = 1  # created
    await b.cache.invalidate([world.slot()])

    held.release()

    assert await reading is None
    assert (await a.get(), await b.get()) == (1, 1)


async def test_f4_a_load_that_its_readers_left_stores_nothing_old(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    held = world.data.hold()
    reading = begin(a.get())
    await held.done.wait()
    reading.cancel()
    await world.idle()
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])

    held.release()  # it completes in the background
    await world.idle()

    assert (await a.get(), await b.get()) == (2, 2)


async def test_f6_a_put_from_an_old_snapshot_is_not_stored(world: World) -> None:
    a, w = await world.process("a"), await world.process("w")
    slot = world.slot()
    snapshot = await a.claim("a", writes=[slot])
    snapshot.started = True
    await a.within(snapshot, a.cache.put(slot, 1))
    world.data.rows[42] = 2
    await w.cache.invalidate([slot])  # another writer commits and says so

    await a.settle(snapshot)

    assert (await a.get(), await w.get()) == (2, 2)


async def test_f7_a_replica_that_lags_fills_nothing_below_the_version_that_is_known(world: World) -> None:
    world.like(version=lambda value: value)
    a, w = await world.process("a"), await world.process("w")
    slot = world.slot()
    world.data.rows[42] = 1
    assert await a.get() == 1
    job = await w.claim("w", writes=[slot])
    job.started = True
    await w.within(job, w.cache.put(slot, 2))
    await w.settle(job)
    await w.cache.invalidate([slot])  # the value goes, the floor stays

    reading = begin(a.get(fresh="strict"))  # the replica answers 1
    await world.pass_time(0.1, step=0.01)
    assert not reading.done()
    world.data.rows[42] = 2
    await world.pass_time(0.2, step=0.01)

    assert await reading == 2


async def test_b1_what_was_said_while_a_process_was_away_is_heard_before_it_serves_again(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    a.partition().down = True
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])
    world.advance(5)
    a.partition().down = False

    assert await a.get() == 2


async def test_b2_silence_is_not_taken_for_no_news(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    a.partition().blind = True
    held = a.partition().hold("events_since")  # packets are dropped: no reply, no error
    checking = begin(a.get(fresh="strict"))
    await held.done.wait()
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])

    world.advance(1.1)

    assert a.cache.hit(world.slot()) is MISSING
    held.release()
    await checking
    assert await a.get() == 2


async def test_b3_a_writer_that_dies_before_it_hears_that_its_word_was_stored_needs_nobody_to_pass_it_on(
    world: World,
) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    world.data.rows[42] = 2
    held = b.partition().hold("invalidate")
    dying = begin(b.cache.invalidate([world.slot()]))
    await held.done.wait()
    b.partition().down = True
    dying.cancel()

    assert await a.get(fresh="strict") == 2


async def test_b4_what_is_read_between_the_news_of_a_write_and_the_write_is_not_kept(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    job = await b.claim("b", writes=[world.slot()])  # everybody may hear of it from here on
    await a.catch_up()
    assert await a.get() == 0

    world.data.rows[42] = 2
    await b.settle(job)  # and of this nobody does

    assert (await a.get(), await b.get()) == (2, 2)


async def test_b5_a_put_that_another_writer_overtook_is_nowhere(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    slot = world.slot()
    one = await a.claim("a", writes=[slot])
    one.started = True
    await a.within(one, a.cache.put(slot, 1))
    two = await b.claim("b", writes=[slot])
    two.started = True
    await b.within(two, b.cache.put(slot, 2))
    world.data.rows[42] = 2
    await b.settle(two)

    await a.settle(one)

    assert (await a.get(), await b.get()) == (2, 2)


@pytest.mark.parametrize("behind_us", [5 * SECOND, -5 * SECOND])
async def test_b7_t1_the_wall_clock_of_a_writer_decides_nothing(world: World, behind_us: int) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    world.clock.jump(-behind_us)
    job = await b.claim("b", writes=[world.slot()])
    job.started = True
    world.data.rows[42] = 2
    await b.within(job, b.cache.put(world.slot(), 2))
    await b.settle(job)
    world.clock.jump(behind_us)
    assert await a.get(fresh="strict") == 2
    world.data.rows[42] = 3

    await a.cache.invalidate([world.slot()])

    assert (await a.get(), await b.get(fresh="strict")) == (3, 3)


async def test_b9_one_event_that_nobody_was_told_of_is_not_tolerated(world: World) -> None:
    """A rarely written key, one lost hint: there is no number of misses below which nothing is repaired."""
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])

    world.advance(1.01)

    assert await a.get() == 2


async def test_b10_fills_are_no_news(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    before = b.cursor(0)

    for row in range(20):
        await a.get(row)
    await b.catch_up()

    assert b.cursor(0) == before


async def test_q1_an_invalidation_inside_of_a_transaction_holds_until_its_end(world: World) -> None:
    a, w = await world.process("a"), await world.process("w")
    assert await a.get() == 0
    scope = await w.writing("scope")
    await w.within(scope, w.cache.invalidate([world.slot()]))
    assert await a.get(fresh="strict") == 0  # not committed yet: read, and not kept
    world.data.rows[42] = 2

    await w.leave(scope)

    assert (await a.get(), await w.get()) == (2, 2)


async def test_q4_what_a_job_found_absent_before_the_commit_is_not_remembered_as_absent(world: World) -> None:
    world.like(codec=codec_of(int | None))
    world.data.rows[42] = None
    w, b = await world.process("w"), await world.process("b")
    scope = await w.writing("scope", world.slot())
    early = await b.claim("early")  # enqueued at once, and faster than the commit
    assert await b.get(session=early) is None
    world.data.rows[42] = 1

    await w.leave(scope)

    assert (await b.get(), await w.get()) == (1, 1)


async def test_q8_a_refresh_that_is_lost_with_its_process_leaves_no_value_for_ever(world: World) -> None:
    world.like(ttl_us=10 * SECOND, load_us=4 * SECOND)
    a, b = await world.process("a"), await world.process("b")
    assert (await a.get(), await b.get()) == (0, 0)
    held = world.data.hold()
    world.advance(9)
    assert await a.get() == 0
    await held.done.wait()  # it loads anew, ahead of the end
    a.partition().down = True  # and is gone
    world.data.rows[42] = 2
    world.advance(1.1)

    reading = begin(b.get())
    await world.pass_time(17, step=0.5)

    assert await reading == 2


async def test_t3_what_has_expired_is_not_served_though_nobody_deleted_it(world: World) -> None:
    world.like(ttl_us=1_000_000)
    a = await world.process("a")
    assert await a.get() == 0
    world.data.rows[42] = 2
    world.advance(1.01)
    await a.catch_up()

    assert a.cache.hit(world.slot()) is MISSING
    assert await a.get() == 2


async def test_t5_a_value_that_the_shared_tier_did_not_take_is_not_local_either(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    held = world.data.hold()
    reading = begin(a.get())
    await held.done.wait()
    a.partition().down = True
    held.release()
    assert await reading == 0
    a.partition().down = False
    world.advance(0.2)

    assert a.cache.hit(world.slot()) is MISSING
    a.partition().down = True
    with pytest.raises(StoreUnavailable):
        await a.cache.put(world.slot(), 5)
    a.partition().down = False
    world.advance(6)
    world.data.rows[42] = 2
    assert (await b.get(), await a.get()) == (2, 2)


async def test_q3_a_dependent_job_sees_what_its_parent_wrote(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await b.get() == 0
    parent = await a.claim("parent", writes=[world.slot()])
    world.data.rows[42] = 1
    await a.settle(parent)

    child = await b.claim("child")  # at once, on another worker, with the old value in its local tier

    assert await b.get(session=child) == 1


async def test_q6_what_a_failed_job_put_is_read_by_nobody(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    slot = world.slot()
    job = await a.claim("a", writes=[slot])
    job.started = True
    await a.within(job, a.cache.put(slot, 9))
    assert await a.get(session=job) == 9
    assert (await a.get(), await b.get()) == (0, 0)

    await a.settle(job, JobEvent.FAIL)

    assert (await a.get(), await b.get()) == (0, 0)


async def test_q7_a_zombie_stores_nothing(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    slot = world.slot()
    zombie = await a.claim("job", writes=[slot])
    zombie.started = True
    await a.within(zombie, a.cache.put(slot, 1))
    partition = world.store.partitions[0]
    world.advance(16)  # its lease runs out
    await b.enroll()
    await partition.tend(100)
    world.advance(8)
    await partition.tend(100)
    _, claims, _, received = await b.turn(0, limit=1)
    again = b.session(claims[0], 0, received, [slot])
    again.started = True
    world.data.rows[42] = 2
    await b.within(again, b.cache.put(slot, 2))
    await b.settle(again)

    await a.enroll()
    settled, _, sent, _ = await a.turn(0, a.settlement(zombie))
    a.cache.settles.heard(zombie, settled[0], partition=0, sent_ns=sent)

    assert settled[0].refusal is not None
    assert (await a.get(), await b.get()) == (2, 2)


async def test_many_readers_of_a_hot_key_with_writers_one_after_the_other_load_twice_at_a_time(world: World) -> None:
    """One load running and one next, shared by all, however many readers there are."""
    w, a = await world.process("w"), await world.process("a")
    job = await w.claim("w", writes=[world.slot()])
    held = world.data.hold()
    first = begin(a.get(fresh="strict"))
    await held.done.wait()
    loads = world.data.loads

    readers = [begin(a.get(fresh="strict")) for _ in range(50)]
    await world.idle()
    held.release()

    assert await asyncio.gather(first, *readers) == [0] * 51
    assert world.data.loads == loads + 1
    await w.settle(job)
