"""The turn loop: what it sends, repeats, applies and leaves alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.ground import THREAD, Ground, Turning, working
from tests.worker.host import PlainRun, Task, for_ever, nothing

from selaras._contracts.partition import TurnReply, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.events import SettleRefused, StoreBack, StoreLost, Turned
from selaras._core.jobs.job import NewJob
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._worker import turning
from selaras._worker.turning import Turner
from selaras._worker.worker import TICK


async def test_a_job_is_claimed_run_and_settled() -> None:
    async with working({"n": Task(nothing)}) as ground:
        await ground.enqueue("n", "a", "b")

        await ground.until_state("b", JobState.SUCCEEDED)

        assert ground.host.started == ["a", "b"]


async def test_news_are_applied_before_what_the_reply_claimed_is_started() -> None:
    """G1."""
    applied: list[int] = []

    async def look(run: PlainRun) -> None:
        applied.append(run.host.since(0).position - run.claim.position)

    ground = Ground({"n": Task(look)}, burst=True)
    await ground.enqueue("n", "a", writes=("k",))

    await ground.worker.run()

    assert applied == [0]
    assert ground.host.since(0).position > 0


async def test_a_lost_reply_is_asked_for_again_under_the_same_number() -> None:
    """P16: the claim is not lost and not run twice."""
    ground = Ground({"n": Task(nothing)}, burst=True)
    lost: list[TurnRequest] = []

    async def lose_claims_once(request: TurnRequest, turn: Turning) -> TurnReply:
        reply = await turn(request)
        if reply.claims and not lost:
            lost.append(request)
            raise StoreUnavailable("the reply was lost")
        return reply

    ground.partition.turning = lose_claims_once
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert ground.host.started == ["a"]
    assert [turn.number for turn in ground.partition.turns].count(lost[0].number) == 2
    assert await ground.state("a") is JobState.SUCCEEDED


async def test_a_settlement_whose_reply_was_lost_is_not_refused_when_it_is_repeated() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True)
    lost: list[TurnRequest] = []

    async def lose_settles_once(request: TurnRequest, turn: Turning) -> TurnReply:
        reply = await turn(request)
        if request.settlements and not lost:
            lost.append(request)
            raise StoreUnavailable("the reply was lost")
        return reply

    ground.partition.turning = lose_settles_once
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert [settled.refusal for _, _, settled in ground.host.ended] == [None]
    assert not ground.diary.of(SettleRefused)


async def test_settlements_of_a_turn_that_a_later_one_overtook_are_sent_again() -> None:
    """P16: the store answers a number below its last with what it remembers, and of this one it has nothing."""
    ground = Ground({"n": Task(nothing)}, burst=True)
    overtaken: list[TurnRequest] = []

    async def overtake(request: TurnRequest, turn: Turning) -> TurnReply:
        if request.settlements and not overtaken:
            overtaken.append(request)
            later = TurnRequest(instance=request.instance, number=request.number + 1, since=request.since)
            await turn(later)
            return await turn(request)
        if overtaken:  # numbers go on above the one that overtook
            return await turn(replace(request, number=request.number + 1))
        return await turn(request)

    ground.partition.turning = overtake
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert await ground.state("a") is JobState.SUCCEEDED
    assert ground.host.started == ["a"]


async def test_a_store_that_is_away_is_asked_until_it_is_back() -> None:
    """BR-045: the worker neither ends nor forgets; absence and return are told once."""
    async with working({"n": Task(nothing)}) as ground:
        away = True

        async def be_away(request: TurnRequest, turn: Turning) -> TurnReply:
            if away:
                raise StoreUnavailable("connection refused")
            return await turn(request)

        ground.partition.turning = be_away
        await ground.enqueue("n", "a")
        await ground.until(lambda: len(ground.partition.turns) >= 4)
        away = False

        await ground.until_state("a", JobState.SUCCEEDED)

        assert len(ground.diary.of(StoreLost)) == 1
        assert len(ground.diary.of(StoreBack)) == 1
        await ground.enqueue("n", "b")
        await ground.until_state("b", JobState.SUCCEEDED)


async def test_a_turn_that_is_never_answered_is_asked_again() -> None:
    """A half-open connection: no error, no answer."""
    async with working({"n": Task(nothing)}, lease_us=300_000, heartbeat_us=100_000) as ground:
        hung: list[int] = []

        async def hang_once(request: TurnRequest, turn: Turning) -> TurnReply:
            if request.limit and not hung:
                hung.append(request.number)
                await asyncio.Event().wait()
            return await turn(request)

        ground.partition.turning = hang_once
        await ground.enqueue("n", "a")

        await ground.until_state("a", JobState.SUCCEEDED)

        assert [turn.number for turn in ground.partition.turns].count(hung[0]) == 2


async def test_a_mistake_of_the_store_does_not_end_the_worker() -> None:
    async with working({"n": Task(nothing)}) as ground:
        failed: list[int] = []

        async def fail_once(request: TurnRequest, turn: Turning) -> TurnReply:
            if not failed:
                failed.append(request.number)
                raise ZeroDivisionError("a mistake")
            return await turn(request)

        ground.partition.turning = fail_once
        await ground.enqueue("n", "a")

        await ground.until_state("a", JobState.SUCCEEDED)


async def test_at_most_two_turns_are_in_flight() -> None:
    """P2."""
    most = now = 0

    async def count(request: TurnRequest, turn: Turning) -> TurnReply:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        reply = await turn(request)
        now -= 1
        return reply

    ground = Ground({"n": Task(nothing)}, burst=True)
    ground.partition.turning = count
    await ground.enqueue("n", *map(str, range(800)))

    await ground.worker.run()

    assert most <= 2
    assert len(ground.host.ended) == 800


async def test_what_is_claimed_fits_the_slots_while_bodies_are_long() -> None:
    """Nothing is hoarded: another worker may have the rest."""
    async with working({"f": Task(for_ever)}, concurrency=3) as ground:
        await ground.enqueue("f", *map(str, range(10)))

        await ground.until(lambda: len(ground.host.started) == 3)
        await asyncio.sleep(0.05)

        claimed = sum(event.claimed for event in ground.diary.of(Turned))
        assert claimed == 3


async def test_of_plain_functions_no_more_are_claimed_than_there_are_threads() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(run: PlainRun) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    async with working({"t": Task(wait, THREAD)}, threads=2) as ground:
        await ground.enqueue("t", *map(str, range(10)))
        await ground.until(lambda: len(ground.host.started) == 2)
        await asyncio.sleep(0.05)

        assert sum(event.claimed for event in ground.diary.of(Turned)) == 2
        gate.set()
        await ground.until_state("9", JobState.SUCCEEDED)


async def test_a_mode_that_has_no_room_keeps_no_other_waiting() -> None:
    """Two slow plain functions, and a hundred behind them, stop no coroutine; and none of them is claimed meanwhile."""
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(run: PlainRun) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    async with working({"t": Task(wait, THREAD), "n": Task(nothing)}, threads=2, concurrency=5) as ground:
        await ground.enqueue("t", *(f"t{number}" for number in range(100)))
        await ground.until(lambda: len(ground.host.started) == 2)
        for number in range(20):
            await ground.enqueue("n", f"n{number}")
            await ground.until_state(f"n{number}", JobState.SUCCEEDED, 0.5)

        assert [job for job in ground.host.started if job.startswith("t")] == ["t0", "t1"]
        await asyncio.sleep(0.4)  # longer than what is claimed ahead may wait
        assert not [number for number in range(2, 100) if (await ground.job(f"t{number}")).attempt]
        gate.set()
        await ground.until_state("t99", JobState.SUCCEEDED)


async def test_an_idle_worker_makes_no_turns_and_wakes_at_once() -> None:
    async with working({"n": Task(nothing)}) as ground:
        await ground.enqueue("n", "a")
        await ground.until_state("a", JobState.SUCCEEDED)
        await asyncio.sleep(0.05)
        before = len(ground.partition.turns)
        await asyncio.sleep(1.2)
        assert len(ground.partition.turns) == before

        loop = asyncio.get_running_loop()
        sent = loop.time()
        await ground.enqueue("n", "b")
        await ground.until(lambda: ground.host.started[-1] == "b")

        assert loop.time() - sent < 0.1


async def test_a_scheduled_job_starts_when_it_is_due() -> None:
    async with working({"n": Task(nothing)}) as ground:
        await ground.enqueue("n", "a", delay_us=150_000)

        await ground.until_state("a", JobState.SUCCEEDED, 1.0)


async def test_a_worker_with_a_free_slot_is_woken_while_another_body_runs() -> None:
    async with working({"n": Task(nothing), "f": Task(for_ever)}) as ground:
        await ground.enqueue("f", "long")
        await ground.until(lambda: ground.host.started == ["long"])
        await asyncio.sleep(0.02)

        await ground.enqueue("n", "short")

        await ground.until_state("short", JobState.SUCCEEDED, 0.5)


@pytest.mark.parametrize("partitions", [4])
async def test_every_partition_is_served(partitions: int) -> None:
    ground = Ground({"n": Task(nothing)}, partitions=partitions, burst=True, concurrency=8)
    for number, partition in enumerate(ground.store.partitions):
        ground.partition = partition
        await ground.enqueue("n", *(f"{number}-{each}" for each in range(50)))

    await ground.worker.run()

    assert len(ground.host.started) == 50 * partitions
    assert all(settled.refusal is None for _, _, settled in ground.host.ended)


async def test_an_attempt_that_the_host_ends_at_once_is_settled_and_not_run() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True)
    await ground.enqueue("n", "bad", payload=b"\xff")
    await ground.enqueue("n", "good")

    await ground.worker.run()

    assert ground.host.started == ["good"]
    assert (await ground.job("bad")).reason == "corrupt"


async def test_a_batch_that_could_not_be_made_ready_is_given_back_unstarted() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True)
    tries: list[int] = []

    async def get_ready(runs: Any) -> None:
        tries.append(len(runs))
        if len(tries) <= 3:
            raise StoreUnavailable("the other partition is away")

    ground.host.getting_ready = get_ready
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert [settlement.event for _, settlement, _ in ground.host.ended] == [JobEvent.RELEASE, JobEvent.SUCCEED]
    assert ground.host.started == ["a"]
    assert (await ground.job("a")).attempt == 1


async def test_other_partitions_hear_before_the_settle() -> None:
    """P17."""
    ground = Ground({"n": Task(nothing)}, partitions=2, burst=True)
    told: list[str] = []

    async def elsewhere(settlement: Any) -> None:
        told.append(settlement.job)
        if len(told) == 1:
            raise StoreUnavailable("away")
        assert await ground.state("a") is JobState.RUNNING

    ground.host.elsewhere = elsewhere
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert told == ["a", "a"]
    assert await ground.state("a") is JobState.SUCCEEDED


async def test_each_attempt_has_a_context_of_its_own() -> None:
    """Also when it waited for a slot and the end of another attempt made room."""
    name: ContextVar[str] = ContextVar("name", default="")
    leaked: list[str] = []

    async def body(run: PlainRun) -> None:
        leaked.append(name.get())
        name.set(run.claim.job)
        await asyncio.sleep(0)

    ground = Ground({"b": Task(body)}, burst=True, concurrency=2)
    await ground.enqueue("b", *map(str, range(20)))

    await ground.worker.run()

    assert leaked == [""] * 20


async def test_progress_is_carried_by_a_turn() -> None:
    async def body(run: PlainRun) -> None:
        run.host.reported.append((run.claim.job, run.claim.fence, b"half"))
        await for_ever(run)

    async with working({"b": Task(body)}) as ground:
        await ground.enqueue("b", "a")

        async def is_told() -> bool:
            return (await ground.job("a")).progress == b"half"

        await ground.until(is_told)


async def test_what_a_settle_sets_free_is_claimed_though_the_turn_that_carried_it_had_no_room_to_ask() -> None:
    """A turn that asks for everything is in flight; the one beside it settles the head of a line and asks for nothing."""

    async def a_moment(run: PlainRun) -> None:
        await asyncio.sleep(0.02)

    # Two kinds of bodies: the room that was asked for is then all there is.
    ground = Ground({"n": Task(a_moment), "t": Task(nothing, THREAD)}, burst=True)

    async def hold_the_second(request: TurnRequest, turn: Turning) -> TurnReply:
        reply = await turn(request)
        if request.limit and not reply.claims:
            await asyncio.sleep(0.1)
        return reply

    ground.partition.turning = hold_the_second
    await ground.enqueue("n", "a", "b", line="l")

    await ground.worker.run()

    assert ground.host.started == ["a", "b"]


async def test_room_that_one_partition_asks_for_in_vain_is_soon_another_ones() -> None:
    """Of four that may have work three find no room at first, and must not wait for the idle look."""
    async with working({"n": Task(nothing)}, partitions=4, concurrency=1) as ground:
        await ground.store.partitions[3].enqueue([NewJob(id="a", task="n")], START)

        async def succeeded() -> bool:
            record, _ = await ground.store.partitions[3].job("a", START)
            return record.state is JobState.SUCCEEDED

        await ground.until(succeeded, seconds=2)


# -- of several partitions


async def test_a_bell_turns_the_partition_it_rings_for_and_no_other() -> None:
    """A worker of many partitions must not ask all of them for each job."""
    async with working({"n": Task(nothing)}, partitions=8) as ground:
        partitions = ground.store.partitions
        await ground.until(lambda: all(each.turns and each.turns[-1].idle for each in partitions))
        await asyncio.sleep(0.02)
        before, sent = [len(each.turns) for each in partitions], []

        for job in "abcde":
            sent.append(job)
            await partitions[5].enqueue([NewJob(id=job, task="n")], START)
            await ground.until(lambda: len(ground.host.ended) == len(sent))

        turned = [len(each.turns) - turns for each, turns in zip(partitions, before, strict=True)]
        assert [at for at, turns in enumerate(turned) if turns] == [5]
        assert turned[5] <= 15


async def test_a_partition_where_nothing_waits_is_not_looked_at_while_another_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: Counter[int] = Counter()
    looking = Turner._claims_wanted

    def look(turner: Turner) -> int:
        looks[turner.index] += 1
        return looking(turner)

    monkeypatch.setattr(Turner, "_claims_wanted", look)
    async with working({"n": Task(for_ever)}, partitions=4) as ground:
        await ground.until(lambda: all(each.turns and each.turns[-1].idle for each in ground.store.partitions))
        await ground.enqueue("n", "a")
        await ground.until(lambda: ground.host.started == ["a"])
        await asyncio.sleep(0.02)
        looks.clear()

        await asyncio.sleep(6 * TICK)

        assert not looks[1] + looks[2] + looks[3]


async def test_idle_turns_of_several_partitions_go_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "IDLE_TURN_NS", 300_000_000)
    monkeypatch.setattr(turning, "TOGETHER_NS", 200_000_000)
    async with working({"n": Task(nothing)}, partitions=3) as ground:
        partitions, at = ground.store.partitions, dict[int, list[float]]()
        for each in partitions:

            async def note(request: TurnRequest, turn: Turning, index: int = each.index) -> TurnReply:
                at.setdefault(index, []).append(time.monotonic())
                return await turn(request)

            each.turning = note
        for each in partitions:  # each has its idle turns at times of its own
            await each.enqueue([NewJob(id=f"j{each.index}", task="n")], START)
            await asyncio.sleep(0.06)
        await ground.until(lambda: len(ground.host.ended) == 3)
        at.clear()

        await ground.until(lambda: len(at) == 3)

        first = [times[0] for times in at.values()]
        assert max(first) - min(first) < 0.05


@pytest.mark.parametrize(("slots", "first"), [(1, 5), (2, 6)])
async def test_a_backlog_in_one_partition_does_not_keep_the_others_from_slots(slots: int, first: int) -> None:
    """Bodies run longer than is claimed ahead: each end makes room for one claim, and who has the slots could take all."""

    async def work(_: PlainRun) -> None:
        await asyncio.sleep(1.5 * TICK)

    async with working({"n": Task(work)}, partitions=4, concurrency=slots) as ground:
        partitions = ground.store.partitions
        await partitions[0].enqueue([NewJob(id=f"a{number}", task="n") for number in range(20)], START)
        await ground.until(lambda: len(ground.host.started) >= slots)
        for each in partitions[1:]:
            await each.enqueue([NewJob(id=f"of-{each.index}", task="n")], START)

        others = {f"of-{each.index}" for each in partitions[1:]}
        await ground.until(lambda: others <= set(ground.host.started))

        assert len(ground.host.started) <= first


async def test_ends_that_carry_much_go_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store takes no message of any size: one that was refused would be repeated for ever."""
    monkeypatch.setattr(turning, "SETTLE_BYTES", 1_000)
    gate, sizes = asyncio.Event(), list[list[int]]()

    async def large(run: PlainRun) -> bytes:
        await gate.wait()
        return b"x" * (1_500 if run.claim.job == "c" else 400)

    async def note(request: TurnRequest, turn: Turning) -> TurnReply:
        if request.settlements:
            sizes.append([len(one.result or b"") for one in request.settlements])
        return await turn(request)

    async with working({"large": Task(large)}) as ground:
        await ground.enqueue("large", "a", "b", "c", "d")
        await ground.until(lambda: len(ground.host.started) == 4)
        ground.partition.turning = note
        gate.set()
        await ground.until(lambda: len(ground.host.ended) == 4)

    assert sorted(size for turn in sizes for size in turn) == [400, 400, 400, 1_500]
    assert all(len(turn) == 1 or sum(turn) <= 1_000 for turn in sizes)
