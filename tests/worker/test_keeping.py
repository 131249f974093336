"""Housekeeping, the heart by itself, and observers that misbehave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from random import Random

import pytest
from tests.clock import SECOND, VirtualClock
from tests.worker.ground import THREAD, Diary, Ground, Tampered, TamperedStore, working
from tests.worker.host import PlainHost, PlainRun, Task, nothing, waits_for

from selaras._contracts.limits import INTENT_GRACE_US
from selaras._contracts.partition import (
    AnyEffect,
    HeartbeatReply,
    HeartbeatRequest,
    Instance,
    Owner,
    Resolve,
    Tended,
)
from selaras._core.cache.entry import Intent
from selaras._core.errors import StoreUnavailable
from selaras._core.events import AttemptAbandoned, Trouble, WorkerEvent
from selaras._core.jobs.job import Attempt, Fate, NewJob
from selaras._core.jobs.states import JobState
from selaras._core.positions import START
from selaras._core.routing import partition_of
from selaras._stores.memory import MemoryStore
from selaras._worker.exits import Exit
from selaras._worker.heart import Beat, Heart
from selaras._worker.keeper import Keeper
from selaras._worker.system import SystemClock


@pytest.mark.parametrize(
    ("fate", "stands_for"),
    [(Fate.SETTLED, 0), (Fate.GONE, INTENT_GRACE_US), (Fate.RUNNING, None), (Fate.PENDING, None)],
)
async def test_an_orphaned_intent_stands_as_long_as_its_attempts_fate_demands(
    fate: Fate, stands_for: int | None
) -> None:
    """P17, P18: decided, it goes; lost for good, it stands a grace; else it stays, for the attempt or the next one."""
    asked: list[Sequence[Attempt]] = []
    accepted: list[AnyEffect] = []

    class Home(Tampered):
        async def fates(self, attempts: Sequence[Attempt]) -> tuple[Fate, ...]:
            asked.append(attempts)
            return (fate,)

    class There(Tampered):
        async def tend(self, limit: int) -> Tended:
            return Tended(orphans=(Intent("k", 0, "j", 7),))

        async def accept(self, effects: Sequence[AnyEffect]) -> None:
            accepted.extend(effects)

    clock = VirtualClock()
    store = MemoryStore(clock, partitions=2, entropy=Random(1))
    partitions = [Home(store.partitions[0]), There(store.partitions[1])]
    keeper = Keeper(partitions, PlainHost({}), clock, Random(1), Diary(), lease_us=15 * SECOND)

    tending = asyncio.get_running_loop().create_task(keeper.tend(partitions[1]))
    for _ in range(20):
        await asyncio.sleep(0)
    tending.cancel()

    assert asked == [[Attempt("j", 7)]]
    expected = [] if stands_for is None else [Resolve(to=1, owner=Owner(0, "j", 7), keys=("k",), stand_us=stands_for)]
    assert accepted == expected


async def test_an_intent_whose_attempt_runs_is_left_alone_however_long_it_has_stood() -> None:
    """P17: and one whose home does not know the attempt stands a grace, and falls by voiding."""
    clock = VirtualClock()
    store = MemoryStore(clock, partitions=2, entropy=Random(1))
    home, there = store.partitions
    key = next(f"k{n}" for n in range(100) if partition_of(f"k{n}", 2) == 1)
    other = next(f"o{n}" for n in range(100) if partition_of(f"o{n}", 2) == 1)
    await home.enroll(Instance(id="i", lease_us=3_600 * SECOND))
    granted = await home.open_scope("i", NewJob(id="lives", task="", kind="writing"), START)  # type: ignore[arg-type]
    await there.plant("i", Owner(0, "lives", granted.fence), [key], START)
    await there.plant("i", Owner(0, "gone", 1), [other], START)
    clock.advance(60 * SECOND)
    keeper = Keeper(store.partitions, PlainHost({}), clock, Random(1), Diary(), lease_us=15 * SECOND)

    async def keep_house() -> None:
        tending = asyncio.get_running_loop().create_task(keeper.tend(there))
        for _ in range(20):
            await asyncio.sleep(0)
        tending.cancel()

    await keep_house()
    assert len(await there.intents(other)) == 1

    clock.advance(INTENT_GRACE_US + SECOND)
    await keep_house()

    assert len(await there.intents(key)) == 1
    assert await there.intents(other) == ()


async def test_housekeeping_outlives_what_it_meets() -> None:
    """BR-067."""
    ground = Ground({"n": Task(nothing)})
    rounds: list[int] = []

    async def tend(limit: int) -> Tended:
        rounds.append(limit)
        match len(rounds):
            case 1:
                raise StoreUnavailable("away")
            case 2:
                raise ZeroDivisionError("a mistake")
            case _:
                return Tended()

    ground.partition.tend = tend  # type: ignore[attr-defined]
    ground.start()

    await ground.until(lambda: len(rounds) == 3)

    assert any(event.where == "housekeeping" for event in ground.diary.of(Trouble))
    await ground.stop()


async def test_more_housekeeping_is_done_at_once_when_a_round_stopped_at_its_bound() -> None:
    ground = Ground({"n": Task(nothing)})
    rounds: list[int] = []

    async def tend(limit: int) -> Tended:
        rounds.append(limit)
        return Tended(again=len(rounds) < 5)

    ground.partition.tend = tend  # type: ignore[attr-defined]
    ground.start()

    await ground.until(lambda: len(rounds) >= 5, 0.8)

    await ground.stop()


async def test_a_heart_goes_on_beating_whatever_happens_to_a_beat() -> None:
    clock = SystemClock()
    store = TamperedStore(clock)
    instance = Instance(id="i", lease_us=150_000)
    await store.partitions[0].enroll(instance)
    failures: list[Exception] = []
    problems: list[Exception] = [StoreUnavailable("away"), ZeroDivisionError("a mistake")]

    def fail_twice(request: HeartbeatRequest) -> None:
        if problems:
            raise problems.pop(0)

    store.beating = fail_twice
    heart = Heart(
        store,
        clock,
        instance,
        enrolled_ns=clock.instant_ns(),
        on_failure=lambda partition, error: failures.append(error),
    )
    before = heart.fresh_until_ns(0)
    heart.start()
    async with asyncio.timeout(5):
        while len(store.beats) < 4:
            await asyncio.sleep(0.01)

    heart.stop()

    assert [type(error) for error in failures] == [StoreUnavailable, ZeroDivisionError]
    assert heart.fresh_until_ns(0) > before


async def test_a_heart_trusts_nothing_once_the_store_forgot_the_instance() -> None:
    clock = SystemClock()
    store = TamperedStore(clock)
    heard = threading.Event()
    heart = Heart(
        store,
        clock,
        Instance(id="unknown", lease_us=150_000),
        enrolled_ns=clock.instant_ns(),
        on_reply=lambda partition, beat, reply: heard.set(),
    )
    heart.start()

    assert await asyncio.to_thread(heard.wait, 5)

    heart.stop()
    assert heart.fresh_until_ns(0) < clock.instant_ns()


async def test_an_observer_that_raises_disturbs_nothing() -> None:
    class Grumpy:
        wants_attempts = True

        def heard(self, event: WorkerEvent) -> None:
            raise ValueError("no")

    ground = Ground({"n": Task(nothing)}, burst=True, observer=Grumpy())
    await ground.enqueue("n", "a")

    assert await ground.worker.run() is Exit.STOPPED

    assert await ground.state("a") is JobState.SUCCEEDED


async def test_a_process_whose_every_thread_is_held_by_what_was_given_up_asks_to_be_replaced() -> None:
    gate = threading.Event()
    tasks = {"t": Task(waits_for(gate), THREAD, timeout=0.1)}

    async with working(tasks, threads=2, owns_process=True) as ground:
        await ground.enqueue("t", "a", "b", max_lost=1)
        await ground.until(lambda: len(ground.diary.of(AttemptAbandoned)) == 2)
        gate.set()  # or the worker would end this very process

        assert ground.running
        assert await ground.running is Exit.RECYCLED


async def test_a_thread_that_is_free_again_serves_the_next_body() -> None:
    def strange(run: PlainRun) -> None:
        if run.claim.job == "a":
            raise SystemExit(1)

    ground = Ground({"t": Task(strange, THREAD)}, burst=True, threads=1)
    await ground.enqueue("t", "a", "b")

    await ground.worker.run()

    assert await ground.state("b") is JobState.SUCCEEDED


async def test_a_beat_that_is_held_up_in_one_partition_costs_no_lease_in_another() -> None:
    """P19."""
    clock = SystemClock()
    store = TamperedStore(clock, 2)
    instance = Instance(id="i", lease_us=150_000)
    for partition in store.partitions:
        await partition.enroll(instance)
    begun, released = threading.Event(), threading.Event()
    beats = [0, 0]

    def hold_up(partition: int) -> Beat:
        if partition == 0:
            begun.set()
            released.wait()
        return Beat()

    def count(partition: int, beat: Beat, reply: HeartbeatReply) -> None:
        beats[partition] += 1

    heart = Heart(store, clock, instance, enrolled_ns=clock.instant_ns(), state=hold_up, on_reply=count)
    heart.start()
    await asyncio.to_thread(begun.wait, 5)
    since = beats[1]
    async with asyncio.timeout(5):
        while beats[1] < since + 3:
            await asyncio.sleep(0.01)

    assert beats[0] == 0
    assert heart.fresh_until_ns(1) > clock.instant_ns()
    released.set()
    heart.stop()


@pytest.mark.parametrize("clock_that_jumps", ["instant", "wall"])
async def test_a_heart_that_finds_that_more_time_passed_than_it_slept_beats_at_once(clock_that_jumps: str) -> None:
    """P19: a machine that slept, or a wall clock that was set; a third of this lease would be an hour."""

    class Jumpy(SystemClock):
        instant_us = 0
        civil_us = 0

        def instant_ns(self) -> int:
            return super().instant_ns() + self.instant_us * 1_000

        def wall_us(self) -> int:
            return super().wall_us() + self.civil_us

    clock = Jumpy()
    store = TamperedStore(clock)
    instance = Instance(id="i", lease_us=10_800 * SECOND)
    await store.partitions[0].enroll(instance)
    heart = Heart(store, clock, instance, enrolled_ns=clock.instant_ns())
    heart.start()
    await asyncio.sleep(0.05)  # it sleeps

    if clock_that_jumps == "wall":
        clock.civil_us += 60 * SECOND
    else:
        clock.instant_us += 60 * SECOND

    async with asyncio.timeout(5):
        while not store.beats:
            await asyncio.sleep(0.01)
    heart.stop()


async def test_a_beat_names_scopes_only_when_its_owner_says_which() -> None:
    """P16: a process that says nothing of its scopes keeps them; a worker's instance has none."""
    clock = SystemClock()
    store = TamperedStore(clock)
    instance = Instance(id="i", lease_us=60 * SECOND)
    await store.partitions[0].enroll(instance)
    said: list[tuple[Attempt, ...] | None] = [None, (), (Attempt("s", 7),)]
    saying = iter(said)
    heart = Heart(store, clock, instance, enrolled_ns=clock.instant_ns(), state=lambda _: Beat(scopes=next(saying)))
    heart.start()

    for number in range(1, len(said) + 1):
        heart.beat_now()
        async with asyncio.timeout(5):
            while len(store.beats) < number:
                await asyncio.sleep(0.01)

    heart.stop()
    assert [(each.names_scopes, each.scopes) for each in store.beats] == [
        (each is not None, each or ()) for each in said
    ]


