"""What `selaras doctor` finds on real servers, and what it says to do."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.redis.binaries import Binary
from tests.redis.certificates import Certificates
from tests.redis.servers import Cluster, RedisServer, Sentinels

from selaras import Selaras, StoreRefused, StoreUnavailable
from selaras._contracts.finding import Finding, Level
from selaras._stores.redis.address import redis_address
from selaras._stores.redis.checkup import check_up
from selaras._stores.redis.rights import rule
from selaras._worker.system import system_clock
from selaras.cli.main import cli


async def examine(url: str, namespace: str = "") -> list[Finding]:
    return [finding async for finding in check_up(redis_address(url, namespace), system_clock())]


async def said(about: str, url: str, namespace: str = "") -> list[Finding]:
    return [finding for finding in await examine(url, namespace) if finding.about == about]


async def test_a_server_in_order_has_nothing_to_do(any_binary: Binary) -> None:
    with RedisServer(any_binary, appendonly="yes") as server:
        findings = await examine(server.url)
        version = ".".join(map(str, any_binary.version))
        found = {finding.about: finding for finding in findings}
        assert found["server"].found == f"{any_binary.name.title()} {version}"
        assert found["latency"].numbers["p50_s"] > 0  # type: ignore[operator] # it is a number
        assert abs(found["clock"].numbers["off_s"]) < 1  # type: ignore[arg-type] # it is a number
        worse = [(finding.about, finding.found) for finding in findings if finding.level is not Level.OK]
        assert worse == [("store", "nothing is stored under 'selaras'")]
        assert server.call("DBSIZE") == 0


async def test_no_server_is_an_error(redis_server: RedisServer) -> None:
    with RedisServer() as server:
        pass
    [finding] = await examine(server.url)
    assert finding.level is Level.ERROR
    assert f"127.0.0.1:{server.port} cannot be reached" in finding.found


@pytest.mark.parametrize(
    ("policy", "level"), [("allkeys-lru", Level.ERROR), ("volatile-lru", Level.OK), ("noeviction", Level.OK)]
)
async def test_an_eviction_that_throws_jobs_away_is_an_error(policy: str, level: Level) -> None:
    with RedisServer(maxmemory_policy=policy) as server:
        [finding] = await said("eviction", server.url)
        assert finding.level is level
        assert ("noeviction" in finding.remedy) is (level is Level.ERROR)


async def test_what_a_crash_would_lose_is_said() -> None:
    with RedisServer() as server:
        [finding] = await said("persistence", server.url)
        assert (finding.level, finding.found) == (Level.WARNING, "nothing is kept: a restart loses every job")
        server.call("CONFIG", "SET", "save", "60 1")
        [finding] = await said("persistence", server.url)
        assert "snapshots" in finding.found
        server.call("CONFIG", "SET", "appendonly", "yes")
        [finding] = await said("persistence", server.url)
        assert (finding.level, finding.remedy) == (Level.OK, "")
        server.call("CONFIG", "SET", "appendfsync", "no")
        [finding] = await said("persistence", server.url)
        assert finding.remedy == "set appendfsync everysec"


async def test_a_full_memory_is_told_before_it_is_full() -> None:
    with RedisServer(maxmemory="10mb") as server:
        for i in range(8):
            server.call("SET", f"big{i}", "x" * 1_000_000)
        [finding] = await said("memory", server.url)
        assert (finding.level, finding.numbers["most_bytes"]) == (Level.WARNING, 10 * 1024 * 1024)


async def test_a_replica_in_the_place_of_the_master_is_an_error() -> None:
    with RedisServer() as master, master.replica() as replica:
        [finding] = await said("role", replica.url)
        assert finding.level is Level.ERROR
        assert str(master.port) in finding.found


async def test_a_replicas_lag_is_told() -> None:
    with RedisServer() as master:
        url = f"{master.url}?durability=replicated"
        [finding] = await said("replicas", url)
        assert (finding.level, finding.found) == (Level.ERROR, "none, and durability=replicated waits for one")
        with master.replica() as replica:
            [finding] = await said("replicas", url)
            assert (finding.level, finding.remedy) == (Level.OK, "")
            replica.pause()
            master.call("SET", "big", "x" * 3_000_000)
            [finding] = await said("replicas", url)
            assert finding.level is Level.WARNING
            assert "2,9" in finding.found or "3,0" in finding.found


@pytest.mark.parametrize("missing", ["+hset", "+script|load", "+evalsha", "+publish", "+subscribe"])
async def test_each_right_that_is_missing_is_named(redis_server: RedisServer, missing: str) -> None:
    rules = rule("shop", "single").split(" ")
    assert missing in rules
    url = redis_server.add_user("app", "pw", *(one for one in rules if one != missing))
    [finding] = await said("rights", url, "shop")
    assert finding.level is Level.ERROR
    assert missing in finding.found
    assert rule("shop", "single") in finding.remedy


async def test_a_user_with_all_rights_and_no_other_is_enough(redis_server: RedisServer, any_binary: Binary) -> None:
    with RedisServer(any_binary) as server:
        url = server.add_user("app", "pw", *rule("shop", "single").split(" "))
        findings = await examine(url, "shop")
        assert not [finding for finding in findings if finding.level is Level.ERROR]
        [finding] = [finding for finding in findings if finding.about == "rights"]
        assert finding.level is Level.OK
        [finding] = [finding for finding in findings if finding.about == "keys"]
        assert finding.found == "not looked at: this user may not scan"


async def test_keys_of_another_prefix_are_not_ours(redis_server: RedisServer) -> None:
    url = redis_server.add_user("app", "pw", *rule("shop", "single").split(" "))
    [finding] = await said("rights", url, "test")
    assert finding.level is Level.ERROR
    assert "the keys test:{test.0}:*" in finding.found


async def test_bytes_that_somebody_else_wrote_are_told_with_where_and_when(redis_server: RedisServer) -> None:
    async with Selaras(redis_server.url):
        assert not await said("damage", redis_server.url)
        redis_server.call("HSET", "selaras:{selaras.0}:meta", "damaged", "1785000000000000 marks")

        [finding] = await said("damage", redis_server.url)

    assert finding.level is Level.WARNING
    assert (
        "bytes in marks of partition 0 were not written there by selaras: met last on 2026-07-25 at 17:20"
        in finding.found
    )
    assert "HDEL selaras:{selaras.0}:meta damaged" in finding.remedy


async def test_a_wrong_password_is_an_error_that_does_not_show_it(redis_server: RedisServer) -> None:
    redis_server.add_user("app", "right")
    [finding] = await examine(redis_server.url_for("app", "wr0ng"))
    assert "refuses this user name or password" in finding.found
    assert "wr0ng" not in finding.where + finding.found


async def test_a_password_that_is_not_given_is_asked_for(any_binary: Binary) -> None:
    with RedisServer(any_binary, password="pw") as server:
        [*_, finding] = await examine(f"redis://127.0.0.1:{server.port}")
    assert "asks for a password: give it in the URL" in finding.found
    assert finding.remedy.startswith("correct the URL (kind of server, user name, password")


async def test_a_database_that_is_not_there_is_a_mistake_of_the_url(redis_server: RedisServer) -> None:
    [finding] = await examine(f"redis://127.0.0.1:{redis_server.port}/4711")
    assert "has no database of the number that the URL ends with" in finding.found
    with pytest.raises(StoreRefused, match="no database of the number"):
        async with Selaras(f"redis://127.0.0.1:{redis_server.port}/4711"):
            pass


async def test_tls_to_a_port_without_it_is_doubted(redis_server: RedisServer) -> None:
    [finding] = await examine(f"rediss://127.0.0.1:{redis_server.port}?socket_connect_timeout=0.5")
    assert "TLS" in finding.found
    with pytest.raises(StoreUnavailable, match="TLS"):
        async with Selaras(f"rediss://127.0.0.1:{redis_server.port}?socket_timeout=1") as app:
            await app.job("x").info()


async def test_a_server_that_stands_still_is_not_to_be_started(any_binary: Binary) -> None:
    with RedisServer(any_binary) as server:
        server.pause()
        [finding] = await examine(server.url_for(query="socket_connect_timeout=0.3"))
        server.resume()

    assert "takes connections, and does not answer: it said nothing for 0.3 s" in finding.found
    assert finding.remedy.startswith("see what keeps it: a process that was stopped, a long command")


async def test_leftovers_and_neighbours_are_named(redis_server: RedisServer) -> None:
    redis_server.call("HSET", "selaras:{selaras.7}:meta", "ledger", "x")
    redis_server.call("HSET", "shop:{shop.0}:meta", "ledger", "x")
    redis_server.call("SET", "something else", "x")
    findings = {finding.about: finding for finding in await examine(f"{redis_server.url}?partitions=2")}
    assert findings["leftovers"].found == "of no partition of this store: selaras:{selaras.7}:meta"
    assert findings["neighbours"].found == "other stores here: shop"


def test_the_command_tells_all_and_fails_on_an_error() -> None:
    with RedisServer(maxmemory_policy="allkeys-lru") as server:
        shown = f"redis://app:***@127.0.0.1:{server.port}/0"
        url = server.add_user("app", "s3cret", "~*", "&*", "+@all")
        result = CliRunner().invoke(cli, ["doctor", "--url", url, "--json"])
        told = json.loads(result.stdout)
        assert (result.exit_code, told["store"]) == (1, shown)
        assert [finding["about"] for finding in told["findings"] if finding["level"] == "error"] == ["eviction"]
        server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        result = CliRunner().invoke(cli, ["doctor", "--url", url])
        assert result.exit_code == 0
        assert "noeviction" in result.stdout
        assert "s3cret" not in result.output


async def test_a_store_in_use_is_weighed_partition_by_partition(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    rules = [*rule("shop", "single").split(" "), "+memory|usage", "+scan"]
    url = redis_server.add_user("app", "pw", *rules)
    app = Selaras(f"{url}?partitions=2", namespace="shop")

    @app.task
    async def nothing() -> None:
        pass

    async with app:
        for _ in range(20):
            await nothing.enqueue()
        await app.worker(burst=True).run()
    assert caplog.messages == []  # a connection that may not name itself is as good as any
    findings = {finding.about: finding for finding in await examine(url, "shop")}
    assert findings["store"].found == "2 partitions under 'shop', epoch 0"
    assert findings["partition 1"].numbers["bytes"] > 1000  # type: ignore[operator] # it is a number
    assert "leftovers" not in findings
    findings = {finding.about: finding for finding in await examine(f"{url}?partitions=3", "shop")}
    assert findings["store"].remedy == "say ?partitions=2, or name another prefix or namespace"


async def test_over_tls(certificates: Certificates) -> None:
    with RedisServer(certificates=certificates, password="p@ss") as server:
        assert await said("rights", server.url)
        [finding] = await examine(f"{server.url.replace('rediss', 'redis').partition('?')[0]}")
        assert "does it speak TLS?" in finding.found


@pytest.mark.timeout(120)
async def test_a_sentinels_absence_and_a_failed_over_master_are_told() -> None:
    with Sentinels() as set_:
        found = await examine(set_.url)
        [finding] = [finding for finding in found if finding.about == "sentinels"]
        assert (finding.level, finding.found) == (Level.OK, "3 of 3 can name a new master")
        assert {finding.where for finding in found if finding.about == "server"} == {f"127.0.0.1:{set_.master.port}"}
        for sentinel in set_.sentinels:
            sentinel.call("ACL", "SETUSER", "eye", "reset", "on", ">pw", "+sentinel|get-master-addr-by-name")
        [finding] = await said("sentinels", set_.url_for(query="sentinel_username=eye&sentinel_password=pw"))
        assert (finding.level, finding.found) == (
            Level.OK,
            "3 of 3 answer; not looked at: this user may not sentinel|ckquorum",
        )
        set_.sentinels[0].kill()
        [finding] = await said("sentinels", set_.url)
        assert finding.level is Level.WARNING
        assert finding.found.startswith("2 of 3")


@pytest.mark.timeout(120)
async def test_a_cluster_is_looked_at_node_by_node() -> None:
    with Cluster() as cluster:
        url = f"{cluster.url}?partitions=16"
        findings = await examine(url)
        assert not [finding for finding in findings if finding.level is Level.ERROR]
        assert len([finding for finding in findings if finding.about == "rights"]) == 3
        [finding] = [finding for finding in findings if finding.about == "partitions"]
        assert finding.found.count("127.0.0.1:") == 3
        slot = cluster.slot("{selaras.0}")
        owner = cluster.owner(slot)
        owner.kill()
        cluster.until_owner(slot, other_than=owner)
        findings = await examine(url)
        assert [finding for finding in findings if finding.about == "cluster" and str(owner.port) in finding.found], (
            "\n".join(f"{f.about} {f.where} {f.found}" for f in findings)
        )


async def test_a_server_that_takes_no_more_clients_is_not_to_be_started() -> None:
    with RedisServer(maxclients=20) as server:
        crowd = [server.connect() for _ in range(20)]
        [finding] = [finding for finding in await examine(server.url) if finding.level is Level.ERROR]
        assert (finding.about, finding.remedy) == ("connection", "raise its maxclients, or end some")
        for one in crowd:
            one.close()


async def test_a_server_of_another_kind_is_called_what_it_is_and_nothing_else_is_advised(any_binary: Binary) -> None:
    """Keys of other partitions are no leftovers, where a cluster is looked at as one server."""
    with Cluster(any_binary, masters=1, replicas=0) as cluster, Sentinels(any_binary) as sentinels:
        async with Selaras(cluster.url):
            pass
        host, port = cluster.masters[0].address
        [finding] = await examine(f"redis://{host}:{port}")
        assert (finding.level, finding.remedy) == (Level.ERROR, f"say redis+cluster://{host}:{port}")
        host, port = sentinels.sentinels[0].address
        [finding] = await examine(f"redis://{host}:{port}")
        assert (finding.level, finding.found) == (Level.ERROR, "a sentinel")
        assert f"redis+sentinel://{host}:{port}/" in finding.remedy
