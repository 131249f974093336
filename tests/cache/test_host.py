"""The host tier: what it serves, what it must not, and that whatever becomes of it is never a stale read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cache.shelf import OWNER, FakeShelf
from tests.cache.world import Process, World, begin
from tests.stores import KINDS, clear_servers

from selaras._core.cache.events import Corrupt
from selaras._core.codec import codec_of
from selaras._core.jobs.states import JobEvent
from selaras._stores.memory.partition import MemoryPartition


@pytest.fixture
def shelf() -> FakeShelf:
    return FakeShelf()


@pytest.fixture(params=[kind for kind in KINDS if kind.endswith("-1")])
async def world(request: pytest.FixtureRequest, tmp_path: Path, shelf: FakeShelf) -> AsyncIterator[World]:
    """One partition, on every kind of store; all processes share a shelf."""
    async with World(request.param, tmp_path, shelf=shelf, owner=OWNER) as world:
        yield world
    clear_servers()


async def two(world: World) -> tuple[Process, Process]:
    return await world.process("a"), await world.process("b")


async def test_what_one_process_loaded_another_one_has_without_asking_the_store(world: World) -> None:
    a, b = await two(world)
    world.data.rows[42] = 7

    assert await a.tier() == "loader"
    reading = await b.read()

    assert (reading.value, reading.tier, world.data.loads) == (7, "host", 1)
    assert b.calls == []
    assert await b.tier() == "local"


async def test_an_entry_says_how_long_loads_take(world: World) -> None:
    a, b = await two(world)
    held = world.data.hold()
    slow = begin(a.get())
    await held.done.wait()
    await world.pass_time(8, step=0.25)
    held.release()
    await slow

    world.like(load_us=0)  # as the process b knows it
    await b.catch_up()
    assert await b.tier() == "host"
    assert world.family.load_us > 7_000_000


async def test_what_the_shared_tier_had_is_left_for_the_others(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    shelf.items.clear()
    assert await b.tier() == "shared"

    c = await world.process("c")

    assert await c.tier() == "host"


async def test_what_a_settle_stored_is_there_for_the_others(world: World) -> None:
    a, b = await two(world)
    await a.get(1)  # it has a connection
    slot = world.slot()
    job = await a.claim("j", writes=[slot])
    job.started = True
    await a.within(job, a.cache.put(slot, 9))
    await a.settle(job)
    await b.catch_up()

    reading = await b.read()

    assert (reading.value, reading.tier) == (9, "host")


async def test_an_event_speaks_against_what_was_true_before_it(world: World) -> None:
    a, b = await two(world)
    await a.get()
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])

    reading = await b.read()

    assert (reading.value, reading.tier) == (2, "loader")


async def test_a_tag_or_a_family_speaks_against_it_as_well(world: World) -> None:
    world.like(tags=lambda arguments, value: (f"row:{arguments}",))
    a, b = await two(world)
    await a.get(1)
    await a.get(2)
    world.data.rows.update({1: 1, 2: 1})
    await b.cache.invalidate(tags=["row:1"])

    assert [(await b.read(row)).tier for row in (1, 2)] == ["loader", "host"]
    await a.cache.invalidate(families=["product"])
    await b.catch_up()
    c = await world.process("c")
    assert [await c.get(row, fresh="strict") for row in (1, 2)] == [1, 1]


async def test_nothing_is_served_while_somebody_writes_it_and_nothing_is_left_there(
    world: World, shelf: FakeShelf
) -> None:
    a, b = await two(world)
    await a.get()
    before = shelf.at("product:42")
    slot = world.slot()
    job = await a.claim("j", writes=[slot])
    world.data.rows[42] = 2

    reading = await b.read(fresh="strict")

    assert (reading.value, reading.tier) == (2, "loader")
    assert shelf.at("product:42") == before
    await a.settle(job)
    assert await b.get(fresh="strict") == 2


async def test_a_fill_that_was_refused_is_not_left_there(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    held = world.data.hold()
    reading = begin(a.get())
    await held.done.wait()
    world.data.rows[42] = 2
    await b.cache.invalidate([world.slot()])

    held.release()

    assert await reading == 0
    assert shelf.at("product:42") is None


async def test_an_older_entry_that_is_written_late_is_not_served(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    old = shelf.at("product:42")
    assert old is not None
    world.data.rows[42] = 2
    await a.cache.invalidate([world.slot()])
    await a.get()
    shelf.set("product:42", old)  # its writer was held up
    await b.catch_up()

    assert await b.get(fresh="strict") == 2


async def test_what_was_seen_there_is_replaced_and_nothing_else(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await b.get()
    shelf.items.clear()
    held = a.partition().hold("read")
    reading = begin(a.get())  # it found nothing on the shelf
    await held.done.wait()
    c = await world.process("c")
    await c.cache.invalidate([world.slot(1)])
    await c.get()
    newer = shelf.at("product:42")

    held.release()
    await reading

    assert shelf.at("product:42") == newer


async def test_without_a_proof_the_shared_tier_is_asked(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    b.partition().blind = True  # the log's end cannot be seen without a trip
    asked = shelf.asked
    world.advance(1.1)

    assert await b.tier() == "shared"  # the same trip proves, and brings the value
    assert shelf.asked == asked

    await a.get(1)
    assert await b.tier(1) == "host"


async def test_a_strict_reader_gets_it_only_with_the_logs_end_as_of_now(world: World) -> None:
    a, b = await two(world)
    await a.get()
    world.data.rows[42] = 2
    await a.cache.invalidate([world.slot()])  # b has not heard

    assert await b.get(fresh="strict") == 2
    c = await world.process("c")
    c.partition().blind = True
    assert await c.tier(fresh="strict") == "shared"


async def test_a_job_gets_nothing_older_than_its_claim(world: World) -> None:
    a, b = await two(world)
    await a.get()
    slot = world.slot()
    first = await a.claim("first", writes=[slot])
    world.data.rows[42] = 2
    await a.settle(first)

    second = await b.claim("second")

    assert await b.get(session=second) == 2


async def test_a_process_cut_off_serves_it_for_max_lag_and_no_longer(world: World) -> None:
    a, b = await two(world)
    await a.get()
    b.partition().down = True
    world.data.rows[42] = 2
    await a.cache.invalidate([world.slot()])

    world.advance(1.01)

    assert await b.get(fresh=3600 * 1_000_000) == 2


async def test_this_process_never_goes_back(world: World) -> None:
    a, b = await two(world)
    await a.get()
    slot = world.slot()
    await a.claim("j", writes=[slot])
    world.data.rows[42] = 2
    b.partition().down = True
    world.advance(0.2)
    b.cache._followers[0].breaker.failed(world.clock.instant_ns())

    # It has not heard of the intent, and asked the datastore for another reason; the shelf still has the old value.
    b_session = await b.get(fresh="strict")
    b.partition().down = False
    world.advance(0.06)

    assert (b_session, await b.get(fresh=500_000)) == (2, 2)


async def test_another_epoch_or_another_log_with_the_same_numbers_is_not_believed(
    world: World, shelf: FakeShelf
) -> None:
    a, b = await two(world)
    await a.get()
    mine = shelf.at("product:42")
    assert mine is not None
    for other in (
        replace(mine, epoch=mine.epoch + 1, value=codec_of(int).encode(1)),
        replace(mine, event_id=mine.event_id ^ 1, value=codec_of(int).encode(1)),
        replace(mine, position=mine.position + 1, value=codec_of(int).encode(1)),
        replace(mine, position=0, event_id=0, value=codec_of(int).encode(1)),
    ):
        shelf.set("product:42", other)
        assert await b.tier() != "host"
        assert await b.get() == 0
        b.cache._local.drop("product:42")


async def test_a_store_that_lost_its_memory_is_not_answered_for_by_the_shelf(tmp_path: Path, shelf: FakeShelf) -> None:
    async with World("memory-1", tmp_path, shelf=shelf, owner=OWNER) as world:
        a, b = await two(world)
        await a.cache.invalidate([world.slot(1)])
        await a.get()
        inner = world.store.partitions[0]
        assert isinstance(inner, MemoryPartition)
        world.data.rows[42] = 2
        await a.cache.invalidate([world.slot()])  # this event is lost

        inner.lose_memory(events=1)
        await b.catch_up()

        assert (await b.tier(), await b.get()) == ("loader", 2)
        c = await world.process("c")
        assert await c.get() == 2


async def test_an_empty_log_gets_an_event_by_which_it_is_known(tmp_path: Path, shelf: FakeShelf) -> None:
    world = World("memory-1", tmp_path, shelf=shelf, owner=OWNER)
    await world._open_store()
    a, b = await two(world)
    await a.get()
    await world.idle()
    await b.catch_up()
    await a.catch_up()
    await a.get(1)

    assert await b.tier(1) == "host"
    for process in world.processes:
        await process.cache.close()


async def test_its_ttl_ends_when_the_shared_tiers_does(world: World) -> None:
    world.like(ttl_us=10_000_000, beta=0.0)
    a, b = await two(world)
    await a.get()
    world.advance(9.9)
    await b.catch_up()
    assert await b.tier() == "host"

    c = await world.process("c")
    world.advance(0.2)
    await c.catch_up()

    assert await c.tier() == "loader"


async def test_a_none_is_a_value_with_a_ttl_of_its_own(world: World) -> None:
    world.like(codec=codec_of(int | None), ttl_none_us=1_000_000)
    world.data.rows[42] = None
    a, b = await two(world)
    await a.get()

    assert (await b.read()).value is None
    c = await world.process("c")
    assert (await c.tier(), await c.get()) == ("host", None)
    d = await world.process("d")
    world.advance(1.1)
    await d.catch_up()
    assert await d.tier() == "loader"


@pytest.mark.parametrize("at", [0, 1, 8, 9, 20, -1])
async def test_flipped_bytes_are_a_miss_and_are_written_anew(world: World, shelf: FakeShelf, at: int) -> None:
    a, b = await two(world)
    await a.get()
    whole = shelf.at("product:42")

    def flip(data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]

    shelf.change("product:42", flip)

    assert await b.tier() == "shared"
    assert [type(event) for event in b.events] == [Corrupt]
    assert whole is not None
    there = shelf.at("product:42")
    assert there is not None
    assert there.value == whole.value


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01" + bytes(8), b"\x02" * 40, bytes(100)])
async def test_what_is_no_entry_at_all_is_a_miss(world: World, shelf: FakeShelf, data: bytes) -> None:
    a, b = await two(world)
    await a.get()
    shelf.change("product:42", lambda _: data)

    assert await b.tier() == "shared"


async def test_an_entry_of_another_key_is_a_miss(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    world.data.rows[1] = 1
    await a.get(1)
    other = shelf.at("product:1")
    assert other is not None
    shelf.set("product:42", other)  # as if both had one hash

    assert await b.get() == 0


async def test_apps_on_one_shelf_do_not_meet(tmp_path: Path, shelf: FakeShelf) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    async with (
        World("memory-1", tmp_path / "1", shelf=shelf, owner=b"one") as one,
        World("memory-1", tmp_path / "2", shelf=shelf, owner=b"two") as two_,
    ):
        one.data.rows[42] = 1
        a, b = await one.process("a"), await two_.process("b")

        assert (await a.get(), await b.get()) == (1, 0)
        assert len(shelf.items) == 2


async def test_two_stores_of_one_name_do_not_believe_each_other(tmp_path: Path, shelf: FakeShelf) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    async with (
        World("sqlite-1", tmp_path / "1", shelf=shelf, owner=OWNER) as one,
        World("memory-1", tmp_path / "2", shelf=shelf, owner=OWNER, seed=100) as other,
    ):
        one.data.rows[42] = 1
        a, b = await one.process("a"), await other.process("b")
        assert await a.get() == 1
        theirs = shelf.at("product:42")
        assert theirs is not None
        assert theirs.position == b.cursor(0).position  # the same number in both logs

        assert await b.get() == 0


async def test_readers_of_one_moment_share_a_look(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    asked = shelf.asked

    values = await asyncio.gather(*(b.get() for _ in range(20)))

    assert (values, shelf.asked - asked) == ([0] * 20, 1)


async def test_a_reader_that_is_cancelled_leaves_alone(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    shelf.hold()
    first, second = begin(b.read()), begin(b.read())
    await world.idle()

    first.cancel()
    await world.idle()
    shelf.release()

    assert (await second).tier == "host"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_what_was_heard_while_the_shelf_was_asked_counts(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    shelf.hold()
    reading = begin(b.read())
    await world.idle()
    world.data.rows[42] = 2
    await a.cache.invalidate([world.slot()])
    await b.catch_up()

    shelf.release()

    assert (await reading).value == 2


async def test_many_are_read_in_one_trip(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.cache.get_many([world.slot(row) for row in range(10)])
    _ = b.calls

    values = await b.cache.get_many([world.slot(row) for row in range(12)])

    assert values == [0] * 12
    assert b.cache.stats()["host"]["served"] == 10
    assert b.calls == ["read", "fill"]  # of the two that nobody had


async def test_one_that_does_not_answer_is_left_alone_for_a_while(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    await a.get()
    await a.get(1)
    shelf.down = True

    assert await b.tier() == "shared"
    asked = shelf.asked
    assert await b.tier(1) == "shared"
    assert shelf.asked == asked

    shelf.down = False
    world.advance(0.06)
    await b.catch_up()
    b.cache._local.drop("product:1")
    world.advance(0.001)
    await b.catch_up()
    assert await b.tier(1) == "host"


async def test_a_family_may_leave_it_out_or_use_it_alone(world: World, shelf: FakeShelf) -> None:
    world.like(host=False)
    a, b = await two(world)
    await a.get()
    assert (await b.tier(), shelf.items) == ("shared", {})

    world.like(name="near", host=True, shared_tier=False)
    assert await a.tier() == "loader"
    assert await b.tier() == "host"


async def test_early_refresh_begins_from_it_too(world: World) -> None:
    world.like(ttl_us=10_000_000, beta=1.0)
    world.family.load_us = 5_000_000
    a, b = await two(world)
    await a.get()
    world.data.rows[42] = 2
    world.advance(9)
    await b.catch_up()

    assert (await b.read()).tier == "host"
    await world.until(lambda: world.family.counts.early == 1)

    assert await b.get() == 2


async def test_a_failed_job_leaves_nothing_there(world: World, shelf: FakeShelf) -> None:
    a, b = await two(world)
    slot = world.slot()
    job = await a.claim("j", writes=[slot])
    job.started = True
    await a.within(job, a.cache.put(slot, 9))
    await a.settle(job, JobEvent.FAIL)

    assert shelf.at("product:42") is None
    assert await b.get() == 0
