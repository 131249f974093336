"""Jobs: functions that run later, elsewhere. Read these tests from top to bottom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from selaras import Fail, JobFailed, Selaras, Snooze, current_job


async def test_a_task_is_a_function_that_can_be_enqueued() -> None:
    app = Selaras("memory://")  # a real program says sqlite:///jobs.db, or nothing at all

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app:
        job = await greet.enqueue("Ann")
        await app.worker(burst=True).run()  # a real one is a process of its own: selaras worker shop:app

        assert await job.result() == "hello Ann"


async def test_arguments_are_checked_where_you_call() -> None:
    app = Selaras("memory://")

    @app.task
    async def double(x: float) -> float:
        return 2 * x

    assert double.call(1).arguments.args == (1.0,)  # coerced by the annotation
    with pytest.raises(TypeError):
        double.call()  # type: ignore[call-arg]  # and your type checker has said so already


async def test_options_stand_beside_the_arguments_never_among_them() -> None:
    app = Selaras("memory://")

    @app.task
    async def remind(delay: str) -> str:  # a parameter may be called what it likes
        return delay

    async with app:
        soon = await remind.options(delay="10m", priority=5).enqueue("10 minutes")
        then = await remind.options(at=datetime.now(UTC) + timedelta(days=1)).enqueue("tomorrow")

        assert (await soon.info()).state == (await then.info()).state == "scheduled"


async def test_the_same_id_is_the_same_job() -> None:
    app = Selaras("memory://")

    @app.task
    async def invoice(order: int) -> int:
        return order

    async with app:
        first = await invoice.options(id="invoice-7").enqueue(7)
        again = await invoice.options(id="invoice-7").enqueue(7)

        assert (first.created, again.created) == (True, False)


async def test_a_unique_key_lets_one_job_wait() -> None:
    app = Selaras("memory://")

    @app.task
    async def refresh(shop: str) -> str:
        return shop

    async with app:
        first = await refresh.options(unique="refresh:a").enqueue("a")
        again = await refresh.options(unique="refresh:a").enqueue("a")

        assert again.id == first.id


async def test_a_failure_is_tried_again() -> None:
    app = Selaras("memory://", backoff=0)

    @app.task(retries=3)
    async def flaky() -> int:
        if current_job().attempt < 3:
            raise ConnectionError("not yet")
        return current_job().attempt

    async with app:
        job = await flaky.enqueue()
        await app.worker(burst=True).run()

        assert await job.result() == 3


async def test_a_body_may_say_what_happens_next() -> None:
    app = Selaras("memory://", backoff=0)
    asked: list[int] = []

    @app.task
    async def ship(order: int) -> None:
        asked.append(order)
        if len(asked) < 3:
            raise Snooze(0)  # later, and this attempt does not count
        raise Fail("no such order")  # never again

    async with app:
        job = await ship.enqueue(7)
        await app.worker(burst=True).run()

        with pytest.raises(JobFailed, match="no such order"):
            await job.result()


async def test_a_step_gets_the_value_of_the_one_before() -> None:
    app = Selaras("memory://")

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def show(total: int, unit: str) -> str:
        return f"{total} {unit}"

    async with app:
        job = await add.call(1, 2).then(show, unit="kg").enqueue()
        await app.worker(burst=True).run()

        assert await job.result() == "3 kg"


async def test_a_job_may_wait_for_others() -> None:
    app = Selaras("memory://")
    done: list[str] = []

    @app.task
    async def do(what: str) -> None:
        done.append(what)

    async with app:
        parts = await app.enqueue_many(do.call(f"part {n}") for n in range(3))
        await do.options(after=parts).enqueue("whole")
        await app.worker(burst=True).run()

        assert done[-1] == "whole"
