"""The way to a partition's server: what servers refuse, lose, move and forget, on real ones."""

from __future__ import annotations

import asyncio
import socket
import traceback

import pytest
from tests.redis.binaries import Binary
from tests.redis.certificates import Certificates
from tests.redis.linked import COUNT, LOOK, Lua, World, world
from tests.redis.proxy import Proxy
from tests.redis.servers import Cluster, RedisServer, Sentinels, until

from selaras import StoreMismatch, StoreRefused, StoreUnavailable
from selaras._stores.redis.address import Endpoint, redis_address
from selaras._stores.redis.context import Greeting
from selaras._stores.redis.dialling import dial
from selaras._stores.redis.errors import Loading, Passing
from selaras._stores.redis.rights import rule
from selaras._stores.redis.wire import BUFFER_MOST, pack

# ---------------------------------------------------------------- one server


async def test_a_partition_is_greeted_once_and_a_script_is_loaded_where_it_is_unknown(any_binary: Binary) -> None:
    with RedisServer(any_binary) as server:
        async with world(server.url, 3) as there:
            assert await asyncio.gather(*(there.count(index) for index in (0, 1, 2, 0, 0))) == [1, 1, 1, 2, 3]
            assert sorted(told.partition for told in there.greeted) == [0, 1, 2]

            server.call("SCRIPT", "FLUSH")

            assert await asyncio.gather(*(there.count() for _ in range(20))) == list(range(4, 24))
            assert len(there.greeted) == 3


@pytest.mark.parametrize("calls", [1, 20])
async def test_a_script_that_is_gone_is_loaded_once_and_each_call_is_sent_once_more(
    redis_server: RedisServer, calls: int
) -> None:
    async with world(redis_server.url) as there:
        await there.count()
        redis_server.call("SCRIPT", "FLUSH")
        redis_server.call("CONFIG", "RESETSTAT")

        assert await asyncio.gather(*(there.count() for _ in range(calls))) == list(range(2, calls + 2))

        asked = redis_server.calls()
        assert (asked["script|load"], asked["evalsha"]) == (1, 2 * calls)
        assert not any(wire.loading for wire in there.link.lines().wires if wire is not None)


