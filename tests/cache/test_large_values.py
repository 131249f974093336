"""Large values: packed in the shared tier, and beyond a size served without being kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cache.world import Process, World, begin
from tests.stores import KINDS

from selaras._app.process.audits import CacheLog
from selaras._cache.family import Family
from selaras._contracts.partition import ReadRequest
from selaras._core.cache.entry import Busy, Entry, Hit
from selaras._core.cache.events import Corrupt, TooLarge
from selaras._core.cache.packing import PACKED
from selaras._core.codec import codec_of
from selaras._core.positions import START

ROWS = [f"product {i}, and all that is known of it" for i in range(100)]
ENCODED = len(codec_of(list[str], sealed=True).encode(ROWS))


@pytest.fixture(params=[kind for kind in ("memory-1", "sqlite-1", "redis-1") if kind in KINDS])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with World(request.param, tmp_path) as world:
        world.data.rows[42] = list(ROWS)
        yield world


def rows(world: World, **options: Any) -> Family:
    """Cache lists of text: a hit of the local tier copies them."""
    return world.like(codec=codec_of(list[str], sealed=True), **options)


async def kept(process: Process) -> Entry | None:
    """Return what the store itself has of product 42."""
    reply = await process.partition().inner.read([ReadRequest("product:42", "product")], START)
    return reply.looks[0].entry if isinstance(reply.looks[0], Hit) else None


async def given_back(process: Process) -> None:
    """Wait until nobody has a token of product 42: it is given back after the reader has its value."""
    partition = process.partition().inner
    async with asyncio.timeout(10):
        while (await partition.read([ReadRequest("product:42", "product")], START)).looks != (Busy(0),):
            await asyncio.sleep(0.001)


async def test_a_large_value_is_packed_in_the_store_and_plain_in_the_process(world: World) -> None:
    rows(world, compress_threshold=1_000)
    a, b = await world.process("a"), await world.process("b")

    assert await a.get() == ROWS
    assert (await b.read()).tier == "shared"
    assert await b.get() == ROWS

    entry = await kept(a)
    assert entry is not None
    assert entry.value.startswith(PACKED)
    assert len(entry.value) < ENCODED / 3
    for process in (a, b):
        (local,) = process.cache._entries.values()
        assert len(local.value) == ENCODED
    assert world.data.loads == 1


async def test_bytes_say_whether_they_are_packed_so_that_the_setting_may_change(world: World) -> None:
    rows(world)
    old, new = await world.process("old"), await world.process("new")
    await old.get()

    rows(world, compress_threshold=1_000)
    assert await new.tier() == "shared"
    await old.cache.invalidate([world.slot()])
    assert await new.tier(fresh="strict") == "loader"
    rows(world)
    assert await old.tier(fresh="strict") == "shared"
    assert not old.events + new.events


async def test_a_put_is_packed_and_the_writer_reads_it_back(world: World) -> None:
    rows(world, compress_threshold=1_000)
    a, b = await world.process("a"), await world.process("b")
    await a.get()
    job = await a.claim("job", writes=[world.slot()])
    assert await a.get(session=job) == ROWS  # the pre-image, which was packed
    job.started = True
    changed = [*ROWS, "one more"]

    await a.within(job, a.cache.put(world.slot(), changed))
    assert await a.get(session=job) == changed
    assert (await a.settle(job)).refusal is None

    entry = await kept(a)
    assert entry is not None
    assert entry.value.startswith(PACKED)
    assert await a.tier() == "local"
    assert [await process.get(fresh="strict") for process in (a, b)] == [changed, changed]
    assert world.data.loads == 1


async def test_very_large_values_are_packed_too(world: World) -> None:
    world.data.rows[42] = ROWS * 200
    rows(world, compress_threshold=1_000)
    a, b = await world.process("a"), await world.process("b")

    assert await a.get() == await b.get() == ROWS * 200
    assert world.data.loads == 1


async def test_a_value_beyond_the_bound_is_served_not_kept_and_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rows(world, max_value=ENCODED - 1)
    a = await world.process("a")

    got = [await a.get()]
    await given_back(a)
    got += [await a.get(), *await asyncio.gather(a.get(), a.get(), a.get())]

    assert got == [ROWS] * 5
    assert len({id(one) for one in got[2:]}) == 3
    assert world.data.loads == 3  # those who wait together share one load
    assert await kept(a) is None
    assert a.cache.stats()["entries"] == 0
    assert a.events == [TooLarge(family="product", key="product:42", bytes=ENCODED, most=ENCODED - 1)]
    assert world.family.counts.too_large == 3
    assert "fill" not in a.calls
    with caplog.at_level(logging.WARNING, "selaras"):
        CacheLog().heard(a.events[0])
    assert f"{ENCODED:,} bytes encoded, and max_value is {ENCODED - 1:,}" in caplog.text


async def test_readers_of_what_is_too_large_do_not_wait_for_each_other_and_it_is_kept_once_it_is_smaller(
    world: World,
) -> None:
    rows(world, max_value=ENCODED - 1)
    a, b = await world.process("a"), await world.process("b")
    await a.get()
    await given_back(a)
    await b.get()
    await given_back(b)

    assert (await a.read()).why == f"it is not stored: it is larger than max_value, {ENCODED - 1:,} bytes"
    await given_back(a)

    held = world.data.hold()
    first = begin(a.get())
    await held.done.wait()
    assert await b.get() == ROWS
    held.release()
    assert await first == ROWS

    world.data.rows[42] = ROWS[1:]
    assert [await a.tier(), await a.tier(), await a.tier()] == ["loader", "loader", "local"]


async def test_a_value_at_the_bound_is_kept(world: World) -> None:
    rows(world, max_value=ENCODED)
    a = await world.process("a")
    assert [await a.tier(), await a.tier()] == ["loader", "local"]


async def test_a_put_beyond_the_bound_leaves_nothing_and_does_not_fail_its_job(world: World) -> None:
    rows(world, max_value=ENCODED)
    a = await world.process("a")
    await a.get()
    job = await a.claim("job", writes=[world.slot()])
    job.started = True
    world.data.rows[42] = [*ROWS, "one more"]

    await a.within(job, a.cache.put(world.slot(), world.data.rows[42]))
    assert (await a.settle(job)).refusal is None

    assert await kept(a) is None
    assert await a.get() == world.data.rows[42]


async def test_what_another_process_keeps_and_we_do_not_is_no_damage(world: World) -> None:
    rows(world, compress_threshold=1_000)
    a = await world.process("a")
    await a.get()

    rows(world, compress_threshold=1_000, max_value=100)
    b = await world.process("b")
    assert await b.get() == ROWS
    assert [type(event) for event in b.events] == [TooLarge]


async def test_damaged_bytes_are_loaded_anew(world: World) -> None:
    rows(world, compress_threshold=1_000)
    a, b = await world.process("a"), await world.process("b")
    inner = b.partition().inner
    read = inner.read

    async def damaged(*args: Any) -> Any:
        reply = await read(*args)
        looks = tuple(
            Hit(msgspec.structs.replace(look.entry, value=look.entry.value[:-9] + b"\0" * 9), look.token)
            if isinstance(look, Hit) and look.entry.stamp == first
            else look
            for look in reply.looks
        )
        return msgspec.structs.replace(reply, looks=looks)

    await a.get()
    entry = await kept(a)
    assert entry is not None
    first = entry.stamp
    inner.read = damaged  # type: ignore[assignment, method-assign]

    assert await b.get() == ROWS
    assert [type(event) for event in b.events] == [Corrupt]
    assert world.data.loads == 2
