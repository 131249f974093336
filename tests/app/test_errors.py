"""What a body may raise, and what becomes of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable

import pytest
from tests.app.work import work

from selaras import Fail, JobFailed, JobState, LeaseLost, Retry, Selaras, Snooze, current_job

RAISED: list[Callable[[], BaseException]] = [
    lambda: TimeoutError("t"),
    lambda: concurrent.futures.TimeoutError("t"),
    lambda: concurrent.futures.CancelledError("t"),
    lambda: asyncio.CancelledError("t"),
    lambda: KeyboardInterrupt("t"),
    lambda: StopIteration("t"),
    lambda: StopAsyncIteration("t"),
    lambda: GeneratorExit("t"),
    lambda: SystemExit(0),
    lambda: SystemExit("x"),
    lambda: LeaseLost("t"),
]


@pytest.mark.parametrize("make", RAISED, ids=lambda make: type(make()).__name__)
async def test_anything_a_body_raises_is_an_ordinary_failure(make: Callable[[], BaseException]) -> None:
    """BR-014, BR-070."""
    app = Selaras("memory://", backoff=0)
    runs: list[str] = []

    @app.task(retries=1)
    async def in_loop() -> None:
        runs.append("loop")
        raise make()

    @app.task(retries=1)
    def in_thread() -> None:
        runs.append("thread")
        raise make()

    @app.task
    async def after() -> str:
        return "the worker lives"

    async with app:
        jobs = [await in_loop.enqueue(), await in_thread.enqueue()]
        last = await after.enqueue()
        await work(app)

        assert await last.result() == "the worker lives"
        for job in jobs:
            with pytest.raises(JobFailed) as failed:
                await job.result()
            name = type(make()).__name__
            assert name in failed.value.type or name in failed.value.traceback
            assert (await job.info()).state is JobState.FAILED
        assert sorted(runs) == ["loop", "loop", "thread", "thread"]


async def test_a_failure_carries_class_text_and_traceback(app: Selaras) -> None:
    class TooCold(Exception):
        pass

    @app.task(retries=0)
    async def cook() -> None:
        raise TooCold("only 40 degrees")

    job = await cook.enqueue()
    await work(app)

    with pytest.raises(JobFailed) as failed:
        await job.result()
    assert "TooCold" in failed.value.type
    assert failed.value.message == "only 40 degrees"
    assert "in cook" in failed.value.traceback


async def test_retries_end_in_success_or_in_a_dead_letter(app: Selaras) -> None:
    @app.task(retries=2)
    async def third_time() -> int:
        if current_job().attempt < 3:
            raise ValueError("not yet")
        return current_job().attempt

    @app.task(retries=2)
    async def never() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    good, bad = await third_time.enqueue(), await never.enqueue()
    await work(app)

    assert await good.result() == 3
    info = await bad.info()
    assert (info.state, info.attempt) == (JobState.FAILED, 3)
    assert info.failure is not None
    assert info.failure.message == "attempt 3"


async def test_a_body_says_what_happens_next(app: Selaras) -> None:
    snoozed: list[int] = []

    @app.task(retries=0)
    async def snoozes() -> int:
        if len(snoozed) < 3:
            snoozed.append(current_job().attempt)
            raise Snooze(0)
        return current_job().attempt

    @app.task(retries=5)
    async def fails() -> None:
        raise Fail("no such product")

    @app.task(retries=1)
    async def again() -> int:
        if current_job().attempt == 1:
            raise Retry("busy", delay=0)
        return current_job().attempt

    jobs = await snoozes.enqueue(), await fails.enqueue(), await again.enqueue()
    await work(app)

    assert await jobs[0].result() == 1  # a snooze gives the attempt back
    assert snoozed == [1, 1, 1]
    with pytest.raises(JobFailed, match="no such product"):
        await jobs[1].result()
    assert (await jobs[1].info()).attempt == 1
    assert await jobs[2].result() == 2


async def test_a_timeout_is_a_failure(app: Selaras) -> None:
    @app.task(retries=0, timeout=0.05)
    async def hangs() -> None:
        await asyncio.sleep(60)

    @app.task(retries=0, timeout=0.05)
    async def swallows() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "done"

    jobs = [await hangs.enqueue(), await swallows.enqueue()]
    await work(app)

    for job in jobs:
        with pytest.raises(JobFailed) as failed:
            await job.result()
        assert failed.value.type == "TimeoutError"


async def test_a_failed_job_is_retried_by_hand_with_a_fresh_budget(app: Selaras) -> None:
    works = False

    @app.task(retries=0)
    async def depends() -> str:
        if not works:
            raise ValueError("down")
        return "up"

    job = await depends.enqueue()
    await work(app)
    works = True
    await job.retry()
    await work(app)

    assert await job.result() == "up"
    assert len((await job.info()).history) == 1


async def test_secrets_are_shown_to_nobody(app: Selaras) -> None:
    from selaras import Secret

    @app.task(retries=0)
    async def send(to: str, token: Secret[str]) -> str:
        return token

    call = send.call("ann", token="hunter2")
    job = await call.enqueue()
    await work(app)

    info = await job.info()
    assert info.arguments is not None
    assert "ann" in info.arguments
    assert "hunter2" not in info.arguments
    assert "hunter2" not in repr(call)
    assert await job.result() == "hunter2"
