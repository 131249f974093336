"""Push is a hint: it makes news come sooner, and proves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cache.world import World

from selaras._cache.hints import HINT_S
from selaras._contracts.partition import Invalidation
from selaras._core.positions import Cursor, News, Pushed


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World("memory-1", tmp_path)


async def test_a_log_that_is_said_to_have_grown_is_heard_once_for_many_hints(world: World) -> None:
    async with world:
        p, q = await world.process("p"), await world.process("q")
        await p.get()
        news = await q.partition().invalidate(Invalidation(keys=(world.slot().key,)), q.cursor(0))
        assert p.cache.stats()["entries"] == 1
        _ = p.calls

        for position in (1, news.tail.position, -1, 1):
            p.cache.grown(0, position)
        await world.until(lambda: not p.cache.stats()["entries"])

        assert p.calls == ["events_since"]
        assert p.cursor(0) == news.tail


async def test_a_hint_of_what_is_known_or_matters_to_nobody_costs_nothing(world: World) -> None:
    async with world:
        p, q = await world.process("p"), await world.process("q")
        await q.get()
        news = await p.partition().invalidate(Invalidation(keys=("other",)), p.cursor(0))
        _ = p.calls, q.calls

        p.cache.grown(0, news.tail.position, _unread)  # it holds nothing
        q.cache.grown(0, q.cursor(0).position, _unread)
        q.cache.grown(0, news.tail.position)
        await q.catch_up()  # as a turn's reply would, meanwhile
        await asyncio.sleep(10 * HINT_S)

        assert (p.calls, q.calls) == ([], [])


def _unread() -> Pushed | None:
    raise AssertionError("nobody needs to read it")


async def test_a_hint_proves_nothing(world: World) -> None:
    async with world:
        p = await world.process("p")
        await p.get()
        world.advance(2)  # beyond max_lag

        p.cache.grown(0, p.cursor(0).position)

        p.partition().blind = True
        _ = p.calls
        await p.get()
        assert p.calls == ["events_since"]


async def test_events_that_are_pushed_void_at_once_and_prove_nothing(world: World) -> None:
    async with world:
        p, q = await world.process("p"), await world.process("q")
        await p.get()
        since, follower = p.cursor(0), p.cache._followers[0]
        confirmed_ns = follower.confirmed_ns
        news = await q.partition().invalidate(Invalidation(keys=(world.slot().key,)), since)
        _ = p.calls

        p.cache.grown(0, news.tail.position, lambda: Pushed(since, news))

        assert p.cache.stats()["entries"] == 0
        assert (p.calls, p.cursor(0)) == ([], news.tail)
        assert follower.confirmed_ns == confirmed_ns


@pytest.mark.parametrize("why", ["it missed some", "another log", "another epoch"])
async def test_pushed_events_that_do_not_follow_what_is_known_are_asked_for(world: World, why: str) -> None:
    async with world:
        p, q = await world.process("p"), await world.process("q")
        await p.get()
        since = p.cursor(0)
        news = await q.partition().invalidate(Invalidation(keys=(world.slot().key,)), since)
        match why:
            case "it missed some":
                pushed = Pushed(Cursor(since.position + 1, since.event_id), news)
            case "another log":
                pushed = Pushed(Cursor(since.position, since.event_id + 1), news)
            case _:
                pushed = Pushed(since, News(news.tail, news.events, epoch=news.epoch + 1, ids=news.ids))
        _ = p.calls

        p.cache.grown(0, news.tail.position, lambda: pushed)
        assert p.cache.stats()["entries"] == 1
        await world.until(lambda: not p.cache.stats()["entries"])

        assert p.calls == ["events_since"]


async def test_a_store_that_does_not_answer_a_hint_is_left_to_those_who_read(world: World) -> None:
    async with world:
        p = await world.process("p")
        await p.get()
        p.partition().down = True

        p.cache.grown(0, 99)
        await world.until(lambda: bool(p.events))

        assert [type(event).__name__ for event in p.events] == ["SharedTierLost"]