async def test_commands_go_around_a_script_in_one_trip(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        key = there.link.common.names.key(0, "v:a")
        before, reply, after = await there.link.call_among(
            0, [("SET", key, b"\x00value")], COUNT, ["x"], [("GET", key), ("GET", f"{key}2")]
        )
        assert (before, reply, after) == ([b"OK"], 1, [b"\x00value", None])
        redis_server.call("SCRIPT", "FLUSH")
        # Refused as a whole and sent again: what stands behind the script is answered after it.
        assert (
            await there.link.call_among(0, [], COUNT, ["x"], [("HGET", there.link.common.names.key(0, "count"), "n")])
        )[1:] == (2, [b"2"])
        assert await there.link.pipeline(0, [("GET", key), ("STRLEN", key)]) == [b"\x00value", 6]
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await there.link.pipeline(0, [("HGET", key, "x")])


def test_what_passes_is_to_a_program_the_error_that_is_documented() -> None:
    for kind in (Loading, Passing):
        said = traceback.format_exception_only(kind("it is away"))
        assert said == traceback.format_exception_only(StoreUnavailable("it is away"))


async def test_a_script_that_is_there_is_not_loaded_again(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        await there.count()
        redis_server.call("CONFIG", "RESETSTAT")

        await there.link.call_among(0, [], COUNT, ["x"], [])

        called = redis_server.info("commandstats")
        assert "cmdstat_evalsha" in called
        assert "cmdstat_script|load" not in called


async def test_nobody_speaks_at_once_over_a_connection_that_holds_as_much_as_it_may(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        await there.count()
        wire = there.link.ready(0)
        assert wire is not None

        wire.pause_writing()
        sent = wire.send(pack("ECHO", b"x" * BUFFER_MOST), 1, 5)
        assert there.link.ready(0) is None

        wire.resume_writing()
        assert len(await sent) == BUFFER_MOST
        assert there.link.ready(0) is wire


async def test_a_connection_that_was_left_is_ended_when_whoever_waits_on_it_has_waited(
    redis_server: RedisServer,
) -> None:
    async with world(redis_server.url_for(query="socket_timeout=0.2")) as there:
        await there.count()
        left = there.link.ready(0)
        assert left is not None

        there.link.lines().leave(left, "its server is not the master")
        seen = [left.open, await there.count()]

        async with asyncio.timeout(5):
            while left.open:
                await asyncio.sleep(0.01)
        assert seen == [True, 2]
        assert there.link.ready(0) not in {None, left}


async def test_a_lost_memory_is_greeted_before_the_call_is_sent_again(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        await there.count()
        redis_server.call("FLUSHALL")

        assert await asyncio.gather(*(there.count() for _ in range(10))) == list(range(1, 11))

        assert [told.before for told in there.greeted] == [None, None]


async def test_after_a_restart_the_partition_is_greeted_with_the_new_run_id() -> None:
    with RedisServer(appendonly="yes") as server:
        async with world(server.url) as there:
            await there.count()
            await asyncio.to_thread(server.restart)

            assert await there.count() == 2

            first, second = there.greeted
            assert second.before == first.run != second.run


async def test_a_caller_rides_out_a_short_outage_and_a_reader_does_not() -> None:
    with RedisServer(appendonly="yes") as server:
        async with world(server.url) as there:
            await asyncio.to_thread(server.stop)
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await there.link.call(0, LOOK, ["x"], urgent=True)
            riding = [asyncio.create_task(there.count()) for _ in range(20)]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
            assert sorted(await asyncio.gather(*riding)) == list(range(1, 21))


async def test_who_stays_away_is_named_after_the_patience_of_the_caller() -> None:
    with RedisServer() as server:
        async with world(server.url_for(query="socket_timeout=0.5")) as there:
            await asyncio.to_thread(server.kill)
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{server.port} cannot be reached") as error:
                await there.count()
            assert "may have been done" not in str(error.value)


async def test_a_reply_that_was_lost_is_told_and_the_call_is_not_repeated(redis_server: RedisServer) -> None:
    with Proxy(redis_server.address) as proxy:
        async with world(proxy.through(redis_server.url)) as there:
            await there.count()
            proxy.lose_reply()
            with pytest.raises(StoreUnavailable, match="'count' was sent, and may have been done"):
                await there.count()
            assert await there.count() == 3  # it was; and once

            proxy.lose_reply()
            assert await there.count(repeats=True) == 5


async def test_a_dead_connection_is_noticed_within_a_second_when_something_waits(redis_server: RedisServer) -> None:
    loop = asyncio.get_running_loop()
    with Proxy(redis_server.address) as proxy:
        async with world(proxy.through(redis_server.url)) as there:
            await there.count()
            proxy.swallow_link(proxy.links[0])
            begun = loop.time()
            with pytest.raises(StoreUnavailable, match="the connection is dead"):
                await there.count()
            assert 0.3 < loop.time() - begun < 1.0

            assert await there.count() == 2


async def test_a_busy_server_is_waited_for(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        await there.count()
        sleeping = asyncio.create_task(asyncio.to_thread(redis_server.call, "DEBUG", "SLEEP", "1.5"))
        await asyncio.sleep(0.1)
        assert await there.count() == 2
        await sleeping
        assert len(there.greeted) == 1  # over the same connection


async def test_a_server_that_hangs_is_given_up_and_readers_sooner() -> None:
    loop = asyncio.get_running_loop()
    with RedisServer() as server:
        async with world(server.url_for(query="socket_timeout=1.5")) as there:
            server.pause()
            begun = loop.time()
            reading = asyncio.create_task(there.link.call(0, LOOK, ["x"], urgent=True))
            with pytest.raises(StoreUnavailable, match="may have been done"):
                await there.count()
            assert 1.4 < loop.time() - begun < 2.0
            with pytest.raises(StoreUnavailable, match="no reply within 1 s"):
                await reading
            server.resume()
            await there.count()


async def test_connections_are_made_one_at_a_time_and_further_apart_when_they_fail() -> None:
    with RedisServer() as server, Proxy(server.address) as proxy:
        async with world(proxy.through(server.url_for(query="socket_timeout=2"))) as there:
            assert proxy.accepted == 1
            await asyncio.to_thread(server.kill)
            calls = await asyncio.gather(*(there.count() for _ in range(200)), return_exceptions=True)
            assert all(isinstance(one, StoreUnavailable) for one in calls)
            assert proxy.accepted < 15

            await asyncio.to_thread(server.start)
            assert await there.count() == 1


async def test_each_loop_has_its_own_connections(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        await there.count()

        def elsewhere() -> int:
            return asyncio.run(there.count())

        assert await asyncio.to_thread(elsewhere) == 2
        assert await asyncio.to_thread(elsewhere) == 3
        assert await there.count() == 4
        # Those of the loops that ended are closed.
        async with asyncio.timeout(5):
            while str(await asyncio.to_thread(redis_server.call, "CLIENT", "LIST")).count("name=selaras") != 1:
                await asyncio.sleep(0.01)


# ---------------------------------------------------------------- getting in


async def test_a_wrong_password_is_told_and_the_right_one_never(any_binary: Binary) -> None:
    with RedisServer(any_binary, password="hush") as server:
        for url, said in (
            (f"redis://127.0.0.1:{server.port}", "asks for a password"),
            (server.url.replace("hush", "wrong"), "refuses this user name or password"),
            (f"redis://me:hush@127.0.0.1:{server.port}", "refuses this user name or password"),
        ):
            for query in ("", "?protocol=3"):
                with pytest.raises(StoreRefused, match=said) as error:
                    await World(url.removesuffix("/0") + query).link.open()
                assert "hush" not in str(error.value)
        for query in ("", "protocol=3"):
            async with world(server.url_for(query=query)) as there:
                assert await there.count() > 0


async def test_no_password_is_refused_where_one_is_given(redis_server: RedisServer) -> None:
    with pytest.raises(StoreRefused, match="password"):
        await World(f"redis://:hush@127.0.0.1:{redis_server.port}").link.open()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_database_and_the_socket_are_those_of_the_url(redis_server: RedisServer, protocol: int) -> None:
    async with world(f"{redis_server.unix_url}?db=3&protocol={protocol}&client_name=me") as there:
        await there.count()
        with redis_server.connect() as connection:
            connection.call("SELECT", 3)
            assert connection.call("EXISTS", there.link.common.names.key(0, "count")) == 1
            assert "name=me" in str(connection.call("CLIENT", "LIST"))


@pytest.mark.parametrize("protocols", ["TLSv1.2", "TLSv1.3"])
async def test_tls_with_an_authority_of_ones_own_and_a_certificate_of_ours(
    certificates: Certificates, protocols: str
) -> None:
    with RedisServer(certificates=certificates, tls_protocols=protocols) as server:
        async with world(server.url) as there:
            assert await there.count() == 1
        async with world(server.url_for(host="localhost")) as there:
            assert await there.count() == 2

        stranger = server.url.replace(str(certificates.authority.certificate), str(certificates.stranger.certificate))
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await World(stranger).link.open()
        plain = f"redis://127.0.0.1:{server.port}"
        with pytest.raises(StoreUnavailable, match="TLS"):
            await World(plain).link.open()
        with pytest.raises(StoreUnavailable, match="certificate of ours"):
            await World(
                f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={certificates.authority.certificate}"
            ).link.open()


async def test_a_server_that_let_us_in_is_not_asked_whether_it_speaks_tls() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listener:
        endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
        account = redis_address(f"redis://{endpoint}").account
        with pytest.raises(StoreUnavailable, match=r"closed the connection at once.*does it speak TLS\?"):
            await dial(endpoint, account)
        with pytest.raises(StoreUnavailable, match=r"closed the connection at once \([^;]*\)$"):
            await dial(endpoint, account, let_in={endpoint})


async def test_whoever_gives_up_first_is_told_that_tls_may_be_the_matter() -> None:
    """A reader's patience ended before the attempt did, and the reader was told that the server is slow."""
    with socket.create_server(("127.0.0.1", 0)) as says_nothing:
        there = World(f"rediss://127.0.0.1:{says_nothing.getsockname()[1]}?socket_timeout=0.3")
        with pytest.raises(StoreUnavailable, match="connecting takes long; does it speak TLS at that port"):
            await there.count()
        await there.link.close()


async def test_a_server_that_loses_all_that_is_made_there_is_told_from_one_that_sends_us_around(
    redis_server: RedisServer,
) -> None:
    gone = Lua("gone", "return redis.error_reply('SELARASGONE it is')")
    async with world(redis_server.url_for(query="socket_timeout=0.5")) as there:
        with pytest.raises(
            StoreUnavailable, match=r"loses keys .* see its maxmemory-policy \('gone'\); nothing was done"
        ):
            await there.link.call(0, gone, [])


async def _counted(there: World) -> int | None:
    try:
        return await there.count()
    except StoreRefused:
        return None


async def test_a_missing_right_is_named_with_where_to_read_on(redis_server: RedisServer) -> None:
    rights = rule("selaras", "single").split(" ")
    url = redis_server.add_user("narrow", "pw", *(one for one in rights if one != "+client|setname"))
    try:
        async with world(url) as there:  # CLIENT SETNAME is not allowed, and not needed
            redis_server.call("ACL", "SETUSER", "narrow", "-hincrby")
            with pytest.raises(StoreRefused, match=r"does not allow 'count'.*exists, hincrby, hset.*docs/redis.md"):
                await there.count()
            with pytest.raises(StoreRefused, match=r"lacks \+hincrby\. "):
                await there.count()
            redis_server.call("ACL", "SETUSER", "narrow", "+hincrby")
            async with asyncio.timeout(10):
                while (counted := await _counted(there)) is None:  # given meanwhile
                    await asyncio.sleep(0.02)
            assert counted >= 1
        other = redis_server.add_user("other", "pw", "~jobs:*", *rights[1:])
        with pytest.raises(StoreRefused, match=r"may not touch the keys selaras:\{selaras\.0\}:\*"):
            await World(other).link.open()
    finally:
        redis_server.call("ACL", "DELUSER", "narrow", "other")


async def test_full_memory_and_a_full_house_are_told() -> None:
    with RedisServer(maxclients=20) as server:
        async with world(server.url) as there:
            await there.count()
            server.call("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreUnavailable, match=r"out of memory \('count'\)"):
                await there.count()
            server.call("CONFIG", "SET", "maxmemory", "0")
            assert await there.count() == 2

            crowd = [server.connect() for _ in range(19)]
            with pytest.raises(StoreUnavailable, match="takes no more clients: raise its maxclients"):
                await World(f"{server.url}?socket_timeout=0.1").link.open()
            late = World(server.url)
            opening = asyncio.create_task(late.link.open())
            await asyncio.wait((opening,), timeout=0.1)
            for one in crowd:
                one.close()
            await opening
            await late.link.close()


async def test_a_fault_of_a_script_is_no_outage(redis_server: RedisServer) -> None:
    async with world(redis_server.url) as there:
        with pytest.raises(RuntimeError, match=r"'wrong' at .*nonexistent global"):
            await there.link.call(0, Lua("wrong", "return nothing.at_all"), [])


async def test_a_mismatch_found_by_the_greeting_is_final(redis_server: RedisServer) -> None:
    there = World(redis_server.url)

    async def greet(greeting: Greeting) -> None:
        raise StoreMismatch(f"partition {greeting.index} is of another make")

    there.link.common.greet = greet
    with pytest.raises(StoreMismatch, match="partition 0 is of another make"):
        await there.count()
    await there.link.close()


# ---------------------------------------------------------------- replicas


async def test_durable_means_that_a_replica_has_it() -> None:
    with RedisServer() as server:
        async with world(server.url_for(query="durability=replicated&replicated_within=2")) as there:
            with pytest.raises(StoreUnavailable, match=r"was done at .*, but no replica had it within 2000 ms"):
                await there.count(replicated=True)
            assert await there.count() == 2  # said of this call only

            with server.replica():
                assert await there.count(replicated=True) == 3


async def test_a_failover_by_sentinels_is_ridden_out() -> None:
    with Sentinels() as sentinels:
        # Sentinels whose votes are split elect again after four seconds: longer than callers wait by default.
        async with world(sentinels.url_for(query="socket_timeout=20")) as there:
            assert await there.count() == 1
            master = sentinels.master
            await asyncio.to_thread(master.kill)

            assert await there.count() >= 1

            assert sentinels.until_master(other_than=master).running
            assert there.greeted[-1].run != there.greeted[0].run


async def test_a_master_that_became_a_replica_is_left() -> None:
    with Sentinels() as sentinels:
        async with world(sentinels.url) as there:
            await there.count()
            first = sentinels.master
            sentinels.sentinels[0].call("SENTINEL", "FAILOVER", Sentinels.NAME)
            await asyncio.to_thread(until, first.is_in_step, "the first master follows the second")

            counts = [await there.count() for _ in range(5)]

            assert counts == list(range(counts[0], counts[0] + 5))
            assert there.greeted[-1].run != there.greeted[0].run


# ---------------------------------------------------------------- cluster


async def test_a_slot_that_moves_under_load_is_followed() -> None:
    with Cluster(masters=2, replicas=0) as cluster:
        async with world(cluster.url, 4) as there:
            names = there.link.common.names
            slot = names.slot(2)
            source = cluster.owner(slot)
            target = next(node for node in cluster.masters if node is not source)
            done: list[int] = []
            ending = asyncio.Event()

            async def load() -> None:
                while not ending.is_set():
                    done.append(await there.count(2))

            loads = [asyncio.create_task(load()) for _ in range(20)]
            await asyncio.sleep(0.1)
            await asyncio.to_thread(cluster.begin_migration, slot, target)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(cluster.move_keys, slot, target, 1)  # one of two: TRYAGAIN
            await asyncio.sleep(0.2)
            await asyncio.to_thread(cluster.move_keys, slot, target)  # all: ASK
            await asyncio.sleep(0.2)
            await asyncio.to_thread(cluster.end_migration, slot, target)
            await asyncio.sleep(0.2)
            ending.set()
            await asyncio.gather(*loads)

            assert sorted(done) == list(range(1, len(done) + 1))  # each once
            assert there.greeted[-1].run == target.info("server")["run_id"]
            assert 2 in there.moved


async def test_a_master_that_is_killed_is_replaced_by_its_replica_under_load() -> None:
    with Cluster(masters=3, replicas=1) as cluster:
        async with world(cluster.url, 16) as there:
            victim = cluster.owner(there.link.common.names.slot(0))
            ending = asyncio.Event()
            failed: list[Exception] = []
            last = [0] * 16

            async def load(index: int) -> None:
                while not ending.is_set():
                    try:
                        last[index] = await there.count(index)
                    except StoreUnavailable as error:
                        failed.append(error)
                    await asyncio.sleep(0.001)

            loads = [asyncio.create_task(load(index)) for index in range(16)]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(victim.kill)
            slot = there.link.common.names.slot(0)
            await asyncio.to_thread(cluster.until_owner, slot, victim)
            await asyncio.sleep(1)
            before = list(last)
            await asyncio.sleep(0.5)
            ending.set()
            await asyncio.gather(*loads)

            assert all(now > then for now, then in zip(last, before, strict=True))  # all go on
            assert all("may have been done" in str(error) for error in failed)  # replies lost with the master
            assert len(failed) <= 16


async def test_a_server_of_another_kind_is_called_what_it_is(any_binary: Binary) -> None:
    with Sentinels(any_binary) as sentinels:
        sentinel, master = sentinels.sentinels[0].address, sentinels.master.address
        for url, said in (
            (f"redis://{sentinel[0]}:{sentinel[1]}", r"is a sentinel: say so, redis\+sentinel://"),
            (f"redis+sentinel://{master[0]}:{master[1]}/main", "is no sentinel"),
            (f"redis+cluster://{master[0]}:{master[1]}", "is no node of a cluster: say redis://"),
        ):
            with pytest.raises(StoreRefused, match=said):
                await World(url).link.open()


async def test_to_open_a_store_waits_for_what_passes_but_not_for_what_is_not_there(redis_server: RedisServer) -> None:
    cuts = 0

    async def cut(greeting: Greeting) -> None:
        nonlocal cuts
        cuts += 1
        if cuts <= 3:
            redis_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await greeting.call(LOOK, ["x"])

    there = World(redis_server.url)
    there.link.common.greet = cut
    await there.link.open()
    assert cuts == 4
    await there.link.close()

    begun = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await World("redis://127.0.0.1:1").link.open()
    assert asyncio.get_running_loop().time() - begun < 1


async def test_a_process_that_begins_while_a_master_is_replaced_waits_for_its_successor() -> None:
    with Sentinels() as sentinels:
        old = sentinels.master
        await asyncio.to_thread(old.kill)
        there = World(f"{sentinels.url}?socket_timeout=15")
        await there.link.open()
        assert await there.count() == 1
        await there.link.close()
