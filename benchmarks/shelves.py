"""Which client reads a memcached fastest: those that are installed, side by side with our own connection.

    python -m benchmarks.shelves         with aiomcache, emcache or pymemcache installed beside; starts a memcached of its own

One read is a get of 200 bytes. pymemcache blocks, and so is asked in a thread, as a loop must. Rounds are interleaved; the
table says the least of them: microseconds of wall clock, and of processor time, a read.
"""

from __future__ import annotations

import asyncio
import getpass
import importlib
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import click

from benchmarks.peers.environment import Unusable
from benchmarks.peers.servers import free_port

ROUNDS: Final = 7
READS: Final = 3_000
AT_ONCE: Final = 100
HOST: Final = "127.0.0.1"
NAME: Final = b"selaras:bench"

Get = Callable[[], Awaitable[Any]]


class Client(NamedTuple):
    """One read, and as many as are wanted in one call."""

    get: Get
    get_many: Callable[[int], Awaitable[Any]]


async def ours(port: int) -> Client:
    """Our own connection."""
    from selaras._stores.memcached.address import Address
    from selaras._stores.memcached.shelf import MemcachedShelf

    shelf = MemcachedShelf(Address(host=HOST, port=port), patience_us=5_000_000)

    def get() -> asyncio.Future[Any]:
        told = asyncio.get_running_loop().create_future()
        shelf.ask(NAME, told.set_result)
        return told

    async def get_many(count: int) -> None:
        await asyncio.wait([get() for _ in range(count)])

    return Client(get, get_many)


async def aiomcache(port: int) -> Client:
    """The one of aio-libs."""
    client = importlib.import_module("aiomcache").Client(HOST, port, pool_size=AT_ONCE)
    return Client(
        lambda: client.get(NAME), lambda count: client.multi_get(*(b"%b%d" % (NAME, at) for at in range(count)))
    )


async def emcache(port: int) -> Client:
    """The one in Cython."""
    module = importlib.import_module("emcache")
    client = await module.create_client([module.MemcachedHostAddress(HOST, port)], max_connections=AT_ONCE)
    return Client(
        lambda: client.get(NAME), lambda count: client.get_many([b"%b%d" % (NAME, at) for at in range(count)])
    )


async def pymemcache(port: int) -> Client:
    """The blocking one, in threads."""
    client = importlib.import_module("pymemcache").PooledClient((HOST, port), max_pool_size=AT_ONCE)
    names = [b"%b%d" % (NAME, at) for at in range(AT_ONCE)]
    return Client(
        lambda: asyncio.to_thread(client.get, NAME), lambda count: asyncio.to_thread(client.get_many, names[:count])
    )


async def _measure(client: Client, best: dict[str, tuple[float, float]]) -> None:
    async def singly() -> None:
        for _ in range(READS):
            await client.get()

    async def at_once() -> None:
        for _ in range(READS // AT_ONCE):
            await asyncio.gather(*(client.get() for _ in range(AT_ONCE)))

    async def many() -> None:
        for _ in range(READS // AT_ONCE):
            await client.get_many(AT_ONCE)

    for way, read in (("one after another", singly), ("100 at once", at_once), ("100 in one call", many)):
        wall, cpu = time.perf_counter(), time.process_time()
        await read()
        taken = time.perf_counter() - wall, time.process_time() - cpu
        known = best.get(way, taken)
        best[way] = min(known[0], taken[0]), min(known[1], taken[1])


async def _run(port: int) -> dict[str, dict[str, tuple[float, float]]]:
    makers = {"ours": ours, "aiomcache": aiomcache, "emcache": emcache, "pymemcache": pymemcache}
    clients = {name: await make(port) for name, make in makers.items() if name == "ours" or find_spec(name)}
    best: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in clients}
    for _ in range(ROUNDS):
        for name, client in clients.items():
            await _measure(client, best[name])
    return best


@click.command()
def shelves() -> None:
    """Compare clients of memcached."""
    binary = shutil.which("memcached")
    if binary is None:
        raise Unusable("there is no memcached on this machine")
    port = free_port()
    process = subprocess.Popen([binary, "-u", getpass.getuser(), "-l", HOST, "-p", str(port)])
    try:
        time.sleep(0.3)
        names = [NAME, *(b"%b%d" % (NAME, at) for at in range(AT_ONCE))]
        said = b"".join(b"set %b 0 0 200 noreply\r\n%b\r\n" % (name, b"x" * 200) for name in names)
        with _connected(port) as there:
            there.sendall(said + b"version\r\n")
            there.recv(100)
        for name, ways in asyncio.run(_run(port)).items():
            told = "   ".join(
                f"{way} {wall / READS * 1e6:6.1f} ({cpu / READS * 1e6:6.1f})" for way, (wall, cpu) in ways.items()
            )
            click.echo(f"{name:11} {told}")
    finally:
        process.kill()
        process.wait()


def _connected(port: int) -> Any:
    import socket

    return socket.create_connection((HOST, port))


if __name__ == "__main__":
    shelves(prog_name="python -m benchmarks.shelves")
