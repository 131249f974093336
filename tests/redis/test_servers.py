"""The servers that the other tests stand on."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.redis.binaries import Binary, binaries, binary
from tests.redis.certificates import Certificates
from tests.redis.resp import Connection, ServerError
from tests.redis.servers import HOST, Cluster, RedisServer, Sentinels, shared_server, until

ROOT = Path(__file__).parents[2]


def test_no_servers_of_a_wheel_shadow_the_systems() -> None:
    assert not any(found.path.is_relative_to(Path(sys.prefix) / "bin") for found in binaries())


def test_each_server_starts_answers_and_ends(any_binary: Binary) -> None:
    with RedisServer(any_binary) as server:
        assert server.call("SET", "name", b"\xff\x00") == "OK"
        assert server.call("GET", "name") == "\udcff\x00"
        with pytest.raises(ServerError, match="WRONGTYPE"):
            server.call("LPUSH", "name", 1)
        assert server.call("EVAL", "return {1, {'two'}, false}", 0) == [1, ["two"], None]
        with Connection(str(server.socket)) as connection:
            assert connection.call("PING") == "PONG"
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_shared_server_is_one_and_empty_for_each_test(redis_server: RedisServer) -> None:
    assert redis_server is shared_server()
    assert redis_server.call("DBSIZE") == 0


@pytest.mark.parametrize("kept", [True, False])
def test_a_restart_keeps_what_the_settings_keep(*, kept: bool) -> None:
    with RedisServer(appendonly="yes" if kept else "no") as server:
        port = server.port
        server.call("SET", "a", 1)
        server.restart()
        assert server.port == port
        assert server.call("GET", "a") == ("1" if kept else None)
        server.restart(lose=True)
        assert server.call("GET", "a") is None


def test_a_paused_server_answers_when_it_goes_on() -> None:
    with RedisServer() as server, server.connect(timeout=0.2) as connection:
        server.pause()
        with pytest.raises(TimeoutError):
            connection.call("INCR", "n")
        server.resume()
        until(lambda: server.call("GET", "n") == "1", "what was sent meanwhile is done")
        server.pause()
        server.stop()


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(Exception, match="no-such-setting"):
        RedisServer(no_such_setting="yes").start()


def test_tls_takes_its_own_authoritys_clients_only(certificates: Certificates) -> None:
    with RedisServer(certificates=certificates, password="p@ss/word") as server:
        assert server.call("PING") == "PONG"
        assert server.url.startswith("rediss://:p%40ss%2Fword@127.0.0.1:")
        stranger = ssl.create_default_context(cafile=certificates.stranger.certificate)
        with pytest.raises(ssl.SSLCertVerificationError):
            Connection(server.address, tls=stranger)
        nobody = ssl.create_default_context(cafile=certificates.authority.certificate)
        with pytest.raises(OSError), Connection(server.address, tls=nobody) as connection:
            connection.call("PING")


def test_an_acl_user_may_do_only_what_it_was_given(redis_server: RedisServer) -> None:
    url = redis_server.add_user("app", "pw", "~jobs:*", "+get")
    assert url == f"redis://app:pw@{HOST}:{redis_server.port}/0"
    with Connection(redis_server.address, user="app", password="pw") as connection:
        assert connection.call("GET", "jobs:1") is None
        with pytest.raises(ServerError, match="NOPERM"):
            connection.call("GET", "other")
        with pytest.raises(ServerError, match="NOPERM"):
            connection.call("SET", "jobs:1", 1)


@pytest.mark.timeout(90)
def test_sentinels_name_the_replica_when_the_master_is_killed() -> None:
    with Sentinels() as set_:
        old = set_.master
        old.call("SET", "a", 1)
        assert old.call("WAIT", 1, 5000) == 1
        old.kill()
        new = set_.until_master(other_than=old)
        assert new.call("GET", "a") == "1"
        assert new.call("SET", "a", 2) == "OK"
        old.start().follow(new)  # Sentinel would do it too, after some 20 s
        assert old.call("GET", "a") == "2"


@pytest.mark.timeout(90)
def test_a_cluster_goes_on_with_the_replica_of_a_killed_master() -> None:
    with Cluster() as cluster:
        slot = cluster.slot("{a}")
        owner = cluster.owner(slot)
        owner.call("SET", "{a}1", 1)
        assert owner.call("WAIT", 1, 5000) == 1
        [replica] = cluster.replicas_of(owner)
        owner.kill()
        assert cluster.until_owner(slot, other_than=owner) is replica
        assert replica.call("GET", "{a}1") == "1"


def test_a_slot_of_a_cluster_moves_with_its_keys() -> None:
    with Cluster(masters=2, replicas=0) as cluster:
        slot = cluster.slot("{a}")
        source = cluster.owner(slot)
        target = next(node for node in cluster.nodes if node is not source)
        for i in range(250):
            source.call("SET", f"{{a}}{i}", i)
        cluster.begin_migration(slot, target)
        assert cluster.move_keys(slot, target) == 100
        with pytest.raises(ServerError, match="TRYAGAIN"):
            source.call("MGET", *(f"{{a}}{i}" for i in range(250)))
        while cluster.move_keys(slot, target):
            pass
        cluster.end_migration(slot, target)
        assert target.call("GET", "{a}249") == "249"
        with pytest.raises(ServerError, match=f"MOVED {slot}"):
            source.call("GET", "{a}249")


def test_one_server_may_be_a_whole_cluster() -> None:
    with Cluster(masters=1, replicas=0) as cluster:
        assert cluster.nodes[0].call("SET", "a", 1) == "OK"
        assert cluster.url == f"redis+cluster://{HOST}:{cluster.nodes[0].port}"


def test_servers_end_when_the_tests_are_killed(tmp_path: Path) -> None:
    program = """
import time
from tests.redis.servers import RedisServer
server = RedisServer().start()
print(server.pid, server.folder.parent, flush=True)
time.sleep(60)
"""
    binary()
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid, folder = process.stdout.readline().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 10
    while (Path("/proc") / pid / "exe").exists() or Path(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.01)
