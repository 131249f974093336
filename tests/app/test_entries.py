"""Ways in and out that are cut off: scopes, locks, and what a process opens for all who ask."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.app.work import working

from selaras import LeaseLost, Selaras, StoreUnavailable
from selaras._app.process.holding import Holder
from selaras._app.values.writing import Writing
from selaras._contracts.partition import Instance, Partition, Planted
from selaras._core.jobs.job import JobKind, NewJob, Refusal
from selaras._core.jobs.states import JobState
from selaras._core.positions import START
from selaras._core.routing import partition_of

Verb = Callable[..., Awaitable[Any]]


class Late:
    """Replies of a verb are held after it was executed."""

    def __init__(self, partition: Partition, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        execute: Verb = getattr(partition, verb)

        async def late(*args: Any) -> Any:
            reply = await execute(*args)
            self.reached.set()
            await self.go.wait()
            return reply

        monkeypatch.setattr(partition, verb, late)


async def holder_of(app: Selaras) -> Holder:
    process = app.process()
    return await process.holder(process.settings.lease)


def named(holder: Holder, partition: int) -> tuple[Any, ...]:
    """Return the scopes and locks that the next beat names."""
    return holder._state(partition).scopes or ()


async def test_a_scope_is_named_from_before_it_is_asked_for_until_its_end_was_answered(
    app: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    slot = price.key(1).slot
    holder = await holder_of(app)
    opening = Late(app.process().store.partitions[slot.partition], "open_scope", monkeypatch)
    settling = Late(app.process().store.partitions[slot.partition], "settle", monkeypatch)

    async def write() -> None:
        async with price.key(1).writing() as scope:
            assert [one.fence for one in named(holder, slot.partition)] == [scope.fence]

    task = asyncio.ensure_future(write())
    await opening.reached.wait()
    assert [one.fence for one in named(holder, slot.partition)] == [0]
    opening.go.set()
    await settling.reached.wait()
    assert len(named(holder, slot.partition)) == 1
    settling.go.set()
    await task

    assert named(holder, slot.partition) == ()


async def test_a_scope_whose_entry_was_cut_off_is_answered_for_no_longer(
    app: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    slot = price.key(1).slot
    holder = await holder_of(app)
    opening = Late(app.process().store.partitions[slot.partition], "open_scope", monkeypatch)
    task = asyncio.ensure_future(price.key(1).writing().__aenter__())
    await opening.reached.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    opening.go.set()

    async with asyncio.timeout(5):
        while named(holder, slot.partition):
            await asyncio.sleep(0.001)
    # Ended in order, not left to its lease: nothing was written.
    assert await app.process().store.partitions[slot.partition].intents(slot.key) == ()


async def test_a_scope_that_could_not_be_asked_for_is_answered_for_no_longer(
    app: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("busy")

    slot = price.key(1).slot
    holder = await holder_of(app)
    monkeypatch.setattr(app.process().store.partitions[slot.partition], "open_scope", away)
    with pytest.raises(StoreUnavailable):
        await price.key(1).writing().__aenter__()

    async with asyncio.timeout(5):
        while named(holder, slot.partition):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("failure", ["away", "refused"])
async def test_a_scope_that_cannot_plant_elsewhere_is_ended_at_home(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Selaras("memory://?partitions=2") as app:

        @app.cached
        async def price(id: int) -> int:
            return id

        slots = [next(k.slot for n in range(99) if (k := price.key(n)).slot.partition == index) for index in (0, 1)]
        partitions = app.process().store.partitions
        plant = partitions[1].plant

        async def fails(*args: Any) -> Planted:
            if failure == "away":
                raise StoreUnavailable("busy")
            planted = await plant(*args)
            return Planted(planted.news, Refusal.LEASE_LOST)

        monkeypatch.setattr(partitions[1], "plant", fails)

        with pytest.raises(StoreUnavailable if failure == "away" else LeaseLost):
            await Writing(app.program, slots).__aenter__()

        assert await partitions[0].intents(slots[0].key) == ()
        assert named(await holder_of(app), 0) == ()


async def test_whoever_is_cancelled_on_the_way_out_of_a_lock_lets_it_go(
    app: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(lock="mail")
    async def send() -> str:
        return "sent"

    lock = app.lock("mail")
    await lock.__aenter__()
    holder = await holder_of(app)
    home = next(p for p in app.process().store.partitions if named(holder, p.index))
    settle, reached, go = home.settle, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> Any:
        reached.set()
        await go.wait()
        return await settle(*args)

    monkeypatch.setattr(home, "settle", slow)
    leaving = asyncio.ensure_future(lock.__aexit__(None, None, None))
    await reached.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go.set()

    async with working(app):
        assert await (await send.enqueue()).result(timeout=10) == "sent"


async def test_a_lock_that_was_not_waited_for_is_answered_for_no_longer(
    app: Selaras, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await holder_of(app)
    partitions = app.process().store.partitions

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("busy")

    async with app.lock("mail"):
        [home] = [p for p in partitions if named(holder, p.index)]
        waiting = asyncio.ensure_future(_lock_in_another_context(app))
        async with asyncio.timeout(5):
            while len(named(holder, home.index)) < 2:
                await asyncio.sleep(0.001)
        monkeypatch.setattr(home, "cancel", away)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(named(holder, home.index)) == 1


async def _lock_in_another_context(app: Selaras) -> None:
    from selaras._app.jobs.lines import HELD

    HELD.set(None)
    async with app.lock("mail"):
        pass


async def test_a_lease_that_the_store_forgot_beats_on_only_for_what_is_held_under_it(app: Selaras) -> None:
    lock = app.lock("held")
    await lock.__aenter__()
    holding = await holder_of(app)
    await _forget(app, holding)
    idle = await holder_of(app)
    await _forget(app, idle)
    latest = await holder_of(app)

    assert await _beating(holding, idle, latest) == [True, False, True]
    with pytest.raises(LeaseLost):
        await lock.__aexit__(None, None, None)
    await _forget(app, latest)
    await holder_of(app)
    assert await _beating(holding, idle, latest) == [False, False, False]


async def _forget(app: Selaras, holder: Holder) -> None:
    for partition in app.process().store.partitions:
        await partition.dismiss(holder.instance.id)
    holder.lost = True  # as its next beat would hear


async def _beating(*holders: Holder) -> list[bool]:
    await asyncio.sleep(0.05)
    return [any(chamber.thread.is_alive() for chamber in holder.heart._chambers) for holder in holders]


async def test_a_line_goes_on_after_a_killed_holder_though_no_worker_keeps_house(app: Selaras) -> None:
    home = partition_of("mail", app.process().partitions)
    partition = app.process().store.partitions[home]
    await partition.enroll(Instance(id="killed", lease_us=100_000))
    lock = NewJob(id=app.process().new_id(home), task="lock", kind=JobKind.LOCK, line="mail")
    assert (await partition.acquire("killed", lock, START)).fence

    async with app.lock("mail", timeout=10) as held:
        assert held.fence


async def test_a_scope_left_by_a_killed_process_ends_though_no_worker_keeps_house(app: Selaras) -> None:
    @app.cached
    async def price(id: int) -> int:
        return id

    slot = price.key(1).slot
    partition = app.process().store.partitions[slot.partition]
    await partition.enroll(Instance(id="killed", lease_us=100_000))
    scope = NewJob(id=app.process().new_id(slot.partition), task="writing", kind=JobKind.WRITING, writes=(slot.key,))
    assert (await partition.open_scope("killed", scope, START)).fence

    async def goes_on() -> bool:
        record, _ = await partition.job(scope.id, START)
        return record is not None and record.state is JobState.RUNNING

    async with asyncio.timeout(10):
        while await goes_on():
            async with price.key(1).writing():
                pass
            await asyncio.sleep(0.1)


async def test_the_cancellation_of_one_caller_is_not_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Selaras("memory://")
    process = app.process()
    open_store, reached, go = process.store.open, asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await go.wait()
        await open_store()

    monkeypatch.setattr(process.store, "open", slow)
    first = asyncio.ensure_future(process.open())
    await reached.wait()
    others = [asyncio.ensure_future(process.holder(process.settings.lease)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    others[0].cancel()
    await asyncio.sleep(0)
    go.set()

    assert (await others[1]).instance.id
    assert first.cancelled()
    assert others[0].cancelled()
    await app.close()


def test_work_that_ended_with_its_loop_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Selaras("memory://")
    process = app.process()
    open_store = process.store.open
    calls = 0

    async def once_slow() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        await open_store()

    async def gives_up() -> None:
        async with asyncio.timeout(0.01):
            await process.open()

    async def opens() -> None:
        await process.open()
        await app.close()

    monkeypatch.setattr(process.store, "open", once_slow)
    with pytest.raises(TimeoutError):
        asyncio.run(gives_up())
    asyncio.run(opens())

    assert calls == 2
