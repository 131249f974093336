"""uvloop, concurrency 20 (for I/O: 100), execution_ttl=0, minimum_check_interval of 5 ms (its default, 250 ms, caps it at 80 jobs a second); in batches by add_many."""
# /// script
# dependencies = ["pydocket", "hiredis", "uvloop", "cashews[redis]"]
# [tool.peer]
# lease_is = "redelivery_timeout=2 s"
# jobs = 8000
# shown = ["pydocket"]
# ///

from datetime import timedelta

import uvloop
from docket import Docket, Worker

from benchmarks.peers import bodies

docket = None


async def noop(number: int):
    await bodies.noop(number)


async def io(number: int):
    await bodies.io(number)


async def lookup(number: int, row: int, writes: int):
    await bodies.lookup(number, row, writes)


async def zombie(number: int):
    await bodies.zombie(number)


tasks = {"noop": noop, "io": io, "lookup": lookup, "zombie": zombie}


async def open():
    global docket
    docket = Docket(name="peers", url=f"{bodies.URL}?max_connections=1000", execution_ttl=timedelta(0))
    await docket.__aenter__()
    for task in tasks.values():
        docket.register(task)


async def close():
    await docket.__aexit__(None, None, None)


async def enqueue(load, *arguments):
    await docket.add(tasks[load])(*arguments)


async def enqueue_many(load, many):
    await docket.add_many([docket.call(tasks[load])(*arguments) for arguments in many])


def work(load):
    async def run():
        await open()
        often = timedelta(milliseconds=5)
        lease = {"redelivery_timeout": timedelta(seconds=bodies.LEASE)} if bodies.LEASE else {}
        slots = 20 if load == "noop" else 100
        async with Worker(docket, concurrency=slots, minimum_check_interval=often, **lease) as worker:
            await worker.run_forever()

    uvloop.run(run())
