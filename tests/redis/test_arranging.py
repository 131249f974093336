"""Heads of lines in which several queues wait, once the queues that are served have changed: so many at a step, and all."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from tests.clock import VirtualClock
from tests.stores import clear_servers, make_store

from selaras._contracts.partition import Instance, Partition, TurnRequest
from selaras._core.jobs.job import NewJob
from selaras._core.positions import START
from selaras._stores.redis.records import ARRANGED_AT_ONCE

LINES: Final = 2 * ARRANGED_AT_ONCE + 50


async def test_a_pause_looks_at_so_many_lines_and_housekeeping_at_the_rest(tmp_path: Path) -> None:
    store = make_store("redis-1", tmp_path, VirtualClock(), Random(1))
    await store.open()
    try:
        (partition,) = store.partitions
        await partition.enroll(Instance(id="i", lease_us=15_000_000, queues=("a", "b"), bell=""))
        await partition.enqueue(
            [
                NewJob(id=f"{queue}-{n:04}", task="t", queue=queue, line=f"line-{n:04}")
                for n in range(LINES)
                for queue in "ab"
            ],
            START,
        )

        await partition.pause("a", paused=True)

        assert await heads_of(partition) == {"a": LINES - ARRANGED_AT_ONCE, "b": ARRANGED_AT_ONCE}
        assert (await partition.tend(100)).again
        await partition.pause("a", paused=False)  # in the middle of a round: those before are looked at again, too
        rounds = 0
        while (await partition.tend(100)).again:
            rounds += 1
        assert await heads_of(partition) == {"a": LINES}
        assert rounds <= LINES // ARRANGED_AT_ONCE + 1

        await partition.pause("a", paused=True)
        while (await partition.tend(100)).again:
            pass
        turn = TurnRequest(
            instance="i", number=1, acked=0, since=START, queues=("a", "b"), tasks=frozenset("t"), limit=1_000
        )
        claims = (await partition.turn(turn)).claims
        assert {claim.job for claim in claims} == {f"b-{n:04}" for n in range(LINES)}
    finally:
        await store.close()
        clear_servers()


async def heads_of(partition: Partition) -> dict[str, int]:
    """Return how many jobs of each queue are ready: of each line its head."""
    return {stats.name: stats.counts["ready"] for stats in await partition.queues() if stats.counts.get("ready")}
