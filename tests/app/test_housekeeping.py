"""Processes that have a store open keep its house where no worker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from tests.clock import SECOND, VirtualClock

from selaras import Selaras, StoreUnavailable
from selaras._app.process.housekeeping import EVERY_S, MORE_S, ROUNDS, SPREAD
from selaras._app.process.process import Process
from selaras._contracts.limits import ORPHAN_US
from selaras._contracts.partition import Owner, Tended
from selaras._core.positions import START
from selaras._stores.memory import MemoryStore

ROUND = round(EVERY_S * (1 + SPREAD)) * SECOND


@asynccontextmanager
async def opened(app: Selaras, clock: VirtualClock, partitions: int = 1) -> AsyncIterator[Process]:
    """An app on a store whose time is the test's."""
    store: Any = MemoryStore(clock, partitions=partitions, entropy=Random(1))
    process = Process(store, clock, Random(1), app.settings, app.registry)
    with app.program.processes.standing_in(process):
        async with app:
            yield process


async def idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def pass_a_round(clock: VirtualClock) -> None:
    await idle()
    clock.advance(ROUND)
    await idle()


async def test_a_producer_alone_lets_its_jobs_expire(clock: VirtualClock) -> None:
    app = Selaras("memory://")

    @app.task
    async def work() -> None: ...

    async with opened(app, clock):
        job = await work.options(expires=5).enqueue()
        await pass_a_round(clock)

        assert (await job.info()).state == "expired"


async def test_a_round_that_finds_the_store_away_is_not_the_last(clock: VirtualClock) -> None:
    app = Selaras("memory://")

    @app.task
    async def work() -> None: ...

    async with opened(app, clock) as process:
        job = await work.options(expires=5).enqueue()
        here: Any = process.store.partitions[0]
        tend = here.tend

        async def away(limit: int) -> None:
            raise StoreUnavailable("away")

        here.tend = away
        await pass_a_round(clock)
        here.tend = tend
        await pass_a_round(clock)

        assert (await job.info()).state == "expired"


async def test_what_is_much_is_done_in_several_rounds_at_once(clock: VirtualClock) -> None:
    app = Selaras("memory://")

    @app.task
    async def work() -> None: ...

    async with opened(app, clock):
        jobs = [await work.options(expires=5).enqueue() for _ in range(350)]
        await pass_a_round(clock)

        assert {(await job.info()).state for job in jobs} == {"expired"}


async def test_what_is_more_than_rounds_at_once_can_do_goes_on_soon(clock: VirtualClock) -> None:
    app = Selaras("memory://")
    async with opened(app, clock) as process:
        rounds = 0
        here: Any = process.store.partitions[0]

        async def never_done(limit: int) -> Tended:
            nonlocal rounds
            rounds += 1
            return Tended(again=rounds < 3 * ROUNDS)

        here.tend = never_done
        await pass_a_round(clock)
        assert rounds == ROUNDS
        for _ in range(2):
            clock.advance(round(MORE_S * SECOND))
            await idle()
        assert rounds == 3 * ROUNDS
        clock.advance(round(MORE_S * SECOND))
        await idle()
        assert rounds == 3 * ROUNDS


async def test_where_a_worker_runs_it_keeps_house(clock: VirtualClock) -> None:
    app = Selaras("memory://")
    async with opened(app, clock) as process:
        tended: list[int] = []
        here: Any = process.store.partitions[0]
        tend = here.tend

        async def counted(limit: int) -> Any:
            tended.append(limit)
            return await tend(limit)

        here.tend = counted
        process.housekeeping.workers = 1
        await pass_a_round(clock)
        assert tended == []

        process.housekeeping.workers = 0
        await pass_a_round(clock)
        assert tended


async def test_it_ends_with_the_app(clock: VirtualClock) -> None:
    app = Selaras("memory://")
    async with opened(app, clock):
        await idle()
        tasks = asyncio.all_tasks()
    await idle()

    assert len(asyncio.all_tasks()) < len(tasks)


@pytest.mark.parametrize("how", ["a round", "a scope"])
async def test_intents_whose_homes_know_nothing_of_them_are_asked_after(clock: VirtualClock, how: str) -> None:
    app = Selaras("memory://")
    async with opened(app, clock, partitions=2) as process:
        there = process.store.partitions[1]
        await there.plant("nobody", Owner(0, "nobody's", 7), ["k"], START)
        if how == "a round":
            await pass_a_round(clock)
        else:
            clock.advance(ORPHAN_US)
            await process.housekeeping.used(1)

        (intent,) = await there.intents("k")
        assert intent.until_us > 0  # it stands a grace, then falls


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("lives", ["on", "for one read"])
async def test_readers_that_meet_what_a_killed_process_wrote_end_it(
    clock: VirtualClock, partitions: int, lives: str
) -> None:
    """With no worker: as soon as its lease, the time between two looks and the grace of its intents are over."""
    app = Selaras("memory://")

    @app.cached(ttl=300)
    async def price(id: int) -> int:
        return id

    entropy = Random(1)
    store: Any = MemoryStore(clock, partitions=partitions, entropy=entropy)

    def process() -> Process:
        return Process(store, clock, entropy, app.settings, app.registry)

    async def write() -> None:
        await price.key(1).writing().__aenter__()

    with app.program.processes.standing_in(killed := process()):
        await asyncio.create_task(write())
        holder = await killed.holder(app.settings.lease)
        await asyncio.to_thread(holder.heart.stop)
    with app.program.processes.standing_in(process()):
        async with app:
            await idle()
            tiers: list[str] = []
            for _ in range(80):
                if lives == "on":
                    tiers.append((await price.key(1).read()).tier)
                else:
                    with app.program.processes.standing_in(process()):
                        async with app:
                            tiers.append((await price.key(1).read()).tier)
                await idle()
                clock.advance(SECOND)
                await idle()

    stood = tiers.index("shared" if "shared" in tiers else "local")
    assert 15 <= stood <= 15 + 5 + 7.5 + 5 + 30 + 5


async def test_what_waits_in_an_outbox_is_delivered(clock: VirtualClock) -> None:
    """As after a producer that was killed before it could."""
    app = Selaras("memory://")

    @app.task
    async def work() -> None: ...

    async with opened(app, clock, partitions=4) as process:
        parent = await work.options(id="parent").enqueue()
        children = [await work.options(id=f"child-{i}", after=[parent]).enqueue() for i in range(8)]
        await process.store.partitions[parent.home].cancel(parent.id, "by hand")  # and nobody relays
        assert "blocked" in {(await child.info()).state for child in children}

        await pass_a_round(clock)

        assert {(await child.info()).state for child in children} == {"cancelled"}
