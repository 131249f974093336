"""Redis, JSON; locks by its RedLock."""
# /// script
# dependencies = ["aiocache[redis]"]
# [tool.peer]
# shown = ["aiocache", "redis"]
# ///

from urllib.parse import urlsplit

from aiocache import Cache
from aiocache.lock import RedLock
from aiocache.serializers import JsonSerializer

from benchmarks.races.byhand import ByHand

LOCAL = ALONE = False
TTL_S = 1.0


class Client(ByHand):
    def __init__(self, cache, name, load):
        self.cache, self.name, self.load = cache, name, load

    async def get(self, key="row"):
        found = await self.cache.get(f"{self.name}:{key}")
        if found is None:
            found = await self.load()
            await self.cache.set(f"{self.name}:{key}", found, ttl=300)
        return found

    async def put(self, value):
        await self.cache.set(f"{self.name}:row", value, ttl=300)

    async def delete(self):
        await self.cache.delete(f"{self.name}:row")

    def lock(self, seconds):
        return RedLock(self.cache, f"{self.name}:lock", lease=seconds)

    async def close(self):
        await self.cache.close()


async def open(url, name, load):
    where = urlsplit(url)
    cache = Cache(Cache.REDIS, endpoint=where.hostname, port=where.port, serializer=JsonSerializer())
    return Client(cache, name, load)
