"""-P solo (for I/O: -P gevent -c 100), prefetch 64; no results, gossip, mingle or heartbeat."""
# /// script
# dependencies = ["celery[redis]", "gevent", "hiredis"]
# [tool.peer]
# lease_is = "visibility_timeout=2, with acks_late"
# waits = false
# ///

import sys
from pathlib import Path

from celery import Celery

from benchmarks.peers import bodies

app = Celery("peers", broker=bodies.URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)
if bodies.LEASE:
    app.conf.update(task_acks_late=True, broker_transport_options={"visibility_timeout": bodies.LEASE})
tasks = {
    "noop": app.task(name="noop")(bodies.blocking_noop),
    "io": app.task(name="io")(bodies.blocking_io),
    "zombie": app.task(name="zombie")(bodies.blocking_zombie),
}


async def open():
    app.connection_for_write().ensure_connection()


async def close(): ...


async def enqueue(load, *arguments):
    tasks[load].apply_async(arguments)


def command(load):
    pool = ["-P", "gevent", "-c", "100", "--prefetch-multiplier", "4"] if load == "io" else ["-P", "solo"]
    quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    celery = str(Path(sys.executable).with_name("celery"))
    return [celery, "-A", f"{__name__}:app", "worker", *pool, *quiet, "-n", f"peers{bodies.WORKER}"]
