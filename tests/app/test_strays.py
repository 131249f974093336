"""What this program cannot run: unknown tasks, other arguments, broken bytes (BR-090, BR-091)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from msgspec import Struct
from tests.app.work import work, working
from tests.clock import VirtualClock

from selaras import JobFailed, JobState, Selaras
from selaras._app.process.process import Process
from selaras._app.work.host import AppHost
from selaras._core.jobs.job import Claim, NewJob, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.routing import home_of
from selaras._stores.memory.store import MemoryStore


async def test_a_task_of_the_next_version_waits_for_its_worker(url: str) -> None:
    if url.startswith("memory"):
        pytest.skip("two programs share a file")
    old, new = Selaras(url), Selaras(url)

    @old.task
    async def known() -> str:
        return "known"

    @new.task
    async def brand_new() -> str:
        return "new"

    async with old, new:
        job = await brand_new.enqueue()
        other = await known.enqueue()
        async with working(old):
            assert await other.result(timeout=10) == "known"
            await asyncio.sleep(0.3)
            assert (await job.info()).state is not JobState.FAILED
            assert (await job.info()).attempt == 0
        async with working(new):
            assert await job.result(timeout=10) == "new"


async def test_arguments_that_no_longer_fit_are_kept_for_a_worker_that_knows_them(url: str) -> None:
    if url.startswith("memory"):
        pytest.skip("two programs share a file")
    old, new = Selaras(url), Selaras(url)

    @old.task(name="greet")
    async def greet_old(name: str) -> str:
        return f"hello {name}"

    @new.task(name="greet")
    async def greet_new(name: str, title: str) -> str:
        return f"hello {title} {name}"

    async with old, new:
        job = await greet_new.enqueue("Ann", "Dr")
        async with working(old):
            await asyncio.sleep(0.5)
        info = await job.info()
        assert info.state in (JobState.SCHEDULED, JobState.READY)
        assert "title" in info.reason
        assert info.attempt == 0
        async with working(new):
            assert await job.result(timeout=15) == "hello Dr Ann"


async def test_broken_bytes_are_a_dead_letter_and_the_next_job_runs(app: Selaras) -> None:
    @app.task
    async def one(x: int) -> int:
        return x

    process = app.process()
    broken = [
        NewJob(id=f"broken-{n}", task="one", payload=payload, meta=meta)
        for n, (payload, meta) in enumerate([(b"\xff\xffnonsense", b""), (b"", b""), (b"\x01\x80", b"\xc1")])
    ]
    for new in broken:
        await process.store.partitions[home_of(new, process.partitions)].enqueue([new], process.since(0))
    good = await one.enqueue(1)
    await work(app)

    assert await good.result(timeout=10) == 1
    for new in broken:
        with pytest.raises(JobFailed):
            await app.job(new.id).result(timeout=10)
        info = await app.job(new.id).info()
        assert info.attempt == 1  # not tried again
        assert info.arguments is None
        record, _ = await process.store.partitions[home_of(new, process.partitions)].job(new.id, process.since(0))
        assert record is not None
        assert record.payload == new.payload


def host_of(app: Selaras, clock: VirtualClock) -> AppHost:
    process = Process(MemoryStore(clock), clock, Random(1), app.settings, app.registry)
    return AppHost(app.program, process)


def test_it_rests_longer_and_longer_and_is_a_dead_letter_after_an_hour(clock: VirtualClock) -> None:
    app = Selaras("memory://")

    @app.task
    async def one(x: int) -> None: ...

    host = host_of(app, clock)
    strayed_us, delays = 0, list[int]()
    settlement: object = None
    for _ in range(200):
        claim = Claim("j", 1, 1, "another", b"", strayed_us=strayed_us)
        settlement = host.prepare(claim, 0, clock.instant_ns())
        assert isinstance(settlement, Settlement)
        if settlement.event is JobEvent.FAIL:
            break
        assert settlement.event is JobEvent.GIVE_BACK
        strayed_us = strayed_us or clock.wall_us()
        delays.append(settlement.delay_us // 1_000_000)
        clock.advance(settlement.delay_us)

    assert delays[:8] == [1, 1, 2, 4, 8, 16, 32, 60]
    assert max(delays) == 60
    assert sum(delays) >= 3_600
    assert isinstance(settlement, Settlement)
    assert "unroutable" in settlement.reason
    assert "'another'" in settlement.reason


async def test_a_value_whose_type_refuses_it_is_a_failure_of_its_job(app: Selaras) -> None:
    class Strict(Struct, frozen=True):
        x: int

        def __post_init__(self) -> None:
            if strict:
                raise RuntimeError("no more of these")

    strict = False

    @app.task(retries=1)
    async def take(value: Strict) -> None: ...

    @app.task
    async def one() -> int:
        return 1

    job, good = await take.enqueue(Strict(1)), await one.enqueue()
    strict = True
    await work(app)

    assert await good.result(timeout=10) == 1
    with pytest.raises(JobFailed, match="no more of these"):
        await job.result(timeout=10)
