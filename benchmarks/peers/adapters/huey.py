"""10 greenlets (for I/O: 100), no results, no periodic tasks; jobs are popped, so one that dies with its worker is lost."""
# /// script
# dependencies = ["huey", "redis", "hiredis", "gevent"]
# [tool.peer]
# lease = 0
# lease_is = "none: a job is gone when it is popped"
# jobs = 10000
# waits = false
# ///

import sys
from pathlib import Path

if "greenlet" in sys.argv:  # huey leaves the patching to the program
    from gevent import monkey

    monkey.patch_all()

from huey import RedisHuey

from benchmarks.peers import bodies

huey = RedisHuey("peers", url=bodies.URL, results=False, store_none=False)
tasks = {"noop": huey.task(name="noop")(bodies.blocking_noop), "io": huey.task(name="io")(bodies.blocking_io)}
tasks["zombie"] = huey.task(name="zombie")(bodies.blocking_zombie)


async def open():
    huey.storage.conn.ping()


async def close(): ...


async def enqueue(load, *arguments):
    tasks[load](*arguments)


def command(load):
    consumer = str(Path(sys.executable).with_name("huey_consumer"))
    workers = "100" if load == "io" else "10"
    return [consumer, f"{__name__}.huey", "-k", "greenlet", "-w", workers, "--no-periodic", "--quiet"]
