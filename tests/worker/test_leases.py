"""Leases as the worker sees them: beats, lapses, loss, zombies."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest
from msgspec.structs import replace
from tests.worker.ground import THREAD, Ground, Turning, working
from tests.worker.host import PlainRun, Task, for_ever, nothing, waits_for

from selaras._contracts.partition import HeartbeatRequest, TurnReply, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.events import (
    AttemptAbandoned,
    AttemptStopped,
    LeaseLapsed,
    LoopLagged,
    Reenrolled,
    SettleRefused,
    WorkerStopping,
)
from selaras._core.jobs.job import Attempt, Refusal
from selaras._core.jobs.states import JobEvent, JobState
from selaras._worker import attempts
from selaras._worker.attempts import Held
from selaras._worker.exits import Exit
from selaras._worker.wary import LAPSED


def unreachable(request: HeartbeatRequest) -> None:
    raise StoreUnavailable("the heartbeat's connection is dead")


async def test_a_body_that_blocks_the_loop_keeps_its_lease() -> None:
    """BR-003: three leases long, one run, and the second worker gets nothing."""

    async def block(run: PlainRun) -> None:
        time.sleep(1.2)

    async with working({"b": Task(block)}, lease_us=400_000, heartbeat_us=100_000) as ground:
        await ground.enqueue("b", "a")

        await ground.until_state("a", JobState.SUCCEEDED)

        assert ground.host.started == ["a"]
        assert (await ground.job("a")).attempt == 1
        assert not ground.diary.of(SettleRefused)


async def test_a_blocked_loop_is_reported_with_the_body_that_blocks_it() -> None:
    async def block(run: PlainRun) -> None:
        time.sleep(1.6)

    async with working({"b": Task(block)}) as ground:
        await ground.enqueue("b", "a")
        await ground.until_state("a", JobState.SUCCEEDED)

        [lagged] = ground.diary.of(LoopLagged)

        assert (lagged.job, lagged.task) == ("a", "b")
        assert "time.sleep(1.6)" in lagged.stack


async def test_what_a_late_reply_claimed_is_not_started_when_the_lease_was_not_renewed() -> None:
    """P18: send + lease - margin is over; whether the store still holds the lease cannot be known here."""
    late = asyncio.Event()

    async def be_late(request: TurnRequest, turn: Turning) -> TurnReply:
        reply = await turn(request)
        if reply.claims:
            await late.wait()
        return reply

    async with working({"n": Task(nothing)}, lease_us=300_000, heartbeat_us=100_000) as ground:
        ground.partition.turning = be_late
        ground.store.beating = unreachable
        await ground.enqueue("n", "a")
        await ground.until(lambda: len(ground.diary.of(LeaseLapsed)) == 1)

        late.set()
        await ground.until(lambda: len(ground.host.ended) == 1)

        assert ground.host.started == []
        [(_, settlement, settled)] = ground.host.ended
        assert (settlement.event, settlement.started) == (JobEvent.RELEASE, False)
        assert settled.refusal is None  # the store had not taken it yet: given back at once

        ground.store.beating = None  # renewed: it goes on
        await ground.until_state("a", JobState.SUCCEEDED)
        assert (await ground.job("a")).attempt == 1


async def test_a_lapse_that_only_this_process_sees_ends_no_body_and_starts_none() -> None:
    """P18, P19: a store that was locked for longer than the lease has lost nothing, and says so when it is back."""
    gate = asyncio.Event()

    async def wait(run: PlainRun) -> None:
        await gate.wait()

    tasks = {"w": Task(wait), "n": Task(nothing)}
    async with working(tasks, lease_us=300_000, heartbeat_us=100_000, concurrency=1) as ground:
        await ground.enqueue("w", "a")
        await ground.until(lambda: ground.host.started == ["a"])
        unlocked, beating = threading.Event(), threading.Event()

        def locked(request: HeartbeatRequest) -> None:
            beating.set()
            unlocked.wait()
            unlocked.clear()  # the next beat finds it locked again

        async def locked_too(request: TurnRequest, turn: Turning) -> TurnReply:
            await asyncio.Event().wait()
            raise AssertionError

        ground.store.beating = locked
        ground.partition.turning = locked_too
        await ground.until(lambda: len(ground.diary.of(LeaseLapsed)) == 1)
        await ground.enqueue("n", "b")
        await asyncio.to_thread(beating.wait)
        assert not ground.diary.of(AttemptStopped)

        ground.partition.turning, ground.store.beating = None, None
        unlocked.set()
        gate.set()
        await ground.until_state("a", JobState.SUCCEEDED)
        await ground.until_state("b", JobState.SUCCEEDED)

        assert not ground.diary.of(AttemptStopped)
        assert len(ground.host.instances) == 1
        assert [(await ground.job(id)).attempt for id in "ab"] == [1, 1]


async def test_a_lapse_gives_back_what_waits_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """P18: what was not started may be another's by now; the body that runs goes on."""
    monkeypatch.setattr(attempts, "WAITS_MOST", 10_000)  # else it is given back for want of a slot, and sooner
    async with working({"f": Task(for_ever)}, lease_us=300_000, heartbeat_us=100_000, concurrency=1) as ground:
        await ground.enqueue("f", "a")
        await ground.until(lambda: ground.host.started == ["a"])
        assert ground.worker._crew
        roster = ground.worker._crew.roster
        [running] = roster
        waiting = Held(
            PlainRun(ground.host, Task(for_ever), replace(running.run.claim, job="b", fence=1), 0),
            running.home,
            running.mode,
        )
        roster.place([waiting])

        ground.store.beating = unreachable
        await ground.until(lambda: len(ground.diary.of(LeaseLapsed)) == 1)

        await ground.until(lambda: [job for job, _, _ in ground.host.ended] == ["b"])
        assert (ground.host.ended[0][1].started, ground.host.ended[0][1].reason) == (False, LAPSED)
        assert list(roster) == [running]
        assert running.stop is None


