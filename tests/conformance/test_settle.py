"""The one write that ends an attempt: who may make it, and what becomes of the job."""

from __future__ import annotations

import pytest
from tests.clock import SECOND, START_US
from tests.conformance.world import A, B, C, K, World, job

from selaras._contracts.limits import HISTORY_MOST
from selaras._core.jobs.job import Attempt, Refusal, Settlement
from selaras._core.jobs.lifecycle import SETTLING, UNCOUNTED
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START

ENDS = {
    JobEvent.SUCCEED: JobState.SUCCEEDED,
    JobEvent.FAIL: JobState.FAILED,
    JobEvent.CANCEL: JobState.CANCELLED,
    JobEvent.RETRY: JobState.READY,
    JobEvent.SNOOZE: JobState.READY,
    JobEvent.GIVE_BACK: JobState.READY,
    JobEvent.RELEASE: JobState.READY,
}


def test_every_event_a_worker_may_settle_with_has_its_end_below() -> None:
    assert set(ENDS) == SETTLING


@pytest.mark.parametrize("event", ENDS)
async def test_a_settle_moves_the_job_where_its_event_leads(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    settled = await worker.run(event, reason="because", error=b"e")

    record = await world.record(A)
    assert settled.state is record.state is ENDS[event]
    assert record.instance == ""
    assert record.attempt == (0 if event in UNCOUNTED else 1)
    assert record.reason == "because"
    assert record.error == b"e"


@pytest.mark.parametrize("event", sorted(set(JobEvent) - SETTLING))
async def test_an_event_that_is_the_store_s_own_is_refused_and_changes_nothing(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()
    before, since = await world.record(A), await world.tail()

    settled = await worker.end(claim, event, keys=(K,))

    assert (settled.state, settled.refusal) == (None, Refusal.WRONG_STATE)
    assert await world.record(A) == before
    assert await world.events(since) == []
    assert len(await world.home.intents(K)) == 1


async def test_a_success_keeps_its_result_and_is_not_history(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, result_ttl_us=60 * SECOND))
    world.clock.advance(SECOND)

    await worker.run(result=b"\x00result")

    record = await world.record(A)
    assert (record.result, record.error, record.history) == (b"\x00result", None, ())
    assert (record.ended_us, record.keep_until_us) == (START_US + SECOND, START_US + 61 * SECOND)


async def test_a_failure_is_kept_with_its_error_for_as_long_as_dead_letters_are(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, failed_ttl_us=60 * SECOND, payload=b"raw"))

    await worker.run(JobEvent.FAIL, error=b"boom", reason="ValueError: boom")

    record = await world.record(A)
    assert (record.error, record.reason, record.payload) == (b"boom", "ValueError: boom", b"raw")
    assert record.keep_until_us == START_US + 60 * SECOND


async def test_br091_a_job_of_corrupt_bytes_fails_alone_with_its_bytes_kept(world: World) -> None:
    worker = await world.worker()
    corrupt = b"\xff\xfe\x00 not what anybody wrote"
    await world.enqueue(job(A, payload=corrupt, meta=corrupt), job(B))

    await worker.run(JobEvent.FAIL, reason="its bytes are not readable")
    await worker.run()

    assert await world.states(A, B) == [JobState.FAILED, JobState.SUCCEEDED]
    assert (await world.record(A)).payload == corrupt


