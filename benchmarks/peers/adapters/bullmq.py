"""Its Python port: uvloop, concurrency 100, removeOnComplete; in batches by addBulk, a pipeline."""
# /// script
# dependencies = ["bullmq", "hiredis", "uvloop", "cashews[redis]"]
# [tool.peer]
# lease_is = "lockDuration=2000, stalledInterval=1000"
# jobs = 6000
# ///

import uvloop
from bullmq import Queue, Worker

from benchmarks.peers import bodies

queue = None
once = {"removeOnComplete": True}


async def open():
    global queue
    queue = Queue("peers", {"connection": bodies.URL})


async def close():
    await queue.close()


async def enqueue(load, *arguments):
    await queue.add(load, {"arguments": arguments}, once)


async def enqueue_many(load, many):
    await queue.addBulk([{"name": load, "data": {"arguments": arguments}, "opts": once} for arguments in many])


async def process(job, token):
    await getattr(bodies, job.name)(*job.data["arguments"])


def work(load):
    async def run():
        lease = {"lockDuration": bodies.LEASE * 1e3, "stalledInterval": bodies.LEASE * 500} if bodies.LEASE else {}
        worker = Worker("peers", process, {"connection": bodies.URL, "concurrency": 100, "autorun": False, **lease})
        await worker.run()

    uvloop.run(run())
