"""The log: positions, news, cursors, its trimmed end and its epochs (P3, P20)."""

from __future__ import annotations

import asyncio
from random import Random

from tests.clock import VirtualClock
from tests.conformance.world import K2, K3, A, K, World, job, local, put

from selaras._contracts.limits import LOG_LENGTH, NEWS_MOST
from selaras._contracts.partition import Invalidation
from selaras._core.positions import START, Cursor, Event, Scope
from selaras._stores.memory import MemoryStore
from selaras._stores.memory.partition import MemoryPartition


async def test_an_event_says_what_it_voids(world: World) -> None:
    since = await world.tail()

    news = await world.invalidate(K, tags=("t",), families=("f",))

    at = since.position
    assert (
        news.events
        == (
            Event(at + 1, Scope.KEY, K),
            Event(at + 2, Scope.TAG, "t"),
            Event(at + 3, Scope.FAMILY, "f"),
        )
        or news.reset
    )
    assert (await world.home.events_since(since)).events == (
        Event(at + 1, Scope.KEY, K),
        Event(at + 2, Scope.TAG, "t"),
        Event(at + 3, Scope.FAMILY, "f"),
    )


async def test_whoever_is_at_the_tail_hears_nothing(world: World) -> None:
    news = await world.home.events_since(await world.tail())

    assert (news.events, news.reset) == ((), False)


async def test_of_one_name_only_the_last_event_is_told(world: World) -> None:
    since = await world.tail()
    await world.invalidate(K, K2, K, tags=(K,))

    news = await world.home.events_since(since)

    assert [(event.position - since.position, event.scope, event.name) for event in news.events] == [
        (2, Scope.KEY, K2),
        (3, Scope.KEY, K),
        (4, Scope.TAG, K),
    ]


async def test_those_who_ask_at_one_moment_from_several_cursors_hear_what_came_after_theirs(world: World) -> None:
    cursors = [await world.tail(), *[(await world.invalidate(name)).tail for name in (K, K2, K)]]
    forked = Cursor(cursors[2].position, cursors[2].event_id ^ 1)
    asked = [*cursors, cursors[1], START, forked, cursors[3]]

    told = await asyncio.gather(
        *(
            world.home.invalidate(
                Invalidation(keys=(K if number == 2 else f"k{number}",), tags=("t",) * (number % 2)), since
            )
            for number, since in enumerate(asked)
        )
    )

    every = (await world.home.events_since(cursors[0])).events
    log = {event.position: event for news in told for event in news.events} | {event.position: event for event in every}
    for since, news in zip(asked, told, strict=True):
        assert news.reset == (since in (START, forked))
        if not news.reset:
            last = {
                (event.scope, event.name): event
                for event in (log.get(at) for at in range(since.position + 1, news.tail.position + 1))
                if event is not None
            }
            assert news.events == tuple(sorted(last.values(), key=lambda event: event.position))
            assert len(news.ids) == len(news.events)
    assert len({id for news in told for id in news.ids}) == len(
        {event.position for news in told for event in news.events}
    )


async def test_a_newcomer_starts_from_the_tail_with_nothing(world: World) -> None:
    await world.invalidate(K)

    news = await world.home.events_since(START)

    assert news.reset
    assert news.events == ()
    assert news.tail.position >= 1


async def test_the_tail_is_known_without_waiting_or_not_at_all(world: World) -> None:
    await world.invalidate(K)

    tail = world.home.tail_now()

    assert tail in (None, await world.tail())


async def test_a_plain_read_and_fill_make_no_event(world: World) -> None:
    since = await world.tail()

    await world.cache(K)
    await world.look(K)
    await world.cache(K2)

    assert await world.events(since) == []


async def test_p20_a_cursor_of_another_log_is_noticed_though_no_position_is_missing(world: World) -> None:
    before = await world.tail()
    await world.invalidate(K)  # e1, which P applied; a failover loses it, and others append e2
    applied = await world.tail()
    foreign = Cursor(applied.position, applied.event_id ^ 1)
    await world.invalidate(K2)

    news = await world.home.events_since(foreign)

    assert news.reset
    assert not (await world.home.events_since(applied)).reset
    assert not (await world.home.events_since(before)).reset


async def test_p20_a_cursor_at_the_tail_of_another_log_is_noticed(world: World) -> None:
    tail = await world.tail()

    news = await world.home.events_since(Cursor(tail.position, tail.event_id ^ 1))

    assert news.reset


async def test_p20_a_tail_behind_the_cursor_is_another_log(world: World) -> None:
    tail = await world.tail()

    news = await world.home.events_since(Cursor(tail.position + 5, 12345))

    assert news.reset
    assert news.tail == tail


async def test_p20_every_event_has_an_id_of_its_own(world: World) -> None:
    ids = []
    for _ in range(20):
        await world.invalidate(K)
        ids.append((await world.tail()).event_id)

    assert len(set(ids)) == 20
    assert 0 not in ids


async def test_p20_a_store_that_lost_events_resets_its_readers_and_trusts_no_entry() -> None:
    clock = VirtualClock()
    partition = MemoryPartition(0, 1, clock, Random(1), lambda address: None)
    store = MemoryStore(clock)
    store.partitions = [partition]
    world = World(store, clock)
    await world.begin()
    await world.cache(K, b"v0")
    token = await world.miss(K2)
    await world.invalidate(K3)  # e1
    applied = await world.tail()
    fence_before = token

    partition.lose_memory(events=1)
    await world.invalidate(K2)  # e2 in its place

    news = await world.home.events_since(applied)
    assert (await world.tail()).position == applied.position
    assert news.reset
    assert news.epoch == 1
    assert await world.value(K) is None
    assert not await world.fill(token, put(K2))
    assert await world.miss(K) > fence_before + (1 << 50)


async def test_b8_a_log_trimmed_past_a_sleeper_s_cursor_resets_it(world: World) -> None:
    asleep = await world.tail()
    await world.invalidate(*(f"key-{number}" for number in range(LOG_LENGTH + 1)))
    awake = await world.tail()
    kept = Cursor(asleep.position + 1, 0)

    trimmed = await world.tend()
    await world.invalidate(K)

    assert trimmed.trimmed > 0
    assert (await world.home.cache_stats()).log_length <= LOG_LENGTH + 1
    assert (await world.home.events_since(asleep)).reset
    assert (await world.home.events_since(kept)).reset
    assert await world.events(awake) == [K]


async def test_a_reader_far_behind_is_reset_rather_than_told_everything(world: World) -> None:
    since = await world.tail()
    await world.invalidate(*(f"key-{number}" for number in range(NEWS_MOST)))
    just = await world.home.events_since(since)
    await world.invalidate(K)

    assert len(just.events) == NEWS_MOST
    assert (await world.home.events_since(since)).reset


async def test_what_a_trimmed_tag_event_voided_stays_void(world: World) -> None:
    await world.cache(K, tags=("t",))
    await world.cache(K2, tags=("u",))
    await world.invalidate(tags=("t",))
    await world.invalidate(*(f"key-{number}" for number in range(LOG_LENGTH + 1)))

    await world.tend()

    assert await world.value(K) is None


async def test_the_position_counts_every_event(world: World) -> None:
    start = (await world.tail()).position
    await world.invalidate(K, K)
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K, local("k-9"))))
    await worker.run(keys=(K2,))

    assert (await world.tail()).position == start + 5
    assert (await world.home.cache_stats()).position == start + 5
