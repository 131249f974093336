"""A user who may do what the list says, and nothing else, can do all there is to do; without one of them it is told which."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from tests.app.work import working
from tests.redis.servers import Cluster, RedisServer, Sentinels

from selaras import Read, Selaras, StoreRefused
from selaras._stores.redis.address import Shape
from selaras._stores.redis.errors import RIGHTS_PAGE
from selaras._stores.redis.rights import commands, commands_in, rule, vital
from selaras._stores.redis.scripts import script, verbs

ROWS = 5


async def all_there_is_to_do(url: str) -> None:
    """Jobs in lines, values through all tiers, pre-images, invalidations, locks, bells."""
    app, rows = Selaras(url), dict.fromkeys(range(ROWS), 0)

    @app.cached(ttl=300)
    async def product(id: int) -> int:
        return rows[id]

    @app.task(writes=product)
    async def bump(id: int, *, before: int = Read(product)) -> int:
        rows[id] = before + 1
        await product.key(id).put(rows[id])
        return rows[id]

    async with app, working(app):
        for time in (1, 2):
            jobs = [await bump.enqueue(id) for id in range(ROWS)]
            assert [await job.result(timeout=20) for job in jobs] == [time] * ROWS
            assert await app.read_many(product.key(id) for id in range(ROWS)) == [time] * ROWS
        async with app.lock("a"), product.key(0).writing():
            rows[0] = 7
        assert await product(0) == 7
        await product.invalidate_all()
        late = await bump.options(delay=0.1).enqueue(0)
        assert await late.result(timeout=20) == 8
        await asyncio.sleep(1.5)  # housekeeping comes round


def test_the_list_is_what_the_scripts_call() -> None:
    called = {word for name in verbs() for word in commands_in(script(name).text)}
    plain = {"evalsha", "info", "ping", "script|load", "subscribe", "unsubscribe"}
    assert set(vital("single")) == (called - {"spublish"}) | plain
    assert set(vital("cluster")) == called | plain | {"asking", "cluster|slots", "ssubscribe", "sunsubscribe"}
    assert called <= set(commands("cluster"))
    assert {*commands("single", replicated=True)} - {*commands("single")} == {"wait"}
    assert "+wait" in rule("selaras", "single", replicated=True).split()


@pytest.mark.parametrize("shape", ["single", "cluster"])
async def test_the_listed_rights_are_enough_for_all_there_is_to_do(shape: Shape) -> None:
    with ExitStack() as stack:
        if shape == "cluster":
            cluster = stack.enter_context(Cluster(replicas=0))
            servers, url = cluster.masters, cluster.url.replace("://", "://app:pw@")
        else:
            servers = [stack.enter_context(RedisServer())]
            url = servers[0].url_for("app", "pw", db=1)
        for server in servers:
            server.add_user("app", "pw", *rule("selaras", shape).split(" "))
            server.call("ACL", "LOG", "RESET")
        await all_there_is_to_do(url)
        assert [server.call("ACL", "LOG") for server in servers] == [[]] * len(servers)


@pytest.mark.parametrize(
    ("prefix", "another"), [("a*[b]?", "axb1"), ("a b\n\0c", "a bc")], ids=["signs of patterns", "white space"]
)
async def test_the_rights_of_an_odd_prefix_are_ones_that_a_server_takes_and_those_of_no_other(
    prefix: str, another: str
) -> None:
    with RedisServer() as server:
        url = server.add_user("app", "pw", *rule(prefix, "single").split(" "))
        await all_there_is_to_do(f"{url}?prefix={quote(prefix)}")
        with pytest.raises(StoreRefused):
            await Selaras(f"{url}?prefix={quote(another)}").process().open()


@pytest.mark.parametrize("missing", ["+mget", "+set", "+client|setname"])
async def test_a_right_of_the_cache_that_is_missing_costs_the_cache_only(missing: str) -> None:
    with RedisServer() as server:
        url = server.add_user("app", "pw", *(one for one in rule("selaras", "single").split(" ") if one != missing))
        await all_there_is_to_do(url)


@pytest.mark.parametrize("missing", sorted(vital("single")))
async def test_without_a_right_that_nothing_goes_without_nothing_is_begun(missing: str) -> None:
    """A script that meets a command that it may not call ends there, and what it did before stands."""
    with RedisServer() as server:
        rules = [one for one in rule("selaras", "single").split(" ") if one != f"+{missing}"]
        url = server.add_user("app", "pw", *rules)
        with pytest.raises(StoreRefused, match=RIGHTS_PAGE) as told:
            await Selaras(url).process().open()
        assert set(re.findall(r"[a-z]+(?:[|][a-z]+)?", str(told.value))) & {missing, missing.partition("|")[0]}
        assert server.call("DBSIZE") == 0


async def test_several_rights_that_are_missing_are_named_at_once() -> None:
    with RedisServer() as server:
        rules = [one for one in rule("selaras", "single").split(" ") if one not in {"+hdel", "+zadd"}]
        with pytest.raises(StoreRefused, match=r"lacks \+hdel, \+zadd\. "):
            await Selaras(server.add_user("app", "pw", *rules)).process().open()


async def test_a_right_that_is_taken_away_is_named_in_the_next_call_but_one() -> None:
    """The call that meets it cannot know which it was; by then its connection is used no longer."""
    with RedisServer() as server:
        app = Selaras(server.add_user("app", "pw", *rule("selaras", "single").split(" ")))

        @app.task
        async def nothing() -> None: ...

        async with app:
            await nothing.enqueue()
            server.call("ACL", "SETUSER", "app", "-hset")
            with pytest.raises(StoreRefused, match=r"it uses .*hset"):
                await nothing.enqueue()
            with pytest.raises(StoreRefused, match=r"lacks \+hset"):
                await nothing.enqueue()
            server.call("ACL", "SETUSER", "app", "+hset")
            async with asyncio.timeout(10):
                while True:
                    try:
                        await nothing.enqueue()
                        break
                    except StoreRefused:
                        await asyncio.sleep(0.05)


OF_SENTINELS = ("+sentinel|get-master-addr-by-name", "+subscribe", "&+switch-master")


async def test_the_rights_that_are_named_for_sentinels_are_enough() -> None:
    with Sentinels() as set_:
        for sentinel in set_.sentinels:
            sentinel.call("ACL", "SETUSER", "eye", "reset", "on", ">pw", *OF_SENTINELS)
        url = set_.url_for(query="sentinel_username=eye&sentinel_password=pw")
        await all_there_is_to_do(url)
        assert {entry[7] for sentinel in set_.sentinels for entry in sentinel.call("ACL", "LOG")} <= {"client|setname"}  # type: ignore[union-attr, index] # a list of lists


async def test_who_is_refused_by_all_sentinels_is_told_so_each_time() -> None:
    with Sentinels() as set_:
        for sentinel in set_.sentinels:
            sentinel.call("ACL", "SETUSER", "eye", "reset", "on", ">pw", *OF_SENTINELS[1:])
        app = Selaras(set_.url_for(query="sentinel_username=eye&sentinel_password=pw"))
        for _ in range(3):
            with pytest.raises(StoreRefused, match=r"no sentinel tells the master .*get-master-addr-by-name"):
                await app.process().open()
