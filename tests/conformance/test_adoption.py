"""Jobs that stand in one store are taken over by another, as they stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Final

import pytest
from msgspec.structs import replace
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import LINE, LINE2, A, B, C, D, E, World, after, job, local

from selaras._contracts.store import Store
from selaras._core.jobs.job import MOVING, Edge, JobRecord, NewJob, Settlement, Standing
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._stores.memory import MemoryStore

QUICK, LATE, TRIED, KEEPS, BEHIND, FIRST, SECOND_, THIRD, STUCK, VALUE, UNIQUE, SHORT = NAMES = tuple(
    local(f"{name}-")
    for name in [
        "quick",
        "late",
        "tried",
        "keeps",
        "behind",
        "first",
        "second",
        "third",
        "stuck",
        "value",
        "unique",
        "short",
    ]
)
FAILED: Final = A
ALL: Final = (*NAMES, FAILED, B)
KEY = local("unique-key")


@pytest.fixture
async def other(store: Store, clock: VirtualClock) -> AsyncIterator[World]:
    """The reference, beside the store that is tested."""
    made = MemoryStore(clock, partitions=len(store.partitions), entropy=Random(2))
    await made.open()
    world = World(made, clock)
    await world.begin()
    yield world
    world.close()
    await made.close()


async def fill(world: World) -> None:
    """Let jobs stand in every way in which they can be taken over."""
    worker = await world.worker("a worker")

    async def run(id: str, event: JobEvent, **options: object) -> None:
        """Let the next job be that one, and end so."""
        claim = await worker.claim()
        assert claim.job == id
        await worker.turn(Settlement(id, claim.fence, event, **options), limit=0)  # type: ignore[arg-type] # as said

    await world.enqueue(job(FAILED))
    await run(FAILED, JobEvent.FAIL, error=b"e", reason="it raised")
    await world.enqueue(job(TRIED, priority=3, payload=b"p", meta=b"m"))
    await run(TRIED, JobEvent.RETRY, delay_us=7 * SECOND, reason="once more")
    await world.enqueue(job(KEEPS, line=LINE2, ordered=True))
    await run(KEEPS, JobEvent.RETRY, delay_us=SECOND)
    await world.enqueue(
        job(BEHIND, line=LINE2),
        job(FIRST, line=LINE, writes=("k",)),
        job(SECOND_, line=LINE),
        job(THIRD, line=LINE, priority=-1),
        job(LATE, delay_us=60 * SECOND, queue="mail"),
        job(QUICK, priority=5, expires_in_us=100 * SECOND, max_lost=1, result_ttl_us=SECOND, failed_ttl_us=SECOND),
        job(STUCK, parents=after(FAILED)),
        job(B, delay_us=30 * SECOND),
        job(VALUE, parents=(*after(B, Edge.VALUE), *after(FAILED, Edge.FINISHED))),
        job(UNIQUE, unique=KEY),
        job(SHORT, expires_in_us=50 * SECOND),
    )
    await world.home.dismiss("a worker")


async def taken_over(source: World, target: World) -> list[JobRecord]:
    """Move all, those that wait for others last. Returns how they stood."""
    before = [await source.record(id) for id in ALL]
    standing = [one for one in await source.home.standing(ALL) if one is not None]
    assert len(standing) == len(ALL)
    standing.sort(key=lambda one: one.state is JobState.BLOCKED)
    assert all(await target.home.adopt(standing, 1))
    return before


def shown(record: JobRecord) -> JobRecord:
    """What must be the same: fences and the time of readiness are each store's own."""
    return replace(record, fence=0, instance="", started_us=0)


