"""The shared tier on real servers: values that come and go as the server likes, and calls that meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf, nan
from random import Random
from struct import pack

import msgspec
import pytest
from tests.redis.binaries import Binary
from tests.redis.proxy import Proxy
from tests.redis.servers import Cluster, RedisServer

from selaras import StoreUnavailable
from selaras._contracts.limits import NEWS_MOST
from selaras._contracts.partition import Fill, Invalidation, Owner, ReadRequest
from selaras._core.cache.entry import Busy, Hit, Look, Miss
from selaras._core.errors import StoreRefused
from selaras._core.jobs.job import Put
from selaras._core.positions import START, Cursor
from selaras._stores.redis.address import Names, redis_address
from selaras._stores.redis.caller import Caller
from selaras._stores.redis.cells import Cells, decode_news, decode_pushed, value_of
from selaras._stores.redis.context import Common, Greeting
from selaras._stores.redis.gathered import Call, Gathered, Replies
from selaras._stores.redis.link import Link
from selaras._stores.redis.scripts import script
from selaras._stores.redis.topology import topology_of

LOAD = 5_000_000
VALUE = "cells:{cells.0}:v:"


async def _greet(greeting: Greeting) -> None:
    await greeting.call(script("greet"), (0, 1, 0, 0, msgspec.msgpack.encode((1, 1, 0, greeting.run_id, 0, 0))))


class Process(Cells):
    """A process's cells, and a few words for tests."""

    async def look(self, key: str, *, lease_us: int = LOAD) -> Look:
        return (await self.read([ReadRequest(key, "", lease_us)], START)).looks[0]

    async def value(self, key: str) -> bytes | None:
        look = await self.look(key, lease_us=0)
        return look.entry.value if isinstance(look, Hit) else None

    async def miss(self, key: str) -> int:
        look = await self.look(key)
        assert isinstance(look, Miss), look
        return look.token

    async def store(self, token: int, put: Put) -> bool:
        return (await self.fill([Fill(put, token)], START)).stored[0] is not None

    async def cache(self, key: str, value: bytes = b"v0", expires_in_us: int = 0) -> None:
        assert await self.store(await self.miss(key), Put(key, value, 7, expires_in_us))

    async def age(self) -> None:
        """Let it be so long since anything was stored that its value would have arrived."""
        await asyncio.sleep(0.3)

    async def tail(self) -> Cursor:
        return (await self.invalidate(Invalidation(("somewhere",)), START)).tail


@asynccontextmanager
async def process(url: str) -> AsyncIterator[Process]:
    address, names = redis_address(url), Names("cells")
    link = Link(Common(address, names, topology_of(address, names, 1), 1, Random(3), _greet))
    await link.open()
    try:
        yield Process(Caller(link, 0, Random(4)))
    finally:
        await link.close()


@pytest.fixture
async def cells(redis_server: RedisServer) -> AsyncIterator[Process]:
    async with process(redis_server.url) as one:
        yield one


# -- values that are not there


async def test_a_value_that_was_evicted_is_a_miss_whose_token_fills(cells: Process, redis_server: RedisServer) -> None:
    await cells.cache("k")
    redis_server.call("DEL", f"{VALUE}k")
    await cells.age()

    assert await cells.store(await cells.miss("k"), Put("k", b"again", 7))
    assert await cells.value("k") == b"again"


async def test_a_value_that_was_evicted_is_nothing_to_a_reader_who_wants_no_token(
    cells: Process, redis_server: RedisServer
) -> None:
    await cells.cache("k")
    redis_server.call("DEL", f"{VALUE}k")
    await cells.age()

    assert await cells.look("k", lease_us=0) == Busy(0)


async def test_a_value_that_has_not_arrived_yet_is_waited_for_a_moment(
    cells: Process, redis_server: RedisServer
) -> None:
    await cells.cache("k")
    value = redis_server.call("GETDEL", f"{VALUE}k")  # its writer was not so fast

    early = await cells.look("k")
    redis_server.call("SET", f"{VALUE}k", str(value).encode(errors="surrogateescape"))

    assert isinstance(early, Busy)
    assert 0 < early.wait_us <= 250_000
    assert await cells.value("k") == b"v0"


