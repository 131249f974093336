"""Names that other partitions keep: unique keys and ids of one's own (P22)."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.app.work import work

from selaras import IdConflict, JobState, Selaras, StoreUnavailable, Task
from selaras._app.jobs import placing
from selaras._app.process.process import Process
from selaras._contracts.partition import Partition
from selaras._core.jobs.job import Admission, NewJob
from selaras._core.routing import partition_of


@pytest.fixture
async def wide() -> AsyncIterator[Selaras]:
    async with Selaras("memory://?partitions=4", backoff=0, backoff_most=0) as app:
        yield app


def key_elsewhere(app: Selaras, line: str = "line:1") -> str:
    """Return a unique key that another partition keeps than that of the line."""
    count = app.process().partitions
    return next(f"u{n}" for n in range(99) if partition_of(f"u{n}", count) != partition_of(line, count))


def declare(app: Selaras, ran: list[tuple[int, int]]) -> Task[[int, int], None]:
    @app.task(lock="line:{line}")
    async def note(line: int, value: int) -> None:
        ran.append((line, value))

    return note


async def test_the_latest_arguments_win_though_the_key_is_kept_elsewhere(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)

    first = await note.options(unique=unique).enqueue(1, 10)
    second = await note.options(unique=unique, on_conflict="replace").enqueue(1, 20)
    third = await note.options(unique=unique, on_conflict="replace").enqueue(2, 30)

    assert second.replaced
    assert third.replaced
    assert (await first.info()).state is JobState.CANCELLED
    await work(wide)
    assert ran == [(2, 30)]


async def test_what_replaces_a_job_waits_for_its_parents(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)
    parent = await note.options(delay=60).enqueue(3, 0)

    await note.options(unique=unique, after=parent).enqueue(1, 10)
    second = await note.options(unique=unique, on_conflict="replace").enqueue(1, 20)
    await work(wide)

    assert ran == []
    assert (await second.info()).state is JobState.BLOCKED


async def test_nothing_is_lost_when_the_job_that_replaces_cannot_be_enqueued(
    wide: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)
    await note.options(unique=unique).enqueue(1, 10)

    async def down(*_: Any) -> Any:
        raise StoreUnavailable("busy")

    with monkeypatch.context() as patched:
        patched.setattr(placing, "_enqueue", down)
        with pytest.raises(StoreUnavailable):
            await note.options(unique=unique, on_conflict="replace").enqueue(1, 20)

    assert not (await note.options(unique=unique).enqueue(1, 30)).created  # the first still has its key
    await work(wide)
    assert ran == [(1, 10)]


async def test_a_retry_gives_way_to_a_newer_twin_though_the_key_is_kept_elsewhere(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    unique, twins = key_elsewhere(wide), []

    @wide.task(lock="line:{line}", backoff=60)
    async def note(line: int, value: int) -> None:
        ran.append((line, value))
        # It has begun and may have read what was: the new request is a job of its own.
        twins.append(await note.options(unique=unique, now=True, delay=60).enqueue(2, 20))
        raise RuntimeError

    first = await note.options(unique=unique).enqueue(1, 10)
    await work(wide)

    assert ran == [(1, 10)]
    assert (await first.info()).reason == f"superseded by {twins[0].id}"


async def test_an_id_is_free_for_another_line_once_its_job_is_forgotten(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    note = declare(wide, ran)
    id = key_elsewhere(wide)
    await note.options(id=id).enqueue(1, 10)
    await work(wide)
    for partition in wide.process().store.partitions:
        await partition.purge([JobState.SUCCEEDED], "", 10)

    await work(wide)  # any worker delivers
    async with asyncio.timeout(5):
        again = await note.options(id=id).enqueue(2, 20)
    await work(wide)

    assert again.created
    assert ran == [(1, 10), (2, 20)]


async def test_a_key_kept_where_the_job_lives_is_not_taken_from_a_job_elsewhere(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)

    @wide.task
    async def plain() -> None: ...

    first = await note.options(unique=unique).enqueue(1, 10)
    second = await plain.options(unique=unique).enqueue()

    assert second.id == first.id
    assert not second.created


async def test_a_producer_that_is_held_up_keeps_its_reservation(wide: Selaras, monkeypatch: pytest.MonkeyPatch) -> None:
    note, unique = declare(wide, []), key_elsewhere(wide)
    held = HeldUp(monkeypatch)

    slow = asyncio.ensure_future(note.options(unique=unique).enqueue(1, 10))
    await held.reached.wait()
    other = asyncio.ensure_future(note.options(unique=unique).enqueue(1, 20))
    await asyncio.sleep(0.1)
    assert not other.done()
    held.go.set()

    assert (await slow).created
    assert not (await other).created
    assert (await other).id == (await slow).id


async def test_a_producer_whose_reservation_was_taken_over_takes_its_job_back(
    wide: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)
    monkeypatch.setattr(placing, "_RESERVED_S", 0.05)
    held = HeldUp(monkeypatch)

    slow = asyncio.ensure_future(note.options(unique=unique).enqueue(1, 10))
    await held.reached.wait()
    other = await note.options(unique=unique).enqueue(1, 20)  # as after half a minute
    held.go.set()
    twin = await slow

    assert other.created
    assert not twin.created
    assert twin.id == other.id
    await work(wide)
    assert ran == [(1, 20)]


async def test_one_id_is_one_job_in_all_partitions(wide: Selaras, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    note, count = declare(wide, ran), wide.process().partitions
    other_line = next(n for n in range(2, 99) if partition_of(f"line:{n}", count) != partition_of("line:1", count))
    monkeypatch.setattr(placing, "_RESERVED_S", 0.05)
    held = HeldUp(monkeypatch)

    slow = asyncio.ensure_future(note.options(id="mine").enqueue(1, 10))
    await held.reached.wait()
    await note.options(id="mine").enqueue(other_line, 20)
    held.go.set()

    with pytest.raises(IdConflict):
        await slow
    await work(wide)
    assert ran == [(other_line, 20)]


async def test_a_key_is_free_again_after_a_job_that_ran_at_once(wide: Selaras, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)
    monkeypatch.setattr(placing, "_enqueue", _and_run(wide, placing._enqueue))

    first = await note.options(unique=unique).enqueue(1, 10)
    second = await note.options(unique=unique).enqueue(1, 20)

    assert first.created
    assert second.created
    at = partition_of(unique, wide.process().partitions)
    entry = await wide.process().store.partitions[at].reserve(unique, "a probe", 0, "")
    assert entry.mine


def _and_run(app: Selaras, enqueue: Any) -> Any:
    async def run(process: Process, home: int, jobs: Sequence[NewJob]) -> tuple[Admission, ...]:
        admissions: tuple[Admission, ...] = await enqueue(process, home, jobs)
        await work(app)
        return admissions

    return run


async def test_a_child_that_cannot_have_its_names_yet_does_not_cost_its_parent_an_attempt(
    wide: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    partitions: Sequence[Partition] = wide.process().store.partitions
    failures = 3

    @wide.task(lock="line:{x}")
    async def child(x: int) -> None: ...

    @wide.task(max_lost=1)
    async def parent(x: int) -> int:
        ran.append(x)
        await child.options(id="the child").enqueue(x)
        return x

    for partition in partitions:
        reserve = partition.reserve

        async def busy(*args: Any, reserve: Any = reserve) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StoreUnavailable("busy")
            return await reserve(*args)

        monkeypatch.setattr(partition, "reserve", busy)
    job = await parent.enqueue(1)
    await work(wide)

    assert await job.result(timeout=10) == 1
    assert failures == 0
    assert ran == [1]
    assert (await wide.job("the child").info()).state is JobState.SUCCEEDED


async def test_a_child_may_replace_a_waiting_job(wide: Selaras) -> None:
    ran: list[tuple[int, int]] = []
    note, unique = declare(wide, ran), key_elsewhere(wide)

    @wide.task
    async def parent() -> None:
        await note.options(unique=unique, on_conflict="replace").enqueue(1, 20)

    waiting = await note.options(unique=unique, delay=60).enqueue(1, 10)
    await parent.enqueue()
    await work(wide)
    await work(wide)

    assert ran == [(1, 20)]
    async with asyncio.timeout(5):
        while (await waiting.info()).state is not JobState.CANCELLED:
            await asyncio.sleep(0.01)


class HeldUp:
    """The next enqueue is held between its reservation and its step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        enqueue = placing._enqueue

        async def held(process: Process, home: int, jobs: Sequence[NewJob]) -> tuple[Admission, ...]:
            if not self.reached.is_set():
                self.reached.set()
                await self.go.wait()
            return await enqueue(process, home, jobs)

        monkeypatch.setattr(placing, "_enqueue", held)
