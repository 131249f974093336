"""uvloop, concurrency 100, ttl=0 (no result is kept), silent; in batches by enqueue_many, a pipeline."""
# /// script
# dependencies = ["streaq", "uvloop", "redis", "hiredis", "cashews[redis]"]
# [tool.peer]
# lease_is = "idle_timeout=2"
# ///

import logging

from streaq import Worker

from benchmarks.peers import bodies

lease = {"idle_timeout": bodies.LEASE} if bodies.LEASE else {}
worker = Worker(redis_url=bodies.URL, concurrency=100, anyio_kwargs={"use_uvloop": True}, **lease)
logging.getLogger("streaq").setLevel(logging.ERROR)
once = {"ttl": 0, "silent": True}


@worker.task(**once)
async def noop(number: int):
    await bodies.noop(number)


@worker.task(**once)
async def io(number: int):
    await bodies.io(number)


@worker.task(**once)
async def lookup(number: int, row: int, writes: int):
    await bodies.lookup(number, row, writes)


@worker.task(**once)
async def zombie(number: int):
    await bodies.zombie(number)


tasks = {"noop": noop, "io": io, "lookup": lookup, "zombie": zombie}


async def open():
    await worker.__aenter__()


async def close():
    await worker.__aexit__(None, None, None)


async def enqueue(load, *arguments):
    await tasks[load].enqueue(*arguments)


async def enqueue_many(load, many):
    await worker.enqueue_many([tasks[load].enqueue(*arguments) for arguments in many])


def work(load):
    worker.run_sync()
