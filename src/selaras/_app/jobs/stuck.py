"""Whose failure a blocked job waits for in vain: of a chain most often a step that is not the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from selaras._core.jobs.job import JobRecord
from selaras._core.jobs.states import JobState

_LOOKED_AT_MOST: Final = 1_000
"""Jobs that one job may wait for, one through another, of which it is asked whether they go on."""


async def stuck_on(job: JobRecord, look: Callable[[str], Awaitable[JobRecord | None]]) -> str:
    """Return the id of the job that failed and so keeps `job` waiting, itself or through others; "": there is none."""
    known = {job.id}
    waiting = [job]
    while waiting:
        one = waiting.pop()
        if one.stuck_on:
            return one.stuck_on
        for parent in one.parents if one.state is JobState.BLOCKED else ():
            if parent.job not in known and len(known) < _LOOKED_AT_MOST:
                known.add(parent.job)
                found = await look(parent.job)
                if found is not None:
                    waiting.append(found)
    return ""
