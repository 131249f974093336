"""As it comes; two apps on one store, or one app where the store is memory."""
# /// script
# dependencies = ["-e {root}[redis]"]
# ///

import asyncio
import os
import sys

from selaras import Fail, Selaras

LOCAL = True
ALONE = os.environ.get("RACES_ALONE") == "1"
TTL_S = 1.0


class Client:
    def __init__(self, url, name, load):
        self.url, self.name = url, name
        self.app = app = Selaras(url, namespace=f"races-{name}", retries=0)
        self.waits = {}

        @app.cached(ttl=TTL_S if name == "t3" else 300)
        async def row(key: str) -> int:
            return await load()

        @app.task(writes=row)
        async def change(key: str, fails: bool) -> None:
            await self.waits["change"]()
            if fails:
                raise Fail("rolled back")

        @app.task
        async def look(key: str) -> int:
            return await row(key)

        self.row, self.change, self.look = row, change, look
        self.key = row.key("row")

    async def get(self, key="row"):
        # As of now: a bound of a second, the default outside of jobs, would hide what is forced here.
        return await self.row.key(key).get(fresh="strict")

    async def put(self, value):
        await self.key.put(value)

    async def write(self, commit):
        async with self.key.writing():
            commit()

    async def write_in_transaction(self, meanwhile, commit):
        async with self.key.writing():
            await self.key.invalidate()
            await asyncio.create_task(_apart(meanwhile))
            commit()

    async def commit_and_die(self, commit):
        command = [sys.executable, "-m", __name__, self.url, self.name]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        await child.stdout.readline()
        commit()
        child.kill()
        await child.wait()

    async def commit_and_follow(self, commit, other):
        async def body():
            commit()

        self.waits["change"] = other.waits["change"] = body
        first = await self.change.enqueue("row", False)
        second = await self.look.options(after=[first]).enqueue("row")
        await _work(self, other)
        return await second.result(timeout=10)

    async def enqueue_and_commit(self, commit, other):
        worker = asyncio.create_task(_work(other, seconds=1.5))
        async with self.key.writing():
            job = await self.look.enqueue("row")
            await asyncio.sleep(0.5)
            commit()
        await worker
        return await job.result(timeout=10)

    async def put_and_fail(self, value):
        async def body():
            await self.key.put(value)

        self.waits["change"] = body
        job = await self.change.enqueue("row", True)
        await _work(self)
        assert (await job.info()).state == "failed"

    async def put_late(self, old, commit, new, other):
        first = self.key.writing()
        entered = asyncio.Event()
        goes_on = asyncio.Event()

        async def zombie():
            async with first:
                await self.key.put(old)
                entered.set()
                await goes_on.wait()

        late = asyncio.create_task(zombie())
        await entered.wait()
        async with other.key.writing():
            commit()
            await other.key.put(new)
        goes_on.set()
        await late

    def lock(self, seconds):
        return self.app.lock("races", lease=seconds)

    async def close(self):
        await self.app.close()


async def _apart(read):
    """As code of another request, which is not inside of the writer's scope."""
    from contextvars import Context

    return await asyncio.get_running_loop().create_task(read(), context=Context())


async def _work(*clients, seconds=0.0):
    for client in clients:
        worker = client.app.worker(burst=not seconds)
        if not seconds:
            await worker.run()
            continue
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(seconds)
        worker.stop()
        await running


async def open(url, name, load):
    client = Client(url, name, load)
    await client.app.__aenter__()
    return client


async def _die():
    """Be a writer that is killed inside of its scope."""

    async def load():
        return 0

    client = await open(*sys.argv[1:3], load)
    async with client.key.writing():
        print("planted", flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(_die())
