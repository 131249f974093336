"""How soon an invalidation is heard, run in Selaras' environment: `python -m benchmarks.peers.heard HOW watch`, or `HOW tell COUNT WATCHERS`.

Watchers read a cached value once a millisecond; a teller changes it and invalidates its key. Of each change a watcher
notes when the read began that was the first not to get the old value, and when it had the new one. HOW is `selaras`, or
`bare`: redis-py, a dict, a channel on which the teller says that all of it is void, and no promise at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import bodies

_VERSION: Final = struct.Struct("<q")
_FILE: Final = Path(os.environ.get("PEERS_VERSION", os.devnull))
_GAP_SECONDS: Final = (0.02, 0.04)


def load() -> int:
    """Read the file that stands for a datastore."""
    return int(_VERSION.unpack(_FILE.read_bytes())[0])


class Ours(AsyncExitStack):
    """A cached function."""

    def __init__(self) -> None:
        from selaras import Selaras

        super().__init__()
        self._app = Selaras(bodies.URL)

        @self._app.cached(name="version")
        async def version(id: int) -> int:
            return load()

        self._version = version

    async def __aenter__(self) -> Any:
        await self.enter_async_context(self._app)
        return self

    async def get(self) -> int:
        """Return the value, cached or loaded."""
        return int(await self._version(0))

    async def invalidate(self) -> None:
        """Say that it has changed."""
        await self._version.key(0).invalidate()


class Bare(AsyncExitStack):
    """Made by hand: of what others do at least, nothing is kept but the messages and the trips."""

    def __init__(self) -> None:
        super().__init__()
        self._redis: Any = import_module("redis.asyncio").Redis.from_url(bodies.URL)
        self._local: dict[int, int] = {}

    async def __aenter__(self) -> Any:
        self._told = self._redis.pubsub()
        await self._told.subscribe("void")
        listening = asyncio.create_task(self._listen())
        self.callback(listening.cancel)
        return self

    async def _listen(self) -> None:
        async for _ in self._told.listen():
            self._local.clear()

    async def get(self) -> int:
        """Return the value, cached or loaded."""
        value = self._local.get(0)
        if value is None:
            kept = await self._redis.get("version")
            value = load() if kept is None else int(kept)
            if kept is None:
                await self._redis.set("version", value)
            self._local[0] = value
        return value

    async def invalidate(self) -> None:
        """Say that it has changed."""
        await self._redis.delete("version")
        await self._redis.publish("void", "")


Way = Ours | Bare


async def watch(way: Way) -> None:
    """Note every change, until told to stop."""
    async with way:
        seen = -1
        while True:
            began = time.monotonic_ns()
            now = await way.get()
            if now > seen:
                took_us = (time.monotonic_ns() - began) // 1_000
                bodies.ran(now)
                bodies.ran(bodies.ENDED + took_us)
                seen = now
            await asyncio.sleep(0.001)


async def tell(way: Way, how: str, count: int, watchers: int) -> dict[str, float]:
    """Change the value so many times; return how long it took until a watcher knew, from the call of `invalidate`."""
    sent = [0]
    async with way:
        await asyncio.sleep(1)  # the watchers have only just begun
        for number in range(1, count + 1):
            await asyncio.sleep(random.uniform(*_GAP_SECONDS))
            with _FILE.open("r+b") as file:
                file.write(_VERSION.pack(number))
            sent.append(time.monotonic_ns())
            await way.invalidate()
        await asyncio.sleep(2)
    return {
        f"{how}_{name}_{share}": value
        for name, took in _took(Path(bodies.LEDGER).read_bytes(), sent, watchers).items()
        for share, value in (("p50", took[len(took) // 2]), ("p99", took[int(len(took) * 0.99)]))
    }


def _took(ledger: bytes, sent: list[int], watchers: int) -> dict[str, list[float]]:
    """Return, in milliseconds, how long each watcher was given the old value, and how long it had to wait for the new one."""
    seen: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for at, number, watcher in bodies.RAN.iter_unpack(ledger):
        if number < bodies.ENDED:
            seen[watcher].append((number, at, 0))
        else:
            value, read, _ = seen[watcher][-1]
            seen[watcher][-1] = value, read, read - (number - bodies.ENDED) * 1_000
    assert len(seen) == watchers
    old, new = list[float](), list[float]()
    for found in seen.values():
        numbers = [number for number, _, _ in found]
        for number in range(1, len(sent)):
            _, read, began = found[bisect_left(numbers, number)]
            old.append(max(0, began - sent[number]) / 1e6)
            new.append((read - sent[number]) / 1e6)
    return {"heard": sorted(old), "read": sorted(new)}


def main(how: str, what: str, *arguments: str) -> None:
    """Do one of them."""
    way: Way = Ours() if how == "selaras" else Bare()
    match what, arguments:
        case "watch", []:
            asyncio.run(watch(way))
        case "tell", [count, watchers]:
            print(json.dumps(asyncio.run(tell(way, how, int(count), int(watchers)))))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
