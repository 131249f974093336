"""Without its client-side cache: each read asks Redis."""
# /// script
# dependencies = ["cashews[redis]"]
# [tool.peer]
# shown = ["cashews", "redis"]
# ///

import os

from cashews import Cache

from benchmarks.races.byhand import ByHand

LOCAL = ALONE = False
TTL_S = 1.0
OPTIONS: dict[str, object] = {}


class Client(ByHand):
    def __init__(self, cache, name, load):
        self.cache, self.name, self.load = cache, name, load
        self.ttl = TTL_S if name == "t3" else 300

    async def get(self, key="row"):
        found = await self.cache.get(f"{self.name}:{key}")
        if found is None:
            found = await self.load()
            await self.cache.set(f"{self.name}:{key}", found, expire=self.ttl)
        return found

    async def put(self, value):
        await self.cache.set(f"{self.name}:row", value, expire=self.ttl)

    async def delete(self):
        await self.cache.delete(f"{self.name}:row")

    def lock(self, seconds):
        return self.cache.lock(f"{self.name}:lock", expire=seconds)

    async def close(self):
        await self.cache.close()


async def open(url, name, load, **options):
    cache = Cache()
    cache.setup(url, suppress=os.environ.get("RACES_SUPPRESS") == "1", **options)
    await cache.init()
    return Client(cache, name, load)
