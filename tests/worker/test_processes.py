"""Child processes: kept warm, killed, replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.worker.ground import PROCESS, Ground, working
from tests.worker.host import Task, nothing

from selaras._contracts.host import ProcessDied
from selaras._core.events import BodyDied
from selaras._core.jobs.states import JobState


def tasks() -> dict[str, Task]:
    return {"p": Task(None, PROCESS), "brief": Task(None, PROCESS, timeout=0.3), "n": Task(nothing)}


@pytest.fixture
def servant(tmp_path: Path) -> tuple[str, ...]:
    return ("tests.worker.servant:make_servant", str(tmp_path))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_warm_child_serves_one_attempt_after_another(servant: tuple[str, ...]) -> None:
    ground = Ground(tasks(), servant=servant, burst=True, processes=1)
    await ground.enqueue("p", "a", "b", payload=b"pid")

    await ground.worker.run()

    first, second = [((await ground.job(id)).result or b"").split() for id in ("a", "b")]
    assert first[0] == second[0]
    assert (first[1], second[1]) == (b"1", b"2")
    assert int(first[0]) != os.getpid()


async def test_what_a_child_reports_is_heard_before_its_answer(servant: tuple[str, ...]) -> None:
    ground = Ground(tasks(), servant=servant, burst=True)
    await ground.enqueue("p", "a", payload=b"tell")

    await ground.worker.run()

    assert [(job, data) for job, _, data in ground.host.reported] == [("a", b"half")]
    assert (await ground.job("a")).result == b"telltelltell"


async def test_children_end_in_order_with_the_worker(servant: tuple[str, ...], tmp_path: Path) -> None:
    ground = Ground(tasks(), servant=servant, burst=True)
    await ground.enqueue("p", "a", payload=b"x" * 300_000)

    await ground.worker.run()

    assert (await ground.job("a")).result == b"x" * 900_000
    assert (tmp_path / "closed").read_text() == "in order"


async def test_a_child_past_its_timeout_is_killed_and_replaced(servant: tuple[str, ...], tmp_path: Path) -> None:
    async with working(tasks(), servant=servant, processes=1) as ground:
        await ground.enqueue("p", "warm", payload=b"pid")
        await ground.until_state("warm", JobState.SUCCEEDED)
        await ground.enqueue("brief", "a", payload=b"spin")

        await ground.until_state("a", JobState.FAILED)

        assert (await ground.job("a")).reason == "TimeoutError: too long"
        assert not is_alive(int((tmp_path / "spinning").read_text()))
        await ground.enqueue("p", "b", payload=b"pid")
        await ground.until_state("b", JobState.SUCCEEDED)


async def test_a_cancelled_job_s_child_is_killed(servant: tuple[str, ...], tmp_path: Path) -> None:
    async with working(tasks(), servant=servant) as ground:
        await ground.enqueue("p", "a", payload=b"wait")
        await ground.until((tmp_path / "waiting").exists)

        await ground.partition.cancel("a", "by hand")

        await ground.until_state("a", JobState.CANCELLED)
        assert not is_alive(int((tmp_path / "waiting").read_text()))


@pytest.mark.parametrize(("word", "code"), [(b"exit 3", 3), (b"exit 0", 0), (b"kill", -9)])
async def test_a_child_that_dies_in_a_body_loses_the_attempt_and_never_succeeds(
    servant: tuple[str, ...], word: bytes, code: int
) -> None:
    """BR-011, BR-070: counted apart, a dead letter after `max_lost`, and other jobs get their turn."""
    async with working(tasks(), servant=servant) as ground:
        await ground.enqueue("p", "a", payload=word, max_lost=2)
        await ground.enqueue("n", "b")

        await ground.until_state("a", JobState.FAILED, 8)
        await ground.until_state("b", JobState.SUCCEEDED)

        job = await ground.job("a")
        assert (job.lost, job.reason) == (2, f"worker lost 2 times; the last time: {ProcessDied(code)}")
        assert [died.code for died in ground.diary.of(BodyDied)] == [code, code]


async def test_a_child_that_cannot_start_is_reported(servant: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    async with working(tasks(), servant=servant) as ground:
        await ground.enqueue("p", "a", payload=b"pid", max_lost=1)

        await ground.until_state("a", JobState.FAILED)

        assert [died.code for died in ground.diary.of(BodyDied)] == [1]
