"""Who reads, for audits; and what is said when one finds a stale value."""

from __future__ import annotations

import logging

from selaras._app.current import CURRENT
from selaras._cache.auditing import NOTE, Reader
from selaras._cache.notes import Notes
from selaras._contracts.store import Store
from selaras._core.cache.consistency import Found, Ledger, ledger_of
from selaras._core.cache.events import CacheEvent, IntentStands, StaleRead
from selaras._core.durations import format_us

_log = logging.getLogger("selaras")


def reader_here() -> Reader:
    """Return the task, the queue and the id of the job that runs here; empty outside of jobs."""
    make = CURRENT.get()
    if make is None:
        return "", "", ""
    job = make()
    return job.task, job.queue, job.id


def log_cache_event(event: CacheEvent) -> None:
    """Tell what somebody must look after."""
    if isinstance(event, StaleRead):
        found = event.found
        _log.error(
            "stale read: %s",
            said(found),
            extra={"family": found.family, "task": found.task, "pool": found.pool, "job": found.job},
        )
    elif isinstance(event, IntentStands):
        _log.warning("%s is loaded from the datastore at each read: %s", event.key, event.text)


def said(found: Found) -> str:
    """Say in a line what was found stale, why, and what was done about it."""
    who = f"job {found.job} ({found.task})" if found.job else "a reader outside of jobs"
    if found.voided_at:
        why = f"the event at position {found.voided_at} had voided it"
    else:
        why = "nothing told the cache of the change: is there a task without writes=, or another program that writes?"
    voided = "" if found.age_us is None else f", last voided {format_us(found.age_us // 1_000 * 1_000)} before"
    return (
        f"{found.key} was served to {who} from the {found.tier} tier as of position {found.position}{voided}, and the"
        f" datastore had another value; {why}. It has been voided now"
    )


async def audited(store: Store) -> tuple[Ledger, int]:
    """Return what audits of all processes came to, and in how many bytes that is noted (0: it is not)."""
    data = await Notes(store.partitions).read(NOTE)
    return ledger_of(data), len(data or b"")
