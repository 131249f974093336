"""Very many reads at once: the loop is busy with them, and the store must not be blamed for that."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from tests.cache.world import World, begin

from selaras._cache.bound import Bound
from selaras._cache.flight import LOOK_MOST, LOOKS_AT_ONCE
from selaras._cache.patience import LATE_STEPS_MOST, STEPS, Patience
from selaras._core.codec import codec_of
from selaras._core.errors import StoreUnavailable


async def test_an_answer_is_not_late_because_the_loop_stood() -> None:
    with Patience(0.2):
        time.sleep(0.5)
        await asyncio.sleep(0)
        time.sleep(0.5)
        await asyncio.sleep(0.001)


async def test_an_answer_that_does_not_come_is_waited_for_no_longer() -> None:
    began = time.monotonic()

    with pytest.raises(TimeoutError):
        with Patience(0.1):
            await asyncio.Event().wait()

    assert 0.1 <= time.monotonic() - began < 2
    await asyncio.sleep(0)  # nobody is cancelled any more


async def test_where_the_loop_always_stands_patience_ends_all_the_same() -> None:
    async def hold_up() -> None:
        while True:
            time.sleep(0.004)
            await asyncio.sleep(0)

    busy = begin(hold_up())
    try:
        with pytest.raises(TimeoutError):
            with Patience(STEPS * 0.001):
                await asyncio.sleep((LATE_STEPS_MOST + STEPS) * 0.1)
    finally:
        busy.cancel()


async def test_whoever_is_cancelled_meanwhile_is_cancelled() -> None:
    async def wait() -> None:
        with Patience(10):
            await asyncio.Event().wait()

    task = begin(wait())
    await asyncio.sleep(0.01)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_of_very_many_reads_so_many_look_at_a_time_and_all_are_kept(world: World) -> None:
    process = await world.process("p")
    partition = process.partition()
    most = now = 0
    read = partition.read

    async def counted(*args: object) -> object:
        nonlocal most, now
        (keys, _) = args
        now += len(keys)  # type: ignore[arg-type]
        most = max(most, now)
        try:
            await asyncio.sleep(0)
            return await read(*args)
        finally:
            now -= len(keys)  # type: ignore[arg-type]

    partition.read = counted  # type: ignore[attr-defined]
    rows = range(LOOKS_AT_ONCE * 3)

    assert await asyncio.gather(*(process.get(row) for row in rows)) == [0 for _ in rows]
    assert LOOK_MOST < most <= LOOKS_AT_ONCE
    assert world.data.loads == len(rows)
    assert [process.cache.hit(world.slot(row)) for row in rows] == [0 for _ in rows]


async def test_whoever_stands_in_the_line_has_its_turn_whatever_becomes_of_the_others() -> None:
    bound = Bound(asyncio.get_running_loop(), 1)
    entered: list[str] = []

    async def stand(name: str) -> None:
        await bound.turn(1)
        entered.append(name)

    assert bound.enters(1)
    first, second, third, fourth = (begin(stand(name)) for name in ("first", "second", "third", "fourth"))
    await asyncio.sleep(0)
    assert not bound.enters(1)

    first.cancel()  # before its turn: it is passed over
    bound.leave(1)
    second.cancel()  # as its turn came: it hands it on
    await asyncio.wait([first, second, third])
    assert entered == ["third"]

    bound.leave(1)
    await fourth
    assert not bound.enters(1)
    bound.leave(1)
    assert bound.enters(1)  # nobody stands there any more, and nothing was lost
    assert not bound.enters(1)


async def test_a_loader_that_reads_others_is_not_held_up_by_a_crowd(world: World) -> None:
    """The bound is on looks alone: loads under way may need more of them."""
    process = await world.process("p")
    load = world.data.load

    async def nested(row: int) -> int:
        if row < 10_000:
            await process.cache.get(world.slot(row + 10_000))
        return int(await load(row))

    world.like(load=nested)
    rows = range(LOOKS_AT_ONCE + 10)

    async with asyncio.timeout(20):
        assert await asyncio.gather(*(process.get(row) for row in rows)) == [0 for _ in rows]


async def test_reads_of_one_turn_look_together_and_each_loads_in_the_context_of_whoever_began_it(world: World) -> None:
    tenant = ContextVar("tenant", default="")
    seen: dict[int, str] = {}

    async def load(row: int) -> int:
        seen[row] = tenant.get()
        return row

    async def read(row: int) -> int:
        tenant.set(f"tenant {row}")
        return int(await process.get(row))

    process = await world.process("p")
    world.like(load=load)
    rows = [world.row_in(0, start) for start in range(0, 200, 10)]
    await process.get(rows[0])
    process.cache.told([world.slot(rows[0]).key])
    _ = process.calls

    assert await asyncio.gather(*map(read, rows)) == rows

    assert process.calls.count("read") == 1
    assert {row: seen[row] for row in rows[1:]} == {row: f"tenant {row}" for row in rows[1:]}


async def test_an_entry_that_nothing_can_be_made_of_is_an_error_of_its_readers_and_of_no_others(world: World) -> None:
    codec = codec_of(int)

    def decode(data: bytes) -> int:
        row: int = codec.decode(data)
        if row == rows[1]:
            raise LookupError(f"no {row}")
        return row

    process, other = await world.process("p"), await world.process("q")
    rows = [world.row_in(0, start) for start in range(1, 31, 10)]
    world.data.rows = {row: row for row in rows}
    world.like(codec=SimpleNamespace(shared=True, encode=codec.encode, decode=decode))
    await asyncio.gather(*map(process.get, rows))

    said = await asyncio.gather(*map(other.get, rows), return_exceptions=True)

    assert [str(one) for one in said] == [str(rows[0]), f"no {rows[1]}", str(rows[2])]


@pytest.mark.parametrize("turns", range(3))
async def test_whoever_reads_as_the_cache_is_closed_is_told(world: World, turns: int) -> None:
    process = await world.process("p")
    reads = [begin(process.get(row)) for row in range(20)]
    for _ in range(turns):
        await asyncio.sleep(0)

    await process.cache.close()

    async with asyncio.timeout(5):
        said = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(one) for one in said} <= {StoreUnavailable, int}
