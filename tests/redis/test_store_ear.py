"""What is pushed: bells ring, logs are said to have grown, and a subscription that is lost is made anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.redis.linked import World
from tests.redis.proxy import Proxy
from tests.redis.servers import Cluster, RedisServer, Sentinels, until

from selaras import StoreRefused
from selaras._contracts.partition import Invalidation
from selaras._core.positions import START, Pushed
from selaras._stores.redis import ear as ears
from selaras._stores.redis.address import redis_address
from selaras._stores.redis.bell import RedisBell
from selaras._stores.redis.ear import UNKNOWN, Ear
from selaras._stores.redis.records import PUSHED_MOST
from selaras._stores.redis.store import RedisStore


class Listener:
    """An ear, one bell, and what it was told."""

    def __init__(self, url: str, partitions: int = 1) -> None:
        self.world = World(url, partitions)
        self.ear = Ear(self.world.link.common, self.world.link.lines)
        self.world.link.common.on_moved = self.ear.moved
        self.bell: RedisBell = self.ear.make_bell("b1")
        self.told: list[tuple[int, int]] = []
        self.pushed: list[Pushed | None] = []
        self.ear.listen(self._hear)

    def _hear(self, partition: int, position: int, read: Callable[[], Pushed | None]) -> None:
        self.told.append((partition, position))
        self.pushed.append(read())

    def channel(self, name: str, partition: int = 0) -> str:
        return self.world.link.common.names.key(partition, name)

    async def rang(self, within_s: float = 5.0) -> frozenset[int]:
        return await self.bell.wait(within_s)

    async def until_told(self, what: tuple[int, int]) -> None:
        async with asyncio.timeout(8):
            while what not in self.told:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(url: str, partitions: int = 1) -> AsyncIterator[Listener]:
    listener = Listener(url, partitions)
    await listener.world.link.open()
    listener.ear.attend()
    for partition in range(partitions):
        await listener.until_told((partition, UNKNOWN))
    while await listener.rang(0.05):
        pass
    yield listener
    await listener.ear.close()
    await listener.world.link.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_bell_rings_when_a_script_speaks_on_its_channel(redis_server: RedisServer, protocol: int) -> None:
    async with listening(redis_server.url_for(query=f"protocol={protocol}"), 2) as here:
        for partition in (0, 1):
            waiting = asyncio.create_task(here.rang())
            await asyncio.sleep(0.01)
            redis_server.call("PUBLISH", here.channel("bell:b1", partition), "")
            assert await waiting == {partition}

        redis_server.call("PUBLISH", here.channel("bell:another"), "")
        assert not await here.rang(0.05)
        redis_server.call("PUBLISH", here.channel("bell:b1"), "")
        await asyncio.sleep(0.05)
        assert await here.rang(0)  # it rang while nobody waited


async def test_a_log_that_grew_is_told_with_its_position(redis_server: RedisServer) -> None:
    async with listening(redis_server.url, 2) as here:
        redis_server.call("PUBLISH", here.channel("news", 1), "17")

        await here.until_told((1, 17))


async def test_who_waits_for_a_reply_of_the_same_moment_has_it_before_the_news_are_told(
    redis_server: RedisServer,
) -> None:
    """So a process that hears of what it has done itself knows that already, and need not read it."""
    async with listening(redis_server.url) as here:
        heard: list[str] = []
        here.ear.listen(lambda partition, position, read: heard.append("news"))
        replied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def call() -> None:
            await replied
            heard.append("reply")

        calling = asyncio.create_task(call())
        await asyncio.sleep(0)
        hearing = here.ear._hearing
        assert hearing is not None
        replied.set_result(None)
        hearing.said(here.channel("news").encode(), b"21")
        await here.until_told((0, 21))
        await calling

        assert heard == ["reply", "news"]


@pytest.mark.parametrize("events", [1, 3, PUSHED_MOST, PUSHED_MOST + 1])
async def test_of_a_log_that_grew_by_little_the_events_are_told(redis_server: RedisServer, events: int) -> None:
    store, told = RedisStore(redis_address(redis_server.url)), dict[int, Pushed | None]()

    def grown(_: int, position: int, read: Callable[[], Pushed | None]) -> None:
        told[position] = read()

    store.listen(grown)
    await store.open()
    partition = store.partitions[0]
    async with asyncio.timeout(8):
        while UNKNOWN not in told:
            await asyncio.sleep(0.005)
        since = (await partition.invalidate(Invalidation(("before",)), START)).tail
        keys = tuple(f"key-{number}" for number in range(events - 1))

        news = await partition.invalidate(Invalidation(keys, tags=("a tag",)), since)

        while news.tail.position not in told:
            await asyncio.sleep(0.005)
    assert told[news.tail.position] == (Pushed(since, news) if events <= PUSHED_MOST else None)
    await store.close()


@pytest.mark.parametrize("said", [b"19\n", b"19\nxyz", b"19\n" + bytes(28), b"19\n" + bytes(24) + b"\0\0\0\x01k"])
async def test_pushed_events_that_cannot_be_read_are_a_hint_without_them(
    redis_server: RedisServer, said: bytes
) -> None:
    async with listening(redis_server.url) as here:
        redis_server.call("PUBLISH", here.channel("news"), said)

        await here.until_told((0, 19))
        assert here.pushed[-1] is None


async def test_a_lost_subscription_is_made_anew_and_everybody_looks(redis_server: RedisServer) -> None:
    with Proxy(redis_server.address) as proxy:
        async with listening(proxy.through(redis_server.url)) as here:
            here.told.clear()
            waiting = asyncio.create_task(here.rang())
            await asyncio.sleep(0.01)
            proxy.cut()
            assert await waiting
            await here.until_told((0, UNKNOWN))

            redis_server.call("PUBLISH", here.channel("news"), "18")
            await here.until_told((0, 18))


async def test_a_subscription_that_is_dead_is_noticed(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears, "PING_S", 0.2)
    monkeypatch.setattr(ears, "PONG_S", 0.2)
    with Proxy(redis_server.address) as proxy:
        async with listening(proxy.through(redis_server.url)) as here:
            here.told.clear()
            for link in proxy.links:
                proxy.swallow_link(link)
            await here.until_told((0, UNKNOWN))


async def test_bells_come_and_go_on_one_connection(redis_server: RedisServer) -> None:
    async with listening(redis_server.url) as here:
        second = here.ear.make_bell("b2")
        waiting = asyncio.create_task(second.wait(5))
        await asyncio.sleep(0.05)
        redis_server.call("PUBLISH", here.channel("bell:b2"), "")
        assert await waiting

        second.close()
        await asyncio.sleep(0.05)
        assert redis_server.call("PUBSUB", "NUMSUB", here.channel("bell:b2")) == [here.channel("bell:b2"), 0]
        clients = str(await asyncio.to_thread(redis_server.call, "CLIENT", "LIST"))
        assert clients.count("name=selaras") == 2  # one to ask, one to listen


async def test_one_that_is_closed_is_subscribed_to_nothing_and_waits_for_no_connection(
    redis_server: RedisServer,
) -> None:
    def subscribed() -> object:
        return redis_server.call("PUBSUB", "CHANNELS", here.channel("*"))

    with Proxy(redis_server.address) as proxy:
        async with listening(proxy.through(redis_server.url)) as here:
            assert len(str(subscribed()).split(",")) == 2
            await here.ear.close()
            await asyncio.to_thread(until, lambda: subscribed() == [], "nobody listens any more")

            proxy.swallow()
            here.ear.make_bell("b2")
            here.ear.attend()
            async with asyncio.timeout(2):  # a connection would be waited for longer
                await asyncio.sleep(0.05)
                await here.ear.close()


async def test_who_waits_for_a_bell_sees_to_it_that_somebody_listens(redis_server: RedisServer) -> None:
    there = Listener(redis_server.url)
    await there.world.link.open()

    assert await there.rang()  # it may have rung before anybody listened

    await there.ear.close()
    await there.world.link.close()


async def test_it_goes_on_on_another_loop_when_its_own_is_closed(redis_server: RedisServer) -> None:
    there = Listener(redis_server.url)
    there.world.link.on_loop = there.ear.attend

    async def use() -> None:
        there.told.clear()
        await there.world.link.open()
        await there.until_told((0, UNKNOWN))
        redis_server.call("PUBLISH", there.channel("news"), "5")
        await there.until_told((0, 5))

    for _ in range(2):
        await asyncio.to_thread(lambda: asyncio.run(use()))
    assert str(redis_server.call("CLIENT", "LIST")).count("name=selaras") == 0
    await there.ear.close()
    await there.world.link.close()


async def test_who_may_not_listen_is_told_so_once(redis_server: RedisServer) -> None:
    url = redis_server.add_user("deaf", "pw", "~selaras:*", "+@all", "-@admin", "resetchannels", "&selaras:*")
    try:
        there = Listener(url)
        await there.world.link.open()
        redis_server.call("ACL", "SETUSER", "deaf", "resetchannels")
        there.ear.attend()
        async with asyncio.timeout(5):
            while there.ear.refused is None:
                await asyncio.sleep(0.01)
        with pytest.raises(StoreRefused, match=r"does not allow subscriptions: NOPERM.*docs/redis.md"):
            await there.rang()
        assert not await there.rang(0.05)
        refused = there.ear.refused
        async with asyncio.timeout(5):
            while there.ear.refused is refused:
                await asyncio.sleep(0.01)
        assert not await there.rang(0.05), "refused once more, for the same reason"

        redis_server.call("ACL", "SETUSER", "deaf", "&selaras:*")
        await there.until_told((0, UNKNOWN))  # it asks again by itself
        await there.ear.close()
        await there.world.link.close()
    finally:
        redis_server.call("ACL", "DELUSER", "deaf")


async def test_after_a_failover_the_new_master_is_listened_to() -> None:
    with Sentinels() as sentinels:
        async with listening(sentinels.url) as here:
            here.told.clear()
            master = sentinels.master
            await asyncio.to_thread(master.kill)
            new = await asyncio.to_thread(sentinels.until_master, master)
            await here.until_told((0, UNKNOWN))
            new.call("PUBLISH", here.channel("news"), "9")
            await here.until_told((0, 9))


async def test_in_a_cluster_channels_follow_their_slots() -> None:
    with Cluster(masters=2, replicas=0) as cluster:
        async with listening(cluster.url, 4) as here:
            for partition in range(4):
                channel = here.channel("news", partition)
                cluster.owner(cluster.slot(channel)).call("SPUBLISH", channel, str(partition + 100))
                await here.until_told((partition, partition + 100))

            here.told.clear()
            slot = here.world.link.common.names.slot(2)
            source = cluster.owner(slot)
            target = next(node for node in cluster.masters if node is not source)
            await asyncio.to_thread(cluster.migrate, slot, target)
            await here.until_told((2, UNKNOWN))
            target.call("SPUBLISH", here.channel("news", 2), "7")
            await here.until_told((2, 7))
