"""What is around: resources, middleware, tests of your own. Read these tests from top to bottom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from selaras import CurrentJob, Middleware, Secret, Selaras
from selaras.testing import harness


async def test_a_resource_is_opened_at_first_need_and_closed_with_the_app() -> None:
    app = Selaras("memory://")
    events: list[str] = []

    @app.resource
    async def db() -> AsyncIterator[dict[int, str]]:
        events.append("open")
        yield {42: "hammer"}
        events.append("closed")

    @app.task
    async def name(id: int) -> str:
        return (await db())[id]

    async with app:
        job = await name.enqueue(42)
        await app.worker(burst=True).run()
        assert await job.result() == "hammer"
    assert events == ["open", "closed"]


async def test_middleware_goes_around_every_run() -> None:
    seen: list[str] = []

    class Timing(Middleware):
        async def run(
            self, job: CurrentJob, headers: Mapping[str, str], proceed: Callable[[], Awaitable[object]]
        ) -> object:
            seen.append(f"{job.task}, attempt {job.attempt}")
            return await proceed()

    app = Selaras("memory://", middleware=[Timing()])

    @app.task
    async def one() -> int:
        return 1

    async with app:
        await one.enqueue()
        await app.worker(burst=True).run()
    assert seen == ["one, attempt 1"]


async def test_a_secret_is_shown_to_nobody() -> None:
    app = Selaras("memory://")

    @app.task
    async def pay(amount: int, token: Secret[str]) -> None: ...

    async with app:
        job = await pay.enqueue(10, "hunter2")
        shown = (await job.info()).arguments

    assert shown is not None
    assert "10" in shown
    assert "hunter2" not in shown


async def test_your_own_tests_hold_time_in_their_hand() -> None:
    app = Selaras()  # the program as it is: the harness puts a store in memory under it

    @app.task
    async def remind(name: str) -> str:
        return name

    async with harness(app) as t:
        job = await remind.options(delay="1d").enqueue("Ann")
        t.assert_enqueued(remind, "Ann")
        await t.advance("1d")
        assert await job.result() == "Ann"
