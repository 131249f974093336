"""What the proxy promises the other tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis.proxy import Proxy
from tests.redis.resp import Connection
from tests.redis.servers import HOST, RedisServer, until


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server.address) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: Proxy) -> Iterator[Connection]:
    with Connection(proxy.address, timeout=0.5) as connection:
        assert connection.call("PING") == "PONG"
        yield connection


def test_everything_passes_unchanged(proxy: Proxy, redis_server: RedisServer, connection: Connection) -> None:
    value = "x" * 3_000_000
    connection.call("SET", "big", value)
    assert connection.call("GET", "big") == value
    assert proxy.through(redis_server.url) == f"redis://{HOST}:{proxy.port}/0"
    assert proxy.accepted == len(proxy.links) == 1
    connection.close()
    until(lambda: not proxy.links, "the closed connection is closed on the other side")


def test_a_delay_is_a_round_trip_and_commands_in_flight_share_it(proxy: Proxy, connection: Connection) -> None:
    proxy.delay(0.05)
    began = time.perf_counter()
    connection.call("PING")
    assert 0.05 <= time.perf_counter() - began < 0.5
    began = time.perf_counter()
    connection.send(*[("PING",)] * 20)
    assert connection.receive(20) == ["PONG"] * 20
    assert 0.05 <= time.perf_counter() - began < 0.5


def test_a_throttle_lets_so_many_bytes_pass_in_a_second(
    proxy: Proxy, redis_server: RedisServer, connection: Connection
) -> None:
    redis_server.call("SET", "big", "x" * 20_000)
    proxy.throttle(100_000)
    began = time.perf_counter()
    connection.call("GET", "big")
    assert time.perf_counter() - began >= 0.2


def test_a_cut_connection_is_reset_and_new_ones_are_welcome(proxy: Proxy, connection: Connection) -> None:
    proxy.cut()
    with pytest.raises(ConnectionError):
        connection.call("PING")
    with Connection(proxy.address) as again:
        assert again.call("PING") == "PONG"


def test_refused_until_healed(proxy: Proxy, connection: Connection) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionError):
        connection.call("PING")
    with pytest.raises(ConnectionRefusedError):
        Connection(proxy.address)
    proxy.heal()
    with Connection(proxy.address) as again:
        assert again.call("PING") == "PONG"


def test_a_server_that_is_down_is_a_reset_connection() -> None:
    with RedisServer() as server, Proxy(server.address) as proxy:
        server.kill()
        with Connection(proxy.address) as connection, pytest.raises(ConnectionError):
            connection.call("PING")


def test_a_lost_reply_is_of_a_command_that_was_done(
    proxy: Proxy, redis_server: RedisServer, connection: Connection
) -> None:
    proxy.lose_reply()
    with pytest.raises(ConnectionError):
        connection.call("INCR", "n")
    assert redis_server.call("GET", "n") == "1"
    with Connection(proxy.address) as again:
        assert again.call("INCR", "n") == 2


def test_a_reply_may_be_cut_in_its_midst(proxy: Proxy, redis_server: RedisServer, connection: Connection) -> None:
    redis_server.call("SET", "big", "x" * 1000)
    proxy.lose_reply(after=500)
    connection.send(("GET", "big"))
    assert len(connection.read_all()) <= 500  # a reset may take back what was not read yet
    assert proxy.links == []


def test_a_half_open_connection_takes_bytes_and_answers_nothing(
    proxy: Proxy, redis_server: RedisServer, connection: Connection
) -> None:
    proxy.swallow()
    with pytest.raises(TimeoutError):
        connection.call("INCR", "n")
    with Connection(proxy.address, timeout=0.2) as another, pytest.raises(TimeoutError):
        another.call("PING")
    proxy.heal()
    with Connection(proxy.address) as again:
        assert again.call("GET", "n") is None


def test_one_connection_of_several_may_be_half_open(proxy: Proxy, connection: Connection) -> None:
    with Connection(proxy.address) as another:
        another.call("PING")
        first, second = proxy.links
        proxy.swallow_link(first)
        with pytest.raises(TimeoutError):
            connection.call("PING")
        assert another.call("PING") == "PONG"
        proxy.cut_link(second)
        with pytest.raises(ConnectionError):
            another.call("PING")


def test_what_comes_late_for_a_client_that_is_gone_is_dropped(
    proxy: Proxy, redis_server: RedisServer, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.call("SET", "some", "x" * 400)
    [link] = proxy.links
    proxy.throttle(2_000)
    while link.late_replies < 8:
        connection.send(("GET", "some"))
        time.sleep(0.02)  # so that each comes in a piece of its own
    connection.close()
    until(lambda: link.late_replies == 0, "none is any more")
    assert caplog.messages == []  # of a transport that was written to after its end


def test_as_a_process_it_ends_with_its_input(redis_server: RedisServer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.redis.proxy", f"{HOST}:{redis_server.port}", "--round-trip-ms", "20"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    host, _, port = process.stdout.readline().strip().partition(":")
    with Connection((host, int(port))) as connection:
        began = time.perf_counter()
        assert connection.call("PING") == "PONG"
        assert time.perf_counter() - began >= 0.02
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()
