"""The files of the SQLite store: what is refused, what is said, and when a new epoch begins."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from time import perf_counter

import pytest
from tests.clock import SECOND, VirtualClock
from tests.sqlite.opened import claim, opened, worker

from selaras._contracts.limits import TOLD_PER_STEP, reap_grace_us
from selaras._contracts.partition import (
    Enqueued,
    Fill,
    HeartbeatRequest,
    Invalidation,
    JobFilter,
    ReadRequest,
)
from selaras._core.cache.entry import Hit, Miss
from selaras._core.errors import NotEncodable, StoreMismatch, StoreUnavailable
from selaras._core.jobs.job import NewJob, Parent, Put
from selaras._core.jobs.states import JobState
from selaras._core.positions import START
from selaras._stores.sqlite import epochs, lines, plans, writer
from selaras._stores.sqlite.partition import SqlitePartition
from selaras._stores.sqlite.store import SqliteStore

# -- what is refused


async def test_a_file_that_is_no_database_is_named_with_what_to_do(folder: Path, clock: VirtualClock) -> None:
    path = folder / "notes.txt"
    path.write_text("not a database at all, but quite long enough to be taken for one" * 20)

    with pytest.raises(StoreUnavailable, match=r"notes\.txt is not a SQLite database: name another file"):
        async with opened(path, clock):
            pass

    assert path.read_text().startswith("not a database")


async def test_another_program_s_database_is_left_alone(folder: Path, clock: VirtualClock) -> None:
    path = folder / "theirs.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE meta (name, value)")
    con.close()

    with pytest.raises(StoreMismatch, match="another program's database"):
        async with opened(path, clock):
            pass


@pytest.mark.parametrize(
    ("version", "advice"),
    [(99, r"schema 99.*upgrade selaras"), (1, r"schema 1,.*drain its jobs, then move the file away")],
)
async def test_another_schema_is_refused(folder: Path, clock: VirtualClock, version: int, advice: str) -> None:
    path = folder / "s.db"
    async with opened(path, clock):
        pass
    with sqlite3.connect(path) as con:
        con.execute("UPDATE meta SET value = ? WHERE name = 'version'", (version,))
    con.close()

    with pytest.raises(StoreMismatch, match=advice):
        async with opened(path, clock):
            pass


async def test_another_number_of_partitions_is_refused(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock, partitions=2):
        pass

    with pytest.raises(StoreMismatch, match=r"open it with \?partitions=2 in its URL"):
        async with opened(path, clock, partitions=3):
            pass


async def test_a_missing_folder_is_named(folder: Path, clock: VirtualClock) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere/s\.db cannot be opened: does its folder exist"):
        async with opened(folder / "nowhere" / "s.db", clock):
            pass


async def test_a_partition_is_a_file(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock, partitions=3):
        assert {path.name for path in folder.glob("s.db*") if "-" not in path.name} == {"s.db", "s.db.p1", "s.db.p2"}


# -- epochs


async def fill(partition: SqlitePartition, key: str, expires_in_us: int = 0) -> None:
    look = (await partition.read([ReadRequest(key, "", SECOND)], START)).looks[0]
    assert isinstance(look, Miss)
    await partition.fill([Fill(Put(key, b"v", 1, expires_in_us), look.token)], START)
    assert isinstance((await partition.read([ReadRequest(key)], START)).looks[0], Hit)


async def test_a_copy_put_back_in_place_begins_a_new_epoch(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await fill(partition, "k")
    saved = path.read_bytes()
    async with opened(path, clock) as partition:
        await partition.invalidate(Invalidation(("k",)), START)
        look = (await partition.read([ReadRequest("k", "", SECOND)], START)).looks[0]
        assert isinstance(look, Miss)

    path.write_bytes(saved)
    async with opened(path, clock) as partition:
        again = (await partition.read([ReadRequest("k", "", SECOND)], START)).looks[0]

    assert isinstance(again, Miss)
    assert again.token > look.token


@pytest.mark.parametrize("first", ["read", "write"])
async def test_a_copy_restored_into_an_open_file_begins_a_new_epoch(
    folder: Path, clock: VirtualClock, first: str
) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await fill(partition, "k")
        with closing(sqlite3.connect(folder / "backup.db")) as backup, closing(sqlite3.connect(path)) as con:
            con.backup(backup)
        tail = await partition.invalidate(Invalidation(("k",)), START)
        look = (await partition.read([ReadRequest("k", "", SECOND)], tail.tail)).looks[0]
        assert isinstance(look, Miss)

        with closing(sqlite3.connect(folder / "backup.db")) as backup, closing(sqlite3.connect(path)) as con:
            backup.backup(con)
        asked = (
            partition.read([ReadRequest("k")], tail.tail)
            if first == "read"
            else partition.enqueue([NewJob(id="a", task="work")], tail.tail)
        )
        with pytest.raises(StoreUnavailable, match="went back to an older state while it was open"):
            await asked

        again = await partition.read([ReadRequest("k", "", SECOND)], tail.tail)
        assert again.news.reset
        assert again.news.epoch == 1
        assert isinstance(again.looks[0], Miss)
        assert again.looks[0].token > look.token


async def test_a_file_opened_again_goes_on_in_its_epoch(folder: Path, clock: VirtualClock) -> None:
    for _ in range(3):
        async with opened(folder / "s.db", clock) as partition:
            await partition.enqueue([NewJob(id="a", task="work")], START)
            await partition.read([ReadRequest("k", "", SECOND)], START)
            assert (await partition.cache_stats()).epoch == 0


@pytest.mark.parametrize("how", ["another boot", "another file"])
async def test_a_file_whose_memory_cannot_be_trusted_begins_a_new_epoch(
    folder: Path, clock: VirtualClock, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await worker(partition)
        await partition.enqueue([NewJob(id="a", task="work", writes=("w",))], START)
        ((attempt),) = await claim(partition)
        await fill(partition, "k")
        before = await partition.events_since(START)

    if how == "another boot":
        monkeypatch.setattr(epochs, "boot_id", lambda: "after the crash")
    else:
        shutil.copy(path, folder / "copy")
        os.replace(folder / "copy", path)  # noqa: PTH105

    async with opened(path, clock) as partition:
        after = await partition.events_since(before.tail)
        assert after.reset
        assert after.epoch == before.epoch + 1
        look = (await partition.read([ReadRequest("k", "", SECOND)], START)).looks[0]
        assert isinstance(look, Miss)
        assert look.token > attempt.fence
        assert [one.clean for one in await partition.intents("w")] == [False]

        clock.advance(reap_grace_us(15 * SECOND))
        assert (await partition.tend(10)).lost == 1
        record, _ = await partition.job("a", START)
        assert record
        assert record.state is JobState.READY

    async with opened(path, clock) as partition:
        assert (await partition.events_since(START)).epoch == before.epoch + 1


async def test_a_worker_that_lives_keeps_its_lease_over_a_new_epoch(
    folder: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await worker(partition)
        await partition.enqueue([NewJob(id="a", task="work")], START)
        held = await claim(partition)

    monkeypatch.setattr(epochs, "boot_id", lambda: "after the crash")
    store = SqliteStore(path, clock)
    await store.open()
    pulse = store.pulse()
    assert pulse.beat(0, HeartbeatRequest(instance="w", last_turn=1, held=held)).lost == ()
    clock.advance(reap_grace_us(15 * SECOND))

    assert (await store.partitions[0].tend(10)).lost == 0

    pulse.close()
    await store.close()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_vanished_is_noticed_and_never_written_to(
    folder: Path, clock: VirtualClock, how: str
) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await partition.invalidate(Invalidation(("k",)), START)
        tail = (await partition.events_since(START)).tail
        for file in folder.glob("s.db*"):
            file.unlink()
        if how == "replaced":
            async with opened(path, clock) as other:
                await other.enqueue([NewJob(id="theirs", task="work")], START)
        clock.advance(SECOND)

        with pytest.raises(StoreUnavailable, match="deleted or replaced while it was open"):
            await partition.enqueue([NewJob(id="mine", task="work")], START)

        await partition.enqueue([NewJob(id="mine", task="work")], START)
        news = await partition.events_since(tail)
        assert news.reset
        assert news.epoch == 1
        assert path.exists()
        there = {job.id for job in (await partition.jobs(JobFilter())).jobs}
        assert there == ({"mine", "theirs"} if how == "replaced" else {"mine"})


@pytest.mark.parametrize("is_copied", [False, True], ids=["in the log", "copied"])
@pytest.mark.parametrize("is_opened", [False, True], ids=["", "opened by a stranger"])
async def test_a_file_that_was_emptied_is_noticed_and_begun_anew(
    folder: Path, clock: VirtualClock, *, is_opened: bool, is_copied: bool
) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition, opened(path, clock) as other:
        await partition.enqueue([NewJob(id="gone", task="work")], START)
        pulse = partition.pulse(lambda _: None)
        pulse.beat(HeartbeatRequest(instance="w", last_turn=0, held=()))
        await partition.jobs(JobFilter())
        tail = (await other.events_since(START)).tail
        if is_copied:
            with closing(sqlite3.connect(path)) as con:
                con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.truncate(path, 0)
        if is_opened:
            with (
                closing(sqlite3.connect(path)) as con,
                suppress(sqlite3.Error),
            ):  # SQLite deletes the log of an empty file
                con.execute("SELECT * FROM ledger")
        clock.advance(SECOND)
        with pytest.raises(StoreUnavailable, match="truncated while it was open"):
            await partition.enqueue([NewJob(id="not", task="work")], START)
        with pytest.raises(StoreUnavailable, match="truncated while it was open"):
            await other.events_since(START)

        await asyncio.wait_for(partition.enqueue([NewJob(id="mine", task="work")], START), 5)

        await asyncio.to_thread(pulse.beat, HeartbeatRequest(instance="w", last_turn=0, held=()))
        assert {job.id for job in (await other.jobs(JobFilter())).jobs} == {"mine"}
        news = await other.events_since(tail)
        assert news.reset
        assert news.epoch == 1
        pulse.close()


async def test_nobody_on_the_event_loop_waits_for_who_holds_an_emptied_file(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition, opened(path, clock) as idle:
        await partition.enqueue([NewJob(id="gone", task="work")], START)
        await idle.events_since(START)
        os.truncate(path, 0)
        clock.advance(SECOND)
        with pytest.raises(StoreUnavailable, match="truncated"):
            await partition.enqueue([NewJob(id="not", task="work")], START)
        began = perf_counter()

        asked = asyncio.create_task(partition.enqueue([NewJob(id="mine", task="work")], START))
        await asyncio.sleep(0.2)
        with pytest.raises(StoreUnavailable):
            await partition.events_since(START)

        assert not asked.done()
        assert perf_counter() - began < 2
        with pytest.raises(StoreUnavailable, match="truncated"):
            await idle.events_since(START)
        await asyncio.wait_for(asked, 5)


async def test_reads_notice_a_file_that_vanished(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await fill(partition, "k")
        for file in folder.glob("s.db*"):
            file.unlink()
        clock.advance(SECOND)

        assert partition.tail_now() is None
        assert isinstance((await partition.read([ReadRequest("k", "", SECOND)], START)).looks[0], Miss)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_store_time_neither_jumps_nor_stands_still_with_the_wall_clock(
    folder: Path, clock: VirtualClock, hours: int
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await partition.enqueue([NewJob(id="a", task="work")], START)
        clock.jump(hours * 3_600 * SECOND)
        await partition.enqueue([NewJob(id="b", task="work")], START)
        clock.advance(10 * SECOND)
    async with opened(folder / "s.db", clock) as partition:
        await partition.enqueue([NewJob(id="c", task="work")], START)

        third, second, first = [one.created_us for one in (await partition.jobs(JobFilter())).jobs]

        assert second == first
        assert third - second == 10 * SECOND + hours * SECOND // 10


async def test_store_time_comes_nearer_to_civil_time(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await partition.enqueue([NewJob(id="a", task="work")], START)
        clock.jump(SECOND)
        for _ in range(11):
            clock.advance(SECOND)
            await partition.tend(1)
        await partition.enqueue([NewJob(id="b", task="work")], START)

        record, _ = await partition.job("b", START)

        assert record is not None
        assert record.created_us == clock.wall_us()


async def test_what_a_killed_process_had_begun_to_tell_is_told_by_the_next_one(
    folder: Path, clock: VirtualClock
) -> None:
    many, path = 2 * TOLD_PER_STEP + 1, folder / "selaras.db"
    async with opened(path, clock) as partition:
        await partition.enqueue([NewJob(id="parent", task="work", delay_us=SECOND)], START)
        children = [NewJob(id=f"child-{i}", task="work", parents=(Parent("parent"),)) for i in range(many)]
        await partition.enqueue(children, START)
        await partition.cancel("parent", "by hand")
    async with opened(path, clock) as partition:
        (stats,) = await partition.queues()
        assert stats.counts == {"cancelled": TOLD_PER_STEP + 1, "blocked": many - TOLD_PER_STEP}
        assert (await partition.tend(10)).again
        assert not (await partition.tend(10)).again
        (stats,) = await partition.queues()
        assert stats.counts == {"cancelled": many + 1}


async def test_a_name_that_is_not_text_is_refused_and_stops_nobody_else(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        with pytest.raises(NotEncodable, match="lone surrogate"):
            await partition.read([ReadRequest("key-\ud800")], START)

        good, bad = await asyncio.gather(
            partition.enqueue([NewJob(id="good", task="work")], START),
            partition.enqueue([NewJob(id="bad-\ud800", task="work")], START),
            return_exceptions=True,
        )

        assert isinstance(bad, NotEncodable)
        assert isinstance(good, Enqueued)
        assert [job.id for job in (await partition.jobs(JobFilter())).jobs] == ["good"]


# -- plans


async def test_no_hot_statement_scans_a_table(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock):
        con = sqlite3.connect(path)
        for name, statement in plans.HOT.items():
            steps = plans.plan(con, statement)
            given = ("CONSTANT", "(", "VIRTUAL TABLE")
            whole = [step for step in steps if step.startswith("SCAN") and not any(word in step for word in given)]
            # Tables of what runs, and of lanes: that is not much.
            assert whole == {"running": ["SCAN r"], "unroutable": ["SCAN l"]}.get(name, []), (name, steps)
            assert name == "running" or not any("TEMP B-TREE" in step for step in steps), (name, steps)
        con.close()


async def test_a_long_queue_is_claimed_in_order_by_index(folder: Path, clock: VirtualClock) -> None:
    async with opened(folder / "s.db", clock) as partition:
        await worker(partition)
        for start in range(0, 20_000, 1_000):
            await partition.enqueue([NewJob(id=f"{n:06}", task="work") for n in range(start, start + 1_000)], START)
        await partition.enqueue([NewJob(id="urgent", task="work", priority=1)], START)

        claimed = await claim(partition, limit=3)

        assert [attempt.job for attempt in claimed] == ["urgent", "000000", "000001"]
        (queue,) = await partition.queues()
        assert queue.counts == {"ready": 19_998, "running": 3}


async def test_the_next_in_a_long_line_is_found_in_a_few_steps(folder: Path, clock: VirtualClock) -> None:
    path = folder / "s.db"
    async with opened(path, clock) as partition:
        await worker(partition)
        waiting = [NewJob(id=f"{n:06}", task="work", line="l") for n in range(2_000)]
        await partition.enqueue(waiting, START)
        con = sqlite3.connect(path)
        steps = [0]

        def count() -> None:
            steps[0] += 1

        con.set_progress_handler(count, 1)
        for statement, given in (
            (lines.NEXT_KIND, ("l", -1, "000000")),
            (lines.NEXT_QUEUE, ("l", 0, "default", "000000")),
            (lines.LINES_AHEAD, ('["l"]',)),
            (lines.MIXED_LINES, ()),
        ):
            steps[0] = 0
            con.execute(statement, given).fetchall()
            assert steps[0] < 1_000, (steps, statement)
        con.close()


async def test_the_log_is_copied_though_few_rows_of_large_values_are_in_it(
    folder: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 4 << 20)
    path, large = folder / "s.db", bytes(1 << 18)
    async with opened(path, clock) as partition:
        for number in range(100):
            await partition.enqueue([NewJob(id=f"{number}", task="work", payload=large)], START)
        size = path.stat().st_size
        for _ in range(200):  # it is copied in a thread
            if size > 4 << 20:
                break
            await asyncio.sleep(0.01)
            size = path.stat().st_size
        assert size > 4 << 20


async def test_values_whose_time_is_over_leave_the_file_however_many_they_are(
    folder: Path, clock: VirtualClock
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        for number in range(5):
            await fill(partition, f"k{number}", expires_in_us=SECOND)
        await fill(partition, "lives on")
        clock.advance(2 * SECOND)

        assert [(await partition.tend(2)).again for _ in range(3)] == [True, True, False]
    with closing(sqlite3.connect(folder / "s.db")) as con:
        assert con.execute("SELECT key FROM entries").fetchall() == [("lives on",)]
