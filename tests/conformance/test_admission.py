"""What an enqueue comes to: ids, due times, and what is kept of a job."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clock import SECOND, START_US
from tests.conformance.world import LINE, A, B, K, World, after, job, local

from selaras._core.jobs.job import Admission, Edge, Refusal
from selaras._core.jobs.states import JobEvent, JobState

YEAR_9999 = 253_402_300_799_000_000
FURTHEST = 2**62

ODD_IDS = [
    "123",
    "a:b",
    "a:b:c",
    " ",
    "é",
    "{x}",
    "../x",
    "a\nb",
    "x" * 300,
    "lock",
    "delayed",
    "%",
    "'",
    "пример",
    "🚲",
    "\0",
]


async def test_a_job_that_nothing_holds_up_is_ready(world: World) -> None:
    admission = await world.enqueue_one(A)

    assert admission == Admission(A, JobState.READY)


async def test_a_record_shows_what_was_enqueued(world: World) -> None:
    await world.enqueue(
        job(A, payload=b"\x00p", meta=b"m\xff", queue="mail", priority=3, line=LINE, writes=(K,), unique=A)
    )

    record = await world.record(A)

    assert (record.task, record.queue, record.priority, record.line, record.unique) == ("work", "mail", 3, LINE, A)
    assert (record.payload, record.meta, record.writes) == (b"\x00p", b"m\xff", (K,))
    assert (record.created_us, record.attempt, record.fence, record.result) == (START_US, 0, 0, None)


async def test_each_job_of_a_batch_is_admitted_on_its_own(world: World) -> None:
    await world.enqueue_one(A, payload=b"1")

    admissions = await world.enqueue(job(A, payload=b"2"), job(B), job(B))

    assert [(one.id, one.created, one.refusal) for one in admissions] == [
        (A, False, Refusal.ID_CONFLICT),
        (B, True, None),
        (B, False, None),
    ]


@pytest.mark.parametrize("again", [{}, {"queue": "mail", "priority": 9, "delay_us": 5}])
async def test_the_same_id_again_returns_the_twin_and_changes_nothing(world: World, again: dict[str, object]) -> None:
    await world.enqueue_one(A, payload=b"p")
    before = await world.record(A)

    admission = await world.enqueue_one(A, payload=b"p", **again)

    assert admission == Admission(A, JobState.READY, created=False)
    assert await world.record(A) == before


@pytest.mark.parametrize("other", [{"payload": b"other"}, {"task": "other"}])
async def test_the_same_id_with_another_task_or_arguments_is_a_conflict(world: World, other: dict[str, object]) -> None:
    await world.enqueue_one(A, payload=b"p")

    admission = await world.enqueue_one(A, **{"payload": b"p", **other})

    assert admission.refusal is Refusal.ID_CONFLICT
    assert not admission.created


async def test_br078_an_id_that_has_ended_says_so_while_it_is_retained_and_is_clean_afterwards(world: World) -> None:
    worker = await world.worker()
    await world.enqueue_one(A, result_ttl_us=10 * SECOND)
    await worker.run(result=b"r")

    retained = await world.enqueue_one(A)
    await world.pass_time(10 * SECOND)
    fresh = await world.enqueue_one(A)

    assert retained == Admission(A, JobState.SUCCEEDED, created=False)
    assert fresh == Admission(A, JobState.READY)
    assert (await world.record(A)).result is None
    assert (await worker.claim()).number == 1


@pytest.mark.parametrize("odd", ODD_IDS)
async def test_br076_any_text_is_an_id_and_means_no_other_job(world: World, odd: str) -> None:
    name, worker = local(odd), await world.worker()
    await world.enqueue(job(name, line=name, unique=name, writes=(name,), queue=odd), job(A, queue=odd))

    claims = {claim.job: claim for claim in await worker.claims(queues=(odd,))}
    await world.cache(A)
    await worker.end(claims[name], result=b"r")

    assert set(claims) == {name, A}
    assert await world.states(name, A) == [JobState.SUCCEEDED, JobState.RUNNING]
    assert await world.value(A) == b"v0"
    assert {queue.name for queue in await world.home.queues()} >= {odd}


@pytest.mark.parametrize("due_us", [YEAR_9999, FURTHEST])
async def test_br065_a_far_instant_is_kept_exactly(world: World, due_us: int) -> None:
    worker = await world.worker()

    await world.enqueue_one(A, due_us=due_us)

    assert (await world.record(A)).due_us == due_us
    assert not await worker.claims()


async def test_br065_a_far_delay_counts_from_now(world: World) -> None:
    await world.enqueue_one(A, delay_us=FURTHEST)

    assert (await world.record(A)).due_us == START_US + FURTHEST


async def test_br065_an_instant_in_the_past_means_now(world: World) -> None:
    admission = await world.enqueue_one(A, due_us=START_US - 10 * 365 * 86_400 * SECOND)

    assert admission.state is JobState.READY


async def test_br065_a_delayed_job_runs_once_when_it_is_due_however_many_workers_look(world: World) -> None:
    workers = [await world.worker() for _ in range(4)]
    await world.enqueue_one(A, delay_us=60 * SECOND)
    early = [await worker.claims() for worker in workers]
    world.clock.advance(60 * SECOND)

    due = [await worker.claims() for worker in workers]

    assert early == [(), (), (), ()]
    assert [len(claims) for claims in due] == [1, 0, 0, 0]


async def test_a_turn_tells_how_long_until_the_next_job_is_due(world: World) -> None:
    worker = await world.worker()
    nothing = (await worker.turn()).next_due_us
    await world.enqueue(job(A, delay_us=7 * SECOND), job(B, delay_us=9 * SECOND))
    world.clock.advance(SECOND)

    assert nothing == -1
    assert (await worker.turn()).next_due_us == 6 * SECOND


async def test_a_reply_to_an_enqueue_carries_the_log_up_to_now(world: World) -> None:
    since = await world.tail()
    await world.invalidate(K)

    reply = await world.home.enqueue([job(A)], since)

    assert [event.name for event in reply.news.events] == [K]
    assert reply.news.tail == await world.tail()


async def test_a_job_whose_parents_have_not_ended_is_blocked(world: World) -> None:
    await world.enqueue_one(A)

    admission = await world.enqueue_one(B, parents=after(A))

    assert admission.state is JobState.BLOCKED
    assert (await world.record(B)).parents == after(A)


async def test_a_job_whose_parents_have_ended_is_not_blocked(world: World) -> None:
    worker = await world.worker()
    await world.enqueue_one(A)
    await worker.run(JobEvent.SUCCEED, result=b"from a")

    admission = await world.enqueue_one(B, parents=after(A, Edge.VALUE))

    assert admission.state is JobState.READY
    assert (await worker.claim()).input == b"from a"


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "delayed": {"delay_us": SECOND},
    "lined": {"line": LINE},
    "lined, and writes": {"line": LINE, "writes": (K,)},
    "unique": {"unique": "u"},
    "due": {"due_us": START_US + SECOND},
}


@pytest.mark.parametrize("second", SHAPES)
@pytest.mark.parametrize("first", SHAPES)
async def test_an_id_that_is_enqueued_twice_in_one_step_is_one_job(world: World, first: str, second: str) -> None:
    """Each of the two has the way of its own through the store."""
    others = (job(B, due_us=START_US + SECOND), job("c", unique="c"))
    batch = (*others, job(A, **SHAPES[first]), job(A, **SHAPES[second]))

    admissions = await world.enqueue(*batch)

    assert [one.created for one in admissions] == [True, True, True, False]
    assert sum(sum(queue.counts.values()) for queue in await world.home.queues()) == 3
    assert (await world.record(A)).due_us == START_US + (SECOND if first in ("delayed", "due") else 0)
