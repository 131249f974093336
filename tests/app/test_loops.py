"""One app, many loops, threads and forks (BR-095, BR-096)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from tests.app.work import work

from selaras import Selaras


def make(folder: Path) -> Selaras:
    return Selaras(f"sqlite:///{folder}/jobs.db")


def test_one_loop_after_the_other(tmp_path: Path) -> None:
    app = make(tmp_path)

    @app.cached
    async def product(id: int) -> int:
        return id * 2

    @app.task
    async def one(x: int) -> int:
        return await product(x)

    jobs = [asyncio.run(one.enqueue(n)) for n in range(3)]
    assert asyncio.run(product(4)) == 8
    asyncio.run(work(app))
    assert [asyncio.run(job.result(timeout=10)) for job in jobs] == [0, 2, 4]
    asyncio.run(app.close())


def test_four_threads_with_loops_of_their_own(tmp_path: Path) -> None:
    app = make(tmp_path)
    loads: list[int] = []

    @app.cached
    async def product(id: int) -> int:
        loads.append(id)
        await asyncio.sleep(0.01)
        return id * 2

    @app.task
    async def one(x: int) -> int:
        return x

    failures: list[BaseException] = []

    async def use() -> None:
        for n in range(20):
            assert await product(n) == n * 2
            await one.enqueue(n)
            async with product.key(n).writing():
                pass

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []

    async def count() -> int:
        stats = [await partition.queues() for partition in app.process().store.partitions]
        return sum(queue.counts.get("ready", 0) for queues in stats for queue in queues)

    assert asyncio.run(count()) == 80
    asyncio.run(app.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_of_a_fork_go_on_with_a_state_of_their_own(tmp_path: Path) -> None:
    program = tmp_path / "forks.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio, os, sys, warnings
            from selaras import Selaras

            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork")  # as it does, from 3.12 on
            app = Selaras()

            @app.cached
            async def product(id: int) -> int:
                return id * 2

            @app.task
            async def one(x: int) -> int:
                return x

            async def use(base: int) -> None:
                for n in range(base, base + 50):
                    assert await product(n) == n * 2
                    await one.options(id=f"job-{n}").enqueue(n)
                    async with product.key(n).writing():
                        pass
                assert (await app.job(f"job-{base}").info()).arguments == f"x={base}"

            async def count() -> int:
                queues = await app.process().store.partitions[0].queues()
                return sum(queue.counts.get("ready", 0) for queue in queues)

            asyncio.run(use(0))
            children = []
            for n in range(1, 5):
                pid = os.fork()
                if pid == 0:
                    try:
                        asyncio.run(use(n * 1000))
                    except BaseException:
                        import traceback
                        traceback.print_exc()
                        os._exit(1)
                    os._exit(0)
                children.append(pid)
            asyncio.run(use(9000))
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
            print(codes, asyncio.run(count()))
            asyncio.run(app.close())
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(program)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.stdout.strip() == "[0, 0, 0, 0] 300", done.stdout + done.stderr
    assert "Warning" not in done.stderr


async def test_closing_is_for_now_and_the_next_need_opens_again(tmp_path: Path) -> None:
    app = make(tmp_path)

    @app.task
    async def one() -> int:
        return 1

    async with app:
        job = await one.enqueue()
    await work(app)
    assert await job.result(timeout=10) == 1
    await app.close()
