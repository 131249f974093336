"""The same airline with a cache made by hand, as most programs have it: look aside, write, delete the key.

The queue is the same, and so are the datastore and the arithmetic. What is missing: lines, and a cache that hears of
other processes' writes. Each part is reasonable by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from selaras import Call, Selaras
from selaras.demo.flights import Airport, Flight, Plane, Weather
from selaras.demo.gauges import Reads, reporting
from selaras.demo.ledger import Ledger

V = TypeVar("V")

TTL_S: Final = 60.0

app = Selaras(namespace=os.environ.get("SELARAS_DEMO_NAMESPACE", "naive-airline"))


@app.resource
async def ledger() -> AsyncIterator[Ledger]:
    """The datastore, opened once a process."""
    opened = Ledger(Path(os.environ["SELARAS_DEMO_LEDGER"]))
    with reporting(lambda: Reads(local=cache.hits, loaded=cache.misses)):
        yield opened
    opened.close()


class LocalCache:
    """A dict with a time to live."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self._entries: dict[str, tuple[float, Any]] = {}

    async def get_or_load(self, key: str, load: Callable[[], Awaitable[V]]) -> V:
        """Return the cached value, or load and keep it."""
        expires, value = self._entries.get(key, (0.0, None))
        if time.monotonic() < expires:
            self.hits += 1
            return cast(V, value)
        self.misses += 1
        loaded = await load()
        self._entries[key] = (time.monotonic() + TTL_S, loaded)
        return loaded

    def delete(self, key: str) -> None:
        """Forget a key, here."""
        self._entries.pop(key, None)


cache = LocalCache()


@app.task
async def fly_naively(tailnum: str, number: int, origin: str, dest: str, hour: str, minutes: int, miles: int) -> str:
    """Enter one flight into its plane's record. Returns where the plane stands now."""
    books = await ledger()
    flight = Flight(tailnum, number, origin, dest, hour, minutes, miles)

    record: Plane = await cache.get_or_load(f"plane:{tailnum}", lambda: books.plane(tailnum))
    sky: Weather | None = await cache.get_or_load(f"weather:{origin}:{hour}", lambda: books.weather(origin, hour))
    to: Airport | None = await cache.get_or_load(f"airport:{dest}", lambda: books.airport(dest))
    if record.last < number - 1:
        await books.note_stale_read(flight, record.last)

    await books.overwrite(record.flown(flight, sky, to))
    cache.delete(f"plane:{tailnum}")
    now: Plane = await cache.get_or_load(f"plane:{tailnum}", lambda: books.plane(tailnum))
    return now.stands


def job_of(flight: Flight) -> Call[str]:
    """Return the job of one flight, not enqueued yet."""
    return fly_naively.call(
        flight.tailnum, flight.number, flight.origin, flight.dest, flight.hour, flight.minutes, flight.miles
    )
