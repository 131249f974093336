"""Workers that are killed, stopped and frozen for real."""

from __future__ import annotations

import signal
import time

from tests.crash.conftest import Scene, on_each_store

from selaras._core.jobs.states import JobState
from selaras._worker.exits import Exit


@on_each_store
def test_the_job_of_a_killed_worker_runs_again_after_about_a_lease(scene: Scene) -> None:
    """BR-010: though the next worker bears the same name."""
    scene.enqueue("sleep", "a", payload="30")
    first = scene.worker()
    scene.until(lambda: len(scene.lines("start", "a")) == 1)

    first.kill()
    killed = time.monotonic()
    scene.worker()
    scene.until(lambda: len(scene.lines("start", "a")) == 2)

    # A lease of 0.5 s, two looks 2 s apart, and the housekeeper's second.
    assert time.monotonic() - killed < 8
    job = scene.job("a")
    assert (job.state, job.lost, job.attempt) == (JobState.RUNNING, 1, 1)


@on_each_store
def test_a_worker_that_was_frozen_longer_than_its_lease_is_refused(scene: Scene) -> None:
    """G4: the zombie hears that its instance is gone, its settlement is refused, and it goes on as another."""
    scene.enqueue("sleep", "a", payload="1.5")
    frozen = scene.worker()
    scene.until(lambda: len(scene.lines("start", "a")) == 1)

    frozen.send_signal(signal.SIGSTOP)
    scene.worker()
    scene.until(lambda: len(scene.lines("start", "a")) == 2)
    frozen.send_signal(signal.SIGCONT)

    scene.until(lambda: scene.job("a").state is JobState.SUCCEEDED)
    scene.until(lambda: bool(scene.lines("SettleRefused")) and bool(scene.lines("Reenrolled")))
    assert all(line.pid == frozen.pid for line in (*scene.lines("SettleRefused"), *scene.lines("Reenrolled")))
    fences = [int(line.rest[1]) for line in scene.lines("start", "a")]
    assert fences[1] > fences[0]


def test_a_terminated_worker_finishes_what_runs_and_ends_with_0(scene: Scene) -> None:
    """BR-068."""
    scene.enqueue("sleep", "a", payload="0.5")
    worker = scene.worker()
    scene.until(lambda: len(scene.lines("start", "a")) == 1)

    worker.terminate()

    assert worker.wait(10) == Exit.STOPPED
    assert scene.job("a").state is JobState.SUCCEEDED


@on_each_store
def test_what_outlasts_the_grace_is_given_back_uncounted_and_free_at_once(scene: Scene) -> None:
    """BR-068: coroutines are cancelled; a thread is given back as the last act of the process."""
    scene.enqueue("sleep", "a", payload="30")
    scene.enqueue("thread", "b", payload="30")
    worker = scene.worker(grace_us=200_000)
    scene.until(lambda: len(scene.lines("start")) == 2)

    worker.send_signal(signal.SIGINT)

    assert worker.wait(10) == Exit.STOPPED
    assert len(scene.lines("cancelled", "a")) == 1
    [stopped] = scene.lines("WorkerStopped")
    assert "given_back=2" in stopped.text
    assert len(scene.lines("AttemptEnded")) == 2
    for id in "ab":
        job = scene.job(id)
        assert (job.state, job.attempt, job.lost) == (JobState.READY, 0, 0)


def test_a_second_signal_stops_hard(scene: Scene) -> None:
    scene.enqueue("sleep", "a", payload="30")
    worker = scene.worker(grace_us=60_000_000)
    scene.until(lambda: len(scene.lines("start")) == 1)

    worker.terminate()
    scene.until(lambda: bool(scene.lines("WorkerStopping")))
    scene.pass_an_echo()
    worker.terminate()

    assert worker.wait(5) == Exit.HALTED


def test_a_second_signal_stops_hard_though_a_body_blocks_the_loop(scene: Scene) -> None:
    scene.enqueue("block", "a", payload="30")
    worker = scene.worker(patience_us=60_000_000)
    scene.until(lambda: len(scene.lines("start")) == 1)

    worker.terminate()
    scene.pass_an_echo()
    worker.terminate()

    assert worker.wait(5) == Exit.HALTED


def test_an_idle_worker_stops_at_once(scene: Scene) -> None:
    worker = scene.worker()

    worker.terminate()

    assert worker.wait(3) == Exit.STOPPED


@on_each_store
def test_a_body_that_blocks_its_loop_for_good_has_its_process_recycled(scene: Scene) -> None:
    """P19: it is told as lost; what else ran there is given back uncounted, at once."""
    scene.enqueue("sleep", "a", payload="30")
    worker = scene.worker(lease_us=60_000_000)
    scene.until(lambda: len(scene.lines("start", "a")) == 1)
    scene.enqueue("block", "b", payload="30", max_lost=1)

    assert worker.wait(10) == Exit.RECYCLED

    assert scene.job("b").state is JobState.FAILED
    other = scene.job("a")
    assert (other.state, other.attempt, other.lost) == (JobState.READY, 0, 0)
    assert scene.lines("LoopLagged")
    assert scene.lines("Recycling")


def test_a_worker_whose_loop_is_blocked_still_ends_after_a_signal(scene: Scene) -> None:
    """Its watch ends it when grace and patience are over."""
    scene.enqueue("block", "a", payload="60")
    worker = scene.worker(grace_us=100_000, patience_us=100_000)
    scene.until(lambda: len(scene.lines("start")) == 1)

    worker.terminate()

    assert worker.wait(12) in (Exit.STOPPED, Exit.RECYCLED)


@on_each_store
def test_every_job_is_done_once_more_at_most_when_workers_are_killed_at_random(scene: Scene) -> None:
    """BR-067: the system heals by itself, housekeeping included."""
    ids = [str(number) for number in range(200)]
    scene.enqueue("sleep", *ids, payload="0.01")
    for _ in range(2):
        worker = scene.worker(concurrency=4)
        done = len(scene.lines("end"))
        scene.until(lambda done=done: len(scene.lines("end")) > done + 10)  # type: ignore[misc]
        worker.kill()
    scene.worker()

    scene.until(lambda: {line.job for line in scene.lines("end")} == set(ids))
    scene.until(lambda: all(scene.job(line.job).state is JobState.SUCCEEDED for line in scene.lines("end")[-5:]))