@pytest.mark.parametrize(
    "change", [("SET", b"another." + b"v0"), ("APPEND", b"!"), ("SETRANGE", 0, b"x"), ("SET", b""), ("SET", b"short")]
)
async def test_what_is_not_the_entry_s_value_is_never_taken_for_it(
    cells: Process, redis_server: RedisServer, change: tuple[str | bytes | int, ...]
) -> None:
    await cells.cache("k")
    verb, *words = change
    redis_server.call(str(verb), f"{VALUE}k", *words)
    await cells.age()

    assert isinstance(await cells.look("k"), Miss)


async def test_a_late_fill_costs_nothing(cells: Process) -> None:
    late = await cells.miss("k")
    await cells.invalidate(Invalidation(("k",)), START)
    await cells.cache("k", b"new")

    assert not await cells.store(late, Put("k", b"old", 7))
    assert await cells.value("k") == b"new"


async def test_keys_are_voided_by_one_short_script_unless_somebody_writes_one_of_them(
    cells: Process, redis_server: RedisServer
) -> None:
    for key in ("a", "b"):
        await cells.cache(key)
    await cells.invalidate(Invalidation(tags=("all",)), START)  # from here on the server knows both scripts
    tail = await cells.tail()
    redis_server.call("CONFIG", "RESETSTAT")

    news = await cells.invalidate(Invalidation(("a",)), tail)

    assert [event.name for event in news.events] == ["a"]
    assert redis_server.calls()["evalsha"] == 1
    assert isinstance(await cells.look("a"), Miss)

    planted = await cells.plant("instance", Owner(home=1, job="job", fence=7), ("c",), news.tail)
    redis_server.call("CONFIG", "RESETSTAT")
    news = await cells.invalidate(Invalidation(("b", "c")), planted.news.tail)

    assert [event.name for event in news.events] == ["b", "c"]
    assert redis_server.calls()["evalsha"] == 2
    assert isinstance(await cells.look("b"), Miss)
    assert [intent.clean for intent in await cells.intents("c")] == [False]


