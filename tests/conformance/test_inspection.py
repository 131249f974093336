"""What CLI and dashboard see."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clock import SECOND, START_US
from tests.conformance.world import K2, LINE, A, B, C, D, K, World, job, local, put

from selaras._contracts.partition import JobFilter
from selaras._core.jobs.job import JobKind, Settlement
from selaras._core.jobs.states import JobEvent, JobState


async def test_jobs_are_listed_newest_first(world: World) -> None:
    await world.enqueue(job(A), job(B), job(C))

    page = await world.home.jobs(JobFilter())

    assert [record.id for record in page.jobs] == [C, B, A]
    assert page.cursor == 0
    assert page.jobs[0] == await world.record(C)


async def test_scopes_are_listed_on_wish_and_apart_from_tasks(world: World) -> None:
    await world.enqueue(job(A))
    worker = await world.worker()
    await world.scope(worker, B, K)

    of_tasks = await world.home.jobs(JobFilter())
    of_scopes = await world.home.jobs(JobFilter(kind=JobKind.WRITING, states=(JobState.RUNNING,)))

    assert [record.id for record in of_tasks.jobs] == [A]
    assert [(record.id, record.writes) for record in of_scopes.jobs] == [(B, (K,))]


async def test_a_listing_comes_in_pages(world: World) -> None:
    names = [local(f"page-{number}") for number in range(5)]
    await world.enqueue(*(job(name) for name in names))

    pages, before = [], 0
    for _ in range(3):
        page = await world.home.jobs(JobFilter(limit=2, before=before))
        pages.append([record.id for record in page.jobs])
        before = page.cursor

    assert pages == [[names[4], names[3]], [names[2], names[1]], [names[0]]]
    assert before == 0


async def test_a_listing_can_be_narrowed(world: World) -> None:
    await world.enqueue(job(A), job(B, queue="mail"), job(C, task="other"), job(D, delay_us=SECOND))

    async def listed(**narrowed: object) -> list[str]:
        return [record.id for record in (await world.home.jobs(JobFilter(**narrowed))).jobs]  # type: ignore[arg-type]

    assert await listed(queue="mail") == [B]
    assert await listed(task="other") == [C]
    assert await listed(states=(JobState.SCHEDULED,)) == [D]
    assert await listed(states=(JobState.SCHEDULED, JobState.READY), queue="default") == [D, C, A]
    assert await listed(limit=0) == []


async def test_queues_tell_counts_age_pause_and_workers(world: World) -> None:
    worker = await world.worker(queues=("default", "idle"))
    await world.enqueue(job(A), job(B), job(C, queue="mail"))
    world.clock.advance(SECOND)
    await world.enqueue(job(D))
    await worker.run(JobEvent.FAIL)
    await world.home.pause("paused", paused=True)

    queues = {queue.name: queue for queue in await world.home.queues()}

    assert list(queues) == ["default", "idle", "mail", "paused"]
    assert queues["default"].counts == {"ready": 2, "failed": 1}
    assert queues["default"].oldest_ready_us == START_US
    assert {name: queue.workers for name, queue in queues.items()} == {"default": 1, "idle": 1, "mail": 0, "paused": 0}
    assert [name for name, queue in queues.items() if queue.paused] == ["paused"]


@pytest.mark.parametrize("options", [{}, {"line": LINE}, {"writes": (K,)}], ids=["plain", "in line", "writing"])
async def test_queues_count_what_succeeds_together(world: World, options: dict[str, Any]) -> None:
    worker = await world.worker()
    await world.enqueue(*(job(id, **options) for id in (A, B, C)))
    for _ in range(3):  # one at a time, those of a line
        claims = await worker.claims(limit=3)
        await worker.turn(*(Settlement(claim.job, claim.fence, JobEvent.SUCCEED) for claim in claims), limit=0)

    (queue,) = await world.home.queues()

    assert queue.counts == {"succeeded": 3}


async def test_instances_are_those_with_a_lease(world: World) -> None:
    one, other = await world.worker(name="web-1", pid=7, host="h"), await world.worker()
    await world.home.dismiss(other.id)

    (instance,) = await world.home.instances()

    assert (instance.id, instance.name, instance.pid, instance.host) == (one.id, "web-1", 7, "h")


async def test_cache_stats_count_the_shared_tier(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, b"12345")
    await world.miss(K2)
    await world.enqueue(job(A, writes=(local("k-1"), local("k-2"))))
    await worker.claim()

    stats = await world.home.cache_stats()

    assert (stats.entries, stats.bytes, stats.intents, stats.tokens, stats.epoch) == (1, 5, 2, 1, 0)
    assert stats.position == stats.log_length == (await world.tail()).position


async def test_a_value_stored_again_is_counted_once(world: World) -> None:
    worker = await world.worker()
    await world.cache(K, b"12345")
    await world.enqueue(job(A, writes=(K,)))
    await worker.run(puts=(put(K, b"123"),))

    stats = await world.home.cache_stats()

    assert (stats.entries, stats.bytes) == (1, 3)


async def test_a_key_without_intents_has_none(world: World) -> None:
    assert await world.home.intents(K) == ()
