"""What users' tests rest on: the harness, its clock, its assertions, its pytest fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from selaras import ConfigurationError, Fail, JobState, Read, Retry, Secret, Selaras, Snooze, WouldDeadlock, current_job
from selaras.blocking import Selaras as Blocking
from selaras.testing import Harness, harness

app = Selaras()
everywhere = pytest.mark.parametrize("partitions", [1, 4])
rows: dict[int, float] = {}


class Product(msgspec.Struct, frozen=True):
    id: int
    price: float


@app.resource
async def db() -> AsyncIterator[dict[str, str]]:
    real = {"is": "real"}
    yield real
    real["is"] = "closed"


@app.cached
async def product(id: int) -> Product:
    return Product(id, rows[id])


@app.task(writes=product, retries=2, backoff="10s", backoff_most="10s")
async def reprice(id: int, factor: float = 2.0, *, p: Product = Read(product)) -> float:
    if factor < 0:
        raise ValueError("no price is below 0")
    rows[id] = p.price * factor
    return rows[id]


@app.task(queue="mail")
def send_mail(to: str, token: Secret[str] = "x") -> None:
    pass


@app.task
async def which_db() -> str:
    return (await db())["is"]


@app.task
async def parent(id: int) -> None:
    await reprice.enqueue(id, 3)


@app.task
async def ask(id: int) -> float:
    return await (await reprice.options(now=True).enqueue(id, 5)).result()


@app.task(executor="process")
def elsewhere() -> int:
    import os

    return os.getpid()


@pytest.fixture(autouse=True)
def some_rows() -> None:
    rows.clear()
    rows.update(dict.fromkeys(range(50), 10.0))


@everywhere
async def test_what_was_enqueued_can_be_asserted_in_any_spelling(partitions: int) -> None:
    async with harness(app, partitions=partitions) as t:
        await reprice.enqueue(42, 2)

        job = t.assert_enqueued(reprice, 42)
        assert t.assert_enqueued(reprice, id=42, factor=2.0).id == job.id
        t.assert_not_enqueued(reprice, 42, 3)
        assert (job.state, job.arguments, job.queue) == ("ready", {"id": 42, "factor": 2.0}, "default")


async def test_a_failed_assertion_lists_what_there_is_without_secrets() -> None:
    async with harness(app) as t:
        await reprice.enqueue(1)
        await send_mail.options(delay=60).enqueue("a@b.c", "hunter2")

        with pytest.raises(AssertionError) as missing:
            t.assert_enqueued(reprice, 2)
        with pytest.raises(AssertionError) as there:
            t.assert_not_enqueued(reprice, 1)

    assert str(missing.value).splitlines() == [
        "reprice(id=2, factor=2.0) was not enqueued.",
        "jobs of reprice:",
        "  reprice(id=1, factor=2.0)  ready",
        "other jobs:",
        "  send_mail(to='a@b.c', token=•••)  scheduled, queue mail",
    ]
    assert str(there.value).startswith("reprice(id=1, factor=2.0) was enqueued.")


async def test_a_call_that_the_task_cannot_have_is_no_assertion_but_a_mistake() -> None:
    async with harness(app) as t:
        with pytest.raises(TypeError):
            t.assert_enqueued(reprice)  # type: ignore[call-arg]


@everywhere
async def test_run_runs_all_that_is_ready_children_and_lines_included_and_tells_what_ran(partitions: int) -> None:
    async with harness(app, partitions=partitions) as t:
        for _ in range(3):
            await reprice.enqueue(42, 2)
        await parent.enqueue(7)

        ran = await t.run()

        assert sorted(job.task for job in ran) == ["parent", "reprice", "reprice", "reprice", "reprice"]
        assert {job.state for job in ran} == {JobState.SUCCEEDED}
        assert rows[42] == 80.0
        assert rows[7] == 30.0
        assert (await product(42)).price == 80.0
        assert await t.run() == []


async def test_time_stands_still_until_it_is_moved() -> None:
    async with harness(app, start=datetime(2030, 1, 1, tzinfo=UTC)) as t:
        await reprice.options(delay="1h").enqueue(1)
        before = t.clock.now()

        assert await t.run() == []
        assert t.clock.now() == before == datetime(2030, 1, 1, tzinfo=UTC)
        assert await t.advance("59m") == []
        assert [job.result for job in await t.advance("1m")] == [20.0]
        assert t.clock.now() == before + timedelta(hours=1)


async def test_what_bodies_raise_is_raised_by_run_unless_allowed() -> None:
    async with harness(app) as t:
        await reprice.enqueue(1, -1)

        with pytest.raises(AssertionError, match="attempt 1: ValueError: no price is below 0") as told:
            await t.run()
        assert isinstance(told.value.__cause__, ValueError)
        assert t.jobs(reprice)[0].state is JobState.SCHEDULED

        await t.advance("1m", allow_errors=True)
        assert t.jobs(reprice, state="failed")[0].attempt == 3
        assert [error.attempt for error in t.errors] == [1, 2, 3]
        await t.run()  # what was told once is not told again


async def test_retries_happen_each_at_its_own_instant() -> None:
    own = Selaras()
    times: list[datetime] = []

    @own.task(retries=3, backoff="30s", backoff_most="30s")
    async def flaky() -> None:
        times.append(t.clock.now())
        if len(times) < 3:
            raise Retry(delay="2m")

    async with harness(own) as t:
        await flaky.enqueue()
        await t.advance("1h")

    assert [(time - times[0]) for time in times] == [timedelta(0), timedelta(minutes=2), timedelta(minutes=4)]


async def test_steering_is_no_error() -> None:
    own = Selaras()

    @own.task
    async def no() -> None:
        raise Fail("no such product")

    @own.task
    async def later() -> None:
        if current_job().attempt == 1 and not seen:
            seen.append(1)
            raise Snooze(60)

    seen: list[int] = []
    async with harness(own) as t:
        await no.enqueue()
        await later.enqueue()

        await t.run()

        assert t.errors == []
        [failed] = t.jobs(no)
        assert failed.failure is not None
        assert failed.failure.message == "no such product"
        assert t.jobs(later)[0].state is JobState.SCHEDULED
        [ran] = await t.advance("1m")
        assert ran.state is JobState.SUCCEEDED


async def test_a_resource_can_be_overridden_before_its_first_use() -> None:
    async with harness(app) as t:
        t.override(db, {"is": "fake"})
        await which_db.enqueue()
        assert [job.result for job in await t.run()] == ["fake"]

        with pytest.raises(ConfigurationError, match="open already"):
            t.override(db, {"is": "late"})

    async with harness(app) as t:
        await which_db.enqueue()
        assert [job.result for job in await t.run()] == ["real"]


async def test_a_job_may_wait_for_another() -> None:
    async with harness(app) as t:
        await ask.enqueue(3)

        ran = await t.run()

        assert {job.task: job.result for job in ran} == {"ask": 50.0, "reprice": 50.0}


async def test_a_body_of_a_child_process_runs_in_this_one() -> None:
    import os

    async with harness(app) as t:
        await elsewhere.enqueue()

        assert [job.result for job in await t.run()] == [os.getpid()]
    assert app.registry.tasks["elsewhere"].mode == "process"


async def test_a_body_that_never_ends_is_named() -> None:
    own = Selaras()

    @own.task
    async def stuck(n: int) -> None:
        await asyncio.Event().wait()

    async with harness(own) as t:
        await stuck.enqueue(7)

        with pytest.raises(AssertionError, match=r"(?s)still ran after 0.5 s.*stuck\(n=7\)"):
            await t.run(timeout=0.5)


async def test_a_scope_that_is_open_outlives_any_advance() -> None:
    async with harness(app) as t:
        async with product.key(1).writing():
            await reprice.enqueue(2)
            rows[1] = 99.0
            await t.advance("1h")
            assert [job.state for job in t.jobs()] == [JobState.BLOCKED]  # until the scope succeeds

        assert [job.result for job in await t.run()] == [20.0]
        assert (await product(1)).price == 99.0


async def test_cached_values_grow_old_by_the_same_clock() -> None:
    own = Selaras()
    loads: list[int] = []

    @own.cached(ttl="5m")
    async def counted(id: int) -> int:
        loads.append(id)
        return len(loads)

    async with harness(own) as t:
        assert [await counted(1), await counted(1)] == [1, 1]
        await t.advance("4m")
        assert await counted(1) == 1
        await t.advance("2m")
        assert await counted(1) == 2


async def test_harnesses_share_nothing_and_leave_nothing() -> None:
    before = app.program.processes
    async with harness(app) as t:
        await reprice.enqueue(1)
    async with harness(app) as t:
        assert t.jobs() == []
        assert [await reprice.enqueue(1)] != []
        ids = [job.id for job in t.jobs()]
    async with harness(app) as t:
        await reprice.enqueue(1)
        assert [job.id for job in t.jobs()] == ids, "a seed repeats itself"

    assert app.program.processes is before
    with pytest.raises(ConfigurationError, match="entered once"):
        await t.__aenter__()
    with pytest.raises(ConfigurationError, match="enter it first"):
        harness(app).override(db, {})


def test_a_plain_test_uses_the_twin() -> None:
    with harness(app) as t:

        async def enqueue() -> Any:
            return await reprice.enqueue(42, 2)

        asyncio.run(enqueue())
        assert [job.result for job in t.sync.run()] == [20.0]
        assert t.sync.advance("1h") == []


async def test_the_twin_is_refused_on_a_loop_and_the_plain_with_too() -> None:
    with pytest.raises(ConfigurationError, match="async with"), harness(app):
        pass
    async with harness(app) as t:
        with pytest.raises(Exception, match="running event loop"):
            t.sync.run()


def test_a_blocking_app_is_tested_the_same_way() -> None:
    shop = Blocking()
    opened: list[str] = []

    @shop.resource
    def pool() -> Any:
        opened.append("open")
        yield "real"
        opened.append("closed")

    @shop.task(retries=0)
    def greet(name: str) -> str:
        if not name:
            raise ValueError("who?")
        return f"{pool()} {name}"

    with harness(shop) as t:
        greet.enqueue("Ada")
        t.assert_enqueued(greet, "Ada")
        assert [job.result for job in t.sync.run()] == ["real Ada"]
        greet.enqueue("")
        with pytest.raises(AssertionError, match=r"ValueError: who\?"):
            t.sync.run()
    assert opened == ["open", "closed"]

    with harness(shop) as t:
        t.override(pool, "fake")
        greet.options(delay=5).enqueue("Bo")
        assert [job.result for job in t.sync.advance("5s")] == ["fake Bo"]


async def test_the_harness_is_typed(selaras_harness: Harness) -> None:
    job = await reprice.enqueue(1)

    assert selaras_harness.assert_enqueued(reprice, 1).id == job.id


@pytest.fixture
def selaras_app() -> Selaras:
    return app


async def test_waiting_for_a_job_that_nobody_runs_is_refused_at_once() -> None:
    async with harness(app) as t:
        ready = await reprice.enqueue(42)
        later = await reprice.options(delay="1h").enqueue(43)

        with pytest.raises(WouldDeadlock, match=r"is ready; call `await t\.run\(\)` first"):
            await ready.result()
        with pytest.raises(WouldDeadlock, match=r"is scheduled; call `await t\.advance\(\.\.\.\)` first"):
            await later.result()
        await t.run()
        await ready.result()


async def test_a_job_that_another_task_runs_is_waited_for() -> None:
    async with harness(app) as t:
        waiting = asyncio.create_task((await reprice.enqueue(42)).result())
        await asyncio.sleep(0.05)
        await t.run()

        assert await waiting


# -- what is no task


def test_jobs_of_a_blocking_task_are_seen() -> None:
    shop = Blocking()

    @shop.task
    def announce(x: int) -> int:
        return x

    with harness(shop) as t:
        assert not t.jobs(announce)
        announce.enqueue(1)
        assert len(t.jobs(announce)) == len(t.jobs("announce")) == 1


async def test_what_names_no_task_or_state_is_refused_and_not_found_absent() -> None:
    strange: Any = 5
    other = Selaras("memory://")

    @other.task
    async def which_db() -> None: ...

    async with harness(app) as t:
        with pytest.raises(ConfigurationError, match="5 is no task of the app"):
            t.jobs(strange)
        with pytest.raises(ConfigurationError, match="5 is no task of the app"):
            t.assert_not_enqueued(strange)
        with pytest.raises(
            ConfigurationError, match=r"jobs\('reprise'\): the app has no such task; its tasks are .*reprice"
        ):
            t.jobs("reprise")
        with pytest.raises(ConfigurationError, match=r"jobs\(<task which_db>\)"):
            t.assert_not_enqueued(which_db)
        with pytest.raises(ConfigurationError, match=r"state='done': give .*'succeeded'"):
            t.jobs(state="done")
