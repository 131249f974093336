"""asyncpg, uvloop, batch_size=100 (for lookups 50, 100 at once); claims and completions are batched; synchronous_commit=off."""
# /// script
# dependencies = ["pgqueuer[asyncpg]", "uvloop", "redis", "hiredis", "cashews[redis]"]
# [tool.peer]
# lease_is = "heartbeat_timeout=2 s, dequeue_timeout=1 s"
# jobs = 30000
# store = "postgresql"
# ///

import json
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from benchmarks.peers import bodies

connection = queries = None


async def install():
    await open()
    await queries.install()
    await close()


async def open():
    global connection, queries
    connection = await asyncpg.connect(bodies.URL)
    queries = Queries(AsyncpgDriver(connection))


async def close():
    await connection.close()


async def enqueue(load, *arguments):
    await queries.enqueue(load, json.dumps(arguments).encode())


async def enqueue_many(load, many):
    await queries.enqueue([load] * len(many), [json.dumps(one).encode() for one in many], [0] * len(many))


def work(load):
    async def run():
        pg = PgQueuer(AsyncpgDriver(await asyncpg.connect(bodies.URL)))
        body = getattr(bodies, load)

        @pg.entrypoint(load)
        async def process(job):
            await body(*json.loads(job.payload))

        if bodies.LEASE:
            lease = timedelta(seconds=bodies.LEASE)
            await pg.run(batch_size=100, heartbeat_timeout=lease, dequeue_timeout=lease / 2)
        await (pg.run(batch_size=50, max_concurrent_tasks=100) if load == "lookup" else pg.run(batch_size=100))

    uvloop.run(run())
