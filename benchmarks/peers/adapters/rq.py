"""SimpleWorker (the default one forks for each job), result_ttl=0; in batches by enqueue_many, a pipeline."""
# /// script
# dependencies = ["rq", "hiredis"]
# [tool.peer]
# lease = 0
# lease_is = "none below a minute: the job's timeout and 60 s"
# jobs = 1500
# waits = false
# ///

import sys
from pathlib import Path

from rq import Queue

from benchmarks.peers import bodies
from redis import Redis

queue = Queue("peers", connection=Redis.from_url(bodies.URL))
tasks = {"noop": bodies.blocking_noop, "io": bodies.blocking_io, "zombie": bodies.blocking_zombie}


async def open():
    queue.connection.ping()


async def close(): ...


async def enqueue(load, *arguments):
    queue.enqueue(tasks[load], args=arguments, result_ttl=0)


async def enqueue_many(load, many):
    queue.enqueue_many([Queue.prepare_data(tasks[load], args=arguments, result_ttl=0) for arguments in many])


def command(load):
    rq = str(Path(sys.executable).with_name("rq"))
    return [rq, "worker", "-w", "rq.worker.SimpleWorker", "-q", "--disable-job-desc-logging", "-u", bodies.URL, "peers"]
