"""Jobs that wait for others, and steps that follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.app.work import work

from selaras import ConfigurationError, JobCancelled, JobFailed, JobState, ParentFailed, Selaras


async def test_a_dependent_waits_for_its_parents(app: Selaras) -> None:
    order: list[str] = []

    @app.task
    async def note(name: str) -> None:
        order.append(name)

    parents = [await note.options(delay=0.05).enqueue(f"parent {n}") for n in range(3)]
    child = await note.options(after=parents).enqueue("child")
    assert (await child.info()).state is JobState.BLOCKED
    assert set((await child.info()).waits_for) == {parent.id for parent in parents}
    await asyncio.sleep(0.1)
    await work(app)

    await child.result(timeout=10)
    assert order[-1] == "child"
    assert len(order) == 4


async def test_a_parent_that_ended_before_releases_at_once(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    parent = await one.enqueue()
    await work(app)
    child = await one.options(after=parent).enqueue()
    by_id = await one.options(after=parent.id).enqueue()
    await work(app)

    assert await child.result() == 1
    assert await by_id.result() == 1


async def test_the_value_of_a_step_is_the_next_ones_first_argument(app: Selaras) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def show(total: int, *, unit: str) -> str:
        return f"{total} {unit}"

    job = await add.call(1, 2).then(add, 10).then(show, unit="kg").enqueue()
    await work(app)

    assert await job.result(timeout=10) == "13 kg"


async def test_results_are_kept_until_their_dependents_have_run(app: Selaras) -> None:
    """BR-033."""

    @app.task(result_ttl=0)
    async def first() -> str:
        return "kept"

    @app.task
    async def second(value: str) -> str:
        return value

    job = await first.call().then(second.options(delay=0.3)).enqueue()
    await work(app)
    await asyncio.sleep(0.5)
    await work(app)

    assert await job.result(timeout=10) == "kept"


async def test_a_failed_parent_blocks_until_it_is_retried(app: Selaras) -> None:
    works = False

    @app.task(retries=0)
    async def parent() -> int:
        if not works:
            raise ValueError("down")
        return 7

    @app.task
    async def child(value: int) -> int:
        return value * 2

    first = await parent.options(id="p").enqueue()
    job = await parent.call().then(child).enqueue()
    after = await child.options(after=first).enqueue(1)
    await work(app)

    with pytest.raises(ParentFailed, match="down"):
        await job.result(timeout=10)
    with pytest.raises(ParentFailed, match="down"):
        await after.result(timeout=10)
    assert (await after.info()).stuck_on == "p"
    works = True
    await first.retry()
    await work(app)
    assert await after.result(timeout=10) == 2


async def test_whoever_waits_for_a_chain_hears_of_the_step_that_failed(app: Selaras) -> None:
    works = False

    @app.task(retries=0)
    async def fetch() -> int:
        if not works:
            raise ValueError("down")
        return 7

    @app.task
    async def double(value: int) -> int:
        return value * 2

    chain = await fetch.options(id="fetch").call().then(double).then(double).enqueue()
    behind = await double.options(after_finished=chain).enqueue(1)
    waiting = asyncio.create_task(chain.result(timeout=10))
    await work(app)

    for waiter in (waiting, behind.result(timeout=10)):
        with pytest.raises(ParentFailed, match="job fetch, which failed: down"):
            await waiter
    assert (await chain.info()).stuck_on == (await behind.info()).stuck_on == "fetch"
    works = True
    await app.job("fetch").retry()
    assert (await chain.info()).stuck_on == ""
    await work(app)
    assert await chain.result(timeout=10) == 28


async def test_a_cancelled_parent_cancels_its_dependents(app: Selaras) -> None:
    @app.task
    async def one() -> int:
        return 1

    parent = await one.options(delay=60).enqueue()
    child = await one.options(after=parent).enqueue()
    anyway = await one.options(after_finished=parent).enqueue()
    assert await parent.cancel()
    await work(app)

    with pytest.raises(JobCancelled, match="parent"):
        await child.result(timeout=10)
    assert await anyway.result(timeout=10) == 1


async def test_a_step_whose_key_nobody_knows_yet_is_refused(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    @app.task
    async def make() -> int:
        return 1

    @app.task(writes=product)
    async def change(id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="'id'"):
        make.call().then(change)


async def test_a_step_that_can_take_no_value_of_the_one_before_is_refused(app: Selaras) -> None:
    @app.task
    async def name() -> str:
        return "a"

    @app.task
    async def nothing() -> None: ...

    @app.task
    async def double(number: int) -> int:
        return number * 2

    with pytest.raises(ConfigurationError, match=r"'\S*double' cannot follow .*'number', takes int, and .*returns str"):
        name.call().then(double)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="returns None"):
        nothing.call().then(double)  # type: ignore[arg-type]


async def test_a_value_that_does_not_fit_the_next_step_is_told_with_its_parameter(app: Selaras) -> None:
    @app.task
    async def either(which: bool) -> Any:
        return 1 if which else "one"

    @app.task
    async def double(number: int) -> int:
        return number * 2

    fits = await either.call(True).then(double).enqueue()
    fails = await either.call(False).then(double).enqueue()
    await work(app)

    assert await fits.result(timeout=10) == 2
    with pytest.raises(JobFailed, match=r"TypeError: the value of the step before does not fit 'number'.*double"):
        await fails.result(timeout=10)


async def test_a_bool_is_an_int_to_the_next_step(app: Selaras) -> None:
    @app.task
    async def is_there() -> bool:
        return True

    @app.task
    async def count(number: int) -> int:
        return number + 1

    job = await is_there.call().then(count).enqueue()
    await work(app)

    assert await job.result(timeout=10) == 2


async def test_a_dependent_reads_what_its_parent_wrote(app: Selaras) -> None:
    prices = {1: 10}

    @app.cached
    async def price(id: int) -> int:
        return prices[id]

    @app.task(writes=price)
    async def raise_price(id: int) -> None:
        prices[id] += 1

    @app.task
    async def look(id: int) -> int:
        return await price(id)

    assert await price(1) == 10
    for n in range(5):
        parent = await raise_price.enqueue(1)
        child = await look.options(after=parent).enqueue(1)
        await work(app)
        assert await child.result(timeout=10) == 11 + n
