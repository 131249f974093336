"""A peer's side, run in its own environment: `python -m benchmarks.peers.side ADAPTER WHAT ...` prints one line of JSON.

work LOAD                 be a worker, until told to stop
produce LOAD COUNT HOW    enqueue: one by one, from 100 tasks, in batches of 1,000; or by the fastest of these (fill)
wait COUNT SEED           enqueue one job at a time into an idle worker, and say how long each took to start
install                   make what the peer needs in its store
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from benchmarks.peers import bodies

BATCH: Final = 1_000
TASKS: Final = 100
WARM: Final = 20

Arguments = tuple[int, ...]
Numbers = dict[str, float]


class Adapter(Protocol):
    """What a peer's file has. Some also have `enqueue_many(load, arguments)`, `install()`; and `work(load)` or `command(load)`."""

    async def open(self) -> None:
        """Connect."""

    async def enqueue(self, load: str, *arguments: int) -> None:
        """Enqueue a job: the load is the name of its body."""

    async def close(self) -> None:
        """Disconnect."""


def arguments_of(load: str, count: int) -> list[Arguments]:
    """Return what each job gets: its number; a lookup also the row, and whether it writes it."""
    if load != "lookup":
        return [(number,) for number in range(count)]
    from benchmarks.peers.lookups import ROWS, WRITERS

    chance = random.Random(int(os.environ["PEERS_SEED"]))
    return [(number, chance.randrange(ROWS), int(chance.random() < WRITERS)) for number in range(count)]


async def produce(adapter: Any, load: str, count: int, how: str) -> Numbers:
    """Enqueue; say nothing if the peer has no such way."""
    batches, concurrent = hasattr(adapter, "enqueue_many"), os.environ["PEERS_WAITS"] == "1"
    if how == "fill":
        how = "batch" if batches else "tasks" if concurrent else "one"
    if (how == "batch" and not batches) or (how == "tasks" and not concurrent):
        return {}
    every = arguments_of(load, count)
    await adapter.open()
    cpu, began = time.process_time(), time.perf_counter()
    if how == "one":
        for arguments in every:
            await adapter.enqueue(load, *arguments)
    elif how == "tasks":
        await _from_tasks(adapter, load, every)
    else:
        for first in range(0, count, BATCH):
            await adapter.enqueue_many(load, every[first : first + BATCH])
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await adapter.close()
    return {"per_second": count / seconds, "cpu_us": cpu / count * 1e6}


async def _from_tasks(adapter: Adapter, load: str, every: Sequence[Arguments]) -> None:
    waiting = iter(every)

    async def task() -> None:
        for arguments in waiting:
            await adapter.enqueue(load, *arguments)

    await asyncio.gather(*[task() for _ in range(TASKS)])


async def wait(adapter: Adapter, count: int, seed: int) -> Numbers:
    """Measure from the call of enqueue to the first line of the body, at light load."""
    chance, ledger, sent = random.Random(seed), Path(bodies.LEDGER), []
    before = _records(ledger)
    await adapter.open()
    for number in itertools.count():
        if number == WARM + count:
            break
        sent.append(time.monotonic_ns())
        await adapter.enqueue("noop", number)
        while _records(ledger) <= before + number:
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0.002, 0.012))
    await adapter.close()
    began = {number: at for at, number, _ in bodies.RAN.iter_unpack(ledger.read_bytes()[before * bodies.RAN.size :])}
    took = sorted((began[number] - sent[number]) / 1e6 for number in range(WARM, WARM + count))
    return {"p50": took[count // 2], "p99": took[int(count * 0.99)]}


def _records(ledger: Path) -> int:
    return ledger.stat().st_size // bodies.RAN.size


def work(adapter: Any, load: str) -> None:
    """Become the peer's worker."""
    if hasattr(adapter, "work"):
        adapter.work(load)
    else:
        command = cast("list[str]", adapter.command(load))
        os.execv(command[0], command)


def _run(work: Coroutine[Any, Any, Numbers | None]) -> None:
    try:
        import uvloop

        said = uvloop.run(work)
    except ImportError:
        said = asyncio.run(work)
    print(json.dumps(said or {}))


def main(name: str, what: str, *arguments: str) -> None:
    """Do one of them."""
    adapter = importlib.import_module(f"benchmarks.peers.adapters.{name}")
    match what, arguments:
        case "work", [load]:
            work(adapter, load)
        case "produce", [load, count, how]:
            _run(produce(adapter, load, int(count), how))
        case "wait", [count, seed]:
            _run(wait(cast("Adapter", adapter), int(count), int(seed)))
        case "install", []:
            _run(adapter.install())
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
