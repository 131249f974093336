"""Several worker processes as one."""

from __future__ import annotations

import os
import signal

from tests.crash.conftest import Scene

from selaras._core.jobs.states import JobState
from selaras._worker.exits import Exit
from selaras._worker.fleet import combined


def children(scene: Scene) -> list[int]:
    return [line.pid for line in scene.lines("WorkerStarted")]


def test_a_dead_child_is_replaced_and_all_stop_together(scene: Scene) -> None:
    fleet = scene.start("tests.crash.fleet", "2")
    scene.until(lambda: len(children(scene)) == 2)

    os.kill(children(scene)[0], signal.SIGKILL)
    scene.until(lambda: len(children(scene)) == 3)
    scene.enqueue("sleep", "a", payload="0.3")
    scene.until(lambda: len(scene.lines("start", "a")) == 1)
    fleet.terminate()

    assert fleet.wait(10) == Exit.STOPPED
    assert scene.job("a").state is JobState.SUCCEEDED
    assert len(scene.lines("WorkerStopped")) == 2


def test_a_second_signal_stops_all_hard(scene: Scene) -> None:
    scene.enqueue("sleep", "a", payload="30")
    fleet = scene.start("tests.crash.fleet", "2", "grace_us=60000000")
    scene.until(lambda: len(scene.lines("start")) == 1 and len(children(scene)) == 2)

    fleet.send_signal(signal.SIGINT)
    scene.until(lambda: len(scene.lines("WorkerStopping")) == 2)
    scene.pass_an_echo()
    fleet.send_signal(signal.SIGINT)

    assert fleet.wait(10) == Exit.HALTED


def test_children_stop_when_their_fleet_is_killed(scene: Scene) -> None:
    fleet = scene.start("tests.crash.fleet", "2")
    scene.until(lambda: len(children(scene)) == 2)

    fleet.kill()

    scene.until(lambda: len(scene.lines("WorkerStopped")) == 2)


def test_a_burst_ends_the_fleet_when_nothing_is_left(scene: Scene) -> None:
    scene.enqueue("sleep", *map(str, range(20)))

    fleet = scene.start("tests.crash.fleet", "2", "burst=1")

    assert fleet.wait(10) == Exit.STOPPED
    assert len(scene.lines("end")) == 20


def test_the_exit_code_of_a_fleet_is_its_worst_child_s() -> None:
    assert combined([]) == 0
    assert combined([0, 0]) == 0
    assert combined([0, 3, 1]) == 3
    assert combined([0, -9]) == 137
