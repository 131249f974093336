"""The protocol's rules that live in the cache, each by the interleaving that breaks the system without it.

Each test takes a world, so that `test_mutations` can run it with its rule taken out.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Thread

import pytest
from tests.cache.world import Process, World, begin

from selaras._cache.family import MISSING
from selaras._cache.follower import Follower
from selaras._cache.session import SessionKind
from selaras._contracts.partition import ReadRequest
from selaras._core.cache.entry import Entry, Hit
from selaras._core.errors import LeaseLost, StaleSource, StoreUnavailable, WouldDeadlock
from selaras._core.jobs.job import NewJob
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START, Scope
from selaras._stores.memory.partition import MemoryPartition

# -- P1: what "as of the claim" means


async def test_p1_a_job_does_not_join_a_load_that_began_before_its_claim_was_received(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    a = await writer.claim("a", writes=[world.slot()])
    await process.catch_up()
    world.advance(0.001)
    held = world.data.hold()
    early = begin(process.get())  # meets the intent, reads 0 from the datastore
    await held.done.wait()
    world.data.rows[42] = 1
    await writer.settle(a)
    world.advance(0.001)
    b = await process.claim("b")

    late = begin(process.get(session=b))
    await world.idle()
    held.release()

    assert await early == 0
    assert await late == 1


async def test_p1_elsewhere_a_read_needs_a_log_that_was_known_after_the_claim_was_received(wide_world: World) -> None:
    world = wide_world
    row = world.row_in(1)
    writer, process = await world.process("q"), await world.process("p")
    assert await process.get(row) == 0
    a = await writer.claim("a", index=1, writes=[world.slot(row)])
    world.data.rows[row] = 1
    await writer.settle(a)
    world.advance(0.001)

    b = await process.claim("b", index=0)

    assert await process.get(row, session=b) == 1


async def test_p1_at_home_the_position_of_the_claim_is_enough(world: World) -> None:
    process = await world.process("p")
    assert await process.get() == 0
    world.advance(0.001)
    b = await process.claim("b")
    process.partition().blind = True
    _ = process.calls

    assert await process.tier(session=b) == "local"
    assert process.calls == []


# -- P2: what is confirmed, and since when


async def test_p2_a_reply_confirms_the_instant_its_request_was_sent(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    assert await process.get() == 0
    process.partition().blind = True
    held = process.partition().hold("events_since")
    early = begin(process.get(fresh="strict"))
    await held.done.wait()
    a = await writer.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1
    await writer.settle(a)
    world.advance(2)

    held.release()  # the reply comes two seconds late
    assert await early == 0

    assert process.cache.hit(world.slot()) is MISSING
    assert await process.get() == 1


async def test_p2_a_process_that_is_cut_off_stops_serving_locally_even_to_a_job(world: World) -> None:
    world.like(ttl_us=None)
    writer, process = await world.process("q"), await world.process("p")
    assert await process.get() == 0
    b = await process.claim("b")
    assert await process.tier(session=b) == "local"
    process.partition().down = True
    a = await writer.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1
    await writer.settle(a)

    world.advance(600)

    for level in ("causal", 3_600_000_000, None):
        assert await process.get(fresh=level, session=b) == 1
    assert await process.get(fresh=3_600_000_000) == 1


async def test_p2_confirmed_never_goes_back(world: World) -> None:
    process = await world.process("p")
    world.advance(5)
    await process.catch_up()
    follower = process.cache._followers[0]
    confirmed = follower.confirmed_ns
    news = await world.store.partitions[0].events_since(follower.applied)

    process.cache.heard(0, news, confirmed - 1_000)

    assert follower.confirmed_ns == confirmed


# -- P3: positions


async def test_p3_a_value_stored_by_a_settle_has_its_own_position_not_the_replys(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    slot = world.slot()
    a = await process.claim("a", writes=[slot], line="x")
    a.started = True
    world.data.rows[42] = 1
    await process.within(a, process.cache.put(slot, 1))
    c = world.store.partitions[0]
    await c.enqueue([NewJob(id="c", task="work", writes=(slot.key,))], process.cursor(0))
    world.advance(0.001)

    # One turn settles A, which stores 1, and claims C, which writes the same key.
    settled, claims, sent, received = await process.turn(0, process.settlement(a), limit=1)
    process.cache.settles.heard(a, settled[0], partition=0, sent_ns=sent)
    world.data.rows[42] = 2  # C commits; its settle will make no event

    assert await process.get(fresh="strict") == 2
    assert await other.get(fresh="strict") == 2
    await process.settle(process.session(claims[0], 0, received, [slot]))
    assert await process.get() == 2


# -- P4: monotonic reads


async def test_p4_an_answer_from_the_datastore_is_not_followed_by_an_older_one_from_the_local_tier(
    world: World,
) -> None:
    writer, process = await world.process("q"), await world.process("p")
    assert await writer.get() == 0  # the shared tier has 0
    held = process.partition().hold("read")
    r0 = begin(process.get())
    await held.done.wait()
    a = await writer.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1
    process.partition().down = True
    r1 = await process.get_on_another_loop()  # meets no store, loads
    process.partition().down = False

    held.release()

    assert (await r0, r1) == (0, 1)
    assert await process.get() == 1
    await writer.settle(a)


async def test_p4_the_local_tier_does_not_replace_newer_by_older_at_one_position(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    slot = world.slot()
    assert await other.get() == 0
    held = process.partition().hold("read")
    r0 = begin(process.get())
    await held.done.wait()
    # The entry leaves the shared tier and is filled anew: no event, the same position, a later stamp.
    await _forget_entry(world, slot.key)
    other.cache._local.drop(slot.key)
    world.data.rows[42] = 1
    world.advance(0.001)
    newer = await other.read(fresh="strict")
    assert newer.value == 1
    entry = await _entry(world, slot.key)
    process.cache.settles.learned(
        slot, entry.value, position=newer.position, stamp=entry.stamp, sent_ns=world.clock.instant_ns()
    )
    assert await process.get() == 1

    held.release()
    await r0

    assert await process.get() == 1


async def test_p4_an_evicted_answer_still_binds_what_is_joined(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    slot = world.slot()
    assert await other.get() == 0
    held = process.partition().hold("read")
    r0 = begin(process.get())
    await held.done.wait()
    a = await process.claim("a", writes=[slot])
    a.started = True
    world.data.rows[42] = 1
    await process.within(a, process.cache.put(slot, 1))
    await process.settle(a)
    assert process.cache.hit(slot) == 1
    process.cache._local.drop(slot.key)  # evicted

    r1 = begin(process.get())
    await world.idle()
    held.release()

    assert await r0 == 0
    assert await r1 == 1


async def test_p4_what_an_attempt_is_answered_from_its_own_put_binds_what_is_joined(world: World) -> None:
    process = await world.process("p")
    slot = world.slot()
    a = await process.claim("a", writes=[slot])
    a.started = True
    held = world.data.hold()
    r0 = begin(process.get())  # meets the intent, reads 0
    await held.done.wait()
    world.data.rows[42] = 1
    await process.within(a, process.cache.put(slot, 1))
    assert await process.tier(session=a) == "put"

    r1 = begin(process.get())
    await world.idle()
    held.release()

    assert (await r0, await r1) == (0, 1)


async def test_what_an_attempt_put_answers_it_whatever_another_job_of_its_process_has_told(world: World) -> None:
    """Both write the key at a time (`exclusive=False`): which came last the datastore knows, and the body only its own."""
    process = await world.process("p")
    slot = world.slot()
    a = await process.claim("a", writes=[slot])
    b = await process.claim("b", writes=[slot])
    a.started = b.started = True
    world.data.rows[42] = 1
    await process.within(a, process.cache.put(slot, 1))
    world.data.rows[42] = 2
    await process.within(b, process.cache.put(slot, 2))
    await process.settle(b)
    assert await process.get(fresh="strict") == 2

    assert (await process.get(session=a), await process.tier(session=a)) == (1, "put")
    assert await process.get() == 2

    await process.settle(a)
    assert await process.get() == 2


# -- P5: own effects


async def test_p5_after_an_invalidation_returned_nothing_that_began_before_is_joined(world: World) -> None:
    process = await world.process("p")
    held = world.data.hold()
    early = begin(process.get())
    await held.done.wait()
    world.data.rows[42] = 1

    await process.cache.invalidate([world.slot()])
    late = begin(process.get())
    await world.idle()
    held.release()

    assert await early == 0
    assert await late == 1
    assert await process.get() == 1


async def test_p5_after_a_waiter_was_told_of_an_end_nothing_that_began_before_is_joined(world: World) -> None:
    worker, process = await world.process("q"), await world.process("p")
    a = await worker.claim("a", writes=[world.slot()])
    await process.catch_up()
    held = world.data.hold()
    early = begin(process.get())
    await held.done.wait()
    world.data.rows[42] = 1
    await worker.settle(a)  # its intent falls silently

    sent = world.clock.instant_ns()
    _, news = await process.partition().job("a", process.cursor(0))
    process.cache.heard(0, news, sent)
    process.cache.told()
    late = begin(process.get())
    await world.idle()
    held.release()

    assert await early == 0
    assert await late == 1


# -- P6: events delete; the index serves what is under way


async def test_p6_an_event_touches_its_own_key_only(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    for row in range(10):
        await process.get(row)
    await writer.cache.invalidate([world.slot(3)])
    await process.catch_up()
    _ = process.calls

    tiers = [process.cache.hit(world.slot(row)) is not MISSING for row in range(10)]

    assert tiers == [row != 3 for row in range(10)]
    assert process.calls == []


async def test_p6_a_reply_that_was_under_way_while_an_event_was_applied_is_not_kept(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    assert await writer.get() == 0
    held = process.partition().hold("read")
    early = begin(process.get())
    await held.done.wait()
    world.data.rows[42] = 1
    await writer.cache.invalidate([world.slot()])
    await process.catch_up()

    held.release()

    assert await early == 0
    assert await process.get() == 1


# -- P8: puts


async def test_p8_a_put_outside_of_a_scope_is_an_invalidation(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    assert await process.get() == 0
    world.data.rows[42] = 2

    await process.cache.put(world.slot(), 1)

    assert await process.get() == 2
    assert await other.get() == 2


async def test_p8_a_put_of_an_undeclared_key_is_an_invalidation(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    a = await process.claim("a", writes=[world.slot(1)])
    a.started = True
    world.data.rows[42] = 2

    await process.within(a, process.cache.put(world.slot(42), 1))
    await process.settle(a)

    assert await process.get(42) == 2
    assert await other.get(42) == 2


async def test_p8_a_put_is_stored_by_success_only(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    slot = world.slot()
    a = await process.claim("a", writes=[slot])
    a.started = True
    await process.within(a, process.cache.put(slot, 7))  # rolled back
    await process.settle(a, JobEvent.FAIL)
    assert (await process.get(), await other.get()) == (0, 0)

    b = await process.claim("b", writes=[slot])
    b.started = True
    world.data.rows[42] = 8
    await process.within(b, process.cache.put(slot, 8))
    await process.settle(b)

    loads = world.data.loads
    assert (await process.tier(), await process.get(), await other.get()) == ("local", 8, 8)
    assert world.data.loads == loads


async def test_p8_a_put_within_a_scope_within_the_owners_is_not_stored(world: World) -> None:
    process = await world.process("p")
    slot = world.slot()
    a = await process.claim("a", writes=[slot])
    a.started = True
    inner = await process.writing("w")
    inner.parent = a

    await process.within(inner, process.cache.put(slot, 7))
    await process.leave(inner, JobEvent.FAIL)  # rolled back; the job goes on and succeeds
    await process.settle(a)

    assert await process.get() == 0


# -- P10: the pre-image


async def test_p10_the_pre_image_answers_only_before_the_body(world: World) -> None:
    process = await world.process("p")
    assert await process.get() == 0
    a = await process.claim("a", writes=[world.slot()])

    before = await process.read(session=a)
    a.started = True
    world.data.rows[42] = 1
    within = await process.read(session=a)

    assert (before.value, before.tier) == (0, "preimage")
    assert (within.value, within.tier) == (1, "loader")


async def test_p10_the_pre_image_is_gone_once_an_event_of_its_key_was_heard(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    assert await process.get() == 0
    a = await process.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1
    await other.cache.invalidate([world.slot()])
    await process.catch_up()

    assert await process.get(session=a) == 1


async def test_p10_the_pre_image_is_not_served_after_an_answer_that_may_be_newer(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    assert await process.get() == 0
    a = await process.claim("a", writes=[world.slot()])
    held = world.data.hold()
    early = begin(process.get(fresh="strict"))  # meets the intent
    await held.done.wait()
    other = await writer.writing("w", world.slot())  # and its event is not heard here yet
    world.data.rows[42] = 1
    held.release()
    assert await early == 0
    assert await process.get(fresh="strict") == 1  # what a reader of this process was told
    process.partition().blind = True

    assert await process.get(session=a) == 1
    await writer.leave(other)


async def test_p10_the_pre_image_is_served_no_longer_than_answers_are_remembered(world: World) -> None:
    process = await world.process("p")
    assert [await process.get(), await process.get(43)] == [0, 0]
    a = await process.claim("a", writes=[world.slot()])
    assert await process.tier(session=a) == "preimage"
    b = await process.claim("b", writes=[world.slot(43)])
    world.advance(1.5)

    assert await process.tier(43, session=b) == "loader"


async def test_p10_the_pre_image_does_not_outlive_its_ttl(world: World) -> None:
    world.like(ttl_us=1_000_000)
    process = await world.process("p")
    assert await process.get() == 0
    a = await process.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1

    world.advance(1.5)

    assert await process.get(session=a) == 1


# -- P11: fills


async def test_p11_a_value_without_an_accepted_fill_enters_no_tier(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    held = world.data.hold()
    early = begin(process.get())
    await held.done.wait()
    world.data.rows[42] = 1
    await other.cache.invalidate([world.slot()])  # voids the token

    held.release()

    assert await early == 0
    assert await process.get() == 1
    assert await other.get() == 1


async def test_p11_while_an_intent_stands_nothing_is_kept(world: World) -> None:
    writer, process = await world.process("q"), await world.process("p")
    a = await writer.claim("a", writes=[world.slot()])

    assert await process.get() == 0
    assert process.cache.hit(world.slot()) is MISSING
    world.data.rows[42] = 1
    assert await process.get() == 1

    await writer.settle(a)


async def test_p11_the_token_of_a_long_load_is_renewed(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    held = world.data.hold()
    reading = begin(process.get())
    await held.done.wait()

    await world.pass_time(12, step=0.2)  # more than twice a token's life
    held.release()
    assert await reading == 0

    loads = world.data.loads
    assert await other.tier() == "shared"
    assert world.data.loads == loads


async def test_p11_a_family_without_a_shared_tier_still_keeps_tokens_in_the_store(world: World) -> None:
    world.like(shared_tier=False)
    process, other = await world.process("p"), await world.process("q")
    assert await process.get() == 0
    world.advance(0.001)
    assert await process.tier() == "local"
    assert await other.tier() == "loader"
    held = world.data.hold()
    early = begin(process.get(43))
    await held.done.wait()
    world.data.rows[43] = 1
    await other.cache.invalidate([world.slot(43)])
    held.release()

    assert await early == 0
    assert await process.get(43) == 1


# -- P12: tags and families


async def test_p12_tag_and_family_events_are_judged_at_the_hit(world: World) -> None:
    world.like(tags=lambda row, value: (f"kind:{row % 2}",))
    process, other = await world.process("p"), await world.process("q")
    for row in (1, 2):
        assert await process.get(row) == 0
        world.data.rows[row] = 1

    await other.cache.invalidate(tags=["kind:1"])
    await process.catch_up()
    assert [await process.get(row) for row in (1, 2)] == [1, 0]

    await other.cache.invalidate(families=["product"])
    await process.catch_up()
    assert [await process.get(row) for row in (1, 2)] == [1, 1]


async def test_p12_a_tag_is_told_to_every_partition_before_the_call_returns(wide_world: World) -> None:
    world = wide_world
    world.like(tags=lambda row, value: ("all",))
    process, other = await world.process("p"), await world.process("q")
    rows = [world.row_in(partition) for partition in range(4)]
    assert await process.cache.get_many([world.slot(row) for row in rows]) == [0] * 4
    world.data.rows.update(dict.fromkeys(rows, 1))

    await other.cache.invalidate(tags=["all"])

    assert [await process.get(row, "strict") for row in rows] == [1] * 4


# -- P13: loads inside the caller's open transaction


async def test_p13_what_the_owner_of_a_key_loads_is_neither_joined_nor_stored(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    a = await process.claim("a", writes=[world.slot()])
    a.started = True
    world.data.rows[42] = 7  # not committed
    held = world.data.hold()
    own = begin(process.get(session=a))
    await held.done.wait()
    world.data.rows[42] = 0  # what the others see

    beside = begin(process.get())
    await world.idle()
    assert beside.done(), "it joined the owner's load, or waits behind it"
    held.release()

    assert (await own, await beside) == (7, 0)
    await process.settle(a, JobEvent.FAIL)  # rolled back
    assert (await process.get(), await other.get()) == (0, 0)


async def test_p13_what_is_loaded_in_an_open_transaction_is_neither_joined_nor_stored(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    scope = await process.writing("w", world.slot(1))
    world.data.rows[42] = 7  # written in the same transaction, without a declaration
    held = world.data.hold()
    within = begin(process.get(42, session=scope))
    await held.done.wait()
    world.data.rows[42] = 0

    beside = begin(process.get(42))
    await world.idle()
    assert beside.done(), "it joined a load inside somebody's transaction"
    held.release()

    assert (await within, await beside) == (7, 0)
    await process.leave(scope, JobEvent.FAIL)
    assert (await process.get(42), await other.get(42)) == (0, 0)


async def test_p13_a_load_below_the_version_that_is_known_is_tried_again(world: World) -> None:
    world.like(version=lambda value: value)
    process = await world.process("p")
    world.data.rows[42] = 1
    assert await process.get() == 1
    await process.cache.invalidate(versions=[(world.slot(), 2)])

    reading = begin(process.get())  # the replica still answers 1
    await world.pass_time(0.1, step=0.01)
    assert not reading.done()
    world.data.rows[42] = 2
    await world.pass_time(0.2, step=0.01)

    assert await reading == 2
    assert await process.tier() == "local"


async def test_p13_a_datastore_that_stays_below_is_an_error(world: World) -> None:
    world.like(version=lambda value: value)
    process = await world.process("p")
    world.data.rows[42] = 1
    await process.cache.invalidate(versions=[(world.slot(), 2)])

    reading = begin(process.get())
    await world.pass_time(3, step=0.1)

    with pytest.raises(StaleSource, match="product:42"):
        await reading


async def nothing_is_kept_while_replicas_lag(world: World, process: Process) -> None:
    assert await process.get(fresh="strict") == 1  # a replica still answers the old value: it is not kept
    assert process.cache.hit(world.slot()) is MISSING
    world.data.rows[42] = 2
    world.advance(2.1)

    assert await process.get() == 2
    assert await process.tier() == "local"


async def test_p13_a_settle_without_a_version_stops_fills_for_as_long_as_replicas_lag(world: World) -> None:
    world.like(version=lambda value: value, replica_lag_us=2_000_000)
    process, other = await world.process("p"), await world.process("q")
    world.data.rows[42] = 1
    assert await process.get() == 1
    a = await other.claim("a", writes=[world.slot()])
    a.started = True
    await other.settle(a)

    await nothing_is_kept_while_replicas_lag(world, process)


async def test_p13_a_bulk_write_stops_fills_for_as_long_as_replicas_lag(world: World) -> None:
    world.like(tags=lambda row, value: ("goods",), replica_lag_us=2_000_000)
    process, other = await world.process("p"), await world.process("q")
    world.data.rows[42] = 1
    assert await process.get() == 1
    assert await other.get() == 1
    a = await other.claim("a", writes=[], opens=[(Scope.TAG, "goods")])
    await other.settle(a)

    await nothing_is_kept_while_replicas_lag(world, process)


async def test_p13_voiding_a_tag_or_a_family_stops_fills_for_as_long_as_replicas_lag(world: World) -> None:
    world.like(tags=lambda row, value: ("goods",), replica_lag_us=2_000_000)
    process = await world.process("p")
    world.data.rows[42] = 1
    for tags, families in ((["goods"], []), ([], ["product"])):
        assert await process.get() == world.data.rows[42]
        await process.cache.invalidate(tags=tags, families=families)

        assert await process.get(fresh="strict") == world.data.rows[42]
        assert process.cache.hit(world.slot()) is MISSING
        world.data.rows[42] += 1
        world.advance(2.1)

        assert await process.get() == world.data.rows[42]
        assert await process.tier() == "local"


# -- P14: an invalidation inside a job


async def test_p14_what_a_job_invalidates_stays_empty_until_its_settle(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    a = await process.claim("a")
    a.started = True
    await process.within(a, process.cache.invalidate([world.slot()]))

    assert await other.get() == 0  # loaded before the commit
    world.data.rows[42] = 1
    await process.settle(a)

    assert await other.get() == 1
    assert await process.get() == 1


async def test_p14_an_attempt_that_lost_its_lease_is_told_so(world: World) -> None:
    process = await world.process("p")
    a = await process.claim("a")
    await process.settle(a)

    with pytest.raises(LeaseLost, match="another"):
        await process.within(a, process.cache.invalidate([world.slot()]))


async def test_p14_tags_are_told_now_and_remembered_for_the_settle(world: World) -> None:
    world.like(tags=lambda row, value: ("all",))
    process, other = await world.process("p"), await world.process("q")
    assert await other.get() == 0
    a = await process.claim("a")
    a.started = True
    await process.within(a, process.cache.invalidate(tags=["all"]))
    assert await other.get(fresh="strict") == 0  # loaded again, before the commit
    world.data.rows[42] = 1

    await process.settle(a)

    assert await other.get(fresh="strict") == 1


# -- P20: a log that was lost


async def test_p20_a_log_that_lost_events_and_grew_again_is_noticed(tmp_path: Path) -> None:
    async with World("memory-1", tmp_path) as world:
        await check_p20(world)


async def check_p20(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    partition = world.store.partitions[0]
    assert isinstance(partition, MemoryPartition)
    await other.cache.invalidate([world.slot(1)])  # e1
    await process.catch_up()
    assert await process.get() == 0
    partition.lose_memory(events=1)
    world.data.rows[42] = 1
    await other.cache.invalidate([world.slot()])
    await other.cache.invalidate([world.slot(2)])

    assert await process.get(fresh="strict") == 1


async def test_p20_a_reply_of_the_log_that_is_gone_is_not_believed(tmp_path: Path) -> None:
    async with World("memory-1", tmp_path) as world:
        process, other = await world.process("p"), await world.process("q")
        partition = world.store.partitions[0]
        assert isinstance(partition, MemoryPartition)
        for row in range(5):
            await other.cache.invalidate([world.slot(row)])
        assert await other.get() == 0
        held = process.partition().hold("read")
        early = begin(process.get())
        await held.done.wait()
        partition.lose_memory(events=4)
        await process.catch_up()
        applied = process.cursor(0)
        world.data.rows[42] = 1

        held.release()

        assert await early == 0
        assert process.cursor(0) == applied
        assert await process.get() == 1


async def test_p20_a_reply_of_the_log_that_is_gone_is_not_kept_after_waiting_for_another_partitions(
    tmp_path: Path,
) -> None:
    async with World("memory-4", tmp_path) as world:
        process, other = await world.process("p"), await world.process("q")
        slot, far = world.slot(world.row_in(0)), world.slot(world.row_in(1))
        assert await other.cache.get_many([slot, far]) == [0, 0]
        held = process.partition(1).hold("read")
        reading = begin(process.cache.get_many([slot, far]))  # the reply of the first partition is there, and waits
        await held.done.wait()
        await world.idle()
        world.data.rows[slot.arguments] = 1
        await other.cache.invalidate([slot])
        partition = world.store.partitions[0]
        assert isinstance(partition, MemoryPartition)
        partition.lose_memory(events=1)
        await process.catch_up()

        held.release()
        await reading

        assert await process.get(slot.arguments, fresh="strict") == 1


async def test_p20_with_the_store_away_reads_fall_back_and_writes_fail_closed(world: World) -> None:
    process = await world.process("p")
    assert await process.get() == 0
    world.data.rows[42] = 1
    process.partition().down = True
    world.advance(2)

    assert await asyncio.gather(*(process.get() for _ in range(5))) == [1] * 5
    assert process.cache.hit(world.slot()) is MISSING
    with pytest.raises(StoreUnavailable):
        await process.cache.invalidate([world.slot()])
    with pytest.raises(StoreUnavailable):
        await process.cache.put(world.slot(), 1)


# -- threads


async def test_news_that_another_thread_hears_meanwhile_speaks_against_what_is_being_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, other = await world.process("p"), await world.process("q")
    assert await other.get() == 0
    held = process.partition().hold("read")
    reading = begin(process.get())
    await held.done.wait()
    world.data.rows[42] = 1
    await other.cache.invalidate([world.slot()])
    news = await process.partition().inner.events_since(process.cursor(0))
    hearing = Thread(target=lambda: process.cache.heard(0, news, world.clock.instant_ns()))
    judge = Follower.untouched

    def slow(self: Follower, key: str, position: int, family: str, tags: tuple[str, ...]) -> bool:
        answer = judge(self, key, position, family, tags)
        if answer and hearing.ident is None:
            hearing.start()
            hearing.join(0.2)  # it waits, or it is done before the value is kept
        return answer

    monkeypatch.setattr(Follower, "untouched", slow)
    held.release()
    await reading
    await asyncio.to_thread(hearing.join)

    assert await process.get(fresh="strict") == 1


# -- levels


async def test_strict_readers_that_wait_at_the_same_moment_share_one_look(world: World) -> None:
    process = await world.process("p")
    process.partition().blind = True
    for row in range(20):
        await process.get(row)
    _ = process.calls

    await asyncio.gather(*(process.get(row, "strict") for row in range(20) for _ in range(5)))

    assert process.calls.count("events_since") <= 2
    assert set(process.calls) <= {"events_since"}


async def test_strict_is_answered_without_waiting_where_the_tail_can_be_seen(world: World) -> None:
    process = await world.process("p")
    await process.get()
    world.advance(10)

    assert process.cache.hit(world.slot(), "strict") == 0


async def test_a_bounded_read_serves_locally_within_its_bound_and_looks_beyond_it(world: World) -> None:
    process = await world.process("p")
    await process.get()
    process.partition().blind = True
    _ = process.calls
    world.advance(0.5)

    assert process.cache.hit(world.slot(), 600_000) == 0
    assert process.cache.hit(world.slot(), 400_000) is MISSING
    assert await process.tier(fresh=400_000) == "local"
    assert process.calls == ["events_since"]


async def test_a_loader_that_reads_its_own_key_is_told_so(world: World) -> None:
    process = await world.process("p")

    async def load(row: int) -> int:
        value: int = await process.cache.get(world.slot(row))
        return value

    world.like(load=load)

    with pytest.raises(WouldDeadlock, match="product:42"):
        await process.get()


async def test_what_a_shared_load_reads_is_as_fresh_as_its_readers_need(world: World) -> None:
    """A loader that reads another cached value speaks for the job that waits for it."""
    writer, process = await world.process("q"), await world.process("p")
    inner = world.family

    async def load(row: int) -> int:
        value: int = await process.cache.get(world.slot(row, inner))
        return value + 100

    assert await process.get() == 0
    a = await writer.claim("a", writes=[world.slot()])
    world.data.rows[42] = 1
    await writer.settle(a)
    world.advance(0.001)
    outer = world.like(name="outer", load=load)
    b = await process.claim("b")
    process.partition().blind = True
    b.home = -1  # at home in another partition

    assert await process.within(b, process.cache.get(world.slot(42, outer))) == 101


async def test_the_chain_of_sessions_is_searched_from_the_innermost(world: World) -> None:
    process = await world.process("p")
    a = await process.claim("a", writes=[world.slot(1)])
    a.started = True
    scope = await process.writing("w", world.slot(2))
    scope.parent = a

    assert scope.owner_of(world.slot(1).key) is a
    assert scope.owner_of(world.slot(2).key) is scope
    assert scope.in_transaction()
    assert not a.in_transaction()
    assert scope.scope() is scope
    assert scope.kind is SessionKind.WRITING


# -- small things


async def _entry(world: World, key: str) -> Entry:
    """Return what the shared tier holds."""
    look = (await world.store.partitions[0].read([ReadRequest(key, "product")], START)).looks[0]
    assert isinstance(look, Hit)
    return look.entry


async def _forget_entry(world: World, key: str) -> None:
    """Let an entry leave the shared tier without an event, as an eviction does."""
    entry = await _entry(world, key)
    await world.store.partitions[0].read([ReadRequest(key, "product", 0, entry.stamp)], START)
