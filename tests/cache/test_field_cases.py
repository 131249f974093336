"""Situations from public bug reports of other caches, each under the number of its case."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct
from tests.cache.world import Datastore, World, begin

from selaras._cache.cache import Cache
from selaras._cache.family import MISSING, Family, Slot
from selaras._contracts.partition import Fill, ReadRequest
from selaras._contracts.store import Store
from selaras._core.cache.entry import Miss
from selaras._core.cache.events import Corrupt, SharedTierBack, SharedTierLost, Unstorable
from selaras._core.codec import checksum, codec_of
from selaras._core.errors import NotEncodable
from selaras._core.jobs.job import Put
from selaras._core.jobs.states import JobEvent
from selaras._stores.memory import MemoryStore
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import system_clock


class Basket(Struct):
    """A value that can be changed."""

    items: list[str]


async def test_br_002_an_invalidation_during_a_load_counts_by_key_by_tag_and_by_family(world: World) -> None:
    world.like(tags=lambda row, value: ("all",))
    for row, names in ((1, {"slots": [world.slot(1)]}), (2, {"tags": ["all"]}), (3, {"families": ["product"]})):
        a, b = await world.process(f"a{row}"), await world.process(f"b{row}")
        held = world.data.hold()
        reading = begin(a.get(row))
        await held.done.wait()
        world.data.rows[row] = 2
        await b.cache.invalidate(**names)

        held.release()

        assert await reading == 0
        assert (await a.get(row), await b.get(row)) == (2, 2)


async def test_br_016_a_load_that_outlives_its_token_serves_its_callers_and_overwrites_nothing(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    held = world.data.hold()
    slow = begin(a.get())
    await held.done.wait()
    world.advance(6)  # its token's life is over, and nobody could renew it
    world.data.rows[42] = 1
    assert await b.get() == 1

    held.release()

    assert await slow == 0
    assert (await b.get(fresh="strict"), await a.get()) == (1, 1)


async def test_br_017_after_a_gap_nothing_local_is_served_before_the_log_is_caught_up_with(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    for row in range(5):
        assert await a.get(row) == 0
    a.partition().down = True
    for row in range(5):
        world.data.rows[row] = 1
        await b.cache.invalidate([world.slot(row)])
    world.advance(1.5)
    assert [a.cache.hit(world.slot(row)) for row in range(5)] == [MISSING] * 5
    a.partition().down = False

    assert [await a.get(row) for row in range(5)] == [1] * 5


async def test_br_020_an_invalidation_inside_a_transaction_is_not_undone_by_a_reader_before_the_commit(
    world: World,
) -> None:
    a, b = await world.process("a"), await world.process("b")
    assert await b.get() == 0
    job = await a.claim("a")
    job.started = True
    await a.within(job, a.cache.invalidate([world.slot()]))
    for _ in range(4):  # a reader polls before the commit
        world.advance(0.05)
        assert await b.get() == 0
    world.data.rows[42] = 1  # the commit
    await a.settle(job)

    dependent = await b.claim("b")

    assert await b.get(session=dependent) == 1


async def test_br_020_a_value_of_a_transaction_that_is_rolled_back_is_not_cached(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    scope = await a.writing("w", world.slot())
    world.data.rows[42] = 9
    assert await a.get(session=scope) == 9
    await a.within(scope, a.cache.put(world.slot(), 9))
    world.data.rows[42] = 0  # rolled back
    await a.leave(scope, JobEvent.FAIL)

    assert (await a.get(), await b.get()) == (0, 0)


async def test_br_032_no_caller_sees_another_callers_changes(world: World) -> None:
    async def load(row: int) -> Basket:
        return Basket(["chair"])

    world.like(codec=codec_of(Basket), load=load)
    a, b = await world.process("a"), await world.process("b")
    first = await a.get()
    first.items.append("changed by whoever loaded it")
    second = await a.get()
    second.items.append("changed by a hit")
    together = await asyncio.gather(*(b.get() for _ in range(3)))
    together[0].items.append("changed by whoever shared a read")
    many = await b.cache.get_many([world.slot(), world.slot()])
    many[0].items.append("changed in a list")

    assert [one.items for one in (await a.get(), await b.get(), together[1], together[2], many[1])] == [["chair"]] * 5


async def test_br_032_a_value_that_cannot_be_copied_is_served_each_time_and_reported_once(world: World) -> None:
    class Handle:
        pass

    made: list[Handle] = []

    async def load(row: int) -> Handle:
        made.append(Handle())
        return made[-1]

    class Refuses:
        shared = False

        def encode(self, value: Any, *, path: str = "value") -> bytes:
            raise NotEncodable(f"{path}: a Handle cannot be stored")

        def decode(self, data: bytes) -> Any:
            raise AssertionError("nothing was stored")

    world.like(codec=Refuses(), load=load)
    a = await world.process("a")

    got = [await a.get(), await a.get(), *await asyncio.gather(a.get(), a.get())]

    assert len({id(one) for one in got}) == 4
    assert [type(event) for event in a.events] == [Unstorable]
    assert world.family.counts.unstorable == 3
    _, work = await a.read(), a.calls
    assert "abandon_fills" in work
    assert "fill" not in work


async def test_br_053_a_process_that_hears_itself_keeps_what_it_has(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    await a.get()
    for _ in range(100):
        world.advance(0.1)
        await a.get()
    assert world.data.loads == 1

    position = (await world.store.partitions[0].events_since(a.cursor(0))).tail.position
    for _ in range(50):  # two processes read a hot key in turn
        world.advance(0.1)
        await a.get()
        await b.get()

    assert world.data.loads == 1
    assert (await world.store.partitions[0].events_since(a.cursor(0))).tail.position == position


async def test_br_054_what_is_copied_late_in_its_life_lives_no_longer(world: World) -> None:
    world.like(ttl_us=2_000_000)
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() == 0
    world.advance(1.9)
    assert await b.tier() == "shared"
    world.data.rows[42] = 1
    world.advance(0.2)

    assert (await b.get(), await a.get()) == (1, 1)
    assert world.data.loads == 2


async def test_br_054_hits_do_not_extend_a_life(world: World) -> None:
    world.like(ttl_us=2_000_000)
    a = await world.process("a")
    for _ in range(15):
        await a.get()
        world.advance(0.2)

    assert world.data.loads == 2


@pytest.mark.parametrize("value", [None, False, 0, "", b"", [], math.nan])
async def test_br_055_values_that_look_like_nothing_are_values(world: World, value: Any) -> None:
    world.like(codec=codec_of(Any), ttl_none_us=1_000_000)
    world.data.rows[42] = value
    a, b = await world.process("a"), await world.process("b")

    got = [await a.get() for _ in range(50)] + [await b.get() for _ in range(50)]

    assert world.data.loads == 1
    assert all(one == value or (one != one and value != value) for one in got)
    assert {type(one) for one in got} == {type(value)}


async def test_br_055_none_has_a_life_of_its_own(world: World) -> None:
    world.like(codec=codec_of(int | None), ttl_none_us=1_000_000)
    world.data.rows[42] = None
    a = await world.process("a")
    assert [await a.get(), await a.get()] == [None, None]
    world.data.rows[42] = 5
    world.advance(1.1)

    assert await a.get() == 5
    world.like(codec=codec_of(int | None), ttl_none_us=0, name="other")
    world.data.rows[42] = None
    assert [await a.get(), await a.get(), await a.get()] == [None] * 3
    assert world.family.counts.loads == 3


async def test_br_055_a_row_that_is_created_is_seen_after_its_event(world: World) -> None:
    world.like(codec=codec_of(int | None))
    world.data.rows[42] = None
    a, b = await world.process("a"), await world.process("b")
    assert await a.get() is None
    world.data.rows[42] = 1
    await b.cache.invalidate([world.slot()])

    assert await a.get(fresh="strict") == 1


async def test_br_057_nothing_in_the_process_grows_with_the_number_of_keys(tmp_path: Path) -> None:
    async with World("memory-1", tmp_path, local_entries=500) as world:
        world.like(ttl_us=1_000_000, tags=lambda row, value: (f"tag:{row}",))
        a = await world.process("a")
        for row in range(3_000):
            await a.get(row)
        world.data.error = RuntimeError("no")
        for row in range(3_000, 4_000):
            with pytest.raises(RuntimeError):
                await a.get(row)
        world.data.error = None
        for row in range(10_000, 11_000):
            await a.cache.invalidate([world.slot(row)], tags=[f"never:{row}"])
        stats = a.cache.stats()
        assert stats["entries"] <= 500
        assert stats["queued"] <= 1_100

        for _ in range(200):
            world.advance(1)
            await a.catch_up()
        await world.idle()

        stats = a.cache.stats()
        sizes = {name: stats[name] for name in ("entries", "bytes", "ghosts", "floors", "flights", "queued")}
        assert sizes == {
            "entries": 0,
            "bytes": 0,
            "ghosts": sizes["ghosts"],
            "floors": 0,
            "flights": 0,
            "queued": 0,
        } or (sizes["ghosts"] <= 128 and sizes["queued"] <= 256 and sizes["entries"] == 0)
        assert all(len(flights) <= 1 for flights in a.cache._loops.values())  # the keeper, at most


async def test_br_058_a_loader_that_died_with_its_process_holds_nobody_up_for_longer_than_its_token(
    world: World,
) -> None:
    a, b = await world.process("a"), await world.process("b")
    held = world.data.hold()
    dying = begin(a.get())
    await held.done.wait()
    a.partition().down = True  # it is gone: it renews nothing, gives nothing back
    waiting = begin(b.get())
    await world.idle()
    assert not waiting.done()

    await world.pass_time(5.5, step=0.25)

    assert await waiting == 0
    dying.cancel()


async def test_whoever_has_read_one_value_waits_for_others_as_long_as_their_loads_take(world: World) -> None:
    a, b, c = await world.process("a"), await world.process("b"), await world.process("c")
    held = world.data.hold()
    slow = begin(a.get(1))
    await held.done.wait()
    await world.pass_time(8, step=0.25)
    held.release()
    assert await slow == 0

    world.like(load_us=0)  # as the processes b and c know it
    assert await b.tier(1) == "shared"
    held = world.data.hold()
    slow = begin(b.get(2))
    await held.done.wait()
    waiting = begin(c.get(2))
    await world.pass_time(8, step=0.25)
    assert (waiting.done(), world.data.loads) == (False, 2)

    held.release()
    await world.pass_time(1, step=0.25)
    assert (await slow, await waiting, world.data.loads) == (0, 0, 2)


async def test_br_058_a_loaders_error_goes_to_those_who_wait_and_is_not_cached(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    world.data.error = RuntimeError("the datastore says no")
    held = world.data.hold()
    waiting = [begin(a.get()) for _ in range(3)]
    await held.done.wait()
    elsewhere = begin(b.get())
    world.data.error = None
    held.release()

    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(one) for one in results] == ["the datastore says no"] * 3
    await world.pass_time(0.2, step=0.01)  # the token was given back: nobody waits for its end
    assert await elsewhere == 0
    assert await a.get() == 0


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_br_096_several_loops_use_one_cache(kind: str, tmp_path: Path) -> None:
    clock = system_clock()  # readers on other loops wait for each other's fills: in real time
    data = Datastore()
    store: Store = MemoryStore(clock) if kind == "memory" else SqliteStore(tmp_path / "s.db", clock, entropy=Random(1))
    await store.open()
    cache = Cache(store, clock)
    family = Family("product", codec_of(int), data.load)

    def slot(row: int) -> Slot:
        return Slot(family, f"product:{row}", 0, row)

    async def elsewhere(row: int) -> Any:
        async def read() -> Any:
            return await cache.get(slot(row))

        return await asyncio.to_thread(lambda: asyncio.run(read()))

    assert await elsewhere(1) == 0
    for turn in range(5):
        results = await asyncio.gather(*(elsewhere(row % 3) for row in range(12)), cache.get(slot(2)))
        assert results == [turn] * 13
        assert data.loads <= 3 * (turn + 1)  # one load a key, across all loops
        data.rows.update(dict.fromkeys(range(3), turn + 1))
        await cache.invalidate([slot(row) for row in range(3)])

    await asyncio.sleep(0.03)
    assert await cache.get(slot(99)) == 0
    assert len(cache._loops) == 1  # those of the loops that are closed are gone
    await cache.close()
    await store.close()


async def test_br_097_a_cancelled_reader_cancels_only_itself(world: World) -> None:
    a = await world.process("a")
    held = world.data.hold()
    readers = [begin(a.get()) for _ in range(10)]
    await held.done.wait()

    for reader in readers[:9]:
        reader.cancel()
    await world.idle()
    held.release()

    assert await readers[9] == 0
    assert all(reader.cancelled() for reader in readers[:9])
    assert world.data.loads == 1


async def test_br_097_cancels_at_any_moment_never_bring_a_foreign_value(world: World) -> None:
    a = await world.process("a")
    world.data.rows.update({row: row for row in range(20)})

    async def read(row: int, steps: int) -> tuple[int, Any]:
        reading = begin(a.get(row, "strict"))
        for _ in range(steps):
            await asyncio.sleep(0)
        reading.cancel()
        try:
            return row, await reading
        except asyncio.CancelledError:
            return row, row

    for _ in range(3):
        results = await asyncio.gather(*(read(row, steps) for row in range(20) for steps in range(1, 24, 2)))
        assert all(row == value for row, value in results)
        await a.cache.invalidate([world.slot(row) for row in range(20)])

    assert await a.cache.get_many([world.slot(row) for row in range(20)]) == list(range(20))


async def test_a_load_that_nobody_waits_for_finishes_and_is_found_by_whoever_asks_again(world: World) -> None:
    a = await world.process("a")
    held = world.data.hold()
    hasty = begin(a.get())
    await held.done.wait()
    hasty.cancel()
    await world.idle()
    held.release()
    await world.idle()

    assert await a.tier() == "local"
    assert world.data.loads == 1


async def test_a_load_that_nobody_waits_for_is_ended_after_a_while(world: World) -> None:
    a = await world.process("a")
    held = world.data.hold()  # never let go
    hasty = begin(a.get())
    await held.done.wait()
    hasty.cancel()

    await world.pass_time(7, step=0.25)

    assert await a.get() == 0
    assert not any(flights.running for flights in a.cache._loops.values())


async def test_readers_pass_a_load_that_hangs(world: World) -> None:
    a = await world.process("a")
    held = world.data.hold()
    hanging = begin(a.get())
    await held.done.wait()
    behind = begin(a.get(fresh="strict"))
    await world.idle()
    assert not behind.done()

    await world.pass_time(26, step=0.25)

    assert await behind == 0
    held.release()
    assert await hanging == 0


async def test_processes_that_meet_a_slow_loader_for_the_first_time_load_once(world: World) -> None:
    fleet = [await world.process(name) for name in "abcd"]
    held = world.data.hold()
    first = begin(fleet[0].get())
    await held.done.wait()
    behind = [begin(process.get()) for process in fleet[1:]]

    await world.pass_time(12, step=0.2)  # nobody knew that it takes so long
    held.release()
    await world.pass_time(1)

    assert [await reading for reading in (first, *behind)] == [0, 0, 0, 0]
    assert world.data.loads == 1


async def test_of_loads_that_fail_one_after_the_other_only_the_first_is_waited_for_so_long(world: World) -> None:
    a, b, c = [await world.process(name) for name in "abc"]
    world.data.error = OSError("the datastore is away")
    failing = world.data.hold()
    first = begin(a.get())
    await failing.done.wait()
    world.data.error = None
    hanging = world.data.hold()  # whoever loads after it: the others have waited long enough
    behind = [begin(b.get()), begin(c.get())]
    await world.pass_time(8, step=0.2)
    failing.release()
    with pytest.raises(OSError, match="is away"):
        await first

    await world.pass_time(2, step=0.2)

    assert sum(reading.done() for reading in behind) == 1
    hanging.release()
    assert [await reading for reading in behind] == [0, 0]


async def test_corrupt_bytes_are_a_miss_that_is_repaired(world: World) -> None:
    world.data.rows.update({42: 1, 43: 1})
    a, b = await world.process("a"), await world.process("b")
    partition = world.store.partitions[0]
    for row, sum_of in ((42, b"other bytes"), (43, b"\xff not msgpack")):
        look = (await partition.read([ReadRequest(world.slot(row).key, "product", 1_000_000)], a.cursor(0))).looks[0]
        assert isinstance(look, Miss)
        put = Put(world.slot(row).key, b"\xff not msgpack", checksum(sum_of), family="product")
        assert (await partition.fill([Fill(put, look.token)], a.cursor(0))).stored[0]

    assert await a.cache.get_many([world.slot(42), world.slot(43)]) == [1, 1]
    assert {type(event) for event in a.events} == {Corrupt}
    assert world.family.counts.repaired == 2
    assert (await b.tier(42), await b.tier(43)) == ("shared", "shared")


async def test_a_store_that_goes_and_comes_back_is_told_once_each(world: World) -> None:
    a = await world.process("a")
    a.partition().down = True
    for row in range(10):
        assert await a.get(row) == 0
        world.advance(1)
    a.partition().down = False
    world.advance(5)
    assert await a.get(1) == 0

    assert [type(event) for event in a.events] == [SharedTierLost, SharedTierBack]
    assert await a.tier(1) == "local"


async def test_a_family_with_ttl_0_is_loaded_each_time_and_once_for_those_who_ask_together(world: World) -> None:
    world.like(ttl_us=0)
    a = await world.process("a")

    await asyncio.gather(*(a.get() for _ in range(5)))
    assert world.data.loads == 1
    await a.get()
    assert world.data.loads == 2
    assert a.calls == []


async def test_a_family_without_a_local_tier_is_read_from_the_shared_one(world: World) -> None:
    world.like(local=False)
    a = await world.process("a")
    assert (await a.tier(), await a.tier()) == ("loader", "shared")


async def test_many_keys_take_one_trip_a_partition_one_batch_and_one_fill(wide_world: World) -> None:
    world = wide_world
    batches: list[list[int]] = []

    async def load_many(rows: Any) -> list[int]:
        batches.append(list(rows))
        return [row * 10 for row in rows]

    world.like(load_many=load_many)
    a = await world.process("a")
    rows = [world.row_in(partition, start) for partition in range(4) for start in (0, 100, 200)]

    values = await a.cache.get_many([world.slot(row) for row in (*rows, rows[0])])

    assert values == [row * 10 for row in (*rows, rows[0])]
    assert len(batches) == 1
    assert sorted(batches[0]) == sorted(rows)
    assert sorted(a.calls) == ["fill"] * 4 + ["read"] * 4
    assert all(a.cache.hit(world.slot(row)) == row * 10 for row in rows)


async def test_a_batch_loader_that_returns_too_few_is_told_so(world: World) -> None:
    async def load_many(rows: Any) -> list[int]:
        return [1]

    world.like(load_many=load_many)
    a = await world.process("a")

    with pytest.raises(ValueError, match="1 values for 2 keys"):
        await a.cache.get_many([world.slot(1), world.slot(2)])


async def test_a_loader_may_wait_for_another_key_of_its_batch(world: World) -> None:
    """A tree whose nodes read their parents, all of them in one batch, more than run at a time."""
    a = await world.process("a")

    async def load(row: int) -> int:
        parent: int = await a.cache.get(world.slot(row - 1)) if row else 0
        return parent + 1

    world.like(load=load)

    values = await a.cache.get_many([world.slot(row) for row in reversed(range(100))])

    assert values == list(range(100, 0, -1))


async def test_a_loader_that_cancels_itself_breaks_nobody_elses_read(world: World) -> None:
    async def load(row: int) -> int:
        if row == 1:
            raise asyncio.CancelledError
        return row

    world.like(load=load)
    a = await world.process("a")

    with pytest.raises(RuntimeError, match="nobody cancelled it"):
        await a.get(1)
    with pytest.raises(RuntimeError, match="nobody cancelled it"):
        await a.cache.get_many([world.slot(1), world.slot(2)])
    assert await a.get(2) == 2


async def test_warming_fetches_for_a_batch_of_claims_and_leaves_their_own_keys_out(world: World) -> None:
    a = await world.process("a")
    one = await a.claim("one", writes=[world.slot(1)])
    two = await a.claim("two", writes=[world.slot(2)])
    _ = a.calls

    await a.cache.warming.warm([world.slot(row) for row in (1, 2, 3, 4)], [one, two])

    assert a.calls == ["read", "fill"]
    assert [await a.tier(row, session=one) for row in (3, 4)] == ["local", "local"]
    assert a.calls == []
    assert world.data.loads == 2


async def test_what_an_attempt_of_this_process_writes_is_not_warmed_for_others(world: World) -> None:
    a = await world.process("a")
    one = await a.claim("one", writes=[world.slot(1)])
    a.cache.warming.writes(one)
    other = await a.claim("other")

    assert a.cache.warming.holds([world.slot(1)])
    await a.cache.warming.warm([world.slot(1), world.slot(2)], [other])
    assert world.data.loads == 1

    await a.settle(one)
    assert not a.cache.warming.holds([world.slot(1)])


async def test_warming_swallows_what_fails(world: World) -> None:
    a = await world.process("a")
    world.data.error = RuntimeError("no")

    await a.cache.warming.warm([world.slot(1)])

    world.data.error = None
    assert await a.get(1) == 0


async def test_closing_ends_what_is_under_way(world: World) -> None:
    a = await world.process("a")
    held = world.data.hold()
    reading = begin(a.get())
    await held.done.wait()

    await a.cache.close()

    with pytest.raises(Exception, match="closed"):
        await reading
    assert not any(len(flights) for flights in a.cache._loops.values())
    with pytest.raises(Exception, match="closed"):
        await a.get(43)


async def test_explaining_says_what_stands_in_each_tier(world: World) -> None:
    a, b = await world.process("a"), await world.process("b")
    await a.get()
    await b.claim("writer", writes=[world.slot(1)])

    told = "\n".join(await a.cache.window.explain(world.slot()))
    assert "would be served" in told
    assert "stored at" in told
    told = "\n".join(await a.cache.window.explain(world.slot(1)))
    assert "local      nothing" in told
    assert "job writer" in told
