"""What can be said of one enqueue."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.app.work import work, working

from selaras import ConfigurationError, IdConflict, JobCancelled, JobFailed, JobState, Selaras, current_job
from selaras._app.declaring import (
    BlockingFamilyOptions,
    BlockingTaskOptions,
    FamilyOptions,
    TaskOptions,
    declare_family,
    declare_task,
)
from selaras._app.jobs.options import BlockingEnqueueOptions, EnqueueOptions, options_from


async def test_a_delayed_job_waits_for_its_time(app: Selaras) -> None:
    @app.task
    async def later() -> str:
        return "now"

    job = await later.options(delay="1h").enqueue()

    info = await job.info()
    assert info.state is JobState.SCHEDULED
    assert info.due_at is not None
    assert timedelta(minutes=59) < info.due_at - datetime.now(UTC) < timedelta(minutes=61)


async def test_an_instant_is_exact_whatever_its_zone(app: Selaras) -> None:
    """BR-064."""

    @app.task
    async def later() -> None: ...

    zones = ["Asia/Kathmandu", "America/St_Johns", "UTC"]
    instants = [datetime(2031, 11, 2, 1, 30, 0, 123_456, tzinfo=ZoneInfo(zone), fold=1) for zone in zones]
    for instant in instants:
        job = await later.options(at=instant).enqueue()
        assert (await job.info()).due_at == instant.astimezone(UTC)


@pytest.mark.parametrize("at", [datetime(2031, 1, 1), date(2031, 1, 1), "2031-01-01T00:00:00+00:00"])  # noqa: DTZ001
async def test_what_names_no_instant_is_refused_at_the_call(app: Selaras, at: object) -> None:
    """BR-064."""

    @app.task
    async def later() -> None: ...

    with pytest.raises(ConfigurationError, match="time zone"):
        later.options(at=at)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        later.options(delay=at)  # type: ignore[arg-type]


async def test_the_past_is_now_and_the_far_future_is_kept(app: Selaras) -> None:
    @app.task
    async def whenever() -> int:
        return 1

    past = await whenever.options(at=datetime(1999, 1, 1, tzinfo=UTC)).enqueue()
    far = datetime(9999, 1, 1, tzinfo=UTC)
    future = await whenever.options(at=far).enqueue()
    await work(app)

    assert await past.result() == 1
    assert (await future.info()).due_at == far


async def test_higher_priorities_run_earlier() -> None:
    app = Selaras("memory://")
    order: list[int] = []

    @app.task
    async def note(n: int) -> None:
        order.append(n)

    async with app:
        for priority in (0, 5, -3, 5):
            await note.options(priority=priority).enqueue(priority)
        await work(app, concurrency=1)

    assert order == [5, 5, 0, -3]


async def test_an_id_names_one_job(app: Selaras) -> None:
    """BR-078."""

    @app.task
    async def add(a: int) -> int:
        return a + 1

    first = await add.options(id="a:b/1").enqueue(1)
    again = await add.options(id="a:b/1").enqueue(1)
    assert (first.created, again.created) == (True, False)
    with pytest.raises(IdConflict, match="a:b/1"):
        await add.options(id="a:b/1").enqueue(2)

    await work(app)
    finished = await add.options(id="a:b/1").enqueue(1)
    assert finished.created is False  # and says so
    assert await finished.result() == 2
    assert await add.job("a:b/1").result() == 2
    assert await app.job("a:b/1").result() == 2


async def test_an_id_names_one_job_whatever_line_it_stands_in(app: Selaras) -> None:
    @app.task(lock="line:{customer}")
    async def mail(customer: int) -> int:
        return customer

    for number in range(8):
        first = await mail.options(id=f"mail-{number}").enqueue(number)
        again = await mail.options(id=f"mail-{number}").enqueue(number)
        assert (first.created, again.created) == (True, False)
        with pytest.raises(IdConflict):
            await mail.options(id=f"mail-{number}").enqueue(number + 100)
    await work(app)
    for number in range(8):
        assert await app.job(f"mail-{number}").result() == number


@pytest.mark.parametrize("id", ["123", "a:b:c", " ", "é", "{x}", "../x", "lock", "delayed", "🐘"])
async def test_any_text_is_an_id(app: Selaras, id: str) -> None:
    @app.task
    async def take() -> str:
        return current_job().id

    job = await take.options(id=id).enqueue()
    await work(app)
    assert await job.result() == id


@pytest.mark.parametrize("id", ["", "x" * 300, "a\nb"])
async def test_or_it_is_refused_at_once(app: Selaras, id: str) -> None:
    @app.task
    async def take() -> None: ...

    with pytest.raises(ConfigurationError):
        take.options(id=id)


@pytest.mark.parametrize("how", ["after", "after_finished"])
async def test_a_job_cannot_wait_for_itself(app: Selaras, how: str) -> None:
    @app.task
    async def take() -> None: ...

    for earlier in ("me", ["else", "me"], await take.options(id="me").enqueue()):
        waits: dict[str, Any] = {how: earlier}
        with pytest.raises(ConfigurationError, match="would wait for itself"):
            take.options(id="me", **waits)


async def test_a_unique_key_holds_until_its_job_starts(app: Selaras) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def sync(n: int) -> int:
        started.set()
        await go.wait()
        return n

    first = await sync.options(unique="sync").enqueue(1)
    twin = await sync.options(unique="sync").enqueue(2)
    assert (twin.created, twin.id) == (False, first.id)
    async with working(app):
        await started.wait()
        # It may have read the old state already, so it must not swallow the new request.
        newer = await sync.options(unique="sync").enqueue(3)
        assert newer.created
        go.set()
        assert await first.result(timeout=10) == 1
        assert await newer.result(timeout=10) == 3


async def test_a_unique_key_may_hold_until_its_job_is_finished(app: Selaras) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def sync(n: int) -> int:
        started.set()
        await go.wait()
        return n

    options = sync.options(unique="sync", unique_until="finished")
    first = await options.enqueue(1)
    async with working(app):
        await started.wait()
        twin = await options.enqueue(2)
        assert (twin.created, twin.id) == (False, first.id)
        go.set()
        await first.result(timeout=10)
    assert (await options.enqueue(3)).created


async def test_the_latest_arguments_may_replace_a_waiting_twins(app: Selaras) -> None:
    @app.task
    async def sync(n: int) -> int:
        return n

    first = await sync.options(unique="sync").enqueue(1)
    second = await sync.options(unique="sync", on_conflict="replace").enqueue(2)
    assert second.replaced
    assert second.id == first.id
    await work(app)

    assert await second.result() == 2


async def test_unique_keys_hold_across_lines(app: Selaras) -> None:
    @app.task(lock="line:{n}")
    async def sync(n: int) -> int:
        return n

    for number in range(6):
        first = await sync.options(unique=f"sync:{number}").enqueue(number)
        twin = await sync.options(unique=f"sync:{number}").enqueue(number + 100)
        assert (twin.created, twin.id) == (False, first.id)
        assert (await sync.options(unique=f"sync:{number}", on_conflict="replace").enqueue(number + 200)).replaced
    await work(app)
    for number in range(6):
        assert (await sync.options(unique=f"sync:{number}").enqueue(number)).created


async def test_a_retried_twin_gives_way_to_a_newer_one(app: Selaras) -> None:
    """BR-028."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.task(retries=3)
    async def sync(n: int) -> int:
        if n == 1:
            started.set()
            await go.wait()
            raise ValueError("try again")
        return n

    older = await sync.options(unique="sync").enqueue(1)
    async with working(app):
        await started.wait()
        newer = await sync.options(unique="sync", delay=0.3).enqueue(2)
        go.set()
        with pytest.raises(JobCancelled, match="superseded"):
            await older.result(timeout=10)
        assert await newer.result(timeout=10) == 2


