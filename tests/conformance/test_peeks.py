"""What a worker sees of the jobs that it will be handed next."""

from __future__ import annotations

from dataclasses import replace

from tests.clock import SECOND
from tests.conformance.world import K2, LINE, A, B, C, D, E, K, Worker, World, after, job

from selaras._contracts.partition import Waiting
from selaras._core.jobs.job import Edge
from selaras._core.jobs.states import JobEvent, JobState


async def peek(worker: Worker, limit: int = 100) -> tuple[Waiting, ...]:
    return await worker.world.home.peek(worker.queues, worker.tasks, limit)


async def seen(worker: Worker, limit: int = 100) -> list[str]:
    return [one.job for one in await peek(worker, limit)]


async def test_a_peek_shows_what_a_job_will_read_and_write(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, payload=b"p", meta=b"m", line=LINE, writes=(K,), serves=(K2,)), job(B, payload=b"q"))

    assert await peek(worker) == (
        Waiting(A, "work", b"p", b"m", (K,), (K2,)),
        Waiting(B, "work", b"q"),
    )


async def test_a_peek_shows_the_order_of_claims_and_changes_nothing(world: World) -> None:
    worker = await world.worker(queues=("default", "mail"))
    await world.enqueue(job(A, priority=-1), job(B), job(C, priority=5, queue="mail"), job(D), job(E, queue="other"))

    before = await seen(worker)

    assert before == [C, B, D, A]
    assert await seen(worker, 2) == before[:2]
    assert await world.states(A, B, C, D) == [JobState.READY] * 4
    assert [claim.job for claim in await worker.claims()] == before
    assert await seen(worker) == []


async def test_a_peek_shows_what_can_be_claimed_now(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(
        job(A, line=LINE), job(B, line=LINE), job(C, delay_us=SECOND), job(D, parents=after(A)), job(E, queue="paused")
    )
    await world.home.pause("paused", paused=True)
    worker.queues = ("default", "paused")

    assert await seen(worker) == [A]

    await worker.run()  # the line is free, and what waited for that job

    assert sorted(await seen(worker)) == sorted((B, D))


async def test_a_peek_leaves_out_what_the_worker_does_not_know(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, task="other"), job(B), job(C, task="other"))
    both = replace(worker, tasks=frozenset({"work", "other"}))

    assert await seen(worker) == [B]
    assert await seen(worker, 1) == []  # the first one is looked at
    assert await seen(both) == [A, B, C]

    await worker.claims(limit=0)
    (claim,) = await worker.claims(limit=1)  # lays aside what it does not know

    assert claim.job == B
    assert await seen(worker) == []
    assert await seen(both) == [A, C]


async def test_a_peek_shows_the_value_of_the_step_before(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B, parents=after(A, Edge.VALUE)))
    await worker.run(result=b"of the first step")

    (waiting,) = await peek(worker)

    assert (waiting.job, waiting.input) == (B, b"of the first step")


async def test_a_peek_shows_a_retry_when_its_time_has_come(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    await worker.run(JobEvent.RETRY, delay_us=SECOND)
    assert await seen(worker) == []

    world.clock.advance(SECOND)
    await world.tend()

    assert await peek(worker) == (Waiting(A, "work", b"", b"", (K,)),)


async def test_a_peek_at_no_queue_shows_nothing(world: World) -> None:
    worker = await world.worker()
    await world.enqueue_one(A)

    assert await world.home.peek((), worker.tasks, 100) == ()
    assert await world.home.peek(worker.queues, frozenset(), 100) == ()
