"""Which client brings scripts to Redis fastest: those that are installed, side by side with our own connection.

    python -m benchmarks.clients redis://localhost:6379      with redis, coredis or valkey-glide installed beside

Each run is a process of its own; rounds are interleaved, the table says medians. One call is one small EVALSHA.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from hashlib import sha1
from importlib.util import find_spec
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

ROUNDS: Final = 5
AT_ONCE: Final = 100
CALLS: Final = 10_000
TEXT: Final = "return redis.call('INCR', KEYS[1])"
SHA: Final = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
KEY: Final = "selaras-bench:{selaras-bench.0}:count"

Call = Callable[[], Awaitable[Any]]
Connected = tuple[Call, Callable[[int], Awaitable[Any]]]
"""One call, and a pipeline of so many."""


class Script(NamedTuple):
    """What is called."""

    name: str = "incr"
    text: str = TEXT
    sha: str = SHA
    keys: tuple[str, ...] = ("count",)


def link_to(url: str) -> Any:
    """Return our own connection to a server."""
    from selaras._stores.redis.address import Names, redis_address
    from selaras._stores.redis.context import Common
    from selaras._stores.redis.link import Link
    from selaras._stores.redis.topology import topology_of

    async def greet(greeting: Any) -> None:
        """Nothing is needed."""

    address, names = redis_address(url), Names("selaras-bench")
    return Link(Common(address, names, topology_of(address, names, 1), 1, Random(), greet))


async def ours(url: str) -> Connected:
    """Our own connection."""
    link, script = link_to(url), Script()

    async def pipeline(count: int) -> None:
        await link.pipeline(0, [("EVALSHA", SHA, 1, KEY)] * count)

    return (lambda: link.call(0, script, ())), pipeline


async def redis_py(url: str) -> Connected:
    """The client of Redis, with its pool."""
    client = importlib.import_module("redis.asyncio").Redis.from_url(url, max_connections=2 * AT_ONCE)

    async def pipeline(count: int) -> None:
        async with client.pipeline(transaction=False) as pipe:
            for _ in range(count):
                pipe.evalsha(SHA, 1, KEY)
            await pipe.execute()

    return (lambda: client.evalsha(SHA, 1, KEY)), pipeline


async def coredis(url: str) -> Connected:
    """Another one in Python."""
    client = importlib.import_module("coredis").Redis.from_url(url)
    await client.__aenter__()  # until the process ends

    async def pipeline(count: int) -> None:
        async with client.pipeline(transaction=False) as pipe:
            for _ in range(count):
                pipe.evalsha(SHA, keys=[KEY])

    return (lambda: client.evalsha(SHA, keys=[KEY])), pipeline


async def glide(url: str) -> Connected:
    """The client of Valkey, in Rust."""
    api = importlib.import_module("glide")
    parts = urlsplit(url)
    where = api.NodeAddress(parts.hostname or "localhost", parts.port or 6379)
    client = await api.GlideClient.create(api.GlideClientConfiguration([where], request_timeout=5_000))
    script = api.Script(TEXT)

    async def pipeline(count: int) -> None:
        batch = api.Batch(is_atomic=False)
        for _ in range(count):
            batch.custom_command(["EVALSHA", SHA, "1", KEY])
        await client.exec(batch, raise_on_error=True)

    return (lambda: client.invoke_script(script, keys=[KEY])), pipeline


CLIENTS: Final = {
    "ours": ("hiredis", ours),
    "redis-py": ("redis", redis_py),
    "coredis": ("coredis", coredis),
    "glide": ("glide", glide),
}


async def measure(name: str, url: str) -> dict[str, tuple[float, float]]:
    """Return calls a second and processor time a call, in us, of each pattern."""
    call, pipeline = await CLIENTS[name][1](url)
    await call()

    async def one_after_another() -> None:
        for _ in range(CALLS // 4):
            await call()

    async def at_once() -> None:
        async def some() -> None:
            for _ in range(CALLS // AT_ONCE):
                await call()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def in_pipelines() -> None:
        for _ in range(2 * CALLS // AT_ONCE):
            await pipeline(AT_ONCE)

    patterns: tuple[tuple[Call, int], ...] = (
        (one_after_another, CALLS // 4),
        (at_once, CALLS),
        (in_pipelines, 2 * CALLS),
    )
    measured: dict[str, tuple[float, float]] = {}
    for pattern, calls in patterns:
        await pipeline(AT_ONCE)
        began, busy = time.perf_counter(), time.process_time()
        await pattern()
        took, used = time.perf_counter() - began, time.process_time() - busy
        measured[getattr(pattern, "__name__", "")] = calls / took, used / calls * 1e6
    return measured


@click.command()
@click.argument("url", default="redis://localhost:6379")
@click.option("--only", help="one client, in this process, as JSON")
@click.option("--rounds", default=ROUNDS, show_default=True)
def main(url: str, only: str | None, rounds: int) -> None:
    """Measure the clients that are installed."""
    if only:
        run = importlib.import_module("uvloop").run if find_spec("uvloop") else asyncio.run
        print(json.dumps(run(measure(only, url))))
        return
    names = [name for name, (module, _) in CLIENTS.items() if find_spec(module)]
    # Loads the script: EVALSHA alone would not.
    subprocess.run([sys.executable, "-m", "benchmarks.clients", url, "--only", "ours"], check=True, capture_output=True)
    found: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            command = [sys.executable, "-m", "benchmarks.clients", url, "--only", name]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            found[name].append(json.loads(said.splitlines()[-1]))
    print(
        "| client | one after another /s (us) | 100 at once /s (us) | pipelines of 100 /s (us) |\n| --- | --- | --- | --- |"
    )
    for name, runs in found.items():
        cells = []
        for pattern in runs[0]:
            rate, used = (statistics.median(run[pattern][i] for run in runs) for i in (0, 1))
            cells.append(f"{rate:,.0f} ({used:.1f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
