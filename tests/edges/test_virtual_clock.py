"""The clock of tests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from selaras._core.errors import ConfigurationError
from selaras.testing.clock import VirtualClock


def run(main: object) -> None:
    asyncio.run(main)  # type: ignore[arg-type]


def test_both_times_move_together_and_nothing_is_lost_below_a_microsecond() -> None:
    clock = VirtualClock()
    instant, wall = clock.instant_ns(), clock.wall_us()

    for _ in range(2_000):
        clock.move_to(clock.instant_ns() + 500)

    assert clock.instant_ns() - instant == 1_000_000
    assert clock.wall_us() - wall == 1_000


def test_it_never_goes_back() -> None:
    clock = VirtualClock()
    instant = clock.instant_ns()

    clock.move_to(instant - 1)

    assert clock.instant_ns() == instant


def test_sleepers_wake_in_their_order_each_at_its_own_instant() -> None:
    async def main() -> None:
        clock = VirtualClock()
        start = clock.now()
        woken: list[tuple[str, timedelta]] = []

        async def sleeper(name: str, seconds: float, times: int) -> None:
            for _ in range(times):
                await clock.sleep(seconds)
                woken.append((name, clock.now() - start))

        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("slow", 4, 1))
            group.create_task(sleeper("fast", 1.5, 3))
            await asyncio.sleep(0)
            await clock.elapse("10s")

        assert woken == [
            ("fast", timedelta(seconds=1.5)),
            ("fast", timedelta(seconds=3)),
            ("slow", timedelta(seconds=4)),
            ("fast", timedelta(seconds=4.5)),
        ]
        assert clock.now() - start == timedelta(seconds=10)

    run(main())


def test_a_cancelled_sleeper_leaves_nothing_behind() -> None:
    async def main() -> None:
        clock = VirtualClock()
        task = asyncio.ensure_future(clock.sleep(5))
        await asyncio.sleep(0)
        assert clock.next_wake_us() == 5_000_000

        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert clock.next_wake_us() is None

    run(main())


def test_a_thread_with_a_loop_of_its_own_wakes_too() -> None:
    clock = VirtualClock()

    async def main() -> None:
        thread = asyncio.ensure_future(asyncio.to_thread(asyncio.run, clock.sleep(60)))
        while clock.next_wake_us() is None:
            await asyncio.sleep(0.001)
        clock.move("1m")
        async with asyncio.timeout(10):
            await thread

    run(main())


def test_civil_time_may_jump_while_instants_go_on() -> None:
    clock = VirtualClock(datetime(2026, 3, 29, 2, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == datetime(2026, 3, 29, 0, tzinfo=UTC)
    instant = clock.instant_ns()

    clock.set_wall(datetime(2020, 1, 1, tzinfo=UTC))

    assert clock.now() == datetime(2020, 1, 1, tzinfo=UTC)
    assert clock.instant_ns() == instant


@pytest.mark.parametrize("step", [-1, float("nan"), "soon"])
def test_a_step_that_is_no_length_of_time_is_refused(step: float | str) -> None:
    with pytest.raises(ConfigurationError):
        VirtualClock().move(step)


def test_a_naive_start_is_refused_since_it_names_no_instant() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        VirtualClock(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
