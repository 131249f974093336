"""What a settle says of a body that was stopped, and of keys that were served on while it wrote."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.app.work import work, working

from selaras import JobCancelled, JobFailed, JobState, Selaras
from selaras._app.work import host as hosts
from selaras._app.work.host import AppHost
from selaras._core.jobs.job import Settlement
from selaras._core.routing import partition_of


@pytest.fixture
def settlements(monkeypatch: pytest.MonkeyPatch) -> list[Settlement]:
    """Each settlement that the app hears the answer of."""
    seen: list[Settlement] = []
    settled = AppHost.settled

    def hear(self: AppHost, run: Any, settlement: Settlement, *rest: Any) -> None:
        seen.append(settlement)
        settled(self, run, settlement, *rest)

    monkeypatch.setattr(AppHost, "settled", hear)
    return seen


async def test_a_coroutine_that_was_stopped_is_unsure_and_one_that_raised_is_not(
    app: Selaras, settlements: list[Settlement]
) -> None:
    running = asyncio.Event()

    @app.cached
    async def price(id: int) -> int:
        return id

    @app.task(writes=price, retries=0, timeout=0.05)
    async def times_out(id: int) -> None:
        await asyncio.sleep(60)

    @app.task(writes=price, retries=0)
    async def is_cancelled(id: int) -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass  # and returns as if nothing had been

    @app.task(writes=price, retries=0)
    async def raises(id: int) -> None:
        raise asyncio.CancelledError

    late, bad = await times_out.enqueue(1), await raises.enqueue(2)
    stopped = await is_cancelled.enqueue(3)
    async with working(app):
        await running.wait()
        await stopped.cancel()
        for job, error in ((late, JobFailed), (bad, JobFailed), (stopped, JobCancelled)):
            with pytest.raises(error):
                await job.result(timeout=10)

    assert {one.job: one.unsure for one in settlements} == {late.id: True, bad.id: False, stopped.id: True}


async def test_a_function_in_a_thread_has_ended_by_itself(app: Selaras, settlements: list[Settlement]) -> None:
    started, go = threading.Event(), threading.Event()

    @app.cached
    async def price(id: int) -> int:
        return id

    @app.task(writes=price)
    def writes(id: int) -> None:
        started.set()
        go.wait(10)

    job = await writes.enqueue(1)
    async with working(app):
        await asyncio.to_thread(started.wait, 10)
        await job.cancel()
        await asyncio.sleep(0.3)
        go.set()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)

    assert [one.unsure for one in settlements] == [False]


async def test_a_settle_names_what_was_served_on(app: Selaras, settlements: list[Settlement]) -> None:
    @app.cached(during_write="serve")
    async def price(id: int) -> int:
        return id

    @app.task(writes=price)
    async def writes(id: int) -> None: ...

    await writes.enqueue(1)
    await work(app)

    assert [one.serves for one in settlements] == [(price.key(1).name,)]


async def test_what_was_served_on_elsewhere_is_voided_before_the_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a job that is claimed after the settle reads the old value until the outbox is delivered (G1)."""
    rows = {1: 0}
    async with Selaras("memory://?partitions=4") as app:

        @app.cached(ttl=300, during_write="serve")
        async def price(id: int) -> int:
            return rows[id]

        @app.task(writes=price, lock="line:{line}")
        async def writes(id: int, line: int) -> None:
            rows[id] = 1

        count = app.process().partitions
        line = next(n for n in range(99) if partition_of(f"line:{n}", count) != price.key(1).slot.partition)
        assert await price(1) == 0

        async def never(_store: Any) -> bool:
            return False

        monkeypatch.setattr(hosts, "relay", never)
        job = await writes.enqueue(1, line)
        async with asyncio.timeout(10), working(app):
            while (await job.info()).state is not JobState.SUCCEEDED:
                await asyncio.sleep(0.001)
            assert await price.key(1).get("strict") == 1


async def test_a_writing_scope_that_is_cancelled_is_unsure(app: Selaras, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Settlement] = []
    inside = asyncio.Event()

    @app.cached
    async def price(id: int) -> int:
        return id

    slot = price.key(1).slot
    await app.process().open()
    home = app.process().store.partitions[slot.partition]
    settle = home.settle

    async def hear(instance: str, settlements: Any, since: Any) -> Any:
        said.extend(settlements)
        return await settle(instance, settlements, since)

    monkeypatch.setattr(home, "settle", hear)

    async def write() -> None:
        async with price.key(1).writing():
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(write())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        while not said:
            await asyncio.sleep(0.001)

    assert [one.unsure for one in said] == [True]


async def test_a_stored_traceback_begins_in_the_programs_own_code(app: Selaras) -> None:
    @app.task(retries=0)
    async def fails() -> None:
        raise ValueError("no")

    @app.task(retries=0)
    def fails_in_a_thread() -> None:
        raise ValueError("no")

    jobs = [await fails.enqueue(), await fails_in_a_thread.enqueue()]
    await work(app)

    for job in jobs:
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=10)
        assert "test_stopped.py" in caught.value.traceback
        assert "running.py" not in caught.value.traceback