async def test_a_job_that_waits_too_long_expires(app: Selaras) -> None:
    @app.task
    async def soon() -> None: ...

    job = await soon.options(expires=0.01).enqueue()
    await asyncio.sleep(0.05)
    await work(app)

    with pytest.raises(JobCancelled, match="expired"):
        await job.result(timeout=10)


async def test_retries_and_timeout_of_one_enqueue(app: Selaras) -> None:
    @app.task(retries=5)
    async def fails() -> None:
        raise ValueError("x")

    @app.task
    async def hangs() -> None:
        await asyncio.sleep(60)

    once = await fails.options(retries=0).enqueue()
    short = await hangs.options(timeout=0.05, retries=0).enqueue()
    await work(app)

    with pytest.raises(JobFailed):
        await once.result()
    assert (await once.info()).attempt == 1
    with pytest.raises(JobFailed, match="timeout"):
        await short.result()


async def test_a_queue_of_one_enqueue(app: Selaras) -> None:
    @app.task
    async def anywhere() -> str:
        return current_job().queue

    job = await anywhere.options(queue="night").enqueue()
    await work(app, queues=["night"])

    assert await job.result() == "night"


async def test_contradictions_are_refused(app: Selaras) -> None:
    @app.task
    async def later() -> None: ...

    with pytest.raises(ConfigurationError, match="not both"):
        later.options(delay=1, at=datetime.now(UTC))
    with pytest.raises(ConfigurationError, match="negative"):
        later.options(delay=-1)
    with pytest.raises(ConfigurationError, match="retries"):
        later.options(retries=-1)


@pytest.mark.parametrize(
    ("told", "function"),
    [
        (TaskOptions, declare_task),
        (BlockingTaskOptions, declare_task),
        (FamilyOptions, declare_family),
        (BlockingFamilyOptions, declare_family),
        (EnqueueOptions, options_from),
        (BlockingEnqueueOptions, options_from),
    ],
)
def test_every_option_there_is_can_be_said_in_both_faces(told: type, function: Callable[..., object]) -> None:
    taken = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]

    assert sorted(told.__annotations__) == sorted(taken)


def test_an_option_that_there_is_not_is_told_with_the_nearest_one(app: Selaras) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(TypeError, match=r"task.options\(\) has no option 'dealy'; did you mean 'delay'\?"):
        work.options(dealy=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"task.options\(\) has no option 'dealy'"):
        work.sync.options(dealy=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"@app.task\(\) has no option 'retrys'; did you mean 'retries'\?"):
        app.task(retrys=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"@app.cached\(\) has no option 'tll'; did you mean 'ttl'\?"):
        app.sync.cached(tll=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
