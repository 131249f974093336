"""Cache-aside as one writes it by hand: look, load, store; commit, delete."""

from __future__ import annotations

import asyncio
import sqlite3
from asyncio import Future, StreamReader, StreamWriter
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from benchmarks.races.load import BURST, Load

TTL_S = 300


class Shared(Protocol):
    """A cache that all processes share."""

    async def get(self, key: str) -> int | None:
        """Return what stands there."""
        ...

    async def set(self, key: str, value: int) -> None:
        """Store a value."""
        ...

    async def delete(self, key: str) -> None:
        """Delete it."""
        ...


class InFile:
    """A table in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._db.execute("pragma synchronous = normal")

    @staticmethod
    def make(path: Path) -> None:
        """Make the table. A file that others open, too, is refused its write-ahead log, and no patience helps."""
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("pragma journal_mode = wal")
            db.execute("create table if not exists cache (key text primary key, value integer) without rowid")

    async def get(self, key: str) -> int | None:
        """See `Shared`."""
        row = self._db.execute("select value from cache where key = ?", [key]).fetchone()
        return None if row is None else int(row[0])

    async def set(self, key: str, value: int) -> None:
        """See `Shared`."""
        self._db.execute("insert or replace into cache values (?, ?)", [key, value])

    async def delete(self, key: str) -> None:
        """See `Shared`."""
        self._db.execute("delete from cache where key = ?", [key])


class OnServer:
    """Keys on a server of Redis or Valkey; requests of all tasks go down one connection, one behind the other."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, prefix: str) -> None:
        self._reader, self._writer, self._prefix = reader, writer, prefix
        self._waiting: deque[Future[Any]] = deque()
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def connect(cls, url: str, prefix: str) -> OnServer:
        """Connect to the server of a plain URL."""
        where = urlsplit(url)
        reader, writer = await asyncio.open_connection(where.hostname or "localhost", where.port or 6379)
        server = cls(reader, writer, prefix)
        if where.password:
            await server.call("AUTH", where.username or "default", where.password)
        await server.call("SELECT", where.path.strip("/") or "0")
        return server

    async def call(self, *words: str) -> Any:
        """Send a command; return its reply."""
        reply: Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        encoded = [word.encode() for word in words]
        parts = (b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        self._writer.write(b"*%d\r\n" % len(words) + b"".join(parts))
        return await reply

    async def _listen(self) -> None:
        while True:
            reply = await self._read()
            waiting = self._waiting.popleft()
            if isinstance(reply, Exception):
                waiting.set_exception(reply)
            else:
                waiting.set_result(reply)

    async def _read(self) -> Any:
        line = (await self._reader.readline()).rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return None if rest == b"-1" else (await self._reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"*":
            return [await self._read() for _ in range(int(rest))]
        return RuntimeError(rest.decode()) if kind == b"-" else rest

    async def get(self, key: str) -> int | None:
        """See `Shared`."""
        value = await self.call("GET", self._prefix + key)
        return None if value is None else int(value)

    async def set(self, key: str, value: int) -> None:
        """See `Shared`."""
        await self.call("SET", self._prefix + key, str(value), "EX", str(TTL_S))

    async def delete(self, key: str) -> None:
        """See `Shared`."""
        await self.call("DEL", self._prefix + key)

    async def clear(self) -> None:
        """Delete all keys of the prefix."""
        cursor = "0"
        while True:
            told, keys = await self.call("SCAN", cursor, "MATCH", f"{self._prefix}*", "COUNT", "1000")
            cursor = told.decode()
            if keys:
                await self.call("UNLINK", *(key.decode() for key in keys))
            if cursor == "0":
                return


def make_shared(url: str) -> None:
    """Let the cache be there, before the processes are."""
    if url.startswith("sqlite:///"):
        InFile.make(_file_beside(url))


def _file_beside(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).with_name("naive.db")


async def open_shared(url: str, prefix: str) -> Shared:
    """Open the cache that a store's URL stands for."""
    if url.startswith("sqlite:///"):
        return InFile(_file_beside(url))
    return await OnServer.connect(url, prefix)


async def race(load: Load) -> None:
    """Read and write until the run is over."""
    cache = await open_shared(load.plan.url, load.plan.prefix)
    async with asyncio.TaskGroup() as group:
        for _ in range(load.plan.readers):
            group.create_task(_read(load, cache))
        for _ in range(load.plan.writers):
            group.create_task(_write(load, cache))


async def _read(load: Load, cache: Shared) -> None:
    chance, floors = load.chance(), load.ground.acknowledged
    while not load.ground.over:
        for _ in range(BURST):
            row = load.row(chance)
            floor, key = floors[row], f"row:{row}"
            version = await cache.get(key)
            if version is None:
                version = await load.select(row, chance)
                await cache.set(key, version)
            load.judge(row, floor, version, "a read")
        await load.pause(chance)


async def _write(load: Load, cache: Shared) -> None:
    chance = load.chance()
    while not load.ground.over:
        await asyncio.sleep(chance.expovariate(1 / load.plan.pause_s))
        row = load.row(chance)
        await load.wait(chance)
        version = load.ground.commit(row)
        await load.wait(chance)
        await cache.delete(f"row:{row}")
        load.acknowledged(row, version)
