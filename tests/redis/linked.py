"""A link with scripts of its own: `count` counts, `look` looks, `greet` makes what `count` needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from random import Random
from typing import NamedTuple

from selaras._stores.redis.address import Names, redis_address
from selaras._stores.redis.context import Common, Greeting
from selaras._stores.redis.link import Link
from selaras._stores.redis.topology import topology_of


class Lua(NamedTuple):
    name: str
    text: str
    keys: tuple[str, ...] = ("meta", "count")
    writes: bool = True

    @property
    def sha(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()


COUNT = Lua(
    "count",
    "if redis.call('EXISTS', KEYS[1]) == 0 then return redis.error_reply('SELARASGONE it is') end "
    "redis.call('HSET', KEYS[1], 'last', ARGV[1]) return redis.call('HINCRBY', KEYS[2], 'n', 1)",
)
LOOK = Lua("look", "return {redis.call('HGET', KEYS[2], 'n'), ARGV[1]}")
GREET = Lua(
    "greet",
    "local run = redis.call('HGET', KEYS[1], 'run') "
    "redis.call('HSET', KEYS[1], 'run', ARGV[1]) redis.call('HSET', KEYS[2], '', '') return run",
)


class Greeted(NamedTuple):
    """Who was greeted: the partition, the server's run id, the run id it remembered."""

    partition: int
    run: str
    before: str | None


class World:
    def __init__(self, url: str, partitions: int = 1) -> None:
        self.greeted: list[Greeted] = []
        self.moved: list[int] = []
        address, names = redis_address(url), Names("selaras")
        common = Common(
            address,
            names,
            topology_of(address, names, partitions),
            partitions,
            Random(7),
            self._greet,
            self.moved.append,
        )
        self.link = Link(common)

    async def _greet(self, greeting: Greeting) -> None:
        before = await greeting.call(GREET, [greeting.run_id])
        self.greeted.append(Greeted(greeting.index, greeting.run_id, before and before.decode()))

    async def count(self, index: int = 0, *, repeats: bool = False, replicated: bool | None = None) -> int:
        reply: int = await self.link.call(index, COUNT, ["x"], repeats=repeats, replicated=replicated)
        return reply


@asynccontextmanager
async def world(url: str, partitions: int = 1) -> AsyncIterator[World]:
    made = World(url, partitions)
    await made.link.open()
    yield made
    await made.link.close()
