"""uvloop, max_jobs=100, keep_result=0, msgpack; poll_delay of 5 ms (with its default, half a second, that is its latency)."""
# /// script
# dependencies = ["arq", "hiredis", "uvloop", "msgspec", "cashews[redis]"]
# [tool.peer]
# lease = 12
# lease_is = "job_timeout=2; the lease is 10 s longer"
# jobs = 6000
# ///

import asyncio

import msgspec
import uvloop
from arq import Worker, create_pool
from arq.connections import RedisSettings

from benchmarks.peers import bodies

settings = RedisSettings.from_dsn(bodies.URL)
codec = {"job_serializer": msgspec.msgpack.encode, "job_deserializer": msgspec.msgpack.decode}


async def noop(context, *arguments):
    await bodies.noop(*arguments)


async def io(context, *arguments):
    await bodies.io(*arguments)


async def lookup(context, *arguments):
    await bodies.lookup(*arguments)


async def zombie(context, *arguments):
    await bodies.zombie(*arguments)


async def open():
    global pool
    pool = await create_pool(settings, **codec)


async def close():
    await pool.aclose()


async def enqueue(load, *arguments):
    await pool.enqueue_job(load, *arguments)


def work(load):
    asyncio.set_event_loop(uvloop.new_event_loop())
    functions = [noop, io, lookup, zombie]
    once = {"max_jobs": 100, "keep_result": 0, "poll_delay": 0.005, "log_results": False}
    if bodies.LEASE:
        once["job_timeout"] = bodies.LEASE - 10
    Worker(functions, redis_settings=settings, **once, **codec).run()
