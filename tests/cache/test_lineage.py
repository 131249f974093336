"""Lineage: what jobs read, who made it, and what happened to keys; bounded, and found by other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cache.world import Process, World, begin
from tests.stores import KINDS, clear_servers

from selaras._app.operating.lineage import noted, recent
from selaras._cache.lineage import NOTED_A_SECOND, PAGE_MOST, PAGES, READS_MOST, Lineage, Watch
from selaras._cache.session import Session
from selaras._core.cache.lineage import Happening, What, maker_of, page_bytes, page_of
from selaras._core.jobs.states import JobEvent


@pytest.fixture(params=[kind for kind in KINDS if kind.endswith("-1")])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """One partition, on every kind of store."""
    async with World(request.param, tmp_path) as world:
        yield world
    clear_servers()


def with_lineage(world: World, name: str, process: Process, *, jobs: int = 50) -> Lineage:
    """Let a process note what happens, as an app's does."""
    lineage = Lineage(
        process.store.partitions,
        world.clock,
        jobs_a_second=jobs,
        process=name,
        where=name,
        by=lambda: ("", "", ""),
    )
    cache = process.cache
    cache.lineage = cache._loading._lineage = cache._voiding._lineage = cache.settles._lineage = lineage
    return lineage


async def a_reading_job(process: Process, lineage: Lineage, id: str, *rows: int) -> Session:
    session = await process.claim(id)
    watch = lineage.watch(session)
    assert watch is not None
    for row in rows:
        await process.get(row, session=session)
    lineage.ended(watch, id, "look")
    return session


async def test_a_read_is_told_with_the_settle_that_made_its_version(world: World) -> None:
    writer, reader = await world.process("w"), await world.process("r")
    of_writer, of_reader = with_lineage(world, "w", writer), with_lineage(world, "r", reader)
    slot = world.slot()
    await reader.get()
    job = await writer.claim("writer", writes=[slot])
    job.started, job.task = True, "reprice"
    world.data.rows[42] = 2
    await writer.within(job, writer.cache.put(slot, 2))
    await writer.settle(job)

    await a_reading_job(reader, of_reader, "reader", 42)
    await of_writer.publish()
    await of_reader.publish()
    happenings = await recent(world.store)

    (read,) = [one for one in happenings if one.what is What.READ]
    maker = maker_of(read, 0, happenings)
    assert (read.job, read.key, read.tier, read.where) == ("reader", "product:42", "shared", "r")
    assert maker is not None
    assert (maker.job, maker.task, maker.what, maker.where) == ("writer", "reprice", What.STORED, "w")


async def test_a_value_that_was_loaded_after_a_settle_is_that_settle_s(world: World) -> None:
    writer, reader = await world.process("w"), await world.process("r")
    lineage, of_reader = with_lineage(world, "w", writer), with_lineage(world, "r", reader)
    first = await writer.claim("first", writes=[world.slot()])
    await writer.settle(first)
    second = await writer.claim("second", writes=[world.slot()])
    await writer.settle(second)

    await a_reading_job(reader, of_reader, "reader", 42, 42)

    happenings = [*lineage.recent, *of_reader.recent]
    reads = [one for one in happenings if one.what is What.READ]
    assert [one.tier for one in reads] == ["loader", "local"]
    makers = [maker_of(one, 0, happenings) for one in reads]
    assert [(maker.job, maker.what) for maker in makers if maker] == [("second", What.RESOLVED)] * 2


async def test_what_happens_to_a_key_is_noted(world: World) -> None:
    process, other = await world.process("p"), await world.process("q")
    lineage = with_lineage(world, "p", process)
    held = world.data.hold()
    reading = begin(process.get())
    await held.done.wait()
    await other.cache.invalidate([world.slot()])
    held.release()
    await reading
    await process.get()
    await process.cache.invalidate([world.slot()], families=["product"])
    job = await process.claim("lost", writes=[world.slot()])
    await process.settle(job, JobEvent.FAIL)

    assert [(one.what, one.key) for one in lineage.recent] == [
        (What.UNFILLED, "product:42"),
        (What.FILLED, "product:42"),
        (What.VOIDED, "product:42"),
        (What.VOIDED, "family product"),
        (What.RESOLVED, "product:42"),
    ]


