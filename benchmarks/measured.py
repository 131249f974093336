"""What is measured, each run in a process of its own: `python -m benchmarks.measured NAME [COUNT]` prints JSON.

The store is the one that SELARAS_URL names; it is new and empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.shop import app, change, look, nothing, product, started_at
from selaras import Call
from selaras._core.events import Turned, WorkerEvent
from selaras._worker.loops import run

BATCH: Final = 1_000
PRODUCTS: Final = 1_000

Numbers = dict[str, float]


# -- drains


async def drain_nothing(count: int) -> Numbers:
    """No-op jobs, drained by one worker."""
    await _enqueue(nothing.call(number) for number in range(count))
    return await _drain(count)


async def drain_reads(count: int) -> Numbers:
    """Each job reads a key, one in ten also writes it."""
    await _enqueue(
        change.call(number % PRODUCTS) if number % 10 == 0 else look.call(number * 7 % PRODUCTS)
        for number in range(count)
    )
    return await _drain(count)


async def _enqueue(calls: Any) -> None:
    batch: list[Call[None]] = []
    for call in calls:
        batch.append(call)
        if len(batch) == BATCH:
            await app.enqueue_many(batch)
            batch = []
    if batch:
        await app.enqueue_many(batch)


async def _drain(count: int) -> Numbers:
    watch = Stopwatch()
    async with asyncio.TaskGroup() as group:
        memory = group.create_task(_watch_memory(count))
        await app.worker(burst=True, observer=watch, owns_process=True).run()
        memory.cancel()
    assert watch.ended == count
    seconds = watch.last - watch.first
    return {"per_second": count / seconds, "seconds": seconds, "rss_end": _rss(), **_MEMORY}


class Stopwatch:
    """Hears a worker: from the sending of the turn that claimed first to the reply of the one that settled last."""

    wants_attempts = False

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.ended = 0

    def heard(self, event: WorkerEvent) -> None:
        """Note when work began, and when it ended."""
        if isinstance(event, Turned):
            now = time.perf_counter()
            if event.claimed and not self.first:
                self.first = now - event.took_us / 1e6
            if event.ended:
                self.last = now
                self.ended += sum(number for _, number in event.ended)


_MEMORY: Numbers = {}


async def _watch_memory(count: int) -> None:
    """Note the memory in use when a tenth of the time has passed, as good as one can tell."""
    expected = count / 25_000
    await asyncio.sleep(expected / 5)
    _MEMORY["rss_early"] = _rss()


def _rss() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


# -- enqueues


async def enqueue_single(count: int) -> Numbers:
    """One by one, each awaited."""
    began = time.perf_counter()
    for number in range(count):
        await nothing.enqueue(number)
    return {"per_second": count / (time.perf_counter() - began)}


async def enqueue_batched(count: int) -> Numbers:
    """A thousand at a time."""
    began = time.perf_counter()
    await _enqueue(nothing.call(number) for number in range(count))
    return {"per_second": count / (time.perf_counter() - began)}


# -- reads


async def hit(count: int) -> Numbers:
    """A value in the local tier, as a program reads it."""
    await product(42)
    began = time.perf_counter()
    for _ in range(count):
        await product(42)
    return {"us": (time.perf_counter() - began) / count * 1e6}


async def strict(count: int) -> Numbers:
    """A value in the local tier, proved to be fresh as of now."""
    key = product.key(42)
    await key.get()
    began = time.perf_counter()
    for _ in range(count):
        await key.get(fresh="strict")
    return {"us": (time.perf_counter() - began) / count * 1e6}


# -- an idle worker in another process


async def latency(count: int) -> Numbers:
    """From the call of enqueue to the start of the body, in a worker that had nothing to do."""
    waits: list[float] = []
    async with _worker_process():
        for number in range(count + 5):
            sent = time.monotonic_ns()
            job = await started_at.enqueue(number)
            began = await job.result(timeout=30)
            if number >= 5:  # the first ones find it still starting
                waits.append((began - sent) / 1e6)
            await asyncio.sleep(0.05)  # until it is idle again
    waits.sort()
    return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}


async def idle(seconds: int) -> Numbers:
    """The share of a core that a worker takes with nothing to do."""
    async with _worker_process() as pid:
        await (await started_at.enqueue(0)).result(timeout=30)
        await asyncio.sleep(2)  # for what comes after a start
        before = _cpu_seconds(pid)
        await asyncio.sleep(seconds)
        return {"percent": (_cpu_seconds(pid) - before) / seconds * 100}


@contextlib.asynccontextmanager
async def _worker_process() -> AsyncIterator[int]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "selaras", "worker", "benchmarks.shop:app"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield worker.pid
    finally:
        worker.terminate()
        worker.wait()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASUREMENTS: Final[dict[str, Callable[[int], Awaitable[Numbers]]]] = {
    "drain_nothing": drain_nothing,
    "drain_reads": drain_reads,
    "enqueue_single": enqueue_single,
    "enqueue_batched": enqueue_batched,
    "hit": hit,
    "strict": strict,
    "latency": latency,
    "idle": idle,
}


async def _measure(name: str, count: int) -> Numbers:
    async with app:
        return await MEASUREMENTS[name](count)


def main() -> None:
    """Measure once, on the loop a worker would use."""
    name, count = sys.argv[1], int(sys.argv[2])
    numbers = run(_measure(name, count))
    print(msgspec.json.encode(numbers).decode())


if __name__ == "__main__":
    main()
