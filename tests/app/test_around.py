"""Resources and middleware: what is around a program's bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.app.work import work

from selaras import (
    ConfigurationError,
    CurrentJob,
    JobFailed,
    Message,
    Middleware,
    NotEncodable,
    Selaras,
    SelarasError,
)
from selaras._core.jobs.job import Admission
from selaras.testing import harness


async def test_a_resource_is_opened_once_and_closed_with_the_app(url: str) -> None:
    app = Selaras(url)
    events: list[str] = []

    @app.resource
    async def db() -> AsyncIterator[dict[str, int]]:
        events.append("open")
        yield {"price": 1}
        events.append("close")

    @app.resource
    def plain() -> Iterator[str]:
        yield "plain"

    @app.task
    async def read() -> int:
        return (await db())["price"]

    async with app:
        jobs = [await read.enqueue() for _ in range(5)]
        await work(app)
        assert [await job.result() for job in jobs] == [1] * 5
        assert await db() is await db()
        assert await plain() == "plain"
        assert events == ["open"]

    assert events == ["open", "close"]


async def test_a_resource_may_live_as_long_as_a_job(app: Selaras) -> None:
    events: list[str] = []

    @app.resource(scope="job")
    async def transaction() -> AsyncIterator[list[str]]:
        events.append("begin")
        yield events
        events.append("end")

    @app.task
    async def twice(name: str) -> None:
        assert await transaction() is await transaction()
        events.append(name)

    await twice.enqueue("a")
    await work(app)
    await twice.enqueue("b")
    await work(app)

    assert events == ["begin", "a", "end", "begin", "b", "end"]
    with pytest.raises(SelarasError, match="no job runs here"):
        await transaction()


async def test_what_a_job_resource_raises_at_its_end_fails_the_job(app: Selaras) -> None:
    @app.resource(scope="job")
    async def transaction() -> AsyncIterator[None]:
        yield
        raise ValueError("the commit failed")

    @app.task(retries=0)
    async def uses() -> None:
        await transaction()

    job = await uses.enqueue()
    await work(app)
    with pytest.raises(JobFailed, match="the commit failed"):
        await job.result()


async def test_a_resource_can_be_replaced(app: Selaras) -> None:
    @app.resource
    async def db() -> AsyncIterator[str]:
        yield "real"

    with db.override(lambda: "fake"):
        assert await db() == "fake"


async def test_lifespan_fits_a_web_framework(url: str) -> None:
    app = Selaras(url)
    events: list[str] = []

    @app.resource
    async def db() -> AsyncIterator[str]:
        yield "db"
        events.append("closed")

    async with app.lifespan(object()):
        assert await db() == "db"
    assert events == ["closed"]


class Tracing(Middleware):
    """Carries the caller's name to the body, and notes the order."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def enqueue(self, message: Message, proceed: Callable[[Message], Awaitable[Admission]]) -> Admission:
        self.seen.append(f"{self.name} enqueue {message.task}")
        return await proceed(replace(message, headers={**message.headers, self.name: message.id}))

    async def run(
        self, job: CurrentJob, headers: Mapping[str, str], proceed: Callable[[], Awaitable[object]]
    ) -> object:
        assert headers[self.name] == job.id
        self.seen.append(f"{self.name} before")
        try:
            return await proceed()
        finally:
            self.seen.append(f"{self.name} after")


async def test_middleware_is_around_every_enqueue_and_run(url: str) -> None:
    seen: list[str] = []
    app = Selaras(url, middleware=[Tracing("outer", seen), Tracing("inner", seen)], retries=0)

    @app.task
    async def one() -> int:
        seen.append("body")
        return 1

    @app.task
    def bad() -> None:
        raise ValueError("no")

    async with app:
        job = await one.options(retries=2).enqueue()
        await work(app)
        assert await job.result() == 1
        assert seen == [
            "outer enqueue one",
            "inner enqueue one",
            "outer before",
            "inner before",
            "body",
            "inner after",
            "outer after",
        ]
        failing = await bad.enqueue()
        await work(app)
        with pytest.raises(JobFailed, match="no"):
            await failing.result()


async def test_a_middleware_may_refuse(url: str) -> None:
    class Closed(Middleware):
        async def enqueue(self, message: Message, proceed: Callable[[Message], Awaitable[Admission]]) -> Admission:
            raise PermissionError("closed")

    app = Selaras(url, middleware=[Closed()])

    @app.task
    async def one() -> None: ...

    async with app:
        with pytest.raises(PermissionError):
            await one.enqueue()
        for partition in app.process().store.partitions:
            assert not await partition.queues()


HEADERS: dict[str, tuple[Any, str]] = {
    "a number": ({"a": 5}, r"a header 'a' of 5: both must be text"),
    "a name of a number": ({5: "a"}, r"a header 5 of 'a'"),
    "half a character": ({"a": "\ud800"}, r"a header 'a' of '\\ud800'"),
    "no dict": ([("a", "b")], r"headers=\[.*\]: give a dict"),
    "too large": ({"a": "x" * (3 << 20)}, r"the headers of a job of 'work' are 3,145,\d+ bytes .* limit of 1,048,576"),
}


@pytest.mark.parametrize("case", HEADERS)
async def test_what_middleware_adds_is_checked_before_the_job_is_enqueued(case: str) -> None:
    headers, says = HEADERS[case]

    class Adds(Middleware):
        async def enqueue(self, message: Message, proceed: Callable[[Message], Awaitable[Admission]]) -> Admission:
            return await proceed(replace(message, headers=headers))

    app = Selaras("memory://", middleware=[Adds()])

    @app.task
    async def work() -> None: ...

    async with harness(app) as t:
        with pytest.raises((ConfigurationError, NotEncodable), match=says):
            await work.enqueue()
        assert not t.jobs()


@pytest.mark.parametrize(("given", "says"), [(5, r"proceed\(\) 5"), ("queue", "queue is named by text")])
async def test_middleware_gives_on_a_message_to_a_queue(given: object, says: str) -> None:
    class Strange(Middleware):
        async def enqueue(self, message: Message, proceed: Callable[[Message], Awaitable[Admission]]) -> Admission:
            strange: Any = replace(message, queue=7) if given == "queue" else given
            return await proceed(strange)

    app = Selaras("memory://", middleware=[Strange()])

    @app.task
    async def work() -> None: ...

    async with harness(app):
        with pytest.raises(ConfigurationError, match=says):
            await work.enqueue()
