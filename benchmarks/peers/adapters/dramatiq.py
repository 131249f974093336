"""One process of 2 threads and a prefetch of 200 (for I/O: 64 and 2,000; the defaults, 8 and 16, are slower); no results; lookups by its AsyncIO middleware."""
# /// script
# dependencies = ["dramatiq[redis]", "hiredis", "cashews[redis]", "uvloop"]
# [tool.peer]
# lease_is = "heartbeat_timeout=2000, always maintained"
# jobs = 12000
# ///

import os
import sys
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO

from benchmarks.peers import bodies

lease = {"heartbeat_timeout": int(bodies.LEASE * 1e3), "maintenance_chance": 1_000_000} if bodies.LEASE else {}
broker = RedisBroker(url=bodies.URL, **lease)
if os.environ.get("PEERS_LOAD") == "lookup":
    broker.add_middleware(AsyncIO())
    dramatiq.set_broker(broker)
    tasks = {"lookup": dramatiq.actor(queue_name="peers", max_retries=0)(bodies.lookup)}
else:
    dramatiq.set_broker(broker)
    tasks = {
        "noop": dramatiq.actor(queue_name="peers", max_retries=0)(bodies.blocking_noop),
        "io": dramatiq.actor(queue_name="peers", max_retries=0)(bodies.blocking_io),
        "zombie": dramatiq.actor(queue_name="peers", max_retries=0)(bodies.blocking_zombie),
    }


async def open():
    broker.client.ping()


async def close(): ...


async def enqueue(load, *arguments):
    tasks[load].send(*arguments)


def command(load):
    os.environ["dramatiq_queue_prefetch"] = "2000" if load == "io" else "200"  # noqa: SIM112 - its own spelling
    threads = {"noop": "2", "io": "64", "lookup": "32", "zombie": "2"}[load]
    dramatiq = str(Path(sys.executable).with_name("dramatiq"))
    return [dramatiq, __name__, "-p", "1", "-t", threads, "-Q", "peers", "--skip-logging"]
