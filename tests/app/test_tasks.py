"""Tasks: from a call to a result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from tests.app.work import work, working

from selaras import ConfigurationError, JobFailed, JobState, NotEncodable, Selaras, current_job


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    total: Decimal
    colour: Colour
    tags: frozenset[str]
    raw: bytes
    parent: Order | None = None


ORDER = Order(
    UUID(int=7), datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45))), Decimal("1.10"), Colour.RED,
    frozenset({"a", "b"}), b"\x00\xff", Order(UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC), Decimal(0), Colour.RED,
    frozenset(), b""),
)  # fmt: skip


async def test_a_coroutine_task_returns_its_value(app: Selaras) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    job = await add.enqueue(1)
    await work(app)

    assert await job.result(timeout=5) == 3
    assert (await job.info()).state is JobState.SUCCEEDED


async def test_a_plain_function_runs_in_a_thread(app: Selaras) -> None:
    import threading

    @app.task
    def where() -> str:
        return threading.current_thread().name

    job = await where.enqueue()
    await work(app)

    assert await job.result() != threading.main_thread().name


async def test_arguments_and_results_come_back_equal_and_of_their_type(app: Selaras) -> None:
    """BR-072."""

    @app.task
    async def same(order: Order) -> Order:
        assert order == ORDER
        assert order.total.as_tuple() == ORDER.total.as_tuple()
        assert order.at.utcoffset() == ORDER.at.utcoffset()
        return order

    @app.task
    async def next_step(order: Order, suffix: str) -> tuple[Order, str]:
        return order, suffix

    job = await same.call(ORDER).then(next_step, suffix="!").enqueue()
    await work(app)

    assert await job.result(timeout=5) == (ORDER, "!")


async def test_arguments_are_coerced_at_the_call(app: Selaras) -> None:
    @app.task
    async def double(x: float) -> float:
        return x * 2

    job = await double.enqueue(1)
    await work(app)

    result = await job.result()
    assert result == 2.0
    assert type(result) is float


async def test_what_cannot_come_back_is_refused_at_the_call(app: Selaras) -> None:
    @app.task
    async def take(x: object) -> None: ...

    with pytest.raises(NotEncodable, match=r"args\[0\]"):
        await take.enqueue({"x": lambda: None})


async def test_wrong_arguments_are_refused_as_python_would(app: Selaras) -> None:
    @app.task
    async def take(x: int) -> None: ...

    with pytest.raises(TypeError, match="take"):
        await take.enqueue()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="y"):
        await take.enqueue(1, y=2)  # type: ignore[call-arg]


async def test_a_body_knows_its_job(app: Selaras) -> None:
    seen: list[object] = []

    @app.task(timeout=60)
    async def look() -> None:
        job = current_job()
        job.progress(1, 4, "a quarter")
        assert job.deadline is not None
        seen.extend([job.id, job.attempt, job.task, job.fence > 0, job.deadline > datetime.now(UTC)])

    job = await look.enqueue()
    await work(app)

    assert seen == [job.id, 1, "look", True, True]


async def test_progress_is_seen_while_the_body_runs(app: Selaras) -> None:
    @app.task
    async def slow() -> None:
        current_job().progress(1, 4, "a quarter")
        await asyncio.sleep(60)

    job = await slow.enqueue()
    async with working(app):
        async with asyncio.timeout(10):
            while (info := await job.info()).progress is None:
                await asyncio.sleep(0.01)

    assert (info.progress.done, info.progress.total, info.progress.message) == (1, 4, "a quarter")


async def test_outside_of_a_job_there_is_no_current_one() -> None:
    with pytest.raises(Exception, match="outside of a job"):
        current_job()


async def test_many_jobs_are_enqueued_in_one_step(app: Selaras) -> None:
    @app.task
    async def square(x: int) -> int:
        return x * x

    jobs = await app.enqueue_many(square.call(x) for x in range(50))
    await work(app)

    assert [await job.result() for job in jobs] == [x * x for x in range(50)]


async def test_the_bare_function_is_at_hand(app: Selaras) -> None:
    @app.task(retries=1)
    async def add(a: int, b: int) -> int:
        return a + b

    assert await add.fn(1, 2) == 3
    assert await add(1, 2) == 3


async def test_two_tasks_of_one_name_are_refused_at_import(app: Selaras) -> None:
    @app.task
    async def twice() -> None: ...

    with pytest.raises(ConfigurationError, match=r"two tasks are called 'twice'.*test_tasks.py"):

        @app.task(name="twice")
        async def other() -> None: ...


async def test_a_method_is_no_task(app: Selaras) -> None:
    with pytest.raises(ConfigurationError, match="belongs to a class"):

        class Service:
            @app.task
            async def run(self) -> None: ...


async def test_unresolvable_annotations_disable_only_their_own_parameter(app: Selaras) -> None:
    """BR-074."""

    @app.task
    async def half(good: float, bad: NoSuchType) -> float:  # type: ignore[name-defined]  # noqa: F821
        return good / 2

    with pytest.warns(UserWarning, match="NoSuchType"):
        job = await half.enqueue(1, "anything")
    await work(app)
    assert await job.result() == 0.5


async def test_a_result_too_large_fails_without_another_run(tmp_path: object) -> None:
    """BR-094."""
    app = Selaras("memory://", backoff=0, max_result=1_000)
    runs: list[int] = []

    @app.task(retries=3)
    async def large() -> str:
        runs.append(1)
        return "x" * 2_000

    async with app:
        job = await large.enqueue()
        await work(app)
        with pytest.raises(JobFailed, match="large"):
            await job.result()

    assert len(runs) == 1


async def test_a_payload_too_large_is_refused_at_the_call(app: Selaras) -> None:
    """BR-094."""

    @app.task
    async def take(x: str) -> None: ...

    with pytest.raises(NotEncodable, match="more than the limit"):
        await take.enqueue("x" * 2_000_000)
