"""uvloop, concurrency 20 (for I/O: 100), ttl=-1 (no result is kept); its batches are made one by one."""
# /// script
# dependencies = ["saq[redis,hiredis]", "typing-extensions", "uvloop", "cashews[redis]"]
# [tool.peer]
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


async def open():
    global queue
    queue = Queue.from_url(bodies.URL, name="peers", max_concurrent_ops=100)
    await queue.connect()


async def close():
    await queue.disconnect()


async def enqueue(load, *arguments):
    await queue.enqueue(load, arguments=arguments, ttl=-1)


def work(load):
    async def run():
        await open()
        await Worker(queue, functions=[noop, io, lookup], concurrency=20 if load == "noop" else 100).start()

    uvloop.run(run())
