"""Apps that share a real memcached, whatever becomes of it; and what people are shown of it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.edges.shell import SHOP, Line, Shell
from tests.memcached.servers import MemcachedServer
from tests.redis.servers import shared_server

from selaras import Cached, Key, Selaras
from selaras._app.setup.settings import SettingValues

ROOT = Path(__file__).parents[2]


class Row(msgspec.Struct, frozen=True):
    """A value."""

    id: int
    version: int
    text: str = ""


class Shop:
    """One process of an app, as far as one test goes: apps share nothing but their servers."""

    def __init__(self, url: str, data: dict[int, int], *, text: str = "", **settings: object) -> None:
        options = SettingValues(local_entries=0, host_timeout=1, retries=0)
        options.update(settings)  # type: ignore[typeddict-item] # a test's own options
        self.app = app = Selaras(url, **options)

        @app.cached(ttl=60)
        async def row(id: int) -> Row:
            return Row(id, data.get(id, 0), text)

        self.row: Cached[[int], Row] = row

    async def read(self, id: int, fresh: float | str | None = None) -> tuple[int, str]:
        reading = await self.row.key(id).read(**({} if fresh is None else {"fresh": fresh}))  # type: ignore[arg-type] # as given
        return reading.value.version, reading.tier

    @property
    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.app.process().cache.stats()["host"]
        return counts


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/selaras.db"
    server = shared_server()
    server.clear()
    return server.url


@asynccontextmanager
async def shops(*made: Shop) -> AsyncIterator[tuple[Shop, ...]]:
    async with AsyncExitStack() as stack:
        for shop in made:
            await stack.enter_async_context(shop.app)
        await made[0].row.key(0).invalidate()  # the log has an event, and everybody a connection
        for shop in (*made, *made):
            await shop.read(0)
        yield made


async def there(app: Selaras, key: Key[Any]) -> bool:
    """Say whether the memcached has it, over the connection on which it was put: behind that, however slow it is."""
    host = app.process().cache.host
    assert host is not None
    return (await host.shown(key.slot)).startswith("true at")


async def test_two_apps_share_it(memcached: MemcachedServer, url: str) -> None:
    data = {1: 7}
    async with shops(*(Shop(url, data, host_tier=memcached.url) for _ in range(2))) as (a, b):
        assert await a.read(1) == (7, "loader")
        assert await there(a.app, a.row.key(1))
        assert await b.read(1) == (7, "host")
        data[1] = 8
        await a.row.key(1).invalidate()
        assert await b.read(1, "strict") == (8, "loader")
        assert (await a.read(1))[0] == 8


async def test_whatever_becomes_of_it_is_neither_stale_nor_an_error(url: str) -> None:
    data: dict[int, int] = {}
    with MemcachedServer(megabytes=2, options=("-I", "512k")) as server:
        made = [Shop(url, data, host_tier=server.url, host_timeout=0.02, text="x" * 20_000) for _ in range(2)]
        async with shops(*made) as (a, b):
            mishaps: tuple[Callable[[], object], ...] = (
                server.flush,
                server.restart,
                server.pause,
                server.resume,
                server.kill,
                server.start,
            )
            for number, mishap in enumerate(mishaps, 1):
                await asyncio.to_thread(mishap)
                for id in range(1, 200):  # more than it has room for
                    data[id] = number
                await a.row.invalidate_all()
                for fresh in ("strict", None):
                    for id in range(1, 200):
                        assert (await a.read(id, fresh))[0] == number
                        assert (await b.read(id, fresh))[0] == number
            assert a.counts["served"] + b.counts["served"] > 0
            assert a.counts["failed"] + b.counts["failed"] > 0
            assert a.counts["damaged"] + b.counts["damaged"] == 0


async def test_one_that_stands_still_costs_a_reader_a_moment_at_most(memcached: MemcachedServer, url: str) -> None:
    async with shops(*(Shop(url, {}, host_tier=memcached.url, host_timeout=0.005) for _ in range(2))) as (a, b):
        for id in range(50):
            await a.read(id)
        memcached.pause()
        began = time.monotonic()
        for id in range(50):
            assert (await b.read(id))[1] != "host"
        took = time.monotonic() - began
        memcached.resume()

        assert b.counts["failed"] <= 20
        assert took < 5  # fifty looks of a tenth of a second each would be as long


async def test_keys_of_any_length_and_kind_and_values_of_any_size(memcached: MemcachedServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/selaras.db"
    apps = [Selaras(url, host_tier=memcached.url, host_timeout=1, local_entries=0, max_value=8 << 20) for _ in range(2)]
    families = []
    for app in apps:

        @app.cached
        async def echo(text: str, size: int) -> str:
            return text[:5] + "x" * size

        families.append(echo)
    one, other = families
    texts = ["", "a b\r\nEN", "é" * 300, "\x00\x7f", "x" * 10_000, ":%/"]
    async with apps[0], apps[1]:
        await one.key("first", 1).invalidate()
        for family in (one, other, one, other):
            await family("first", 1)
        for text in texts:
            assert await one(text, 10) == await other(text, 10)
            assert await there(apps[0], one.key(text, 10))
            assert (await other.key(text, 10).read()).tier == "host"
        for size in (500_000, 1_048_000, 2_000_000):
            assert len(await one("a", size)) == len(await other("a", size)) == size + 1
        assert (await other.key("a", 500_000).read()).tier == "host"
        assert (await other.key("a", 2_000_000).read()).tier == "shared"  # its items are of a MiB at most


async def test_processes_of_one_machine_share_it(memcached: MemcachedServer, tmp_path: Path) -> None:
    program = """
