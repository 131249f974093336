"""A million keys in the local tier: what a fill, a hit and an eviction cost, and how long the loop is held at the most.

    python -m benchmarks.million_keys [keys] [rounds]

Each step is fifty calls in a row, as a busy loop makes them, in processor time of this thread; the garbage collector is as
Python sets it. Every round does the same steps anew in a new process: what one of them took at the least in any round is what
the cache itself needs, the rest is the machine's. The longest of those is shown. Half of the keys are read before any is
evicted, the oldest ones: those that eviction then has to pass over.

A full pass of the garbage collector over what Python and the program's modules themselves hold takes some milliseconds whatever a
cache does; the first row says how many. They are frozen after it, so that all other rows are of the cache alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from array import array
from collections.abc import Callable
from time import thread_time_ns

from msgspec import Struct

from selaras import Selaras

STEP = 50
KEYS = 1_000_000
ROUNDS = 2


class Product(Struct, frozen=True, gc=False):
    """A small frozen value: it is shared, and the garbage collector does not see it."""

    id: int
    name: str


def steps_of(work: Callable[[int], object], times: int) -> array[int]:
    """Return what each step took, in nanoseconds; in what the garbage collector does not look into."""
    took = array("q", bytes(8 * (times // STEP)))
    for step in range(times // STEP):
        started = thread_time_ns()
        for n in range(step * STEP, (step + 1) * STEP):
            work(n)
        took[step] = thread_time_ns() - started
    return took


async def measured(keys: int) -> dict[str, array[int]]:
    """Fill, hit, evict and void; return the steps of each."""
    found = {"collect garbage, before": array("q", [_collected()])}
    gc.freeze()
    app = Selaras("memory://", local_entries=keys, local_bytes=8 << 30, max_lag="1h")

    @app.cached(tags=["shop"], fresh=3_600)
    async def product(id: int) -> Product:
        return Product(id, f"product {id}")

    async with app:
        await product(-1)
        process = app.process()
        cache, family = process.cache, product.family
        position = cache.cursor(0).position

        def fill(n: int) -> None:
            """Store a value as a reply of the shared tier does."""
            data = family.family.codec.encode(Product(n, f"product {n}"))
            cache.settles.learned(
                family.slot((n,), {}, 1),
                data,
                position=position,
                stamp=n + 1,
                sent_ns=cache.instant(),
                tags=("shop",),
            )

        def hit(n: int) -> None:
            assert product.at_hand(n) is not None

        found |= {
            "fill": steps_of(fill, keys),
            "hit, each once": steps_of(hit, keys // 2),
            "hit, of 20,000": steps_of(lambda n: hit(n % 20_000), keys // 10),
            "evict": steps_of(lambda n: fill(keys + n), keys // 5),
        }
        started = thread_time_ns()
        await app.tag("shop").invalidate()
        await product.invalidate_all()
        found["void all by tag and family"] = array("q", [thread_time_ns() - started])
        assert product.at_hand(keys + 5) is None
        found["collect garbage, after"] = array("q", [_collected()])
        return found


def _collected() -> int:
    gc.collect()  # what was left over until now
    started = thread_time_ns()
    gc.collect()
    return thread_time_ns() - started


def main() -> None:
    """See above."""
    if sys.argv[1:2] == ["--round"]:
        json.dump({name: list(steps) for name, steps in asyncio.run(measured(int(sys.argv[2]))).items()}, sys.stdout)
        return
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    command = [sys.executable, "-m", "benchmarks.million_keys", "--round", str(keys)]
    several: list[dict[str, list[int]]] = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(rounds)
    ]
    print(f"| {keys:,} keys | us each | longest, ms |\n| --- | --- | --- |")
    for name in several[0]:
        least = [min(step) for step in zip(*(one[name] for one in several), strict=True)]
        each = f"{sum(least) / len(least) / STEP / 1_000:.2f}" if len(least) > 1 else ""
        print(f"| {name} | {each} | {max(least) / 1e6:.2f} |")


if __name__ == "__main__":
    main()
