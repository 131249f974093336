"""What a worker looks at while it has no room for more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.worker.ground import Ground, working
from tests.worker.host import Task, for_ever, nothing

from selaras._contracts.partition import Waiting
from selaras._core.errors import StoreUnavailable
from selaras._core.events import Trouble
from selaras._core.jobs.states import JobState

TASKS = {"n": Task(nothing), "hold": Task(for_ever)}


async def full(ground: Ground) -> None:
    """Let a body take the only place, and three jobs wait behind it."""
    await ground.enqueue("hold", "h", priority=1)
    await ground.until(lambda: ground.host.started == ["h"])
    await ground.enqueue("n", "a", "b", "c")


async def test_a_worker_without_room_looks_at_what_waits() -> None:
    async with working(TASKS, concurrency=1, warm_ahead=2) as ground:
        await full(ground)

        await ground.until(lambda: ["a", "b"] in ground.host.looked_ahead)

        assert ground.host.started == ["h"]


async def test_a_worker_with_room_looks_at_nothing() -> None:
    async with working(TASKS, concurrency=9, warm_ahead=5) as ground:
        await full(ground)
        await ground.until_state("c", JobState.SUCCEEDED)
        await asyncio.sleep(0.1)

        assert ground.host.looked_ahead == []


async def test_every_partition_is_looked_at() -> None:
    async with working(TASKS, concurrency=1, warm_ahead=5, partitions=4) as ground:
        await full(ground)

        await ground.until(lambda: ["a", "b", "c"] in ground.host.looked_ahead)


async def test_a_peek_that_fails_costs_nothing_else() -> None:
    def peek(failing: list[Exception]) -> Any:
        async def fail(queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
            if failing:
                raise failing.pop()
            return ()

        return fail

    async with working(TASKS, concurrency=1, warm_ahead=5) as ground:
        ground.partition.peek = peek(failing := [ValueError("by mistake"), StoreUnavailable("away")])  # type: ignore[attr-defined]
        await full(ground)
        await ground.until(lambda: len(ground.host.looked_ahead) > 1)
        ground.worker.stop()
        assert ground.running
        await ground.running

        assert not failing
        assert await ground.state("a") is JobState.READY
        assert [one.where for one in ground.diary.of(Trouble)] == ["looking ahead"]


async def test_a_slow_peek_holds_up_no_turn() -> None:
    async def for_ever_peek(queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    async with working({"n": Task(nothing)}, concurrency=1, warm_ahead=5) as ground:
        ground.partition.peek = for_ever_peek  # type: ignore[attr-defined]
        await ground.enqueue("n", *(f"job-{number}" for number in range(20)))

        await ground.until_state("job-19", JobState.SUCCEEDED)
