"""The cached lookup: 1,000 versioned rows in a datastore 1 ms away, and a cache in front of it. Imported in a peer's environment.

A job reads one row; one in ten writes its row and then deletes the row's cache key. PEERS_CACHE says through what:

    none      nothing: each read goes to the datastore
    redis     cache-aside on Redis, by hand: GET, else the datastore and SET for a minute; a writer updates, then DEL
    dict      a local dict of 5 s in front of that, as one sees it everywhere; a writer also drops its own
    cashews   the same by cashews
    tracked   by cashews with its client-side cache, which Redis tells of changes
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import time
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROWS: Final = 1_000
WRITERS: Final = 0.1
CACHE: Final = os.environ.get("PEERS_CACHE", "none")
CACHE_URL: Final = os.environ.get("PEERS_CACHE_URL", "")
DATASTORE: Final = os.environ.get("PEERS_DATASTORE", "")
READS: Final = os.environ.get("PEERS_READS", "")
DELAY_SECONDS: Final = 0.001
LOCAL_SECONDS: Final = 5.0
SHARED_SECONDS: Final = 60

SAW: Final = struct.Struct("<qqiii")
"""When the body began and when it ended (monotonic, in nanoseconds), the row, its version, and whether it wrote."""


def make_datastore(path: Path) -> None:
    """Make it anew, each row at its first version."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    with sqlite3.connect(path) as datastore:
        datastore.execute("pragma journal_mode = wal")
        datastore.execute("create table row (id integer primary key, version integer, content text)")
        datastore.executemany("insert into row values (?, 1, ?)", [(row, "x" * 100) for row in range(ROWS)])
    datastore.close()


class Datastore:
    """The rows. What was read is on its way back for as long as what is written is on its way there."""

    def __init__(self) -> None:
        self._rows = sqlite3.connect(DATASTORE, isolation_level=None, timeout=5, check_same_thread=False)
        self._rows.execute("pragma synchronous = normal")

    async def select(self, row: int) -> tuple[int, str]:
        """Return a row's version and content."""
        found = self._rows.execute("select version, content from row where id = ?", [row]).fetchone()
        await asyncio.sleep(DELAY_SECONDS)
        return int(found[0]), str(found[1])

    async def update(self, row: int) -> int:
        """Write a row; return its new version."""
        await asyncio.sleep(DELAY_SECONDS)
        statement = "update row set version = version + 1 where id = ? returning version"
        found = self._rows.execute(statement, [row]).fetchall()
        return int(found[0][0])


class Ledger:
    """Where each body says what it saw."""

    def __init__(self) -> None:
        self._file = os.open(READS, os.O_WRONLY | os.O_APPEND)

    def saw(self, began: int, row: int, version: int, *, wrote: bool) -> None:
        """Note it; the body ends here."""
        os.write(self._file, SAW.pack(began, time.monotonic_ns(), row, version, wrote))


Read = Callable[[int], Awaitable[int]]
Forget = Callable[[int], Awaitable[Any]]


async def _uncached(datastore: Datastore) -> tuple[Read, Forget]:
    async def read(row: int) -> int:
        return (await datastore.select(row))[0]

    async def forget(row: int) -> None:
        pass

    return read, forget


async def _by_hand(datastore: Datastore) -> tuple[Read, Forget]:
    redis = import_module("redis.asyncio").Redis.from_url(CACHE_URL, max_connections=2_000)

    async def read(row: int) -> int:
        key = f"row:{row}"
        found = await redis.get(key)
        if found is not None:
            return int(found.partition(b":")[0])
        version, content = await datastore.select(row)
        await redis.set(key, f"{version}:{content}", ex=SHARED_SECONDS)
        return version

    async def forget(row: int) -> None:
        await redis.delete(f"row:{row}")

    return read, forget


async def _with_dict(datastore: Datastore) -> tuple[Read, Forget]:
    shared_read, shared_forget = await _by_hand(datastore)
    local: dict[int, tuple[int, float]] = {}

    async def read(row: int) -> int:
        found = local.get(row)
        if found is not None and found[1] > time.monotonic():
            return found[0]
        version = await shared_read(row)
        local[row] = (version, time.monotonic() + LOCAL_SECONDS)
        return version

    async def forget(row: int) -> None:
        await shared_forget(row)
        local.pop(row, None)

    return read, forget


async def _by_cashews(datastore: Datastore) -> tuple[Read, Forget]:
    cashews = import_module("cashews").cache
    # Under RESP3, the default of redis-py 8, cashews hears no invalidation and does not say so.
    tracked: dict[str, Any] = {"client_side": True, "protocol": 2} if CACHE == "tracked" else {}
    cashews.setup(CACHE_URL, suppress=False, max_connections=2_000, **tracked)
    await cashews.init()

    async def read(row: int) -> int:
        key = f"row:{row}"
        found = await cashews.get(key)
        if found is None:
            found = await datastore.select(row)
            await cashews.set(key, found, expire=SHARED_SECONDS)
        return int(found[0])

    async def forget(row: int) -> None:
        await cashews.delete(f"row:{row}")

    return read, forget


_CACHES: Final[dict[str, Callable[[Datastore], Awaitable[tuple[Read, Forget]]]]] = {
    "none": _uncached,
    "redis": _by_hand,
    "dict": _with_dict,
    "cashews": _by_cashews,
    "tracked": _by_cashews,
}


class _Opened:
    """What the lookups of one process share."""

    def __init__(self, datastore: Datastore, read: Read, forget: Forget) -> None:
        self.datastore, self.read, self.forget, self.ledger = datastore, read, forget, Ledger()


async def _open() -> _Opened:
    datastore = Datastore()
    return _Opened(datastore, *await _CACHES[CACHE](datastore))


@cache
def _opening() -> asyncio.Task[_Opened]:
    return asyncio.get_running_loop().create_task(_open())


async def lookup(row: int, writes: bool) -> None:
    """Read a row, or write it and delete its cache key."""
    opened = await asyncio.shield(_opening()) if not _opening().done() else _opening().result()
    began = time.monotonic_ns()
    if writes:
        version = await opened.datastore.update(row)
        await opened.forget(row)
    else:
        version = await opened.read(row)
    opened.ledger.saw(began, row, version, wrote=writes)
