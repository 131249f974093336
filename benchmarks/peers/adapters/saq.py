"""uvloop, concurrency 20 (for I/O: 100), ttl=-1 (no result is kept); its batches are made one by one."""
# /// script
# dependencies = ["saq[redis,hiredis]", "typing-extensions", "uvloop", "cashews[redis]"]
# [tool.peer]
# lease_is = "heartbeat=2 and retries=2 of the job, sweep each second"
# jobs = 8000
# ///

import uvloop
from saq import Queue, Worker

from benchmarks.peers import bodies

queue = None


async def noop(context, *, arguments):
    await bodies.noop(*arguments)


async def io(context, *, arguments):
    await bodies.io(*arguments)


async def lookup(context, *, arguments):
    await bodies.lookup(*arguments)


async def zombie(context, *, arguments):
    await bodies.zombie(*arguments)


async def open():
    global queue
    queue = Queue.from_url(bodies.URL, name="peers", max_concurrent_ops=100)
    await queue.connect()


async def close():
    await queue.disconnect()


async def enqueue(load, *arguments):
    lease = {"heartbeat": int(bodies.LEASE), "retries": 2} if bodies.LEASE else {}
    await queue.enqueue(load, arguments=arguments, ttl=-1, **lease)


def work(load):
    async def run():
        await open()
        sweep = {"timers": {"sweep": 1}} if bodies.LEASE else {}
        slots = 20 if load == "noop" else 100
        await Worker(queue, functions=[noop, io, lookup, zombie], concurrency=slots, **sweep).start()

    uvloop.run(run())
