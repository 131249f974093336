"""Who reads, for audits; and what is said of what the cache meets: a stale value, a lost tier, bytes that are damaged."""

from __future__ import annotations

import logging
from typing import assert_never

from selaras._app.process.current import CURRENT
from selaras._cache.auditing import NOTE, Reader
from selaras._cache.notes import Notes
from selaras._contracts.store import Store
from selaras._core.cache.consistency import Found, Ledger, ledger_of
from selaras._core.cache.events import (
    CacheEvent,
    Corrupt,
    IntentStands,
    SharedTierBack,
    SharedTierLost,
    StaleRead,
    TooLarge,
    Unstorable,
)
from selaras._core.durations import format_us

_log = logging.getLogger("selaras")


def reader_here() -> Reader:
    """Return the task, the queue and the id of the job that runs here; empty outside of jobs."""
    make = CURRENT.get()
    if make is None:
        return "", "", ""
    job = make()
    return job.task, job.queue, job.id


class CacheLog:
    """Tells in the log what somebody must look after."""

    def __init__(self) -> None:
        self._damaged: set[str] = set()

    def heard(self, event: CacheEvent) -> None:
        """Tell one event; of a family's damaged entries the first one aloud, for where one is, many may be."""
        match event:
            case StaleRead(found=found):
                _log.error(
                    "stale read: %s",
                    said(found),
                    extra={"family": found.family, "task": found.task, "pool": found.pool, "job": found.job},
                )
            case IntentStands(key=key, text=text):
                _log.warning("%s is loaded from the datastore at each read: %s", key, text)
            case Unstorable(family=family, key=key, error=error):
                _log.warning(
                    "%s was served, but it cannot be stored (%s): values of %s are loaded at each read where that is so",
                    *(key, error, family),
                    extra={"family": family},
                )
            case TooLarge(family=family, key=key, bytes=size, most=most):
                _log.warning(
                    "%s was served, but not kept: it is %s bytes encoded, and max_value is %s; values of %s are loaded at each "
                    "read where that is so: cache less of them, or raise max_value",
                    *(key, f"{size:,}", f"{most:,}", family),
                    extra={"family": family},
                )
            case Corrupt(family=family, key=key):
                level = logging.DEBUG if family in self._damaged else logging.WARNING
                self._damaged.add(family)
                _log.log(
                    level,
                    "%s: what the store holds is not what was stored: it was dropped and loaded anew; others of %s are "
                    "told at level DEBUG",
                    *(key, family),
                    extra={"family": family},
                )
            case SharedTierLost(partition=partition, error=error):
                _log.warning(
                    "the shared tier of partition %d does not answer (%s): reads go to the datastore", partition, error
                )
            case SharedTierBack(partition=partition):
                _log.warning("the shared tier of partition %d answers again", partition)
            case _:
                assert_never(event)


def said(found: Found) -> str:
    """Say in a line what was found stale, why, and what was done about it."""
    who = f"job {found.job} ({found.task})" if found.job else "a reader outside of jobs"
    if found.voided_at:
        why = f"the event at position {found.voided_at} had voided it"
    else:
        why = "nothing told the cache of the change: a task without writes= may have written it, or another program"
    voided = "" if found.age_us is None else f", last voided {format_us(found.age_us // 1_000 * 1_000)} before"
    return (
        f"{found.key} was served to {who} from the {found.tier} tier as of position {found.position}{voided}, and the"
        f" datastore had another value; {why}. It has been voided now"
    )


async def audited(store: Store) -> tuple[Ledger, int]:
    """Return what audits of all processes came to, and in how many bytes that is noted (0: it is not)."""
    data = await Notes(store.partitions).read(NOTE)
    return ledger_of(data), len(data or b"")
