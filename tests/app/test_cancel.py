"""Cancelling a job in every state (BR-104)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.app.work import work, working

from selaras import JobCancelled, JobState, Selaras, UnknownJob


async def test_a_waiting_job_never_starts(app: Selaras) -> None:
    ran: list[int] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    ready = await note.enqueue(1)
    delayed = await note.options(delay=0.05).enqueue(2)
    parent = await note.options(delay=60).enqueue(3)
    child = await note.options(after=parent).enqueue(4)
    for job in (ready, delayed, child, parent):
        assert await job.cancel("not wanted")
        assert not await job.cancel()  # twice
    await asyncio.sleep(0.1)
    await work(app)

    assert ran == []
    for job in (ready, delayed, child, parent):
        with pytest.raises(JobCancelled, match="not wanted"):
            await job.result(timeout=5)


async def test_a_reason_cannot_colour_the_terminal_of_who_waits(app: Selaras) -> None:
    @app.task
    async def note() -> None: ...

    job = await note.enqueue()
    await job.cancel("\x1b[31mred\nand more")

    with pytest.raises(JobCancelled, match=r"\\x1b\[31mred\\nand more$"):
        await job.result(timeout=5)


async def test_a_running_coroutine_stops_soon(app: Selaras) -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    @app.task
    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    job = await long.enqueue()
    async with working(app):
        await started.wait()
        async with asyncio.timeout(2):
            assert await job.cancel("enough")
            with pytest.raises(JobCancelled):
                await job.result()
            await cleaned.wait()


async def test_a_running_thread_ends_and_its_result_is_dropped(app: Selaras) -> None:
    started, go = threading.Event(), threading.Event()

    @app.task
    def long() -> str:
        started.set()
        go.wait(10)
        return "too late"

    job = await long.enqueue()
    async with working(app):
        await asyncio.to_thread(started.wait, 10)
        assert await job.cancel()
        await asyncio.sleep(0.3)  # the worker has heard of it
        go.set()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)


async def test_what_ended_is_not_cancelled_any_more(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.enqueue()
    await work(app)

    assert not await job.cancel()
    assert await job.result() == 1


async def test_an_unknown_job_is_told_apart(app: Selaras) -> None:
    with pytest.raises(UnknownJob):
        await app.job("never").cancel()


async def test_a_cancelled_job_frees_its_unique_key(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    first = await one.options(unique="u").enqueue()
    await first.cancel()
    second = await one.options(unique="u").enqueue()

    assert second.created
    assert (await second.info()).state is JobState.READY


async def test_a_held_child_is_cancelled_before_it_exists(app: Selaras) -> None:
    ran: list[str] = []

    @app.task
    async def child(name: str) -> None:
        ran.append(name)

    @app.task
    async def parent() -> None:
        dropped = await child.enqueue("dropped")
        await child.enqueue("kept")
        assert await dropped.cancel()

    await parent.enqueue()
    await work(app)
    await work(app)

    assert ran == ["kept"]


async def test_the_reason_of_a_cancel_is_kept_whatever_the_job_was_doing(app: Selaras) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    waiting, running = await endless.options(delay=60).enqueue(), await endless.enqueue()
    await waiting.cancel("the order was withdrawn")
    async with working(app):
        while (await running.info()).state is not JobState.RUNNING:
            await asyncio.sleep(0.01)
        await running.cancel("the order was withdrawn")
        for job in (waiting, running):
            with pytest.raises(JobCancelled, match="the order was withdrawn"):
                await job.result(timeout=10)

    assert (await running.info()).reason == "the order was withdrawn"
