"""As it comes: uvloop, one partition, every feature on; a lookup is a strict read of a cached family, and its writer declares what it writes."""
# /// script
# dependencies = ["-e {root}[uvloop,redis]", "redis", "hiredis"]
# [tool.peer]
# lease_is = "SELARAS_LEASE=2"
# jobs = 60000
# ///

import os
import sys
import time
from pathlib import Path

from benchmarks.peers import bodies, lookups
from selaras import Selaras

if bodies.LEASE:
    os.environ |= {"SELARAS_LEASE": str(bodies.LEASE), "SELARAS_HEARTBEAT": str(bodies.LEASE / 4)}
app = Selaras(bodies.URL)
cached = os.environ.get("PEERS_CACHE") == "selaras"


@app.resource
async def opened():
    yield lookups.Datastore(), lookups.Ledger()


@app.cached(ttl=lookups.SHARED_SECONDS)
async def row(id: int) -> tuple[int, str]:
    datastore, _ = await opened()
    return await datastore.select(id)


@app.task
async def noop(number: int) -> None:
    bodies.ran(number)


@app.task
async def io(number: int) -> None:
    await bodies.io(number)


@app.task
async def zombie(number: int) -> None:
    await bodies.zombie(number)


@app.task
async def look(number: int, id: int) -> None:
    datastore, ledger = await opened()
    began = time.monotonic_ns()
    # The ledger counts from here on; what a plain `row(id)` promises counts from the job's claim, a few milliseconds ago.
    version, _ = await (row.key(id).get(fresh="strict") if cached else datastore.select(id))
    ledger.saw(began, id, version, wrote=False)
    bodies.ran(number)


@app.task(writes=[row] if cached else [])
async def change(number: int, id: int) -> None:
    datastore, ledger = await opened()
    began = time.monotonic_ns()
    version = await datastore.update(id)
    ledger.saw(began, id, version, wrote=True)
    bodies.ran(number)


def call(load, number, *arguments):
    if load != "lookup":
        return {"noop": noop, "io": io, "zombie": zombie}[load].call(number)
    id, writes = arguments
    return (change if writes else look).call(number, id)


async def open():
    await app.__aenter__()


async def close():
    await app.__aexit__(None, None, None)


async def enqueue(load, *arguments):
    await call(load, *arguments).enqueue()


async def enqueue_many(load, many):
    await app.enqueue_many(call(load, *arguments) for arguments in many)


def command(load):
    selaras = str(Path(sys.executable).with_name("selaras"))
    return [selaras, "worker", f"{__name__}:app", "-c", "100", "--log-level", "warning"]