async def test_a_body_is_told_when_a_beat_says_that_it_is_lost() -> None:
    """P18: the instance lives on; one of its attempts was given to another."""
    async with working({"f": Task(for_ever)}) as ground:
        await ground.enqueue("f", "a", "b")
        await ground.until(lambda: ground.host.started == ["a", "b"])
        fence = (await ground.job("a")).fence

        ground.store.lost = (Attempt("a", fence),)

        await ground.until(
            lambda: [(each.job, each.stop) for each in ground.diary.of(AttemptStopped)] == [("a", "lost")]
        )
        ground.store.lost = ()
        assert len(ground.host.instances) == 1


async def test_a_lost_instance_ends_its_bodies_and_goes_on_under_a_new_id() -> None:
    """G4: the zombie's settlement is refused, and voids what it may have written, when its body has ended."""
    finished = asyncio.Event()

    async def slow_to_end(run: PlainRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finished.wait()

    async with working({"f": Task(slow_to_end), "n": Task(nothing)}, patience_us=5_000_000) as ground:
        await ground.enqueue("f", "a", writes=("k",))
        await ground.until(lambda: ground.host.started == ["a"])
        was = ground.host.instances[-1].id

        await ground.partition.dismiss(was)  # as a reaper would; the job is free again, and so is its key
        await ground.until(lambda: len(ground.host.instances) == 2)
        [reenrolled] = ground.diary.of(Reenrolled)
        assert (reenrolled.was, reenrolled.running) == (was, 1)
        assert not ground.host.ended
        before = ground.partition.tail_now().position

        finished.set()
        await ground.until(lambda: bool(ground.diary.of(SettleRefused)))

        _, _, settled = ground.host.ended[0]
        assert settled.refusal is Refusal.LEASE_LOST
        assert [event.wrote for event in ground.diary.of(SettleRefused)] == [True]
        assert ground.partition.tail_now().position > before
        await ground.until(lambda: ground.host.started == ["a", "a"])
        await ground.enqueue("n", "b")
        await ground.until_state("b", JobState.SUCCEEDED)


async def test_a_lost_instance_that_cannot_be_followed_by_another_yet_does_not_end_the_worker() -> None:
    """The store forgot it and then did not answer: nobody was in office, and what looked for the one who is failed."""

    def refuse() -> None:
        refused.append(True)
        raise StoreUnavailable("it is restarting")

    refused: list[bool] = []
    async with working({"n": Task(nothing)}) as ground:
        await ground.until(lambda: len(ground.host.instances) == 1)
        ground.partition.enrolling = refuse
        await ground.partition.dismiss(ground.host.instances[-1].id)
        await ground.until(lambda: len(refused) >= 5)  # longer than a bell is waited for

        ground.partition.enrolling = None
        await ground.enqueue("n", "a")
        await ground.until_state("a", JobState.SUCCEEDED)

        assert not ground.diary.of(WorkerStopping)


async def test_a_body_of_a_lost_instance_that_is_given_up_does_not_keep_the_worker_from_ending() -> None:
    gate = threading.Event()

    async with working({"t": Task(waits_for(gate), THREAD)}, patience_us=100_000) as ground:
        await ground.enqueue("t", "a", max_lost=1)
        await ground.until(lambda: ground.host.started == ["a"])
        await ground.partition.dismiss(ground.host.instances[-1].id)
        await ground.until(lambda: len(ground.diary.of(AttemptAbandoned)) == 1)
        gate.set()
        await ground.until(lambda: bool(ground.diary.of(SettleRefused)))
        await ground.until_state("a", JobState.SUCCEEDED)

        async with asyncio.timeout(2.0):  # not until what nobody will ever hear is given up
            assert await ground.stop() is Exit.STOPPED


async def test_what_one_partition_lost_keeps_its_leases_in_the_others_until_its_bodies_have_ended() -> None:
    """P19: given to another at once, a body of a thread would run beside it."""
    gate = threading.Event()

    async with working({"t": Task(waits_for(gate), THREAD)}, partitions=2, patience_us=5_000_000) as ground:
        await ground.enqueue("t", "a")
        await ground.until(lambda: ground.host.started == ["a"])
        was = ground.host.instances[-1].id

        await ground.store.partitions[1].dismiss(was)
        await ground.until(lambda: len(ground.host.instances) == 2)
        await asyncio.sleep(0.5)  # three times as long as between beats
        after = [beat.instance for beat in ground.store.beats[-6:]]
        gate.set()
        await ground.until_state("a", JobState.SUCCEEDED)

        assert was in after
        assert (await ground.job("a")).lost == 0


async def test_each_start_is_an_instance_of_its_own() -> None:
    """BR-010: a name vouches for nothing."""
    ground = Ground({"n": Task(nothing)}, burst=True, name="web-1")
    await ground.worker.run()
    await ground.make_worker().run()

    first, second = ground.host.instances

    assert first.name == second.name == "web-1"
    assert first.id != second.id


async def test_a_beat_names_everything_that_received_turns_claimed() -> None:
    """P16: what it did not name would be released under a running body."""
    async with working({"f": Task(for_ever)}) as ground:
        await ground.enqueue("f", "a", "b")
        await ground.until(lambda: len(ground.host.started) == 2)
        beats = len(ground.store.beats)

        await ground.until(lambda: len(ground.store.beats) >= beats + 2)

        beat = ground.store.beats[-1]
        assert {attempt.job for attempt in beat.held} == {"a", "b"}
        assert beat.last_turn >= 1
        assert await ground.state("a") is JobState.RUNNING


async def test_a_beat_does_not_vouch_for_a_turn_that_overtook_a_lost_one() -> None:
    """P16: only turns of which all before were received are named."""
    ground = Ground({"n": Task(nothing), "f": Task(for_ever)})
    gate = asyncio.Event()

    async def hold_first_claims(request: TurnRequest, turn: Turning) -> TurnReply:
        reply = await turn(request)
        if reply.claims and reply.claims[0].job == "a":
            await gate.wait()
        return reply

    ground.partition.turning = hold_first_claims
    ground.start()
    try:
        await ground.enqueue("f", "a")
        await ground.until(lambda: any(turn.limit for turn in ground.partition.turns))
        await ground.until(lambda: ground.store.beats != [])

        assert all(beat.last_turn < ground.partition.turns[-1].number for beat in ground.store.beats)
        gate.set()
        await ground.until(lambda: ground.host.started == ["a"])
    finally:
        ground.worker.halt()
        assert ground.running
        await ground.running


async def test_settlements_that_turns_cannot_deliver_go_out_by_the_heartbeat() -> None:
    """P19: the main connection is dead, the heartbeat's lives."""

    async def die_at_settles(request: TurnRequest, turn: Turning) -> TurnReply:
        if request.settlements:
            raise StoreUnavailable("the main connection is dead")
        return await turn(request)

    async with working({"n": Task(nothing)}, lease_us=400_000, heartbeat_us=100_000) as ground:
        ground.partition.turning = die_at_settles
        await ground.enqueue("n", "a")

        await ground.until_state("a", JobState.SUCCEEDED)
        await ground.until(lambda: len(ground.host.ended) == 1)
        ground.partition.turning = None  # the turn is repeated, and answered; what it settled was told already
        await ground.enqueue("n", "b")
        await ground.until_state("b", JobState.SUCCEEDED)

        assert [job for job, _, _ in ground.host.ended] == ["a", "b"]
        assert ground.host.started == ["a", "b"]


async def test_a_settlement_that_a_heartbeat_delivered_goes_out_by_no_other() -> None:
    """While the turns are dead, each beat would settle it again, be refused, and leave no room for later ones."""

    async def die_at_settles(request: TurnRequest, turn: Turning) -> TurnReply:
        if request.settlements:
            raise StoreUnavailable("the main connection is dead")
        return await turn(request)

    async with working({"n": Task(nothing)}, lease_us=400_000, heartbeat_us=100_000) as ground:
        ground.partition.turning = die_at_settles
        await ground.enqueue("n", "a")
        await ground.until_state("a", JobState.SUCCEEDED)
        await ground.until(lambda: len(ground.host.ended) == 1)
        before = len(ground.store.beats)
        await ground.until(lambda: len(ground.store.beats) > before + 4)

        assert [each.job for beat in ground.store.beats for each in beat.settlements] == ["a"]
        assert not ground.diary.of(SettleRefused)


async def test_a_thread_past_its_deadline_is_given_up_and_its_late_end_voids() -> None:
    """P18, P19: it is not renewed for ever; the next attempt may run; what it wrote late is voided once more."""
    gate = threading.Event()
    entered: list[int] = []

    def hang_once(run: PlainRun) -> None:
        entered.append(run.claim.fence)
        if len(entered) == 1:
            gate.wait()

    async with working({"t": Task(hang_once, THREAD, timeout=0.1, retries=3)}, patience_us=200_000) as ground:
        await ground.enqueue("t", "a", writes=("k",))
        await ground.until(lambda: len(ground.diary.of(AttemptAbandoned)) == 1)

        await ground.until_state("a", JobState.SUCCEEDED)
        job = await ground.job("a")
        assert (job.lost, len(entered)) == (1, 2)
        before = ground.partition.tail_now().position

        gate.set()
        await ground.until(lambda: bool(ground.diary.of(SettleRefused)))

        assert ground.partition.tail_now().position > before


async def test_a_thread_that_ends_in_time_after_its_deadline_is_timed_out_not_lost() -> None:
    gate = threading.Event()

    async with working({"t": Task(waits_for(gate), THREAD, timeout=0.1)}) as ground:
        await ground.enqueue("t", "a")
        await ground.until(lambda: len(ground.diary.of(AttemptStopped)) == 1)

        gate.set()
        await ground.until_state("a", JobState.FAILED)

        job = await ground.job("a")
        assert (job.lost, job.reason) == (0, "TimeoutError: too long")


@pytest.mark.parametrize("retries", [2])
async def test_runs_of_one_job_never_overlap_when_it_times_out_at_the_lease(retries: int) -> None:
    """BR-026: as many runs as attempts, one after the other."""
    spans: list[tuple[float, float]] = []
    loop = asyncio.get_running_loop()

    async def sleep(run: PlainRun) -> None:
        begun = loop.time()
        try:
            await asyncio.sleep(10)
        finally:
            spans.append((begun, loop.time()))

    async with working(
        {"s": Task(sleep, timeout=0.4, retries=retries)}, lease_us=400_000, heartbeat_us=130_000
    ) as ground:
        others = [ground.make_worker() for _ in range(2)]
        running = [loop.create_task(other.run()) for other in others]
        await ground.enqueue("s", "a")

        await ground.until_state("a", JobState.FAILED)

        assert len(spans) == retries + 1
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        for other in others:
            other.stop()
        await asyncio.gather(*running)
