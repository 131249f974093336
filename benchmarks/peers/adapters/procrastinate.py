"""psycopg 3, concurrency 100, delete_jobs=always; in batches by batch_defer_async, one statement; synchronous_commit=off."""
# /// script
# dependencies = ["procrastinate", "psycopg[binary,pool]", "redis", "hiredis", "cashews[redis]"]
# [tool.peer]
# lease_is = "update_heartbeat_interval=0.5, stalled_worker_timeout=2; a periodic task retries stalled jobs each second, as its pages say"
# jobs = 2500
# store = "postgresql"
# ///

import asyncio

from procrastinate import App, PsycopgConnector

from benchmarks.peers import bodies

app = App(connector=PsycopgConnector(conninfo=bodies.URL, min_size=4, max_size=20))
tasks = {}
for load in ("noop", "io", "lookup", "zombie"):

    @app.task(name=load)
    async def task(arguments, body=getattr(bodies, load)):
        await body(*arguments)

    tasks[load] = task


if bodies.LEASE:

    @app.periodic(cron="* * * * * */1")
    @app.task(queueing_lock="retry_stalled", pass_context=True)
    async def retry_stalled(context, timestamp):
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=bodies.LEASE):
            await app.job_manager.retry_job(job)


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
            lease = {"update_heartbeat_interval": bodies.LEASE / 4, "stalled_worker_timeout": bodies.LEASE}
            await app.run_worker_async(concurrency=100, delete_jobs="always", **(lease if bodies.LEASE else {}))

    asyncio.run(run())
