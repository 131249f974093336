"""Waiting for a result ends in bounded time, whatever became of the job (BR-041)."""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.app.work import work, working

from selaras import JobCancelled, JobFailed, Selaras, StoreUnavailable, UnknownJob
from selaras._app.jobs import waiting
from selaras._app.jobs.waiting import worker_command
from selaras._core.jobs.states import JobState


async def test_a_job_that_ended_long_ago(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.enqueue()
    await work(app)
    await asyncio.sleep(0.05)

    assert await job.result() == 1
    assert await app.job(job.id).result() == 1


async def test_a_job_that_never_existed(app: Selaras) -> None:
    with pytest.raises(UnknownJob, match="never"):
        await app.job("never").result()
    with pytest.raises(UnknownJob, match="never"):
        await app.job("never").info()


async def test_a_result_that_is_not_kept(app: Selaras) -> None:
    @app.task(result_ttl=0)
    async def one() -> int:
        return 1

    job = await one.enqueue()
    async with working(app), asyncio.timeout(10):
        try:
            assert await job.result() == 1  # seen in time
        except UnknownJob:
            pass
    await asyncio.sleep(0.05)
    for partition in app.process().store.partitions:
        await partition.tend(100)
    with pytest.raises(UnknownJob, match="result_ttl was over"):
        await job.result()


async def test_a_job_that_is_deleted_meanwhile(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.options(delay=60).enqueue()
    waiting = asyncio.create_task(job.result())
    await asyncio.sleep(0.02)
    for partition in app.process().store.partitions:
        await partition.purge([JobState.SCHEDULED], "", 100)

    async with asyncio.timeout(8):
        with pytest.raises(UnknownJob, match="deleted"):
            await waiting


async def test_fifty_wait_at_once_and_some_give_up(app: Selaras) -> None:
    go = asyncio.Event()

    @app.task
    async def slow() -> int:
        await go.wait()
        return 7

    job = await slow.enqueue()
    async with working(app):
        waiting = [asyncio.create_task(job.result()) for _ in range(50)]
        await asyncio.sleep(0.05)
        for one in waiting[::2]:
            one.cancel()
        go.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)

    assert results[1::2] == [7] * 25
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert len(app.process().ends) == 0


async def test_a_timeout_says_that_the_job_goes_on(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.options(delay=60).enqueue()
    with pytest.raises(TimeoutError, match="it is scheduled in queue 'default'"):
        await job.result(timeout=0.02)


async def test_a_body_that_raises_a_timeout_is_not_taken_for_ours(app: Selaras) -> None:
    """BR-014."""

    @app.task(retries=0)
    async def raises() -> None:
        raise TimeoutError("the body's own")

    job = await raises.enqueue()
    await work(app)
    with pytest.raises(JobFailed, match="the body's own"):
        await job.result(timeout=5)


async def test_a_queue_without_workers_is_told_within_two_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = Selaras(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def one() -> int:
        return 1

    async with app:
        job = await one.enqueue()
        other = await one.options(queue="night").enqueue()
        with caplog.at_level(logging.WARNING, "selaras"):
            with pytest.raises(TimeoutError):
                await job.result(timeout=2)
            with pytest.raises(TimeoutError):
                await other.result(timeout=2)

    first, second = [record.getMessage() for record in caplog.records if record.name == "selaras"]
    assert "queue 'default'" in first
    assert f"sqlite:///{tmp_path}/jobs.db" in first
    assert "no worker serves it" in first
    assert "selaras worker " in first
    assert second.endswith(" -q night")


async def test_a_queue_that_loses_its_worker_is_told_though_it_had_one(
    app: Selaras, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    @app.task
    async def waits() -> None:
        await go.wait()

    async with working(app, concurrency=1):
        await waits.enqueue()
        second = await waits.enqueue()
        with pytest.raises(TimeoutError):
            await second.result(timeout=2)
        go.set()
        await second.result(timeout=10)
    assert caplog.messages == []

    third = await waits.enqueue()
    with pytest.raises(TimeoutError):
        await third.result(timeout=2)
    assert "no worker serves it" in caplog.messages[-1]


async def test_whoever_was_told_of_an_end_reads_nothing_older(app: Selaras) -> None:
    """G8, through result() and info()."""
    prices = dict.fromkeys(range(10), 0)

    @app.cached(ttl=300)
    async def price(id: int) -> int:
        return prices[id]

    @app.task(writes=price)
    async def raise_price(id: int) -> None:
        prices[id] += 1

    async with working(app):
        for round_ in range(1, 4):
            for id in prices:
                assert await price(id) == round_ - 1
            jobs = await app.enqueue_many(raise_price.call(id) for id in prices)
            for id, job in enumerate(jobs):
                await job.result(timeout=10)
                assert await price(id) == round_


async def test_a_timeout_says_how_the_job_stands_and_what_it_lacks(app: Selaras) -> None:
    @app.task
    async def nobody() -> None: ...

    ready, later = await nobody.enqueue(), await nobody.options(delay=60, queue="odd").enqueue()

    with pytest.raises(
        TimeoutError, match=r"it is ready in queue 'default', and no worker serves it; .*: selaras worker"
    ):
        await ready.result(timeout=0.05)
    with pytest.raises(TimeoutError, match=r"it is scheduled in queue 'odd', and no worker serves it; .* -q odd"):
        await later.result(timeout=0.05)


async def test_a_timeout_says_that_the_queue_is_paused(app: Selaras) -> None:
    @app.task(queue="slow lane")
    async def nobody() -> None: ...

    job = await nobody.enqueue()
    await app.process().store.partitions[0].pause("slow lane", paused=True)

    with pytest.raises(
        TimeoutError, match=r"in queue 'slow lane', which is paused; .*: selaras queues resume 'slow lane' --app"
    ):
        await job.result(timeout=0.05)


def test_a_worker_is_started_with_a_module_that_knows_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wait_core.py").write_text(f"from selaras import Selaras\napp = Selaras('sqlite:///{tmp_path}/a.db')\n")
    task = "@app.task\nasync def {0}() -> None: ...\n"
    (tmp_path / "wait_tasks.py").write_text(
        "from wait_core import app as mine\n" + task.format("near").replace("app", "mine")
    )
    (tmp_path / "wait_far.py").write_text("import wait_core\n" + task.format("far").replace("app", "wait_core.app"))
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("wait_tasks", "wait_far"):
        importlib.import_module(module)
    program = importlib.import_module("wait_core").app.program

    assert worker_command(program, "default", "near") == "selaras worker wait_tasks:mine"
    assert worker_command(program, "odd", "far") == (
        "selaras worker wait_core:app -q odd (and name the task's module in the app: include=['wait_far'])"
    )


async def test_a_job_after_one_that_never_was_says_so(app: Selaras) -> None:
    @app.task
    async def follower() -> None: ...

    job = await follower.options(after="abc").enqueue()

    with pytest.raises(JobCancelled, match="parent abc is not known: never enqueued, or no longer kept"):
        await job.result(timeout=10)


@pytest.mark.parametrize("verb", ["job", "events_since"])
async def test_whoever_waits_for_a_job_waits_a_while_for_its_store_too(
    app: Selaras, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def one() -> int:
        return 1

    async with app:
        job = await one.enqueue()
        await work(app)
        away = 3
        for partition in app.process().store.partitions:
            answer = getattr(partition, verb)

            async def cut(*args: Any, answer: Any = answer) -> Any:
                nonlocal away
                away -= 1
                if away > 0:
                    raise StoreUnavailable("the connection was cut")
                return await answer(*args)

            monkeypatch.setattr(partition, verb, cut)

        assert await job.result(timeout=10) == 1
        away = 1_000_000
        monkeypatch.setattr(waiting, "_AWAY_NS", 300_000_000)
        if verb == "job" or len(app.process().store.partitions) > 1:
            with pytest.raises(StoreUnavailable, match="cut"):
                await job.result(timeout=10)
