"""What is left in the indexes of the Redis store: housekeeping drops in time whoever should not stand there."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.clock import VirtualClock
from tests.conformance.world import A, B, World, after, job
from tests.stores import ForgetfulPartition, clear_servers, make_store


async def test_a_job_that_is_cancelled_while_its_parent_elsewhere_runs_is_not_asked_after_any_more(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    store = make_store("redis-4", tmp_path, clock, Random(1))
    await store.open()
    try:
        world, home = World(store, clock), store.partitions[0]
        assert isinstance(home, ForgetfulPartition)
        await world.enqueue(job(A, parents=after("another", home=1)), job(B, parents=after("another", home=1)))
        before = [member[8:] for member in home.members("far")]

        await home.cancel(A, "no longer wanted")

        assert before == [A, B]
        assert [member[8:] for member in home.members("far")] == [B]
    finally:
        await store.close()
        clear_servers()


async def test_a_running_job_that_is_written_over_counts_as_failed_and_runs_no_more(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = make_store("redis-1", tmp_path, clock, Random(1))
    await store.open()
    try:
        world, home = World(store, clock), store.partitions[0]
        assert isinstance(home, ForgetfulPartition)
        worker = await world.worker()
        await world.enqueue(job(A), job(B))
        await worker.claims(limit=2)

        home.overwrite("jobs", A)
        await home.cancel(A, "whoever meets it first")

        (queue,) = await home.queues()
        assert queue.counts == {"running": 1, "failed": 1}
    finally:
        await store.close()
        clear_servers()