async def test_a_server_that_loses_every_value_at_once_makes_nobody_look_for_ever(
    cells: Process, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cells.cache("k")
    row = redis_server.call("HGET", "cells:{cells.0}:entries", "k")
    assert isinstance(row, str)
    trips: list[int] = []

    async def look(rows: list[tuple[str, int, bytes]]) -> list[bytes]:
        trips.append(int(rows[0][2][:16], 16))
        return [row.encode(errors="surrogateescape")]

    monkeypatch.setattr(cells, "_look", look)
    redis_server.call("DEL", f"{VALUE}k")

    assert await cells.look("k") == Busy(0)
    assert trips == [int(row[:16], 16), int(row[:16], 16)]


async def test_readers_and_writers_at_once_never_see_another_s_value(redis_server: RedisServer) -> None:
    keys = [f"k{number}" for number in range(3)]
    seen = {"hits": 0, "stored": 0}

    async def write(one: Process, chance: Random) -> None:
        for _ in range(60):
            key, number = chance.choice(keys), chance.getrandbits(60)
            look = await one.look(key)
            if isinstance(look, Miss):
                if not chance.randrange(4):
                    await one.invalidate(Invalidation((key,)), START)
                if not chance.randrange(4):
                    redis_server.call("DEL", VALUE + key)
                put = Put(key, f"{key} {number}".encode() * chance.randrange(1, 4), number)
                seen["stored"] += await one.store(look.token, put)
            elif chance.randrange(2):
                await one.invalidate(Invalidation((key,)), START)

    async def read(one: Process, chance: Random) -> None:
        for _ in range(150):
            key = chance.choice(keys)
            look = await one.look(key, lease_us=0)
            if isinstance(look, Hit):
                seen["hits"] += 1
                assert look.entry.value.startswith(f"{key} {look.entry.checksum}".encode())

    async with process(redis_server.url) as first, process(redis_server.url) as second:
        async with asyncio.TaskGroup() as group:
            for number, one in enumerate((first, second, first, second)):
                group.create_task(write(one, Random(number)))
                group.create_task(read(one, Random(10 + number)))

    assert seen["hits"] > 20
    assert seen["stored"] > 20


async def test_values_are_fetched_for_those_who_have_their_rows(cells: Process, redis_server: RedisServer) -> None:
    for key in ("here", "evicted", "replaced"):
        await cells.cache(key, key.encode())
    await cells.cache("empty", b"")
    names = ("here", "evicted", "replaced", "empty")
    rows = redis_server.call("HMGET", "cells:{cells.0}:entries", *names)
    assert isinstance(rows, list)
    redis_server.call("DEL", f"{VALUE}evicted")
    redis_server.call("SET", f"{VALUE}replaced", b"another.replaced")

    asked = [(key, str(row).encode(errors="surrogateescape")) for key, row in zip(names, rows, strict=True)]

    assert await cells.values(asked) == [b"here", None, None, b""]


# -- what a value may be


@pytest.mark.parametrize("key", ["", "k\0\n{x}", "ключ 🗝", "k" * 10_000])
async def test_any_text_may_be_a_key_and_any_bytes_a_value(cells: Process, key: str) -> None:
    value = Random(1).randbytes(1 << 20)

    await cells.cache(key, value)

    assert await cells.value(key) == value


async def test_a_value_is_kept_a_little_longer_than_its_entry_and_one_without_an_end_for_a_month(
    cells: Process, redis_server: RedisServer
) -> None:
    await cells.cache("k", expires_in_us=60_000_000)
    await cells.cache("endless")

    ends = [redis_server.call("PTTL", VALUE + key) for key in ("k", "endless")]

    assert isinstance(ends[0], int)
    assert isinstance(ends[1], int)
    assert 60_000 < ends[0] <= 70_000
    assert ends[1] > 29 * 86_400_000


async def test_an_empty_value_takes_no_key(cells: Process, redis_server: RedisServer) -> None:
    await cells.cache("k", b"")

    assert await cells.value("k") == b""
    assert redis_server.call("EXISTS", f"{VALUE}k") == 0


# -- calls that meet


async def test_reads_of_one_moment_are_one_call(cells: Process, redis_server: RedisServer) -> None:
    keys = [f"k{number}" for number in range(100)]
    await asyncio.gather(*(cells.cache(key, key.encode()) for key in keys))
    tail = await cells.tail()
    redis_server.call("CONFIG", "RESETSTAT")

    replies = await asyncio.gather(*(cells.read([ReadRequest(key)], tail) for key in keys))

    found = [look.entry.value for reply in replies for look in reply.looks if isinstance(look, Hit)]
    assert found == [key.encode() for key in keys]
    assert len({id(reply.news) for reply in replies}) == 1
    calls = redis_server.calls()
    assert (calls["evalsha"], calls["mget"]) == (1, 1)


async def test_a_read_whose_script_is_gone_is_sent_once_more(cells: Process, redis_server: RedisServer) -> None:
    await cells.cache("k")
    redis_server.call("SCRIPT", "FLUSH")
    redis_server.call("CONFIG", "RESETSTAT")

    assert await asyncio.gather(*(cells.value("k") for _ in range(5))) == [b"v0"] * 5

    calls = redis_server.calls()
    assert (calls["script|load"], calls["evalsha"]) == (1, 2)


async def test_reads_with_other_cursors_hear_their_own_news(cells: Process) -> None:
    first = await cells.tail()
    second = (await cells.invalidate(Invalidation(("a",)), first)).tail

    replies = await asyncio.gather(*(cells.read([ReadRequest("k")], since) for since in (first, second, START)))

    assert [[event.name for event in reply.news.events] for reply in replies] == [["a"], [], []]
    assert [reply.news.reset for reply in replies] == [False, False, True]


async def test_of_two_readers_of_one_moment_one_gets_the_token(cells: Process) -> None:
    looks = await asyncio.gather(*(cells.look("k") for _ in range(3)))

    assert [type(look) for look in looks] == [Miss, Busy, Busy]


@pytest.mark.parametrize("row", [b"", b"short", b"no digits of one" + b"\x41" * 16, b"0" * 16 + b"\x7f" * 16])
async def test_a_token_that_was_written_over_is_none(cells: Process, redis_server: RedisServer, row: bytes) -> None:
    await cells.miss("k")
    redis_server.call("HSET", "cells:{cells.0}:tokens", "k", row)

    assert await cells.store(await cells.miss("k"), Put("k", b"v0", 7))


async def test_fills_of_one_moment_are_one_call(cells: Process, redis_server: RedisServer) -> None:
    await cells.cache("the script is known")
    keys = [f"k{number}" for number in range(50)]
    tokens = await asyncio.gather(*map(cells.miss, keys))
    redis_server.call("CONFIG", "RESETSTAT")

    stored = await asyncio.gather(
        *(cells.store(token, Put(key, key.encode(), 7)) for key, token in zip(keys, tokens, strict=True))
    )

    assert all(stored)
    assert redis_server.calls()["evalsha"] == 1


async def test_keys_voided_at_one_moment_are_one_call(cells: Process, redis_server: RedisServer) -> None:
    keys = [f"k{number}" for number in range(50)]
    await asyncio.gather(*map(cells.cache, keys))
    tail = await cells.tail()
    redis_server.call("CONFIG", "RESETSTAT")

    told = await asyncio.gather(*(cells.invalidate(Invalidation((key,)), tail) for key in (*keys, *keys)))

    assert redis_server.calls()["evalsha"] == 1
    assert {tuple(event.name for event in news.events) for news in told} == {tuple(keys)}
    assert [await cells.value(key) for key in keys] == [None] * 50


async def test_of_keys_voided_at_one_moment_one_may_be_written_by_somebody(cells: Process) -> None:
    await cells.cache("a")
    planted = await cells.plant("instance", Owner(home=1, job="job", fence=7), ("b",), await cells.tail())

    told = await asyncio.gather(*(cells.invalidate(Invalidation((key,)), planted.news.tail) for key in ("a", "b", "a")))

    assert [[event.name for event in news.events] for news in told] == [["b", "a"]] * 3
    assert [intent.clean for intent in await cells.intents("b")] == [False]


async def test_names_voided_at_one_moment_are_one_call(cells: Process, redis_server: RedisServer) -> None:
    tail = (await cells.invalidate(Invalidation(tags=("the script is known",)), START)).tail
    redis_server.call("CONFIG", "RESETSTAT")

    told = await asyncio.gather(
        *(cells.invalidate(Invalidation(tags=(f"t{number}", "all")), tail) for number in range(20)),
        cells.invalidate(Invalidation(("k",), families=("f",), versions=(("k", 3),)), tail),
    )

    assert redis_server.calls()["evalsha"] == 1
    names = ["k", *(f"t{number}" for number in range(20)), "all", "f"]
    assert {tuple(event.name for event in news.events) for news in told} == {tuple(names)}
    look = await cells.look("k")
    assert isinstance(look, Miss)
    assert look.floor == 3


async def test_one_reader_that_goes_away_does_not_disturb_the_others(cells: Process) -> None:
    await cells.cache("k")
    gone = asyncio.create_task(cells.value("k"))
    stays = asyncio.create_task(cells.value("k"))
    await asyncio.sleep(0)
    gone.cancel()

    assert await stays == b"v0"
    assert gone.cancelled()


async def test_a_refusal_is_told_to_everybody_who_was_in_the_call(cells: Process, redis_server: RedisServer) -> None:
    await cells.look("a")
    redis_server.call("ACL", "SETUSER", "default", "-hmget", "-hget")
    try:
        said = await asyncio.gather(*(cells.look(key) for key in "abc"), return_exceptions=True)
    finally:
        redis_server.call("ACL", "SETUSER", "default", "+hmget", "+hget")

    assert [type(one) for one in said] == [StoreRefused] * 3


# -- the log


async def test_to_hear_that_nothing_happened_takes_two_plain_commands(
    cells: Process, redis_server: RedisServer
) -> None:
    tail = await cells.tail()
    redis_server.call("CONFIG", "RESETSTAT")

    news = await cells.events_since(tail)

    assert (news.tail, news.events, news.reset) == (tail, (), False)
    calls = redis_server.calls()
    assert {name: count for name, count in calls.items() if not name.startswith(("config", "info"))} == {
        "hget": 1,
        "lrange": 1,
    }


@pytest.mark.parametrize("behind", [1, 7, 8, 9, 500])
async def test_however_many_events_there_are_they_are_told(cells: Process, behind: int) -> None:
    since = await cells.tail()
    names = [f"k{number}" for number in range(behind)]
    told = await cells.invalidate(Invalidation(tuple(names)), since)

    news = await cells.events_since(since)

    assert news == told
    assert [event.name for event in news.events] == names
    assert [event.position for event in news.events] == list(range(since.position + 1, news.tail.position + 1))


async def test_a_reader_too_far_behind_is_reset(cells: Process) -> None:
    since = await cells.tail()
    tail = (await cells.invalidate(Invalidation(tuple(map(str, range(NEWS_MOST + 1)))), since)).tail

    assert (await cells.events_since(since)).reset
    assert not (await cells.events_since(Cursor(tail.position, tail.event_id))).reset


@pytest.mark.parametrize("lost", [0, 1, 3])
async def test_p20_a_cursor_of_a_log_that_lost_its_end_is_noticed(cells: Process, lost: int) -> None:
    since = await cells.tail()
    await cells.invalidate(Invalidation(("a",) * lost), START)

    assert (await cells.events_since(Cursor(since.position, since.event_id + 1))).reset


# -- memory


async def test_under_eviction_values_go_and_nothing_else_does() -> None:
    with RedisServer(maxmemory="6mb", maxmemory_policy="volatile-lru") as server:
        async with process(server.url) as cells:
            before = await cells.tail()
            keys = [f"k{number}" for number in range(400)]
            for key in keys:
                await cells.cache(key, key.encode() * 10_000)

            values = [await cells.value(key) for key in keys]

            assert int(server.info("stats")["evicted_keys"]) > 0
            assert None in values
            assert all(value in (None, key.encode() * 10_000) for key, value in zip(keys, values, strict=True))
            assert sum(value is not None for value in values) > 10
            assert not (await cells.events_since(before)).reset


async def test_a_server_that_is_full_serves_what_it_has_and_stores_nothing() -> None:
    with RedisServer(maxmemory="5mb", maxmemory_policy="noeviction") as server:
        async with process(server.url) as cells:
            await cells.cache("k")
            token = await cells.miss("big")
            server.call("CONFIG", "SET", "maxmemory", "1mb")

            await cells.store(token, Put("big", b"x" * 100, 7))
            assert await cells.value("k") == b"v0"
            async with asyncio.timeout(5):
                while await cells.look("big", lease_us=0) != Busy(0):  # it is not waited for as if it were on its way
                    await asyncio.sleep(0.001)
            assert (await cells.cache_stats()).entries == 1
            await cells.invalidate(Invalidation(("k",)), START)
            assert await cells.value("k") is None


async def test_a_large_tier_is_judged_by_a_sample(cells: Process) -> None:
    count = 5_000
    for first in range(0, count, 500):
        keys = [f"k{number}" for number in range(first, first + 500)]
        looks = (await cells.read([ReadRequest(key, "", LOAD) for key in keys], START)).looks
        tokens = [look.token for look in looks if isinstance(look, Miss)]
        puts = [Put(key, b"x" * (number % 2 * 100), 7) for number, key in enumerate(keys)]
        await cells.fill([Fill(put, token) for put, token in zip(puts, tokens, strict=True)], START)

    stats = await cells.cache_stats()

    assert stats.entries == count
    assert abs(stats.bytes - 50 * count) < 10 * count


async def test_entries_whose_values_were_evicted_are_swept_away(cells: Process, redis_server: RedisServer) -> None:
    count = 300
    keys = [f"k{number}" for number in range(count)]
    await asyncio.gather(*map(cells.cache, keys))
    await cells.cache("stays")
    await cells.cache("empty", b"")
    redis_server.call("DEL", *(VALUE + key for key in keys))
    await cells.age()

    for _ in range(5):
        await cells.sweep()

    assert (await cells.cache_stats()).entries == 2
    assert [await cells.value(key) for key in ("stays", "empty")] == [b"v0", b""]


async def test_one_sweep_of_a_store_that_is_small_looks_at_all_of_it_once(
    cells: Process, redis_server: RedisServer
) -> None:
    await cells.cache("gone")
    redis_server.call("DEL", f"{VALUE}gone")
    await cells.age()
    redis_server.call("CONFIG", "RESETSTAT")

    assert await cells.sweep()

    assert redis_server.info("commandstats")["cmdstat_hscan"].startswith("calls=1,")
    assert not await cells.sweep()


async def test_a_reply_that_comes_when_its_callers_were_told_of_none_is_dropped(redis_server: RedisServer) -> None:
    concluded: list[list[str]] = []

    def conclude(items: Sequence[str], _: Cursor, __: Replies) -> tuple[list[None], None]:
        concluded.append(list(items))
        return [None] * len(items), None

    with Proxy(redis_server.address) as proxy:
        async with process(proxy.through(redis_server.url)) as cells:
            gathered = Gathered(cells._caller, "intents", lambda items: Call(items[0]), conclude, urgent=True)
            await gathered(["first"], START)

            proxy.delay(2.4)
            with pytest.raises(StoreUnavailable, match="may have been done"):
                await gathered(["second"], START)
            proxy.delay(0)
            await cells.cache_stats()  # its reply comes after that of the second

            assert concluded == [["first"]]


# -- a cluster


async def test_what_somebody_put_into_the_place_of_a_value_is_a_miss_in_a_cluster_too() -> None:
    with Cluster(masters=2, replicas=0) as cluster:
        owner = cluster.owner(cluster.slot(f"{VALUE}k"))
        async with process(f"redis+cluster://127.0.0.1:{owner.port}") as cells:
            await cells.cache("k")
            owner.call("DEL", f"{VALUE}k")
            owner.call("RPUSH", f"{VALUE}k", "of another type")
            await cells.age()

            assert await cells.value("k") is None
            await cells.cache("k", b"v1")
            assert await cells.value("k") == b"v1"


async def test_values_are_read_and_written_while_their_slot_moves() -> None:
    with Cluster() as cluster:
        slot = cluster.slot(f"{VALUE}k")
        source = cluster.owner(slot)
        target = next(node for node in cluster.masters if node is not source)
        async with process(f"redis+cluster://127.0.0.1:{source.port}") as cells:
            await cells.cache("before")
            cluster.begin_migration(slot, target)

            await cells.cache("during")

            assert [await cells.value(key) for key in ("before", "during")] == [b"v0", b"v0"]
            assert isinstance(await cells.look("neither"), Miss)
            looks = (await cells.read([ReadRequest(key) for key in ("before", "neither", "during")], START)).looks
            assert [type(look) for look in looks] == [Hit, Busy, Hit]

            cluster.move_keys(slot, target)
            cluster.end_migration(slot, target)
            await cells.cache("after")  # another server may have lost something: what it was given is not trusted (P20)
            assert await cells.value("after") == b"v0"


@pytest.mark.parametrize("key", ["k"])
async def test_every_kind_of_server_reads_and_writes(any_binary: Binary, key: str) -> None:
    if any_binary.version < (7,):
        pytest.skip("older than what is asked for")
    with RedisServer(any_binary) as server:
        async with process(server.url) as cells:
            await cells.cache(key, expires_in_us=LOAD)
            since = await cells.tail()
            assert await cells.value(key) == b"v0"
            news = await cells.invalidate(Invalidation((key,), ("t",), ("f",), ((key, -5),), ((key, LOAD),)), since)
            assert [event.name for event in news.events] == [key, "t", "f"]
            assert await cells.value(key) is None
            assert (await cells.cache_stats()).entries == 0


def test_a_row_s_value_is_known_by_its_id_and_its_length() -> None:
    row = bytes(32) + (2).to_bytes(4, "big") + b"an id..." + b"rest"

    assert value_of(row, b"an id...v0") == b"v0"
    assert [value_of(row, other) for other in (None, b"", b"an id...v", b"an id...v0 ", b"another.v0")] == [None] * 5


def event(position: float, name: bytes) -> bytes:
    return pack(">dd", position, 7) + name


@pytest.mark.parametrize(
    "second",
    [
        event(2, b"0b"),
        event(9, b"0b"),
        event(3.5, b"0b"),
        event(inf, b"0b"),
        event(nan, b"0b"),
        event(3, b"7b"),
        event(3, b"0\xff"),
        event(3, b""),
        b"",
    ],
)
def test_a_log_with_an_event_that_was_written_over_is_forgotten_as_a_whole(second: bytes) -> None:
    since, tail = Cursor(1, 7), [4, 8, 1, 0]
    sound = [event(1, b"0"), event(2, b"0a"), event(3, b"0b"), event(4, b"1c")]
    assert [one.position for one in decode_news([*tail, sound], since).events] == [2, 3, 4]
    assert decode_pushed(pushed(sound)) is not None
    written_over = [*sound[:2], second, sound[3]]

    news = decode_news([*tail, written_over], since)

    assert (news.tail, news.reset, news.events) == (Cursor(4, 8), True, ())
    assert decode_pushed(pushed(written_over)) is None


def pushed(events: list[bytes], epoch: float = 1) -> bytes:
    return pack(">ddd", 1, 7, epoch) + b"".join(pack(">I", len(one)) + one for one in events[1:])


@pytest.mark.parametrize("epoch", [inf, nan])
def test_pushed_news_of_no_epoch_are_none(epoch: float) -> None:
    assert decode_pushed(pushed([event(1, b"0"), event(2, b"0a")], epoch)) is None
