"""A program grows out of its store: no job is lost on the way, none runs twice, whatever interrupts the move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import World
from tests.stores import KINDS, clear_servers, make_store

from selaras import ConfigurationError, StoreUnavailable
from selaras._app.operating.moving import Moved, move
from selaras._contracts.store import Store
from selaras._core.jobs.job import Edge, JobRecord, NewJob, Parent, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._core.routing import home_of, partition_of

WAYS = [
    way
    for way in (("memory-1", "memory-4"), ("sqlite-1", "redis-4"), ("sqlite-4", "redis-1"), ("redis-4", "sqlite-1"))
    if set(way) <= set(KINDS)
]


class CutPartition:
    """One whose store goes away after so many verbs: before the next is done, or before it is answered."""

    def __init__(self, inner: Any, count: Callable[[], None], *, is_done: bool) -> None:
        self.index = inner.index
        self._inner = inner
        self._count = count
        self._is_done = is_done

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        execute = getattr(self._inner, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_done:
                self._count()
            reply = await execute(*args, **kwargs)
            if self._is_done:
                self._count()
            return reply

        return call


class CutStore:
    """Counts the verbs of both stores, and goes away after some."""

    def __init__(self, inner: Store, left: list[int], *, is_done: bool) -> None:
        self.url = inner.url

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StoreUnavailable("it went away")

        self.partitions = [CutPartition(partition, count, is_done=is_done) for partition in inner.partitions]


@asynccontextmanager
async def opened(kind: str, folder: Path, name: str, clock: VirtualClock) -> AsyncIterator[World]:
    (folder / name).mkdir()
    store = make_store(kind, folder / name, clock, Random(name))
    await store.open()
    world = World(store, clock)
    await world.begin()
    try:
        yield world
    finally:
        world.close()
        await store.close()


@asynccontextmanager
async def two(way: tuple[str, str], folder: Path) -> AsyncIterator[tuple[World, World]]:
    clock = VirtualClock()
    async with opened(way[0], folder, "old", clock) as old, opened(way[1], folder, "new", clock) as new:
        yield old, new
    clear_servers()


async def enqueue(world: World, *jobs: NewJob) -> None:
    """Put jobs where they are at home, and their parents there, too."""
    count = len(world.store.partitions)
    for job in jobs:
        parents = tuple([replace(it, home=partition_of(it.job, count)) for it in job.parents])
        at = world.store.partitions[home_of(job, count)]
        await at.enqueue([replace(job, parents=parents)], START)


async def fill(world: World) -> list[str]:
    """Twenty jobs, in lines, waiting for each other, failed, retried and delayed."""
    jobs = [NewJob(id=f"plain-{i}", task="work", priority=i % 3) for i in range(5)]
    jobs += [NewJob(id=f"line-{i}", task="work", line="a line") for i in range(5)]
    jobs += [NewJob(id=f"late-{i}", task="work", delay_us=i * SECOND) for i in range(3)]
    jobs += [NewJob(id="child-0", task="work", parents=(Parent("late-2", Edge.VALUE),))]
    jobs += [NewJob(id=f"child-{i + 1}", task="work", parents=(Parent(f"child-{i}"),)) for i in range(4)]
    jobs += [NewJob(id="unique", task="work", unique="a key")]
    await enqueue(world, *jobs)
    worker = await world.worker("a worker")
    for partition in world.store.partitions:
        reply = await worker.turn(partition=partition.index, limit=2)
        ends = (JobEvent.FAIL, JobEvent.RETRY)
        settlements = [Settlement(it.job, it.fence, end) for it, end in zip(reply.claims, ends, strict=False)]
        await partition.settle(worker.id, settlements, START)
        await partition.dismiss(worker.id)
    return [job.id for job in jobs]


async def find(world: World, id: str) -> JobRecord | None:
    found = [(await partition.job(id, START))[0] for partition in world.store.partitions]
    records = [record for record in found if record is not None]
    assert len(records) < 2, f"{id} is in two partitions"
    return records[0] if records else None


async def runs(world: World) -> list[str]:
    """Run everything; the jobs in the order in which they ran."""
    worker, ran, idle = await world.worker(), list[str](), 0
    while idle < 8:
        idle += 1
        for partition in world.store.partitions:
            reply = await worker.turn(partition=partition.index, limit=1)
            for claim in reply.claims:
                idle = 0
                ran.append(claim.job)
                await partition.settle(
                    worker.id, [Settlement(claim.job, claim.fence, JobEvent.SUCCEED, result=b"r")], START
                )
            worker.beat(partition=partition.index)
            while effects := (await partition.outbox(100)).effects:
                for effect in effects:
                    await world.store.partitions[effect.to].accept([effect])
                await partition.delivered([effect.id for effect in effects])
            await partition.tend(100)
        world.clock.advance(SECOND)
    for partition in world.store.partitions:
        await partition.dismiss(worker.id)
    return ran


async def moved(old: World, new: World, **options: Any) -> Moved:
    return await move(old.store, new.store, old.clock, **{"merges": False, **options})


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_every_job_runs_in_the_new_store_and_none_in_the_old(way: tuple[str, str], tmp_path: Path) -> None:
    async with two(way, tmp_path) as (old, new):
        ids = await fill(old)
        before = {id: await find(old, id) for id in ids}
        failed = [id for id in ids if (record := before[id]) and record.state is JobState.FAILED]

        told = await moved(old, new)

        assert sum(told.jobs.values()) == len(ids)
        for id in ids:
            was, record, left = before[id], await find(new, id), await find(old, id)
            assert was
            assert record
            assert (record.attempt, record.history, record.line, record.unique) == (
                was.attempt,
                was.history,
                was.line,
                was.unique,
            )
            assert left is None or (left.state, left.reason[:5]) in (
                (JobState.CANCELLED, "moved"),
                (JobState.CANCELLED, "paren"),
            )
        assert await runs(old) == []
        assert failed
        for id in failed:
            for partition in new.store.partitions:
                await partition.revive(id)
        ran = await runs(new)
        assert sorted(ran) == sorted(ids)
        in_line = [id for id in ran if id.startswith("line-") and id not in failed]
        assert in_line == sorted(in_line) or in_line[:-1] == sorted(in_line[:-1])  # what was retried is behind


@pytest.mark.parametrize("is_done", [False, True], ids=["not asked", "not answered"])
@pytest.mark.parametrize("way", WAYS[:2], ids=str)
async def test_a_move_that_is_interrupted_anywhere_goes_on_when_it_is_said_again(
    way: tuple[str, str], tmp_path: Path, *, is_done: bool
) -> None:
    async with two(way, tmp_path) as (old, new):
        ids = await fill(old)
        for verbs in range(1, 200, 3):
            left = [verbs]
            try:
                await move(
                    CutStore(old.store, left, is_done=is_done),  # type: ignore[arg-type] # as far as a move needs one
                    CutStore(new.store, left, is_done=is_done),  # type: ignore[arg-type] # likewise
                    old.clock,
                    merges=True,
                )
                break
            except StoreUnavailable:
                pass
            for id in ids:  # it is somewhere, at any moment, and no worker may have it yet that would do it twice
                here, there = await find(old, id), await find(new, id)
                assert there or (here and here.state is not JobState.CANCELLED), id
            assert await runs(new) == []
        else:
            pytest.fail("it never came to its end")

        for id in ids:
            for partition in new.store.partitions:
                await partition.revive(id)
        assert sorted(await runs(new)) == sorted(ids)
        assert await runs(old) == []


async def test_nothing_is_moved_while_somebody_works(tmp_path: Path) -> None:
    async with two(("memory-1", "memory-1"), tmp_path) as (old, new):
        await fill(old)
        await old.worker("busy", name="w1", pid=7, host="h")
        said: list[str] = []

        async def passing(seconds: float) -> None:
            old.clock.advance(round(seconds * SECOND))
            old.pulse.beat(0, beat("busy"))

        old.clock.sleep = passing  # type: ignore[method-assign] # time passes while it waits
        with pytest.raises(ConfigurationError, match=r"is being worked on, by w1 \(pid 7 on h\): stop it first"):
            await moved(old, new, told=said.append)

        assert "waiting until the leases have ended of w1" in said[0]
        assert await new.home.queues() == ()


def beat(instance: str) -> Any:
    from selaras._contracts.partition import HeartbeatRequest

    return HeartbeatRequest(instance=instance, last_turn=0)


async def test_a_killed_workers_jobs_move_when_its_lease_has_ended(tmp_path: Path) -> None:
    async with two(("memory-1", "memory-1"), tmp_path) as (old, new):
        await enqueue(old, NewJob(id="a", task="work"))
        await (await old.worker("killed")).claim()

        async def passing(seconds: float) -> None:
            old.clock.advance(round(seconds * SECOND))

        old.clock.sleep = passing  # type: ignore[method-assign] # time passes while it waits
        await moved(old, new)

        record = await find(new, "a")
        assert record is not None
        assert (record.state, record.lost) == (JobState.READY, 1)


async def test_a_store_with_jobs_is_left_alone_unless_told(tmp_path: Path) -> None:
    async with two(("memory-1", "memory-1"), tmp_path) as (old, new):
        ids = await fill(old)
        await enqueue(new, NewJob(id="own", task="work"))

        with pytest.raises(ConfigurationError, match=r"has jobs already.*--merge"):
            await moved(old, new)
        told = await moved(old, new, merges=True)

        assert sum(told.jobs.values()) == len(ids)
        assert "own" in await runs(new)


async def test_what_was_paused_is_paused_there_and_nothing_else(tmp_path: Path) -> None:
    async with two(("memory-1", "memory-1"), tmp_path) as (old, new):
        await enqueue(old, NewJob(id="a", task="work", queue="mail"), NewJob(id="b", task="work"))
        await old.home.pause("mail", paused=True)

        told = await moved(old, new)

        assert told.paused == ("mail",)
        assert {queue.name: queue.paused for queue in await new.home.queues()} == {"mail": True, "default": False}
