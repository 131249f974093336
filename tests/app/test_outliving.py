"""What goes on after the job it came from: tasks, and forked processes."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.app.work import work, working

from selaras import Selaras
from selaras._app.jobs.lines import HELD
from selaras._app.process.current import CURRENT
from selaras._cache.session import SESSION


async def test_a_task_that_outlives_its_job_enqueues_at_once_and_voids(app: Selaras) -> None:
    ran: list[int] = []
    rows = {1: 0}
    later: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    @app.cached(ttl=300)
    async def product(id: int) -> int:
        return rows[id]

    @app.task
    async def child(x: int) -> None:
        ran.append(x)

    async def goes_on(id: int) -> None:
        await go.wait()
        await child.enqueue(7)
        rows[id] = 1
        await product.key(id).put(1)

    @app.task(writes=product)
    async def parent(id: int) -> None:
        later.append(asyncio.create_task(goes_on(id)))

    job = await parent.enqueue(1)
    async with working(app):
        await job.result(timeout=10)
        assert await product(1) == 0
        go.set()
        await later[0]
        assert await product.key(1).get("strict") == 1
    await work(app)
    assert ran == [7]


async def test_a_child_that_comes_while_its_job_is_settled_is_enqueued(app: Selaras) -> None:
    """A settle is told from what the session holds when the body ends; what comes after goes its own way."""
    ran: list[str] = []
    later: list[asyncio.Task[None]] = []

    @app.task
    async def child(name: str) -> None:
        ran.append(name)

    async def goes_on() -> None:
        for n in range(20):
            await child.options(id=f"late-{n}").enqueue(f"late-{n}")

    @app.task
    async def parent() -> None:
        await child.options(id="early").enqueue("early")
        later.append(asyncio.create_task(goes_on()))

    await parent.enqueue()
    async with working(app):
        while not later:
            await asyncio.sleep(0.001)
        await later[0]
    await work(app)
    await work(app)

    assert sorted(ran) == sorted(["early", *(f"late-{n}" for n in range(20))])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_fork_inside_a_job_is_outside_of_it(app: Selaras) -> None:
    said: list[int] = []

    @app.task(lock="mail")
    def body() -> None:
        assert SESSION.get() is not None
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (SESSION.get(), CURRENT.get(), HELD.get()) == (None, None, None) else 1)
        said.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    await body.enqueue()
    await work(app)

    assert said == [0]
