"""Resources are opened once and closed with the process, whoever asks for them: coroutines, threads, or both."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from selaras import Resource, Selaras
from selaras.testing import harness


class Shop:
    """A program whose plain and async tasks use the same resources."""

    def __init__(self, tmp_path: Path, lifetime: Literal["process", "job"] = "process") -> None:
        self.app = app = Selaras(f"sqlite:///{tmp_path / 'jobs.db'}")
        self.said: list[str] = []
        self.loops: list[asyncio.AbstractEventLoop] = []

        @app.resource(scope=lifetime)
        def file() -> Iterator[object]:
            self.said.append("open file")
            yield object()
            self.said.append("close file")

        @app.resource(scope=lifetime)
        async def pool() -> AsyncIterator[object]:
            self.loops.append(asyncio.get_running_loop())
            self.said.append("open pool")
            yield object()
            self.loops.append(asyncio.get_running_loop())
            self.said.append("close pool")

        self.both: tuple[Resource[object], Resource[object]] = (file, pool)

        @app.task(retries=0)
        def plain() -> tuple[int, int]:
            return id(file.sync()), id(pool.sync())

        @app.task(retries=0)
        async def waits() -> tuple[int, int]:
            return id(await file()), id(await pool())

        self.plain, self.waits = plain, waits

    @property
    def tasks(self) -> tuple[Any, Any]:
        return self.plain, self.waits


ONCE = ["open file", "open pool", "close pool", "close file"]


@pytest.mark.parametrize("first", [0, 1], ids=["plain", "async"])
async def test_a_worker_opens_a_resource_once_for_plain_and_async_tasks_and_closes_it(
    tmp_path: Path, first: int
) -> None:
    shop = Shop(tmp_path)
    one = await shop.tasks[first].enqueue()
    other = await shop.tasks[1 - first].options(delay=0.2).enqueue()
    worker = shop.app.worker()
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        ids = await one.result(), await other.result()
        worker.stop()
        await working
    assert ids[0] == ids[1]
    assert shop.said == ONCE
    assert shop.loops == [asyncio.get_running_loop()] * 2
    await shop.app.close()


async def test_a_worker_on_a_loop_of_its_own_closes_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.app:
        here = await shop.both[1]()
        job = await shop.plain.enqueue()
        await asyncio.to_thread(shop.app.sync.worker(burst=True).run)
        assert (await job.result())[1] != id(here)
        assert shop.said == ["open pool", "open file", "open pool", "close pool", "close file"]
        assert await asyncio.to_thread(shop.both[1].sync) is here
    assert shop.said[5:] == ["close pool"]


async def test_what_threads_opened_is_closed_with_the_app(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.app:
        assert await asyncio.to_thread(shop.both[1].sync) is await shop.both[1]()
    assert shop.said == ["open pool", "close pool"]


async def test_a_harness_closes_what_plain_tasks_opened(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with harness(shop.app) as t:
        await shop.plain.enqueue()
        await t.run()
        await shop.waits.enqueue()
        ran = await t.run()
        assert t.jobs(shop.plain)[0].result == ran[0].result
        assert shop.said == ONCE[:2]
    assert shop.said == ONCE


def test_a_harness_of_a_plain_test_closes_them_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with harness(shop.app) as t:
        shop.plain.sync.enqueue()
        shop.waits.sync.enqueue()
        t.sync.run()
        t.sync.run()
    assert shop.said == ONCE


async def test_a_resource_of_a_job_is_closed_on_the_loop_it_was_opened_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "job")
    async with harness(shop.app) as t:
        await shop.plain.enqueue()
        await t.run()
    assert shop.said == ONCE
    assert shop.loops == [asyncio.get_running_loop()] * 2


PROGRAM = """
    from {package} import Selaras
    app = Selaras("sqlite:///{path}/jobs.db")
    @app.resource
    def conn():
        print("OPEN", flush=True)
        try:
            yield 5
        finally:
            print("CLOSE", flush=True)
    @app.task{declared}
    def add(x: int) -> int:
        return x + {conn}
"""


@pytest.mark.parametrize(("package", "conn"), [("selaras", "conn.sync()"), ("selaras.blocking", "conn()")])
@pytest.mark.parametrize("declared", ["", '(executor="process")'], ids=["thread", "process"])
def test_a_worker_that_is_told_to_stop_closes_what_its_plain_tasks_opened(
    tmp_path: Path, package: str, conn: str, declared: str
) -> None:
    program = PROGRAM.format(package=package, path=tmp_path, conn=conn, declared=declared)
    (tmp_path / "shop.py").write_text(textwrap.dedent(program))
    enqueue = "from shop import add; add = getattr(add, 'sync', add); print(add.enqueue(1).id)"
    subprocess.run([sys.executable, "-c", enqueue], cwd=tmp_path, check=True, timeout=30, capture_output=True)
    command = [sys.executable, "-m", "selaras", "worker", "shop:app"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as worker:
        assert worker.stdout is not None
        said = next(line for line in worker.stdout if "OPEN" in line)
        worker.send_signal(signal.SIGTERM)
        said += worker.communicate(timeout=30)[0]
    assert said.count("OPEN") == 1
    assert said.count("CLOSE") == 1


def test_a_program_that_closes_nothing_closes_at_its_end(tmp_path: Path) -> None:
    program = PROGRAM.format(package="selaras.blocking", path=tmp_path, conn="conn()", declared="")
    program = textwrap.dedent(program) + "print(conn())\n"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=30, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["OPEN", "5", "CLOSE"]
