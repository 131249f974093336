"""psycopg 3, concurrency 100, delete_jobs=always; in batches by batch_defer_async, one statement; synchronous_commit=off."""
# /// script
# dependencies = ["procrastinate", "psycopg[binary,pool]", "redis", "hiredis", "cashews[redis]"]
# [tool.peer]
# jobs = 2500
# store = "postgresql"
# ///

import asyncio

from procrastinate import App, PsycopgConnector

from benchmarks.peers import bodies

app = App(connector=PsycopgConnector(conninfo=bodies.URL, min_size=4, max_size=20))
tasks = {}
for load in ("noop", "io", "lookup"):

    @app.task(name=load)
    async def task(arguments, body=getattr(bodies, load)):
        await body(*arguments)

    tasks[load] = task


async def install():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def open():
    await app.open_async()


async def close():
    await app.close_async()


async def enqueue(load, *arguments):
    await tasks[load].defer_async(arguments=arguments)


async def enqueue_many(load, many):
    await tasks[load].batch_defer_async(*[{"arguments": arguments} for arguments in many])


def work(load):
    async def run():
        async with app.open_async():
            await app.run_worker_async(concurrency=100, delete_jobs="always")

    asyncio.run(run())