async def test_a_house_in_which_nothing_happens_is_kept_less_often_and_at_once_again_when_something_does() -> None:
    class House(Tampered):
        rounds = 0
        found = Tended()

        async def tend(self, limit: int) -> Tended:
            self.rounds += 1
            return self.found

    clock = VirtualClock()
    house, busy = House(MemoryStore(clock, entropy=Random(1)).partitions[0]), asyncio.Event()
    keeper = Keeper([house], PlainHost({}), clock, Random(1), Diary(), lease_us=15 * SECOND)
    tending = asyncio.get_running_loop().create_task(keeper.tend(house, busy.is_set))

    async def rounds_in(seconds: int) -> int:
        before = house.rounds
        for _ in range(seconds * 10):
            clock.advance(SECOND // 10)
            for _ in range(5):
                await asyncio.sleep(0)
        return house.rounds - before

    try:
        await rounds_in(20)
        assert 18 <= await rounds_in(100) <= 21
        house.found = Tended(suspected=1)
        await rounds_in(6)
        assert 75 <= await rounds_in(100) <= 100
        house.found = Tended()
        await rounds_in(20)
        assert await rounds_in(100) <= 21
        busy.set()
        await rounds_in(6)
        assert 75 <= await rounds_in(100) <= 100
    finally:
        tending.cancel()
