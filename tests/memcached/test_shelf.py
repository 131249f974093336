"""A shelf on a real memcached: what it holds, and that nothing that becomes of the server hurts or holds up anybody."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.memcached.servers import MemcachedServer

from selaras._contracts.shelf import Found, ShelfDown
from selaras._core.errors import ConfigurationError
from selaras._stores.memcached.address import address_of
from selaras._stores.memcached.shelf import MemcachedShelf

PATIENT_US = 2_000_000


@asynccontextmanager
async def shelf_on(url: str, patience_us: int = PATIENT_US) -> AsyncIterator[MemcachedShelf]:
    shelf = MemcachedShelf(address_of(url), patience_us=patience_us)
    try:
        yield shelf
    finally:
        await shelf.close()


def begin(shelf: MemcachedShelf, name: bytes) -> asyncio.Future[Found | ShelfDown | None]:
    future: asyncio.Future[Found | ShelfDown | None] = asyncio.get_running_loop().create_future()
    shelf.ask(name, future.set_result)
    return future


async def ask(shelf: MemcachedShelf, name: bytes) -> Found | ShelfDown | None:
    return await begin(shelf, name)


async def data_at(shelf: MemcachedShelf, name: bytes) -> bytes | None:
    found = await ask(shelf, name)
    assert not isinstance(found, ShelfDown), found
    return found.data if found else None


async def test_what_was_put_is_found(server: MemcachedServer) -> None:
    async with shelf_on(server.url) as shelf:
        assert await data_at(shelf, b"a") is None
        for data in (b"", b"\r\nEND\r\nEN\r\nVA 1 c1\r\n", bytes(range(256)) * 100):
            shelf.put(b"a", data, 60)
            assert await data_at(shelf, b"a") == data


async def test_only_what_was_seen_is_replaced(server: MemcachedServer) -> None:
    async with shelf_on(server.url) as shelf:
        assert await data_at(shelf, b"a") is None
        shelf.put(b"a", b"first", 60, over=0)
        shelf.put(b"a", b"second", 60, over=0)
        found = await ask(shelf, b"a")
        assert isinstance(found, Found)
        assert found.data == b"first"

        shelf.put(b"a", b"third", 60, over=found.seen)
        shelf.put(b"a", b"fourth", 60, over=found.seen)

        assert await data_at(shelf, b"a") == b"third"


async def test_what_is_said_in_one_turn_of_the_loop_goes_in_one_trip(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url) as shelf:
        await data_at(shelf, b"a")
        for at in range(500):
            shelf.put(b"%d" % at, b"x" * at, 60)
        looks = [begin(shelf, b"%d" % at) for at in range(1_000)]

        found = await asyncio.gather(*looks)

        assert [len(one.data) if isinstance(one, Found) else one for one in found] == [*range(500), *[None] * 500]


async def test_a_value_that_is_too_large_is_not_kept_and_hurts_nobody(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url) as shelf:
        await data_at(shelf, b"a")
        for size in (1 << 20, (1 << 20) - 70, (1 << 20) - 300, 5 << 20):
            shelf.put(b"a", bytes(size), 60)
            found = await ask(shelf, b"a")
            assert found is None or isinstance(found, Found)
        shelf.put(b"b", b"small", 60)
        assert await data_at(shelf, b"b") == b"small"


async def test_a_server_of_large_items_is_given_large_values() -> None:
    with MemcachedServer(megabytes=64, options=("-I", "8m")) as server:
        async with shelf_on(server.url) as shelf:
            await data_at(shelf, b"a")
            shelf.put(b"a", bytes(5 << 20), 60)
            assert await data_at(shelf, b"a") == bytes(5 << 20)


async def test_a_server_that_knows_no_meta_commands_is_spoken_to_in_the_classic_ones(
    memcached: MemcachedServer, tmp_path: Path
) -> None:
    said: list[bytes] = []

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand on all but meta commands, to a server that would know them."""
        behind, ahead = await asyncio.open_unix_connection(str(memcached.socket))

        async def back() -> None:
            while data := await behind.read(65536):
                writer.write(data)

        task = asyncio.create_task(back())
        try:
            while line := await reader.readline():
                said.append(line)
                if line.startswith((b"mn", b"mg", b"ms", b"md")):
                    writer.write(b"ERROR\r\n")
                else:
                    ahead.write(line)
        finally:
            task.cancel()
            ahead.close()
            writer.close()

    path = tmp_path / "old"
    async with await asyncio.start_unix_server(old, str(path)), shelf_on(f"unix://{path}") as shelf:
        assert await data_at(shelf, b"a") is None
        shelf.put(b"a", b"first", 60, over=0)
        shelf.put(b"a", b"not", 60, over=0)
        found = await ask(shelf, b"a")
        assert isinstance(found, Found)
        shelf.put(b"a", b"second", 60, over=found.seen)
        shelf.put(b"a", b"not", 60, over=found.seen)
        assert await data_at(shelf, b"a") == b"second"
        shelf.put(b"a", b"third", 60)
        assert await data_at(shelf, b"a") == b"third"
    assert any(line.startswith(b"gets") for line in said)


