"""What a hit costs in each tier: the local one, a memcached as the host tier, and the shared tier on SQLite and on Redis.

    python -m benchmarks.tiers          starts a memcached and a Redis of its own

Each case has a thousand values and no local tier, so that every read goes where it is meant to. Rounds are interleaved;
the table says the least of them: microseconds of wall clock and of this process's processor time a read, one after
another, a hundred at once, and a hundred in one call; and the processor time of the server.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from benchmarks.peers.environment import Unusable
from benchmarks.peers.servers import redis_server
from selaras import Selaras
from selaras._app.setup.settings import SettingValues
from selaras._worker.loops import run

ROWS: Final = 1_000
ROUNDS: Final = 7
READS: Final = 2_000
AT_ONCE: Final = 100

_TICKS = os.sysconf("SC_CLK_TCK")


class Product(Struct, frozen=True):
    """A value."""

    id: int
    text: str


class Case:
    """One tier under one store, and the least that each way of reading took."""

    def __init__(self, name: str, url: str, tier: str, size: int, settings: SettingValues, server: int = 0) -> None:
        self.name, self.tier, self.server = name, tier, server
        self.app = Selaras(url, namespace=f"tiers-{tier}", **settings)
        text = "x" * size

        @self.app.cached(ttl=3600, beta=0.0)
        async def product(id: int) -> Product:
            return Product(id, text)

        self.keys = [product.key(id) for id in range(ROWS)]
        self.best: dict[str, tuple[float, float, float]] = {}

    async def begin(self) -> None:
        """Have every value where it is to be read."""
        await self.keys[0].invalidate()  # the log has an event now
        for key in self.keys:
            await key.get()
            await key.get()
        found = await self.keys[7].read()
        if found.tier != self.tier:
            raise click.ClickException(f"{self.name}: answered by {found.tier}: {found.why}")

    async def measure(self) -> None:
        """One round."""
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "one after another": self._singly,
            "100 at once": self._at_once,
            "read_many of 100": self._many,
        }
        for way, read in ways.items():
            wall, cpu, server = time.perf_counter(), time.process_time(), self._server_s()
            await read()
            taken = (time.perf_counter() - wall, time.process_time() - cpu, self._server_s() - server)
            best = self.best.get(way, taken)
            self.best[way] = (min(best[0], taken[0]), min(best[1], taken[1]), min(best[2], taken[2]))

    async def _singly(self) -> None:
        for at in range(READS):
            await self.keys[at % ROWS].get()

    async def _at_once(self) -> None:
        for at in range(0, READS, AT_ONCE):
            await asyncio.gather(*(key.get() for key in self.keys[at % ROWS : at % ROWS + AT_ONCE]))

    async def _many(self) -> None:
        for at in range(0, READS, AT_ONCE):
            await self.app.read_many(self.keys[at % ROWS : at % ROWS + AT_ONCE])

    def _server_s(self) -> float:
        if not self.server:
            return 0.0
        words = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS


@contextmanager
def _memcached(folder: str) -> Iterator[tuple[str, int]]:
    binary = shutil.which("memcached")
    if binary is None:
        raise Unusable("there is no memcached on this machine")
    path = f"{folder}/memcached.sock"
    process = subprocess.Popen([binary, "-u", getpass.getuser(), "-m", "64", "-s", path])
    try:
        while not Path(path).exists():
            time.sleep(0.01)
        yield f"unix://{path}", process.pid
    finally:
        process.kill()
        process.wait()


async def _run(cases: list[Case]) -> None:
    for case in cases:
        async with case.app:
            await case.begin()
            for _ in range(ROUNDS):
                await case.measure()


@click.command()
@click.option("--size", default=200, show_default=True, help="Bytes of a value.")
def tiers(size: int) -> None:
    """Measure a hit in each tier."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="selaras-tiers-"))
        shelf, shelf_pid = stack.enter_context(_memcached(folder))
        server = stack.enter_context(redis_server())
        redis_pid = int(server.info("server")["process_id"])
        sqlite = f"sqlite:///{folder}/selaras.db"
        none = SettingValues(local_entries=0)
        # A proof is old after a second at the most; a process at work has a new one with each turn. Here nothing turns.
        hosted = SettingValues(local_entries=0, host_tier=shelf, host_timeout=0.1)
        cases = [
            Case("local", sqlite, "local", size, SettingValues()),
            Case("shared, SQLite", sqlite, "shared", size, none),
            Case("host, on SQLite", sqlite, "host", size, hosted, shelf_pid),
            Case("shared, Redis", server.url(), "shared", size, none, redis_pid),
            Case("host, on Redis", server.url(), "host", size, hosted, shelf_pid),
        ]
        run(_run(cases))
    click.echo(f"values of {size} bytes; us a read: wall clock (processor time here; of the server)")
    for case in cases:
        told = "   ".join(
            f"{way} {wall / READS * 1e6:6.1f} ({cpu / READS * 1e6:5.1f}; {server / READS * 1e6:4.1f})"
            for way, (wall, cpu, server) in case.best.items()
        )
        click.echo(f"{case.name:16} {told}")


if __name__ == "__main__":
    tiers(prog_name="python -m benchmarks.tiers")
