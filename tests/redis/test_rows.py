"""What stands in the rows and indexes of the Redis store: what is counted, what is left, and what somebody else wrote there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest
from tests.clock import VirtualClock
from tests.conformance.world import A, B, K, World, after, job
from tests.stores import ForgetfulPartition, clear_servers, make_store

_ENTRY_HEAD: Final = 44
"""Stamp, position, end, size, the value's id: what of an entry is no MessagePack."""


@asynccontextmanager
async def on_server(kind: str, folder: Path) -> AsyncIterator[tuple[World, ForgetfulPartition]]:
    """Open a store of this kind, with its first partition."""
    clock = VirtualClock()
    store = make_store(kind, folder, clock, Random(1))
    await store.open()
    try:
        home = store.partitions[0]
        assert isinstance(home, ForgetfulPartition)
        yield World(store, clock), home
    finally:
        await store.close()
        clear_servers()


async def test_a_job_that_is_cancelled_while_its_parent_elsewhere_runs_is_not_asked_after_any_more(
    tmp_path: Path,
) -> None:
    async with on_server("redis-4", tmp_path) as (world, home):
        await world.enqueue(job(A, parents=after("another", home=1)), job(B, parents=after("another", home=1)))
        before = [member[8:] for member in home.members("far")]

        await home.cancel(A, "no longer wanted")

        assert before == [A, B]
        assert [member[8:] for member in home.members("far")] == [B]


async def test_a_running_job_that_is_written_over_counts_as_failed_and_runs_no_more(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A), job(B))
        await worker.claims(limit=2)

        home.overwrite("jobs", A)
        await home.cancel(A, "whoever meets it first")

        (queue,) = await home.queues()
        assert queue.counts == {"running": 1, "failed": 1}


@pytest.mark.parametrize(
    "tail", [[7, None, "product"], [7, None, "product", [1]], [7, None, 1, []], [7, "1", "product", []]]
)
async def test_an_entry_whose_tags_family_or_version_were_written_over_is_a_miss(
    tmp_path: Path, tail: list[object]
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        await world.cache(K, family="product")

        home.overwrite("entries", K, lambda row: row[:_ENTRY_HEAD] + msgspec.msgpack.encode(tail))
        await world.invalidate(tags=("another",))  # from now on its tags and its family are looked at

        assert await world.miss(K)


async def test_what_should_fall_and_does_not_stand_is_forgotten(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        home.stand("falls", f"0:{len(A)}:{A}{K}")

        await world.tend()

        assert home.members("falls") == []
