"""Waits until every job has ended, reads every row at every level, and prints each job's state: `python -m chaos.drain SECONDS`."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from chaos.history import Enqueued, read_notes
from chaos.program import FOLDER, ITEMS, read_item
from selaras import SelarasError, UnknownJob
from selaras._app.survey import queue_stats
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobState
from selaras.demo.airline import app

_AT_ONCE = 50


async def drain(seconds: float) -> dict[str, str]:
    """Return the state of each job that was, or may have been, accepted; "": there is none of that id."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with app:
        while loop.time() < end:
            try:
                if not await _unfinished():
                    break
            except SelarasError:  # it may still be coming back
                pass
            await asyncio.sleep(0.2)
        for id in range(ITEMS):
            for fresh in ("strict", 0.0, None):
                await read_item(id, fresh)
        accepted = {
            job for notes in read_notes(FOLDER).values() for n in notes if isinstance(n, Enqueued) for job in n.jobs
        }
        jobs = sorted(accepted)
        states: dict[str, str] = {}
        for first in range(0, len(jobs), _AT_ONCE):
            several = jobs[first : first + _AT_ONCE]
            states.update(zip(several, await asyncio.gather(*map(_state, several)), strict=True))
        return states


async def _unfinished() -> int:
    queues = await queue_stats(app.process().store)
    return sum(n for queue in queues for state, n in queue.counts.items() if JobState(state) not in FINAL)


async def _state(job: str) -> str:
    try:
        return (await app.job(job).info()).state.value
    except UnknownJob:
        return ""


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(drain(float(sys.argv[1])))).decode())