@pytest.mark.parametrize("event", [JobEvent.RETRY, JobEvent.SNOOZE, JobEvent.GIVE_BACK])
async def test_a_job_that_runs_again_later_waits_for_its_time(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    settled = await worker.run(event, delay_us=5 * SECOND)
    early = await worker.claims()
    world.clock.advance(5 * SECOND)
    again = await worker.claim()

    assert settled.state is JobState.SCHEDULED
    assert not early
    assert again.number == (1 if event in UNCOUNTED else 2)


async def test_a_released_job_is_ready_at_once_whatever_delay_is_named(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    settled = await worker.run(JobEvent.RELEASE, delay_us=5 * SECOND)

    assert settled.state is JobState.READY


@pytest.mark.parametrize("event", sorted(SETTLING & UNCOUNTED))
async def test_an_uncounted_end_gives_the_attempt_back(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    numbers = []
    for _ in range(3):
        claim = await worker.claim()
        numbers.append(claim.number)
        await worker.end(claim, event)

    assert numbers == [1, 1, 1]


async def test_attempts_are_counted_at_the_claim(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    await worker.run(JobEvent.RETRY)

    await worker.claim()

    assert (await world.record(A)).attempt == 2


async def test_history_tells_each_attempt_by_its_own_number(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    first = await worker.run(JobEvent.RETRY, reason="first")
    second = await worker.run(JobEvent.SNOOZE, reason="second")
    third = await worker.run(JobEvent.FAIL, reason="third")

    history = (await world.record(A)).history
    assert [(one.number, one.event, one.reason) for one in history] == [
        (1, JobEvent.RETRY, "first"),
        (2, JobEvent.SNOOZE, "second"),
        (2, JobEvent.FAIL, "third"),
    ]
    assert [one.fence for one in history] == [first.fence, second.fence, third.fence]


async def test_history_is_bounded_and_keeps_the_latest(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    for number in range(HISTORY_MOST + 5):
        await worker.run(JobEvent.RETRY, reason=str(number))

    history = (await world.record(A)).history
    assert [one.reason for one in history] == [str(number) for number in range(5, HISTORY_MOST + 5)]


async def test_children_are_enqueued_by_a_success(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(C, payload=b"another"))

    settled = await worker.run(children=(job(B), job(C)))

    assert [(one.id, one.created, one.refusal) for one in settled.children] == [
        (B, True, None),
        (C, False, Refusal.ID_CONFLICT),
    ]
    assert await world.state(B) is JobState.READY


@pytest.mark.parametrize("event", sorted(SETTLING - {JobEvent.SUCCEED}))
async def test_children_of_anything_but_a_success_are_dropped(world: World, event: JobEvent) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))

    settled = await worker.run(event, children=(job(B),))

    assert settled.children == ()
    assert not await world.knows(B)


@pytest.mark.parametrize("wrong", ["instance", "job", "fence"])
async def test_p15_l4_a_settle_must_match_instance_job_and_fence(world: World, wrong: str) -> None:
    worker, other = await world.worker(), await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    attempt = Attempt(B if wrong == "job" else A, claim.fence + (wrong == "fence"))
    settled = await (other if wrong == "instance" else worker).end(attempt)

    assert (settled.state, settled.refusal) == (None, Refusal.LEASE_LOST)
    assert await world.state(A) is JobState.RUNNING


async def test_g6_an_attempt_is_settled_once(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()

    first = await worker.end(claim, result=b"1")
    second = await worker.end(claim, JobEvent.FAIL, error=b"2")

    assert (first.state, second.refusal) == (JobState.SUCCEEDED, Refusal.LEASE_LOST)
    assert (await world.record(A)).result == b"1"


async def test_an_attempt_may_be_settled_outside_a_turn(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    claim = await worker.claim()
    since = await world.tail()

    reply = await world.home.settle(worker.id, [Settlement(A, claim.fence, JobEvent.SUCCEED, keys=(K,))], since)

    assert reply.settled[0].state is JobState.SUCCEEDED
    assert [event.name for event in reply.news.events] == [K]


async def test_settlements_of_one_turn_take_effect_in_their_order(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A), job(B))
    a, b = await worker.claims()

    reply = await worker.turn(
        Settlement(B, b.fence, JobEvent.SUCCEED, keys=("second", "first")),
        Settlement(A, a.fence, JobEvent.SUCCEED, keys=("third",)),
        Settlement(A, a.fence, JobEvent.FAIL),
    )

    assert [(one.job, one.state, one.refusal) for one in reply.settled] == [
        (B, JobState.SUCCEEDED, None),
        (A, JobState.SUCCEEDED, None),
        (A, None, Refusal.LEASE_LOST),
    ]


async def test_g8_whoever_is_told_of_a_job_hears_the_log_up_to_now(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A))
    since = await world.tail()
    await worker.run(keys=(K,))

    record, news = await world.home.job(A, since)

    assert record is not None
    assert record.state is JobState.SUCCEEDED
    assert [event.name for event in news.events] == [K]


async def test_an_unknown_job_is_answered_with_nothing(world: World) -> None:
    record, _ = await world.home.job(A, START)

    assert record is None