import asyncio, sys
from selaras import Selaras
app = Selaras("sqlite:///shop.db", host_tier=sys.argv[1], host_timeout=1, local_entries=0)
@app.cached
async def row(id: int) -> int:
    return 7
async def main():
    async with app:
        if sys.argv[2] == "first":
            await row.key(1).invalidate()
        await row(2)  # a new process asks the store once: of the log's end
        await row(2)
        print((await row.key(1).read()).tier)
asyncio.run(main())
"""
    (tmp_path / "program.py").write_text(program)

    def run(*words: str) -> str:
        command = [sys.executable, "program.py", memcached.url, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    assert run("first") == "loader"
    assert run("second") == "host"


async def test_without_one_nothing_is_different(tmp_path: Path) -> None:
    async with Selaras(f"sqlite:///{tmp_path}/selaras.db") as app:
        assert app.process().cache.host is None
        assert "host" not in app.process().cache.stats()


def test_no_read_is_stale_while_it_is_hurt() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.races", "--seconds", "8", "--host-tier"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    # Between the two there may be a line more: that the naive half was never stale, in so short a run.
    assert re.search(r"^memcached of 1 MiB: .*; [1-9][\d,]* reads answered from it$", run.stdout, re.MULTILINE), (
        run.stdout + run.stderr
    )
    assert "stale 0," in run.stdout.splitlines()[-1]


# -- what people are shown


@pytest.fixture
def line(folder: Path, memcached: MemcachedServer) -> Line:
    shell = Shell(folder, "")
    shell.write("shop.py", SHOP)
    shell.env["SELARAS_HOST_TIER"] = memcached.url
    shell.env["SELARAS_HOST_TIMEOUT"] = "1s"
    return Line(shell)


def test_doctor_looks_at_it(line: Line, memcached: MemcachedServer) -> None:
    line.shell.enqueue()
    found = [finding for finding in line.json("doctor")["findings"] if finding["about"] == "host tier"]
    assert {finding["level"] for finding in found} == {"ok"}
    assert found[0]["found"].startswith("memcached 1.")
    assert any("a look takes" in finding["found"] for finding in found)

    memcached.kill()
    [finding] = [finding for finding in line.json("doctor")["findings"] if finding["about"] == "host tier"]
    assert (finding["level"], finding["where"]) == ("warning", memcached.url)
    assert "reads do without it" in finding["remedy"]
    memcached.start()


def test_show_and_explain_tell_what_is_in_it(line: Line) -> None:
    line.shell.enqueue()
    assert line.json("cache", "show", "product", "42")["host"] == "nothing"
    line("cache", "get", "product", "42")
    for _ in range(3):
        line("cache", "invalidate", "product", "42")
        line("cache", "get", "product", "42")

    assert "host tier" in line("cache", "show", "product", "42").stdout


def test_a_worker_says_which_it_uses(line: Line, memcached: MemcachedServer) -> None:
    told = line("worker", "shop:app", "--burst")
    said = told.stdout + told.stderr
    assert f"host tier  {memcached.url}" in said
    assert "local, host and shared tiers" in said


def test_a_wrong_address_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"host_tier='localhost:11211' names no memcached: give unix:///"):
        Selaras(f"sqlite:///{tmp_path}/selaras.db", host_tier="localhost:11211")
