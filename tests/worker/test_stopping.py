"""How a worker stops: in order, at once, while the store is away, from other threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.worker.ground import THREAD, Ground, TamperedStore, Turning, working
from tests.worker.host import PlainRun, Task, for_ever, nothing, waits_for

from selaras._contracts.partition import HeartbeatRequest, Instance, TurnReply, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.events import WorkerStopping
from selaras._core.jobs.states import JobEvent, JobState
from selaras._worker.exits import Exit
from selaras._worker.shutdown import Leaving, give_back_everything
from selaras._worker.system import SystemClock


def slow(seconds: float) -> Any:
    async def body(run: PlainRun) -> None:
        await asyncio.sleep(seconds)

    return body


async def test_a_running_body_finishes_within_the_grace() -> None:
    async with working({"s": Task(slow(0.2))}) as ground:
        await ground.enqueue("s", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        assert await ground.stop() is Exit.STOPPED

        assert await ground.state("a") is JobState.SUCCEEDED


async def test_nothing_is_claimed_once_a_stop_was_asked_for() -> None:
    async with working({"s": Task(slow(0.2))}) as ground:
        await ground.enqueue("s", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        ground.worker.stop()
        await ground.enqueue("s", "b")
        assert ground.running
        await ground.running

        assert ground.host.started == ["a"]


async def test_what_outlasts_the_grace_is_given_back_uncounted_after_it_cleaned_up() -> None:
    """BR-068, BR-069: with one attempt allowed it still runs again, at once, and its `finally` has run."""
    marks: list[str] = []

    async def tidy(run: PlainRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            marks.append("clean")

    async with working({"t": Task(tidy)}, grace_us=100_000) as ground:
        await ground.enqueue("t", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        assert await ground.stop() is Exit.STOPPED

        job = await ground.job("a")
        assert (job.state, job.attempt, job.lost) == (JobState.READY, 0, 0)
        assert marks == ["clean"]


async def test_what_never_started_is_given_back_at_once() -> None:
    async def brief(run: PlainRun) -> None:
        await asyncio.sleep(0.001)

    async with working({"s": Task(brief)}, concurrency=2) as ground:
        await ground.enqueue("s", *map(str, range(3_000)))
        await ground.until(lambda: len(ground.host.started) > 100)

        assert await ground.stop() is Exit.STOPPED

        states = [await ground.state(str(number)) for number in range(3_000)]
        assert set(states) <= {JobState.SUCCEEDED, JobState.READY}
        assert states.count(JobState.SUCCEEDED) == len(ground.host.started)


async def test_a_stop_while_idle_ends_at_once() -> None:
    async with working({"n": Task(nothing)}) as ground:
        await ground.until(lambda: len(ground.host.instances) == 1)
        await asyncio.sleep(0.05)

        async with asyncio.timeout(0.5):
            assert await ground.stop() is Exit.STOPPED

        assert await ground.partition.instances() == ()


async def test_a_stop_before_the_store_was_reached_ends_at_once() -> None:
    ground = Ground({"n": Task(nothing)})

    async def refuse(instance: object) -> None:
        raise StoreUnavailable("connection refused")

    ground.partition.enroll = refuse  # type: ignore[method-assign]
    ground.start()
    await asyncio.sleep(0.15)

    async with asyncio.timeout(1.0):
        assert await ground.stop() is Exit.STOPPED


async def test_a_stop_while_the_store_is_away_ends_and_says_that_it_was_not_heard() -> None:
    """BR-068: while reconnecting."""
    async with working({"s": Task(slow(0.05))}) as ground:

        async def lose_settles(request: TurnRequest, turn: Turning) -> TurnReply:
            if request.settlements:
                raise StoreUnavailable("gone")
            return await turn(request)

        ground.partition.turning = lose_settles
        ground.store.beating = lambda _: (_ for _ in ()).throw(StoreUnavailable("gone"))
        await ground.enqueue("s", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        async with asyncio.timeout(8.0):
            assert await ground.stop() is Exit.LEFT


async def test_a_halt_waits_for_nothing() -> None:
    async with working({"f": Task(for_ever)}) as ground:
        await ground.enqueue("f", "a")
        await ground.until(lambda: ground.host.started == ["a"])
        ground.worker.stop()
        await asyncio.sleep(0.02)

        ground.worker.halt()
        assert ground.running
        async with asyncio.timeout(0.5):
            assert await ground.running is Exit.HALTED


async def test_an_embedded_worker_does_not_give_back_what_a_thread_still_runs() -> None:
    """Given back earlier it would run twice at once; its lease lapses instead."""
    gate = threading.Event()

    async with working({"t": Task(waits_for(gate), THREAD)}, grace_us=50_000) as ground:
        await ground.enqueue("t", "a")
        await ground.until(lambda: ground.host.started == ["a"])

        assert await ground.stop() is Exit.LEFT

        assert await ground.state("a") is JobState.RUNNING
        gate.set()


async def test_a_stop_can_come_from_any_thread() -> None:
    async with working({"n": Task(nothing)}) as ground:
        await ground.until(lambda: len(ground.host.instances) == 1)

        threading.Thread(target=ground.worker.stop, args=("the boss said so",)).start()
        assert ground.running
        assert await ground.running is Exit.STOPPED

        assert [event.reason for event in ground.diary.of(WorkerStopping)] == ["the boss said so"]


def test_a_worker_runs_outside_the_main_thread_and_hears_no_signals_there() -> None:
    """BR-099."""
    codes: list[Exit] = []

    async def main() -> None:
        ground = Ground({"n": Task(nothing)}, burst=True, owns_process=True)
        await ground.enqueue("n", "a")
        codes.append(await ground.worker.run())

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(10)

    assert codes == [Exit.STOPPED]


async def test_a_burst_ends_when_nothing_is_left() -> None:
    ground = Ground({"s": Task(slow(0.05)), "n": Task(nothing)}, burst=True)
    await ground.enqueue("s", "a")
    await ground.enqueue("n", "later", delay_us=60_000_000)

    assert await ground.worker.run() is Exit.STOPPED

    assert await ground.state("a") is JobState.SUCCEEDED
    assert await ground.state("later") is JobState.SCHEDULED


async def test_a_burst_on_an_empty_store_ends() -> None:
    assert await Ground({"n": Task(nothing)}, burst=True, partitions=3).worker.run() is Exit.STOPPED


async def test_the_last_act_reaches_every_partition_though_one_is_held_up() -> None:
    """P19."""
    store = TamperedStore(SystemClock(), 2)
    for partition in store.partitions:
        await partition.enroll(Instance(id="i", lease_us=60_000_000))
    released = threading.Event()

    def hold_up(request: HeartbeatRequest) -> None:
        if not request.last_turn:
            released.wait()

    store.beating = hold_up
    leaving = [Leaving(0, 0), Leaving(1, 1)]  # the first is told apart by its turn

    heard = await asyncio.to_thread(give_back_everything, store, "i", leaving, seconds=0.3)

    assert not heard
    assert sorted(beat.last_turn for beat in store.beats) == [0, 1]
    released.set()


async def test_the_last_act_settles_bodies_that_began_as_unsure_and_releases_the_others() -> None:
    """P18: a write of a body that is ended with its process may still reach the datastore: its intent must stand."""
    gate = threading.Event()
    tasks = {"t": Task(waits_for(gate), THREAD), "f": Task(for_ever)}
    async with working(tasks, threads=1, concurrency=1) as ground:
        await ground.enqueue("t", "a", writes=("k",))
        await ground.enqueue("f", "b")
        await ground.until(lambda: sorted(ground.host.started) == ["a", "b"])
        [turner] = ground.worker._tenures[-1].turners

        words = turner.last_words()
        instance = ground.host.instances[-1].id
        heard = await asyncio.to_thread(give_back_everything, ground.store, instance, [words])
        jobs = [await ground.job(id) for id in "ab"]
        intents = await ground.partition.intents("k")
        gate.set()

        assert {(each.job, each.event, each.unsure) for each in words.settlements} == {
            ("a", JobEvent.RELEASE, True),
            ("b", JobEvent.RELEASE, True),
        }
        assert heard
        assert [job.attempt for job in jobs] == [0, 0]
        assert len(intents) == 1
