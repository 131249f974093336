"""What the SQLite store costs, in microseconds: enqueue, turn, read, tail.

python benchmarks/sqlite_turn.py [--backlog 100000] [--path FILE] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from selaras._contracts.partition import Fill, Instance, ReadRequest, TurnRequest
from selaras._core.cache.entry import Miss
from selaras._core.jobs.job import Claim, NewJob, Put, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START
from selaras._stores.sqlite.partition import SqlitePartition
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import system_clock

BATCH = 100


async def timed(name: str, step: Callable[[], Awaitable[int]], seconds: float) -> None:
    """Repeat `step`, which returns how many it did, and print the cost of one."""
    done, began, cpu_began = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        done += await step()
    spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    print(f"{name:34} {spent / done * 1e6:8.2f} us   {cpu / done * 1e6:8.2f} us of CPU   {done / spent:10,.0f} /s")


class Producer:
    """Makes jobs with ids of their own."""

    def __init__(self) -> None:
        self._made = 0

    def jobs(self, count: int, *, lined: bool = False) -> list[NewJob]:
        """Return fresh jobs with a small payload."""
        first, self._made = self._made, self._made + count
        numbers = range(first, first + count)
        if lined:
            return [
                NewJob(id=f"{n:032x}", task="t", payload=b"x" * 40, line=f"product:{n}", writes=(f"product:{n}",))
                for n in numbers
            ]
        return [NewJob(id=f"{n:032x}", task="t", payload=b"x" * 40, meta=b"m" * 20) for n in numbers]


class Worker:
    """Takes turns as a worker does, with bodies that do nothing."""

    def __init__(self, partition: SqlitePartition) -> None:
        self._partition = partition
        self._turn = 0
        self._claims: tuple[Claim, ...] = ()

    async def turn(self) -> int:
        """Settle the last batch and claim the next."""
        self._turn += 1
        succeed = JobEvent.SUCCEED
        reply = await self._partition.turn(
            TurnRequest(
                instance="bench",
                number=self._turn,
                acked=self._turn - 1,
                since=self._partition.tail_now() or START,
                queues=("default",),
                tasks=frozenset({"t"}),
                limit=BATCH,
                settlements=tuple(
                    [Settlement(one.job, one.fence, succeed, result=b"\xc0", writes=one.writes) for one in self._claims]
                ),
            )
        )
        self._claims = reply.claims
        return len(reply.claims) or 1


async def bench(path: Path, backlog: int, seconds: float) -> None:
    """Run everything once."""
    store = SqliteStore(path, system_clock())
    await store.open()
    partition = store.partitions[0]
    await partition.enroll(Instance(id="bench", lease_us=10**12, queues=("default",)))
    producer, worker = Producer(), Worker(partition)

    def enqueue(count: int) -> Callable[[], Awaitable[int]]:
        async def step() -> int:
            await partition.enqueue(producer.jobs(count), partition.tail_now() or START)
            return count

        return step

    async def enqueue_together() -> int:
        tail = partition.tail_now() or START
        await asyncio.gather(*[partition.enqueue(producer.jobs(1), tail) for _ in range(BATCH)])
        return BATCH

    for _ in range(backlog // 1_000):
        await enqueue(1_000)()
    await timed("enqueue, one awaited", enqueue(1), seconds)
    await timed("enqueue, 100 tasks at once", enqueue_together, seconds)
    await timed("enqueue, batches of 100", enqueue(100), seconds)
    await timed("enqueue, batches of 1000", enqueue(1_000), seconds)
    await timed("turn of 100 (settle and claim)", worker.turn, seconds)

    keys = [f"product:{n}" for n in range(1_000)]
    for key in keys:
        look = (await partition.read([ReadRequest(key, "product", 10**7)], START)).looks[0]
        assert isinstance(look, Miss)
        await partition.fill([Fill(Put(key, b"v" * 200, 1, family="product"), look.token)], START)
    requests = [[ReadRequest(key, "product", 10**7)] for key in keys]
    tail = partition.tail_now() or START

    async def hits() -> int:
        for request in requests:
            await partition.read(request, tail)
        return len(requests)

    async def batch_hits() -> int:
        await partition.read([request[0] for request in requests[:BATCH]], tail)
        return BATCH

    async def tails() -> int:
        for _ in range(1_000):
            partition.tail_now()
        return 1_000

    await timed("read, one key, a hit", hits, seconds)
    await timed("read, 100 keys, hits", batch_hits, seconds)
    await timed("tail_now", tails, seconds)

    began = time.perf_counter()
    await partition.queues()
    print(f"{'queues()':34} {(time.perf_counter() - began) * 1e3:8.2f} ms")

    while await worker.turn() > 1:
        pass
    for _ in range(int(20 * seconds) or 1):
        await partition.enqueue(producer.jobs(500, lined=True), partition.tail_now() or START)
    await timed("turn of 100, line and write", worker.turn, seconds)
    await store.close()


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backlog", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--path", type=Path, default=None)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as folder:
        if profile:
            profile.enable()
        asyncio.run(bench(options.path or Path(folder) / "bench.db", options.backlog, options.seconds))
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
