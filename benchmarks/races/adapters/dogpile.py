"""Redis with distributed locks; `get_or_create`."""
# /// script
# dependencies = ["dogpile.cache", "redis"]
# [tool.peer]
# shown = ["dogpile.cache", "redis"]
# ///

import asyncio
from contextlib import asynccontextmanager

from dogpile.cache import make_region

from benchmarks.races.byhand import ByHand

LOCAL = ALONE = False
TTL_S = 1.0


class Client(ByHand):
    def __init__(self, url, name, load):
        self.name, self.load, self.url = name, load, url
        self.region = self._region(60)

    def _region(self, lock_timeout):
        options = {"url": self.url, "distributed_lock": True, "lock_timeout": lock_timeout, "thread_local_lock": False}
        return make_region().configure("dogpile.cache.redis", expiration_time=300, arguments=options)

    async def get(self, key="row"):
        loop = asyncio.get_running_loop()

        def create():
            return asyncio.run_coroutine_threadsafe(self.load(), loop).result()

        return await asyncio.to_thread(self.region.get_or_create, f"{self.name}:{key}", create)

    async def put(self, value):
        await asyncio.to_thread(self.region.set, f"{self.name}:row", value)

    async def delete(self):
        await asyncio.to_thread(self.region.delete, f"{self.name}:row")

    @asynccontextmanager
    async def lock(self, seconds):
        mutex = self._region(seconds).backend.get_mutex(f"{self.name}:lock")
        await asyncio.to_thread(mutex.acquire)
        try:
            yield
        finally:
            await asyncio.to_thread(mutex.release)

    async def close(self):
        pass


async def open(url, name, load):
    return Client(url, name, load)
