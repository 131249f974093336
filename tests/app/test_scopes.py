"""Effects belong to their scope: what a job or a writing() block stores, voids and enqueues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from tests.app.work import work, working

from selaras import (
    Job,
    JobCancelled,
    JobState,
    Key,
    LeaseLost,
    Selaras,
    StoreUnavailable,
    Task,
    WouldDeadlock,
    current_job,
)
from selaras._contracts.partition import SettleReply
from selaras._core.jobs.job import Settlement
from selaras._core.positions import Cursor
from selaras._worker.heart import Heart


async def test_children_of_a_job_wait_for_its_success(app: Selaras) -> None:
    ran: list[str] = []

    @app.task
    async def child(name: str) -> None:
        ran.append(name)

    @app.task(retries=2)
    async def parent() -> None:
        attempt = current_job().attempt
        await child.enqueue(f"child of attempt {attempt}")
        await child.options(now=True).enqueue(f"at once, by attempt {attempt}")
        if attempt < 3:
            raise ValueError("again")

    job = await parent.enqueue()
    await work(app)
    await job.result(timeout=10)
    await work(app)

    assert sorted(ran) == [
        "at once, by attempt 1",
        "at once, by attempt 2",
        "at once, by attempt 3",
        "child of attempt 3",
    ]


async def test_waiting_for_a_held_child_raises_at_once(app: Selaras) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task(retries=0)
    async def parent() -> str:
        held = await child.enqueue()
        try:
            await held.result()
        except WouldDeadlock as error:
            return str(error)
        return "waited"

    job = await parent.enqueue()
    await work(app)

    assert "now=True" in await job.result(timeout=10)


async def test_a_child_wanted_now_can_be_waited_for(app: Selaras) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> int:
        return await (await child.options(now=True).enqueue()).result(timeout=10) + 1

    job = await parent.enqueue()
    async with working(app):
        assert await job.result(timeout=10) == 2


async def test_children_are_dropped_when_their_job_fails(app: Selaras) -> None:
    @app.task
    async def child() -> None: ...

    @app.task(retries=0)
    async def parent() -> None:
        await child.options(id="the child").enqueue()
        raise ValueError("no")

    await parent.enqueue()
    await work(app)

    with pytest.raises(Exception, match="no job 'the child'"):
        await app.job("the child").info()


async def test_chains_and_dependents_work_inside_a_job(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.task
    async def double(x: int) -> int:
        return x * 2

    @app.task
    async def parent() -> list[str]:
        chained = await one.call().then(double).enqueue()
        first = await one.enqueue()
        after = await one.options(after=first).enqueue()
        return [chained.id, after.id]

    job = await parent.enqueue()
    async with working(app):
        chained, after = await job.result(timeout=10)
        assert await app.job(chained).result(timeout=10) == 2
        assert await app.job(after).result(timeout=10) == 1


async def test_writing_hides_nothing_and_stores_at_its_end(app: Selaras) -> None:
    prices = {1: 10}
    loads: list[int] = []

    @app.cached
    async def price(id: int) -> int:
        loads.append(id)
        return prices[id]

    assert await price(1) == 10
    async with price.key(1).writing():
        prices[1] = 20
        assert await price(1) == 20
        assert await price.key(1).get("strict") == 20
        await price.key(1).put(30)
        assert await price(1) == 30  # its own put
        prices[1] = 30
    loads.clear()

    assert await price(1) == 30
    assert loads == []  # the put was stored


async def test_jobs_of_a_writing_scope_are_released_by_its_success(app: Selaras) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    @app.task
    async def child() -> int:
        return 1

    async with price.key(1).writing():
        job = await child.enqueue()
        assert (await job.info()).state is JobState.BLOCKED
        with pytest.raises(WouldDeadlock):
            await job.result()
    await work(app)
    assert await job.result(timeout=10) == 1


async def test_jobs_of_a_writing_scope_that_raised_are_dropped(app: Selaras) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    @app.task
    async def child() -> int:
        return 1

    jobs: list[Job[int]] = []
    with pytest.raises(ValueError, match="rolled back"):
        await _roll_back(price.key(1), child, jobs)
    await work(app)

    with pytest.raises(JobCancelled):
        await jobs[0].result(timeout=10)


async def _roll_back(key: Key[int], child: Task[[], int], jobs: list[Job[int]]) -> None:
    async with key.writing():
        jobs.append(await child.enqueue())
        raise ValueError("rolled back")


async def test_a_put_of_a_failed_attempt_is_not_stored(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached
    async def price(id: int) -> int:
        return prices[id]

    @app.task(writes=price, retries=0)
    async def bad(id: int) -> None:
        await price.key(id).put(99)
        raise ValueError("no")

    assert await price(1) == 10
    await bad.enqueue(1)
    await work(app)

    assert await price.key(1).get("strict") == 10


async def test_a_task_called_directly_runs_here_under_its_intents(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached
    async def price(id: int) -> int:
        return prices[id]

    @app.task
    async def told(id: int) -> int:
        return await price(id)

    @app.task(writes=price)
    async def reprice(id: int, new: int) -> str:
        prices[id] = new
        assert await price(id) == new
        await price.key(id).put(new)
        return (await told.enqueue(id)).id

    assert await price(1) == 10
    child = await reprice(1, 11)
    assert await price(1) == 11
    await work(app)
    assert await app.job(child).result(timeout=10) == 11


async def test_a_task_called_inside_a_job_that_writes_the_same_key_does_not_wait_for_itself(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached
    async def price(id: int) -> int:
        return prices[id]

    @app.task(writes=price)
    async def add(id: int, by: int) -> None:
        prices[id] += by

    @app.task(writes=price)
    async def add_twice(id: int) -> int:
        await add(id, 1)
        async with app.lock(price.key(id)) as lock:
            assert lock.fence == current_job().fence
        await add(id, 1)
        return await price(id)

    job = await add_twice.enqueue(1)
    async with asyncio.timeout(20):
        await work(app)
    assert await job.result(timeout=10) == 12


async def test_a_task_called_directly_knows_its_fence(app: Selaras) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    @app.task(writes=price)
    async def one(id: int) -> tuple[int, int]:
        return current_job().attempt, current_job().fence

    attempt, fence = await one(1)
    assert attempt == 1
    assert 0 < fence < (await one(1))[1]


async def test_a_job_that_waits_for_itself_is_told(app: Selaras) -> None:
    @app.task(retries=0)
    async def itself() -> str:
        try:
            await app.job(current_job().id).result()
        except WouldDeadlock as error:
            return str(error)
        return "waited"

    job = await itself.enqueue()
    await work(app)
    assert "itself" in await job.result(timeout=10)


def _lose_first_answer(app: Selaras, *, epochs: int = 0) -> None:
    """Let the first settle in each partition be done, and its answer be lost; later ones come from a later epoch."""
    for partition in app.process().store.partitions:
        settle, asked = partition.settle, count()

        async def lossy(
            instance: str,
            settlements: Sequence[Settlement],
            since: Cursor,
            settle: Any = settle,
            asked: Iterator[int] = asked,
        ) -> SettleReply:
            reply: SettleReply = await settle(instance, settlements, since)
            if next(asked) == 0:
                raise StoreUnavailable("the connection was cut; 'settle' was sent, and may have been done")
            return replace(reply, news=replace(reply.news, epoch=reply.news.epoch + epochs))

        partition.settle = lossy  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["scope", "lock"])
async def test_an_end_whose_answer_was_lost_is_no_lost_lease(app: Selaras, what: str) -> None:
    @app.cached
    async def price(id: int) -> int:
        return 1

    @app.task
    async def child() -> int:
        return 7

    async with app:
        async with price.key(1).writing() if what == "scope" else app.lock("line"):
            _lose_first_answer(app)
            await price.key(1).put(2)
            job = await child.enqueue()

        await work(app)
        assert await job.result(timeout=5) == 7
        async with app.lock("line", timeout=1):
            assert await price(1) in {1, 2}


@pytest.mark.parametrize("lost", ["lease", "memory"])
async def test_an_end_that_is_refused_when_asked_again_is_a_lost_lease_if_it_may_be_one(
    app: Selaras, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.cached
    async def price(id: int) -> int:
        return 1

    async with app:
        scope = await price.key(1).writing().__aenter__()
        _lose_first_answer(app, epochs=lost == "memory")
        if lost == "lease":
            monkeypatch.setattr(Heart, "fresh_until_ns", lambda *_: 0)

        with pytest.raises(LeaseLost):
            await scope.__aexit__(None, None, None)