async def test_so_many_jobs_a_second_are_watched_and_so_many_reads_of_each_are_noted(world: World) -> None:
    process = await world.process("p")
    lineage = with_lineage(world, "p", process, jobs=2)
    sessions = [await process.claim(f"job-{number}") for number in range(4)]

    watched = [lineage.watch(session) for session in sessions]

    assert [watch is not None for watch in watched] == [True, True, False, False]
    assert [session.watcher is not None for session in sessions] == [True, True, False, False]
    world.advance(1.1)
    assert lineage.watch(sessions[2]) is not None
    watch = Watch()
    for row in range(READS_MOST + 7):
        watch.saw(world.slot(row), row, "local")
    assert (len(watch.reads), watch.left_out) == (READS_MOST, 7)
    before = len(lineage.recent)
    for row in range(NOTED_A_SECOND + 20):
        lineage.note(What.VOIDED, f"product:{row}")
    assert len(lineage.recent) - before == NOTED_A_SECOND


async def test_none_are_watched_where_none_is_wanted(world: World) -> None:
    process = await world.process("p")
    lineage = with_lineage(world, "p", process, jobs=0)

    assert lineage.watch(await process.claim("job")) is None
    lineage.note(What.VOIDED, "product:42")

    assert not lineage.recent


async def test_what_is_kept_in_the_store_is_bounded_and_the_newest(world: World) -> None:
    process = await world.process("p")
    lineage = with_lineage(world, "p", process)
    total = PAGE_MOST * (PAGES + 2)
    for number in range(total):
        if number % (PAGE_MOST // 2) == 0:
            world.advance(1.1)
            await lineage.publish()
        lineage.note(What.VOIDED, f"product:{number}")
    await lineage.publish()

    found = await recent(world.store)

    assert len(found) == PAGE_MOST * PAGES
    assert found[-1].key == f"product:{total - 1}"
    count, size = await noted(world.store)
    assert count == PAGES + 1
    assert size < PAGES * PAGE_MOST * 100
    world.advance(90_000)
    assert await recent(world.store) == []


async def test_it_is_shown_by_any_reply_once_a_second_has_passed(world: World) -> None:
    process = await world.process("p")
    lineage = with_lineage(world, "p", process)
    await process.cache.invalidate([world.slot()])
    assert await recent(world.store) == []

    world.advance(1.1)
    await process.catch_up()
    await world.until(lambda: lineage._is_fresh and not lineage._is_publishing)

    assert [one.what for one in await recent(world.store)] == [What.VOIDED]


async def test_a_store_that_is_away_is_told_later(world: World) -> None:
    process = await world.process("p")
    lineage = with_lineage(world, "p", process)
    await process.cache.invalidate([world.slot()])
    process.partition().down = True
    await lineage.publish()
    process.partition().down = False

    await lineage.publish()

    assert [one.what for one in await recent(world.store)] == [What.VOIDED]


def test_pages_of_another_version_are_empty() -> None:
    page = [Happening(1, What.READ, "product:42", "here", "job", "task", 7, "local")]

    assert page_of(page_bytes(page)) == page
    assert page_of(b"\xc1") == page_of(None) == []


async def test_what_all_partitions_were_told_is_one_happening_with_the_position_of_each(tmp_path: Path) -> None:
    async with World("memory-4", tmp_path) as world:
        process = await world.process("p")
        lineage = with_lineage(world, "p", process)
        await process.cache.invalidate([world.slot()])

        await process.cache.invalidate(families=["product"], tags=["t"])
        await process.cache.invalidate(families=["product"])

        tails = {index: follower.applied.position for index, follower in enumerate(process.cache._followers)}
        assert [one.key for one in lineage.recent] == ["product:42", "tag t", "family product", "family product"]
        assert lineage.recent[-1].positions == tails
        (page,) = [page_of(page_bytes([lineage.recent[-1]]))]
        assert [one.at(partition) for one in page for partition in tails] == list(tails.values())
