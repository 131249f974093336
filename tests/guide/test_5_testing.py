"""Testing a program that uses Selaras. Read these tests from top to bottom.

The program is as it would be: its app names no store here, and could name any. `harness(app)` puts a store in memory and a
clock of the test's own under it; nothing of the real store is touched. Jobs run when the test says so, by the code of real
workers, so lines, intents, retries, scopes and the cache do what they do in production.

With pytest there is a fixture for it, too: name your app in the configuration (`selaras_app = "shop:app"`) or override
the fixture `selaras_app`, and ask for `selaras_harness`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from selaras import JobState, Read, Selaras
from selaras.blocking import Selaras as BlockingSelaras
from selaras.testing import Harness, harness

app = Selaras()
stock: dict[int, int] = {}
outbox: list[str] = []


class Mailer:
    async def send(self, text: str) -> None:
        raise ConnectionError("no test should send mail")


class FakeMailer(Mailer):
    async def send(self, text: str) -> None:
        outbox.append(text)


@app.resource
async def mailer() -> AsyncIterator[Mailer]:
    yield Mailer()


@app.cached
async def left(product: int) -> int:
    return stock[product]


@app.task(writes=left, retries=1, backoff="10s")
async def sell(product: int, count: int = 1, *, now: int = Read(left)) -> int:
    if count > now:
        raise ValueError(f"only {now} left")
    stock[product] = now - count
    await mail.options(delay="1h").enqueue(f"{count} of {product} sold")
    return stock[product]


@app.task
async def mail(text: str) -> None:
    await (await mailer()).send(text)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    stock.clear()
    stock[42] = 5
    outbox.clear()


async def test_what_was_enqueued() -> None:
    """Arguments are compared as the task will get them: with defaults, coerced, however the call was spelt."""
    async with harness(app) as t:
        await sell.enqueue(42)

        job = t.assert_enqueued(sell, product=42, count=1)
        t.assert_not_enqueued(sell, 42, 2)
        assert job.state == "ready"
        assert t.jobs(mail) == []


async def test_a_failed_assertion_says_what_there_is() -> None:
    async with harness(app) as t:
        await sell.enqueue(42)

        with pytest.raises(AssertionError) as failed:
            t.assert_enqueued(sell, 42, 2)

    assert str(failed.value) == (
        "sell(product=42, count=2) was not enqueued.\n"  # and then:
        "jobs of sell:\n"
        "  sell(product=42, count=1)  ready"
    )


async def test_run_and_advance() -> None:
    """`run` runs what is due until nothing is; `advance` moves time and runs each job at its own instant."""
    async with harness(app) as t:
        t.override(mailer, FakeMailer())
        await sell.enqueue(42, 2)

        [sold] = await t.run()
        assert (sold.result, await left(42)) == (3, 3)
        assert outbox == []

        assert await t.advance("59m") == []
        [mailed] = await t.advance("1m")
        assert mailed.arguments == {"text": "2 of 42 sold"}
        assert outbox == ["2 of 42 sold"]


async def test_an_error_of_a_job_is_an_error_of_the_test_unless_it_is_what_the_test_is_about() -> None:
    async with harness(app) as t:
        await sell.enqueue(42, 9)
        with pytest.raises(AssertionError) as failed:
            await t.run()
        assert isinstance(failed.value.__cause__, ValueError)  # with its own traceback

        await t.advance("1m", allow_errors=True)

        [job] = t.jobs(sell, state=JobState.FAILED)
        assert job.attempt == 2
        assert [str(one.error) for one in t.errors] == ["only 5 left", "only 5 left"]
        assert t.jobs(mail) == []  # children of an attempt that failed are dropped


async def test_time_is_the_tests() -> None:
    async with harness(app) as t:
        before = t.clock.now()
        await t.advance(timedelta(days=30))
        assert t.clock.now() - before == timedelta(days=30)


def test_a_plain_function_uses_the_blocking_twin() -> None:
    shop = BlockingSelaras()

    @shop.task
    def double(n: int) -> int:
        return 2 * n

    with harness(shop) as t:
        job = double.enqueue(21)
        t.sync.run()
        assert job.result() == 42


@pytest.fixture
def selaras_app() -> Selaras:
    """What `selaras_app = "..."` in pytest's configuration says for most suites."""
    return app


async def test_the_fixture(selaras_harness: Harness) -> None:
    await sell.enqueue(42)
    await selaras_harness.run()
    assert stock[42] == 4