async def test_no_server_is_an_answer_at_once(tmp_path: Path) -> None:
    async with shelf_on(f"unix://{tmp_path}/none") as shelf:
        assert isinstance(await ask(shelf, b"a"), ShelfDown)
        shelf.put(b"a", b"x", 60)


async def test_a_server_that_was_killed_is_found_again(server: MemcachedServer) -> None:
    async with shelf_on(server.url) as shelf:
        shelf.put(b"a", b"x", 60)
        await ask(shelf, b"a")
        server.kill()
        assert isinstance(await ask(shelf, b"a"), ShelfDown)
        server.start()

        assert await data_at(shelf, b"a") is None
        shelf.put(b"a", b"y", 60)
        assert await data_at(shelf, b"a") == b"y"


async def test_a_server_that_stands_still_holds_up_nobody(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url, patience_us=20_000) as shelf:
        await ask(shelf, b"a")
        memcached.pause()
        began = time.monotonic()

        answers = await asyncio.gather(*(begin(shelf, b"%d" % at) for at in range(50)))

        assert {type(answer) for answer in answers} == {ShelfDown}
        assert time.monotonic() - began < 1
        assert isinstance(await ask(shelf, b"a"), ShelfDown)  # a new connection does not even get its greeting
        memcached.resume()
        async with asyncio.timeout(10):
            while isinstance(await ask(shelf, b"a"), ShelfDown):
                await asyncio.sleep(0.01)


async def test_a_loop_that_was_held_up_looks_at_what_has_arrived_first(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url, patience_us=30_000) as shelf:
        await ask(shelf, b"a")
        look = begin(shelf, b"a")
        await asyncio.sleep(0)
        time.sleep(0.1)  # somebody's blocking call

        assert await look is None


async def test_what_answers_nonsense_is_given_up(tmp_path: Path) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\nEND\r\n")
        await reader.read()
        writer.close()

    path = tmp_path / "other"
    async with await asyncio.start_unix_server(other, str(path)), shelf_on(f"unix://{path}") as shelf:
        assert isinstance(await ask(shelf, b"a"), ShelfDown)


async def test_each_loop_has_a_connection_of_its_own(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url) as shelf:
        await ask(shelf, b"a")
        shelf.put(b"a", b"x", 60)
        await ask(shelf, b"a")  # it has arrived

        there = await asyncio.to_thread(lambda: asyncio.run(data_at(shelf, b"a")))

        assert there == b"x"
        assert await data_at(shelf, b"a") == b"x"


async def test_a_loop_that_ends_takes_its_connection_along(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url) as shelf:
        await ask(shelf, b"a")
        here = int(memcached.stats()["curr_connections"])

        for _ in range(3):
            await asyncio.to_thread(lambda: asyncio.run(data_at(shelf, b"a")))

        async with asyncio.timeout(10):
            while int((await asyncio.to_thread(memcached.stats))["curr_connections"]) != here:
                await asyncio.sleep(0.01)
        assert await data_at(shelf, b"a") is None


async def test_a_forked_child_does_not_speak_over_its_parents_connection(memcached: MemcachedServer) -> None:
    async with shelf_on(memcached.url) as shelf:
        shelf.put(b"a", b"x", 60)
        await ask(shelf, b"a")
        line = shelf._here().line

        shelf._pid = os.getppid()  # as a child finds it

        assert await data_at(shelf, b"a") is None
        assert shelf._here().line is not line
        assert line is not None
        line.abort("it is the parent's")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("unix:///run/memcached.sock", "unix:///run/memcached.sock"),
        ("memcached://127.0.0.1", "memcached://127.0.0.1:11211"),
        ("memcached://[::1]:1", "memcached://[::1]:1"),
        ("memcached://localhost:5/", "memcached://localhost:5"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert address_of(url).shown == shown


@pytest.mark.parametrize(
    "url",
    ["", "unix://", "unix:///", "unix://run/x", "redis://localhost", "memcached://", "memcached:///x", "memcached://h:x",
     "memcached://u@h", "memcached://h:0", "unix:///x?y=1", 7],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_what_to_write(url: object) -> None:
    with pytest.raises(ConfigurationError, match="SELARAS_HOST_TIER="):
        address_of(url, "SELARAS_HOST_TIER")