async def order_of_claims(world: World) -> list[tuple[str, int]]:
    """Run everything that there is, one by one."""
    worker = await world.worker(queues=("default", "mail"))
    claimed: list[tuple[str, int]] = []
    for _ in range(100):
        claims = await worker.claims(limit=1)
        if not claims:
            world.clock.advance(SECOND)
            worker.beat()
            await world.tend()
            continue
        (claim,) = claims
        claimed.append((claim.job, claim.number))
        await worker.end(claim, result=b"r")
    return claimed


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_jobs_stand_in_another_store_as_they_stood(world: World, other: World, direction: str) -> None:
    source, target = (other, world) if direction == "in" else (world, other)
    await fill(source)

    before = await taken_over(source, target)

    after_ = [await target.record(id) for id in ALL]
    assert [shown(record) for record in after_] == [shown(record) for record in before]
    assert {record.state for record in after_} == {*MOVING}
    (stats,) = (one for one in await target.home.queues() if one.name == "default")
    (meant,) = (one for one in await source.home.queues() if one.name == "default")
    assert stats.counts == meant.counts


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_they_go_on_as_they_would_have(world: World, other: World, direction: str) -> None:
    source, target = (other, world) if direction == "in" else (world, other)
    await fill(source)
    await taken_over(source, target)
    now = world.clock.wall_us()

    moved = await order_of_claims(target)

    assert len(moved) == len(ALL) - 2  # what failed, and what waits for it
    assert (await target.record(STUCK)).stuck_on == FAILED
    for name in (FIRST, SECOND_, THIRD):
        assert (name, 1) in moved
    assert [name for name, _ in moved if name in (FIRST, SECOND_, THIRD)] == [FIRST, SECOND_, THIRD]
    assert [name for name, _ in moved if name in (KEEPS, BEHIND)] == [KEEPS, BEHIND]
    assert (TRIED, 2) in moved
    assert (await target.record(LATE)).started_us >= now + 60 * SECOND - SECOND * 5
    await target.home.revive(FAILED)
    assert [name for name, _ in await order_of_claims(target)] == [FAILED, STUCK]


async def test_twice_is_once(world: World, other: World) -> None:
    await fill(other)
    standing = [one for one in await other.home.standing(ALL) if one is not None]
    standing.sort(key=lambda one: one.state is JobState.BLOCKED)
    first = await world.home.adopt(standing[:4], 1)

    again = await world.home.adopt(standing, 1)

    assert first == (True,) * 4
    assert again == (False,) * 4 + (True,) * (len(ALL) - 4)
    (stats,) = (one for one in await world.home.queues() if one.name == "default")
    (meant,) = (one for one in await other.home.queues() if one.name == "default")
    assert stats.counts == meant.counts


async def test_p15_fences_are_above_all_of_the_other_store(world: World, other: World) -> None:
    """Else the datastore would refuse every write: `where fence <= :fence`."""
    worker = await other.worker()
    await other.enqueue(job(C), job(D))
    fence = (await worker.claim()).fence
    ((epoch,), (standing,)) = ((await other.home.cache_stats()).epoch,), await other.home.standing([D])
    assert standing is not None

    await world.home.adopt([standing], epoch + 1)
    claim = await (await world.worker()).claim()

    assert claim.fence > fence
    assert (await world.home.cache_stats()).epoch == epoch + 1
    await world.home.adopt([standing], epoch)
    assert (await world.home.cache_stats()).epoch == epoch + 1


async def test_a_unique_key_is_held_on(world: World, other: World) -> None:
    await other.enqueue(job(C, unique=KEY))
    (standing,) = await other.home.standing([C])
    assert standing is not None
    await world.home.adopt([standing], 0)

    twin = await world.enqueue_one(D, unique=KEY)

    assert (twin.id, twin.created) == (C, False)


async def test_what_runs_and_what_is_over_does_not_stand(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(C))
    await worker.run()
    await world.enqueue(job(D), job(E, delay_us=SECOND))
    await worker.claim()
    await world.hold(worker, local("a lock"), LINE)

    standing = await world.home.standing([C, D, E, local("a lock"), "nobody"])

    assert [one.job.id if one else None for one in standing] == [None, None, E, None, None]


async def test_a_job_keeps_all_that_was_asked_for(world: World) -> None:
    asked = NewJob(
        id=C,
        task="work",
        payload=b"p",
        meta=b"m",
        queue="q",
        priority=-7,
        expires_in_us=SECOND,
        line=LINE,
        ordered=True,
        writes=("a", "b"),
        serves=("c",),
        wants_preimage=True,
        unique=KEY,
        max_lost=1,
        result_ttl_us=5,
        failed_ttl_us=6,
    )
    await world.home.enqueue([asked], START)

    (standing,) = await world.home.standing([C])

    assert isinstance(standing, Standing)
    assert standing.job == asked


async def test_a_place_that_is_taken_is_no_hindrance(world: World, other: World) -> None:
    await world.enqueue(job(A), job(B))
    await other.enqueue(job(C), job(D))
    standing = [one for one in await other.home.standing([C, D]) if one is not None]

    assert await world.home.adopt(standing, 0) == (True, True)

    claims = await (await world.worker()).claims()
    assert {claim.job for claim in claims} == {A, B, C, D}
