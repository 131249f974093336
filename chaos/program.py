"""What workers and clients run: the demo's airline, and beside it tasks that note all they see.

`CHAOS_FOLDER` says where the ledger is and where notes go, `CHAOS_NAME` under which name.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.history import Left, Notebook, Ran, Read as ReadNote, Wrote, now
from chaos.ledger import Ledger
from selaras import Read, current_job
from selaras._app.process.current import CURRENT, CurrentJob
from selaras._app.values.key import Key
from selaras.demo.airline import app

FOLDER: Final = Path(os.environ["CHAOS_FOLDER"])
NAME: Final = os.environ["CHAOS_NAME"]
SEED: Final = os.environ.get("CHAOS_SEED", "0")
ITEMS: Final = 8
MARKS: Final = 5
LINKS: Final = 40
"""Jobs in a chain; each is enqueued by the one before, and writes the next of a ring of `MARKS` rows."""

GHOST: Final = -1
"""Put by a writer that then raises: nobody may ever read it."""
RETRIES: Final = 1_000
_BLOCKS: Final = 0.004
_BLOCKS_S: Final = 3.0

notes: Final = Notebook(FOLDER, NAME)


class Mistake(Exception):
    """What a body raises that fails."""


@app.resource
async def rows() -> AsyncIterator[Ledger]:
    """The datastore, opened once a process."""
    opened = Ledger(FOLDER / "rows.db")
    yield opened
    opened.close()


async def _load(key: str) -> int:
    ledger = await rows()
    chance = Random(f"{SEED} {NAME} {key} {now()}")
    version = ledger.version(key)
    # What it has seen may be old when it is told: that is what fills must not survive.
    await asyncio.sleep(0 if chance.random() < 0.5 else chance.random() ** 3 * 0.5)
    return version


@app.cached(ttl="1m")
async def item(id: int) -> int:
    """Return the version of an item's row."""
    return await _load(item.key(id).name)


@app.cached
async def mark(chain: str, place: int) -> int:
    """Return the version of a row that a chain writes in turn with others."""
    return await _load(mark.key(chain, place).name)


# -- reads, noted


async def read(key: Key[int], fresh: Any = None, *, own: int = 0, expects: int = 0) -> int:
    """Read a key at a level, here or in the body of `current_job`, and note what was answered."""
    job = _job()
    called = now()
    reading = await key.read(fresh)
    level = fresh if fresh is not None else "causal" if job else 1.0
    notes.add(
        ReadNote(
            key=key.name,
            version=reading.value,
            level=level,
            called=called,
            at=now(),
            tier=reading.tier,
            job=job.id if job else "",
            fence=job.fence if job else 0,
            own=own,
            expects=expects,
        )
    )
    return reading.value


async def read_item(id: int, fresh: Any = None, *, own: int = 0) -> int:
    """Read an item."""
    return await read(item.key(id), fresh, own=own)


def _job() -> CurrentJob | None:
    return current_job() if CURRENT.get() is not None else None


# -- tasks


@app.task(writes=item, retries=RETRIES)
async def write(id: int, *, seen: int = Read(item)) -> int:
    """Write an item's row, whatever comes between."""
    job = current_job()
    chance = Random(f"{SEED} {job.id} {job.attempt} {job.fence}")
    row = item.key(id).name
    began = now()
    notes.add(Ran(job=job.id, fence=job.fence, at=began))
    notes.add(_declared(row, seen, job, began))
    try:
        await _rest(chance)
        if chance.random() < 0.3:
            await read_item(chance.randrange(ITEMS), chance.choice([None, "strict", 0.3]))
        if chance.random() < 0.03:
            await item.key(id).put(GHOST)
            raise Mistake("put, and did not commit")
        version = await _commit(row, job)
        await _rest(chance)
        if chance.random() < 0.4:
            await read_item(id, own=version)
        if chance.random() < 0.4:
            await item.key(id).put(await _true(row))
        elif chance.random() < 0.1:
            await item.key(id).invalidate()
        if chance.random() < 0.05:
            raise Mistake("as it happens")
    finally:
        notes.add(Left(job=job.id, fence=job.fence, at=now()))
    return version


async def _true(row: str) -> int:
    """What the writer knows the row to be: nobody else writes it, but for scopes, whose intents spoil the put."""
    return (await rows()).version(row)


@app.task(retries=RETRIES)
async def look(ids: list[int]) -> None:
    """Read items, as a job that only reads."""
    job = current_job()
    chance = Random(f"{SEED} {job.id} {job.attempt} {job.fence}")
    notes.add(Ran(job=job.id, fence=job.fence, at=now()))
    try:
        for id in ids:
            await read_item(id, chance.choice([None, None, "strict", 0.2]))
            await _rest(chance)
    finally:
        notes.add(Left(job=job.id, fence=job.fence, at=now()))


@app.task(writes=mark, retries=RETRIES)
async def hop(chain: str, number: int, place: int, before: int, *, seen: int = Read(mark.by(place="before"))) -> None:
    """See what the chain's last job wrote, write the next row, and enqueue the next job with this one's success."""
    job = current_job()
    chance = Random(f"{SEED} {job.id} {job.attempt} {job.fence}")
    began = now()
    expects = (number - 2) // MARKS + 1 if number > 1 else 0
    notes.add(Ran(job=job.id, fence=job.fence, at=began))
    notes.add(_declared(mark.key(chain, before).name, seen, job, began, expects=expects))
    try:
        await _rest(chance)
        await read(mark.key(chain, before), expects=expects)
        version = await _commit(mark.key(chain, place).name, job)
        if chance.random() < 0.5:
            await mark.key(chain, place).put(version)
        if number < LINKS:
            await link(chain, number + 1).enqueue()
    finally:
        notes.add(Left(job=job.id, fence=job.fence, at=now()))


def link(chain: str, number: int) -> Any:
    """Return the call of a chain's job; its id is its number, so that it is there once."""
    options = hop.options(id=link_id(chain, number))
    return options.call(chain, number, number % MARKS, (number - 1) % MARKS)


def link_id(chain: str, number: int) -> str:
    """Return the id of a chain's job."""
    return f"hop-{chain}-{number}"


def _declared(row: str, seen: int, job: CurrentJob, at: int, *, expects: int = 0) -> ReadNote:
    return ReadNote(
        key=row, version=seen, level="declared", called=at, at=at, job=job.id, fence=job.fence, expects=expects
    )


async def _commit(row: str, job: CurrentJob) -> int:
    version = (await rows()).write(row, job.id, job.fence)
    at = now()
    if not version:
        raise Mistake(f"fence {job.fence} is below that of {row}")
    notes.add(Wrote(key=row, version=version, at=at, job=job.id, fence=job.fence))
    return version


async def _rest(chance: Random) -> None:
    dice = chance.random()
    if dice < _BLOCKS:
        time.sleep(_BLOCKS_S)
    elif dice < 0.5:
        await asyncio.sleep(chance.random() ** 3 * 0.3)
