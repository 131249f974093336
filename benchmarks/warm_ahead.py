"""What `warm_ahead` does for a queue of jobs whose values come slowly: `python -m benchmarks.warm_ahead [--url URL]`.

A worker with 20 places drains 300 jobs. Each reads a value of its own, whose load takes 100 to 300 ms, and then runs for as long. Rounds with
and without it take turns; the table says the least time of each, and the floor is what loads and bodies would take one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from random import Random
from typing import Final

from selaras import Read, Selaras

JOBS: Final = 300
PLACES: Final = 20
LOAD_S: Final = 0.2
BODY_S: Final = 0.2


async def drain(url: str, ahead: int) -> tuple[float, int]:
    """Return in how many seconds a new queue is drained, and how many loads were ahead."""
    app = Selaras(url, concurrency=PLACES, warm_ahead=ahead)
    loads, chance = 0, Random(4711)

    @app.cached(ttl=None)
    async def product(id: int) -> int:
        nonlocal loads
        loads += 1
        await asyncio.sleep(chance.uniform(0.5, 1.5) * LOAD_S)
        return id

    @app.task
    async def look(id: int, *, p: int = Read(product)) -> int:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * BODY_S)
        return p

    async with app:
        first = time.time_ns()  # values that no round before has loaded
        await app.enqueue_many([look.call(first + number) for number in range(JOBS)])
        began = time.perf_counter()
        await app.worker(burst=True).run()
        took = time.perf_counter() - began
        assert loads == JOBS, loads
        return took, app.process().cache.stats()["families"]["product"]["ahead"]


async def main(url: str, rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        url = url or f"sqlite:///{folder}/jobs.db"
        took: dict[int, list[float]] = {}
        loaded: dict[int, int] = {}
        for _ in range(rounds):
            for ahead in (0, 20, 60, 200):
                seconds, loaded[ahead] = await drain(url, ahead)
                took.setdefault(ahead, []).append(seconds)
    ideal = JOBS / PLACES * (LOAD_S + BODY_S)
    print(
        f"{JOBS} jobs, {PLACES} at once, loads of {LOAD_S * 1e3:g} ms, bodies of {BODY_S * 1e3:g} ms: one after the other {ideal:.2f} s"
    )
    print(f"{'warm_ahead':>10}  {'seconds':>7}  {'of 0':>5}  loads ahead")
    for ahead, seconds_of in took.items():
        print(f"{ahead:>10}  {min(seconds_of):>7.2f}  {min(seconds_of) / min(took[0]):>5.0%}  {loaded[ahead]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="the store; by default a new file")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.rounds))
