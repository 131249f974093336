"""Bodies: what they raise, how they are stopped, and that the worker survives them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable

import pytest
from tests.worker.ground import THREAD, Ground, working
from tests.worker.host import PlainRun, Task, for_ever, nothing

from selaras._contracts.partition import JobFilter
from selaras._core.errors import LeaseLost, StoreUnavailable
from selaras._core.events import AttemptAbandoned, AttemptStopped, Trouble, Turned
from selaras._core.jobs.states import JobEvent, JobState
from selaras._worker.exits import Exit

STRANGE: list[Callable[[], BaseException]] = [
    TimeoutError,
    asyncio.TimeoutError,
    concurrent.futures.TimeoutError,
    asyncio.CancelledError,
    KeyboardInterrupt,
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    lambda: SystemExit(0),
    lambda: SystemExit("x"),
    LeaseLost,
    StoreUnavailable,
]


@pytest.mark.parametrize("make", STRANGE)
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_body_raises_is_its_failure_and_the_worker_lives(
    make: Callable[[], BaseException], *, threaded: bool
) -> None:
    """BR-014, BR-070."""

    async def coroutine(run: PlainRun) -> None:
        raise make()

    def function(run: PlainRun) -> None:
        raise make()

    task = Task(function, THREAD) if threaded else Task(coroutine)
    ground = Ground({"r": task, "n": Task(nothing)}, burst=True)
    await ground.enqueue("r", "a")
    await ground.enqueue("n", "b")

    assert await ground.worker.run() is Exit.STOPPED

    assert await ground.state("a") is JobState.FAILED
    assert await ground.state("b") is JobState.SUCCEEDED
    assert not ground.diary.of(AttemptStopped)


async def test_a_host_that_breaks_its_promise_does_not_take_the_worker_with_it() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True)
    await ground.enqueue("n", "a", max_lost=1)
    ground.host.breaking = KeyboardInterrupt()

    assert await ground.worker.run() is Exit.STOPPED

    assert await ground.state("a") is JobState.FAILED
    assert ground.diary.of(Trouble)


async def test_a_body_past_its_timeout_is_stopped() -> None:
    async with working({"f": Task(for_ever, timeout=0.1)}) as ground:
        await ground.enqueue("f", "a")

        await ground.until_state("a", JobState.FAILED, 1.0)

        assert (await ground.job("a")).reason == "TimeoutError: too long"


async def test_a_stopped_body_cleans_up_before_it_is_settled() -> None:
    """BR-069: an await in `finally` runs to its end."""
    marks: list[str] = []

    async def tidy(run: PlainRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            marks.append("clean")

    async with working({"t": Task(tidy, timeout=0.1)}) as ground:
        await ground.enqueue("t", "a")

        await ground.until_state("a", JobState.FAILED)

        assert marks == ["clean"]


async def test_a_body_that_swallows_one_cancel_is_cancelled_again() -> None:
    async def stubborn(run: PlainRun) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async with working({"s": Task(stubborn, timeout=0.1)}, patience_us=2_000_000) as ground:
        await ground.enqueue("s", "a")

        await ground.until_state("a", JobState.FAILED, 1.5)

        assert not ground.diary.of(AttemptAbandoned)


@pytest.mark.parametrize("swallowed", [asyncio.CancelledError, BaseException])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_body_that_swallows_every_stop_is_cut_off_and_reported(swallowed: type[BaseException]) -> None:
    """BR-069: at the limit of patience; its slot is free again."""

    async def mule(run: PlainRun) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except swallowed:
                pass

    async with working({"m": Task(mule, timeout=0.1), "n": Task(nothing)}, concurrency=1) as ground:
        await ground.enqueue("m", "a")
        await ground.enqueue("n", "b")

        await ground.until_state("a", JobState.FAILED)
        await ground.until_state("b", JobState.SUCCEEDED)

        [abandoned] = ground.diary.of(AttemptAbandoned)
        assert (abandoned.job, abandoned.mode) == ("a", "loop")
        assert (await ground.job("a")).reason == "TimeoutError: too long"


async def test_a_running_job_is_cancelled_within_a_second() -> None:
    async with working({"f": Task(for_ever)}) as ground:
        await ground.enqueue("f", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        await ground.partition.cancel("a", "by hand")

        await ground.until_state("a", JobState.CANCELLED, 1.0)


async def test_a_job_cancelled_while_every_slot_is_taken_is_told_too() -> None:
    async with working({"f": Task(for_ever)}, concurrency=1) as ground:
        await ground.enqueue("f", "a", "b")
        await ground.until(lambda: ground.host.started == ["a"])

        await ground.partition.cancel("a", "by hand")

        await ground.until_state("a", JobState.CANCELLED, 1.0)
        await ground.until(lambda: ground.host.started == ["a", "b"])


async def test_a_cancel_that_the_body_raises_itself_is_no_cancel_of_the_job() -> None:
    async def cancel_self(run: PlainRun) -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(0)

    async with working({"c": Task(cancel_self)}) as ground:
        await ground.enqueue("c", "a")

        await ground.until_state("a", JobState.FAILED)


async def _claimed(ground: Ground) -> int:
    page = await ground.partition.jobs(JobFilter(states=(JobState.RUNNING,)))
    return len(page.jobs)


async def test_long_bodies_are_not_claimed_ahead_though_many_end_in_one_moment() -> None:
    async def nap(run: PlainRun) -> None:
        await asyncio.sleep(0.2 + 0.004 * (int(run.claim.job) % 5))

    async with working({"n": Task(nap)}, concurrency=5) as ground:
        await ground.enqueue("n", *map(str, range(30)))
        most = 0

        async def is_done() -> bool:
            nonlocal most
            most = max(most, await _claimed(ground))
            return len(ground.host.ended) == 30

        await ground.until(is_done)

        assert most == 5


async def test_what_was_claimed_ahead_is_given_back_when_bodies_turn_out_long() -> None:
    async with working({"n": Task(nothing), "long": Task(for_ever)}, concurrency=5) as ground:
        await ground.enqueue("n", *(f"n{number}" for number in range(2_000)))
        await ground.enqueue("long", *(f"long{number}" for number in range(100)))

        async def is_only_what_runs() -> bool:
            return ground.host.started.count("n1999") == 1 and await _claimed(ground) == 5

        await ground.until(is_only_what_runs)

        assert max(turn.claimed for turn in ground.diary.of(Turned)) > 5
        given_back = [settlement for _, settlement, _ in ground.host.ended if settlement.event is JobEvent.RELEASE]
        assert given_back
        assert {each.reason for each in given_back} == {"no slot came free for it in time"}
        assert (await ground.job("long99")).state is JobState.READY
