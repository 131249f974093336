"""What the app itself costs, part by part: `python -m benchmarks.enqueue`. The floors are in `__main__`.

The way in: bind the arguments, make the job, let the store have it. The way out: prepare a claim, run its body, settle.
Each number is processor time of the loop's thread, the best of several rounds: what the code costs, not what the machine
does beside. The writes of the store are in it, since it writes on the loop; waiting for a disk is not.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from selaras import Read, Selaras
from selaras._app.jobs.options import NO_OPTIONS
from selaras._app.jobs.placing import Planned, admit, job_of
from selaras._app.work.host import AppHost
from selaras._contracts.host import Executors
from selaras._core.jobs.job import Claim, NewJob, Settlement

ROUNDS: Final = 5


class NoExecutors:
    """Coroutines need none."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Not asked for here."""
        raise NotImplementedError

    async def in_process(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """Not asked for here."""
        raise NotImplementedError


async def best(count: int, once: Callable[[int], Awaitable[object]]) -> float:
    """Return microseconds of one of `count`, in the best round. `once` does all `count` of them."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        await once(count)
        least = min(least, (time.thread_time() - began) / count * 1_000_000)
    return least


async def measure(folder: Path) -> list[tuple[str, float]]:
    """Measure every part."""
    app = Selaras(f"sqlite:///{folder}/bench.db")

    @app.cached
    async def product(id: int) -> float:
        return 1.0

    @app.task
    async def nothing(number: int, factor: float) -> None: ...

    @app.task(writes=product)
    async def change(id: int, *, p: float = Read(product)) -> None: ...

    rows: list[tuple[str, float]] = []
    async with app:
        await product(42)
        program, process = app.program, app.process()
        host = AppHost(program, process)
        executors: Executors = NoExecutors()
        bound = nothing.spec.bind((1, 1.0), {})
        planned = Planned(nothing.spec, bound, NO_OPTIONS, None)

        async def bind(count: int) -> None:
            for number in range(count):
                nothing.spec.bind((number, 1.0), {})

        async def make(count: int) -> None:
            for _ in range(count):
                job_of(program, process, planned)

        async def hit(count: int) -> None:
            for _ in range(count):
                await product(42)

        async def many(count: int) -> None:
            for start in range(0, count, 1_000):
                await app.enqueue_many(nothing.call(number, 1.0) for number in range(start, start + 1_000))

        async def many_that_write(count: int) -> None:
            for start in range(0, count, 1_000):
                await app.enqueue_many(change.call(number) for number in range(start, start + 1_000))

        async def stored(count: int) -> None:
            jobs = made.pop()
            for start in range(0, count, 1_000):
                await admit(process, jobs[start : start + 1_000])

        async def single(count: int) -> None:
            for number in range(count):
                await nothing.enqueue(number, 1.0)

        claim = Claim("j", 1, 1, "nothing", nothing.spec.signature.encode(bound))

        async def attempt(count: int) -> None:
            for _ in range(count):
                run = host.prepare(claim, 0, process.clock.instant_ns())
                assert not isinstance(run, Settlement)
                await run.execute(executors)

        rows.append(("bind two arguments", await best(50_000, bind)))
        rows.append(("make the job: encode, name, place", await best(50_000, make)))
        made: list[list[NewJob]] = [[job_of(program, process, planned) for _ in range(20_000)] for _ in range(ROUNDS)]
        rows.append(("the store's part of a batch", await best(20_000, stored)))
        rows.append(("enqueue_many, all of it", await best(20_000, many)))
        rows.append(("the same, of jobs that write a key", await best(20_000, many_that_write)))
        rows.append(("enqueue, awaited one by one", await best(2_000, single)))
        rows.append(("an attempt of a no-op: prepare, run, settlement", await best(50_000, attempt)))
        rows.append(("a local hit through await product(42)", await best(50_000, hit)))
    return rows


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory(prefix="selaras-bench-") as folder:
        rows = asyncio.run(measure(Path(folder)))
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("us", justify="right", style="bold")
    table.add_column("a second", justify="right")
    for what, us in rows:
        table.add_row(what, f"{us:,.2f}", f"{1_000_000 / us:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
