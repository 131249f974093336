"""A host that raises where it promised not to: the attempt ends, it is told, and the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.ground import Ground, Turning, working
from tests.worker.host import PlainRun, Task, for_ever, nothing

from selaras._contracts.partition import TurnReply, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.events import Trouble
from selaras._core.jobs.retry import Backoff
from selaras._core.jobs.states import JobEvent, JobState
from selaras._worker import turning
from selaras._worker.exits import Exit
from selaras._worker.turning import READY_TRIES


class Mistake(Exception):
    """What no host should raise."""


def mistaken(ground: Ground, where: str, times: int = 1) -> Callable[[], int]:
    """Let a call of the host raise so often. Returns how many times it did."""
    right, raised = getattr(ground.host, where), 0

    def call(*args: Any) -> Any:
        nonlocal raised
        if raised < times:
            raised += 1
            raise Mistake(where)
        return right(*args)

    setattr(ground.host, where, call)
    return lambda: raised


def told(ground: Ground) -> list[str]:
    return [trouble.error for trouble in ground.diary.of(Trouble)]


@pytest.mark.parametrize("where", ["has_effects_elsewhere", "before_settle"])
async def test_effects_that_cannot_be_looked_at_once_are_told_all_the_same(where: str) -> None:
    ground = Ground({"n": Task(nothing)}, partitions=2, burst=True)
    elsewhere: list[str] = []

    async def tell(settlement: Any) -> None:
        elsewhere.append(settlement.job)

    ground.host.elsewhere = tell
    raised = mistaken(ground, where)
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert raised() == 1
    assert elsewhere == ["a"]
    assert await ground.state("a") is JobState.SUCCEEDED
    assert told(ground) == [f"Mistake: {where}"]


async def test_an_attempt_whose_effects_can_never_be_told_is_lost_and_not_held_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turning, "AGAIN", Backoff(first_us=1_000, most_us=1_000))
    async with working({"n": Task(nothing)}, partitions=2) as ground:
        mistaken(ground, "has_effects_elsewhere", 1_000)
        mistaken(ground, "before_settle", 1_000)
        await ground.enqueue("n", "a", max_lost=2)

        await ground.until_state("a", JobState.FAILED)

        assert (await ground.job("a")).lost == 2
        assert set(told(ground)) == {"Mistake: has_effects_elsewhere", "Mistake: before_settle"}


async def test_claims_that_came_with_an_end_start_though_the_host_stumbles_over_that_end() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True, concurrency=1)
    mistaken(ground, "settled", 3)
    await ground.enqueue("n", *map(str, range(10)))

    await ground.worker.run()

    assert ground.host.started == [str(number) for number in range(10)]
    assert told(ground) == ["Mistake: settled"] * 3


async def test_nothing_starts_whose_news_could_not_be_applied() -> None:
    """G1."""
    ground = Ground({"n": Task(nothing)}, burst=True)
    await ground.enqueue("n", "a")
    mistaken(ground, "heard", 2)

    await ground.worker.run()

    ends = [settlement for _, settlement, _ in ground.host.ended]
    assert [end.event for end in ends][-1] is JobEvent.SUCCEED
    assert {end.started for end in ends[:-1]} <= {False}
    assert ground.host.started == ["a"]
    assert (await ground.job("a")).attempt == 1
    assert told(ground) == ["Mistake: heard"] * 2


async def test_a_batch_that_could_not_be_looked_at_is_made_ready() -> None:
    ground = Ground({"n": Task(nothing)}, burst=True)
    ready: list[int] = []

    async def get_ready(runs: Any) -> None:
        ready.append(len(runs))

    ground.host.getting_ready = get_ready
    mistaken(ground, "must_wait")
    await ground.enqueue("n", "a", "b")

    await ground.worker.run()

    assert ready == [2]
    assert ground.host.started == ["a", "b"]


async def test_progress_that_cannot_be_taken_stops_no_deadline() -> None:
    async with working({"f": Task(for_ever, timeout=0.7)}) as ground:
        raised = mistaken(ground, "progress", 1_000)
        await ground.enqueue("f", "a")

        await ground.until_state("a", JobState.FAILED)

        assert raised() > 0


async def test_a_release_that_the_host_cannot_make_is_made_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def unstarted(run: PlainRun) -> Any:
        raise Mistake("unstarted")

    tries: list[int] = []

    async def get_ready(runs: Any) -> None:
        tries.append(len(runs))
        if len(tries) <= READY_TRIES:
            raise StoreUnavailable("the other partition is away")

    monkeypatch.setattr(PlainRun, "unstarted", unstarted)
    ground = Ground({"n": Task(nothing)}, burst=True)
    ground.host.getting_ready = get_ready
    await ground.enqueue("n", "a")

    await ground.worker.run()

    assert ground.host.started == ["a"]
    assert (await ground.job("a")).attempt == 1
    assert told(ground) == ["Mistake: unstarted"]


async def test_an_end_that_the_host_cannot_tell_of_is_a_lost_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(run: PlainRun) -> Any:
        raise Mistake("cut_off")

    async def execute(run: PlainRun, executors: Any) -> Any:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    monkeypatch.setattr(PlainRun, "cut_off", cut_off)
    monkeypatch.setattr(PlainRun, "execute", execute)
    async with working({"s": Task(nothing, timeout=0.05)}, patience_us=50_000) as ground:
        await ground.enqueue("s", "a", max_lost=1)

        await ground.until_state("a", JobState.FAILED)

        assert told(ground) == ["Mistake: cut_off"]


async def test_a_burst_ends_though_outboxes_could_not_be_looked_at_once() -> None:
    ground = Ground({"n": Task(nothing)}, partitions=2, burst=True)
    raised = mistaken(ground, "relay", 2)
    await ground.enqueue("n", "a")

    assert await ground.worker.run() is Exit.STOPPED
    assert raised() == 2


async def test_a_worker_of_which_a_part_failed_ends_and_says_so() -> None:
    """Its heart would go on vouching for attempts that nobody settles."""
    ground = Ground({"n": Task(nothing)})

    async def answer_nonsense(request: TurnRequest, turn: Turning) -> TurnReply:
        return replace(await turn(request), claims=(None,))

    ground.partition.turning = answer_nonsense

    assert await ground.worker.run() is not Exit.STOPPED
    assert len(told(ground)) == 1
