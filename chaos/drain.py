"""Waits until every job has ended, or nothing has ended for so long; reads every row at every level, and prints each job's
state: `python -m chaos.drain SECONDS`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import msgspec

from chaos.history import Enqueued, read_notes
from chaos.program import FOLDER, ITEMS, read_item
from selaras import SelarasError, UnknownJob
from selaras._app.operating.survey import queue_stats
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobState
from selaras.demo.airline import app

_AT_ONCE = 50


async def drain(seconds: float) -> dict[str, str]:
    """Return the state of each job that was, or may have been, accepted; "": there is none of that id."""
    loop = asyncio.get_running_loop()
    end, before = loop.time() + seconds, -1
    async with app:
        while loop.time() < end:
            try:
                unfinished, finished = await _counts()
            except SelarasError:  # it may still be coming back
                await asyncio.sleep(0.2)
                continue
            if not unfinished:
                break
            if finished != before:  # a machine that is busy with other things takes its time
                end, before = loop.time() + seconds, finished
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


async def _counts() -> tuple[int, int]:
    """Return how many jobs have yet to end, and how many have ended."""
    counts = Counter[bool]()
    for queue in await queue_stats(app.process().store):
        for state, number in queue.counts.items():
            counts[JobState(state) in FINAL] += number
    return counts[False], counts[True]


async def _state(job: str) -> str:
    try:
        return (await app.job(job).info()).state.value
    except UnknownJob:
        return ""


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(drain(float(sys.argv[1])))).decode())
