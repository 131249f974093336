"""Redis stream broker (the list broker loses what a dead worker held), uvloop, 50 tasks at once (for I/O: 100) and as many prefetched; no results."""
# /// script
# dependencies = ["taskiq[orjson]", "taskiq-redis", "hiredis", "uvloop", "cashews[redis]"]
# [tool.peer]
# lease_is = "idle_timeout=2000"
# jobs = 10000
# shown = ["taskiq", "taskiq-redis"]
# ///

import sys
from pathlib import Path

from taskiq_redis import RedisStreamBroker

from benchmarks.peers import bodies

lease = {"idle_timeout": int(bodies.LEASE * 1e3)} if bodies.LEASE else {}
broker = RedisStreamBroker(bodies.URL, queue_name="peers", consumer_id="0", **lease)
tasks = {load: broker.task(task_name=load)(getattr(bodies, load)) for load in ("noop", "io", "lookup", "zombie")}


async def open():
    await broker.startup()


async def close():
    await broker.shutdown()


async def enqueue(load, *arguments):
    await tasks[load].kiq(*arguments)


def command(load):
    at_once = "50" if load == "noop" else "100"
    taskiq = str(Path(sys.executable).with_name("taskiq"))
    bounds = ["--workers", "1", "--max-async-tasks", at_once, "--max-prefetch", at_once]
    return [taskiq, "worker", f"{__name__}:broker", *bounds, "--no-parse", "--log-level", "WARNING"]
