"""How soon an invalidation is heard, run in Selaras' environment: `python -m benchmarks.peers.heard watch`, or `tell COUNT WATCHERS`.

Watchers read a cached value once a millisecond, and note when it changed; a teller changes it and invalidates its key.
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
from pathlib import Path
from typing import Final

from benchmarks.peers import bodies
from selaras import Selaras

app = Selaras(bodies.URL)
_VERSION: Final = struct.Struct("<q")
_FILE: Final = Path(os.environ.get("PEERS_VERSION", os.devnull))
_GAP_SECONDS: Final = (0.02, 0.04)


@app.cached
async def version(id: int) -> int:
    """Read the file that stands for a datastore."""
    return int(_VERSION.unpack(_FILE.read_bytes())[0])


async def watch() -> None:
    """Note every change, until told to stop."""
    async with app:
        seen = -1
        while True:
            now = await version(0)
            if now > seen:
                bodies.ran(now)
                seen = now
            await asyncio.sleep(0.001)


async def tell(count: int, watchers: int) -> dict[str, float]:
    """Change the value so many times; return how long it took until a watcher knew, from the call of `invalidate`."""
    sent = [0]
    async with app:
        await asyncio.sleep(1)  # the watchers have only just begun
        for number in range(1, count + 1):
            await asyncio.sleep(random.uniform(*_GAP_SECONDS))
            with _FILE.open("r+b") as file:
                file.write(_VERSION.pack(number))
            sent.append(time.monotonic_ns())
            await version.key(0).invalidate()
        await asyncio.sleep(2)
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, number, watcher in bodies.RAN.iter_unpack(Path(bodies.LEDGER).read_bytes()):
        seen[watcher].append((number, at))
    took = []
    for found in seen.values():
        numbers = [number for number, _ in found]
        took += [(found[bisect_left(numbers, number)][1] - sent[number]) / 1e6 for number in range(1, count + 1)]
    took.sort()
    assert len(seen) == watchers
    return {"heard_p50": took[len(took) // 2], "heard_p99": took[int(len(took) * 0.99)]}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch"]:
            asyncio.run(watch())
        case ["tell", count, watchers]:
            print(json.dumps(asyncio.run(tell(int(count), int(watchers)))))
        case _:
            raise SystemExit(__doc__)
