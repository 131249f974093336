"""What people look at: jobs, queues, instances, the shared tier. Reads only, each in one snapshot."""



from __future__ import annotations

from typing import Any, Final

import msgspec

from selaras._contracts.partition import AnyEffect, CacheStats, Instance, JobFilter, JobPage, Outbox, QueueStats
from selaras._core.jobs.job import Attempt, JobRecord
from selaras._core.jobs.states import JobState
from selaras._core.positions import Cursor, News
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.connection import Connection
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.log import TAIL, news
from selaras._stores.sqlite.schema import (
    IS_CLAIMABLE,
    IS_EARLY,
    IS_IN_LINE,
    IS_OVER,
    IS_RUNNING,
    IS_SCOPE,
    IS_TASK,
    STATES,
    among,
)

READY: Final = (
    "SELECT queue, count(*), min(ready_us), sum(lane <> '') FROM jobs INDEXED BY jobs_ready"
    f" WHERE {IS_CLAIMABLE} GROUP BY queue"
)
HELD: Final = (
    "SELECT queue, state, count(*) FROM jobs INDEXED BY jobs_in_line"
    f" WHERE {IS_IN_LINE} AND {IS_TASK} AND state = {STATES[JobState.HELD]} GROUP BY queue"
)
OVER: Final = (
    f"SELECT queue, state, count(*) FROM jobs INDEXED BY jobs_over WHERE {IS_OVER} AND {IS_TASK} GROUP BY queue, state"
)
EARLY: Final = f"SELECT queue, state, count(*) FROM jobs INDEXED BY jobs_early WHERE {IS_EARLY} GROUP BY queue, state"
RUNNING: Final = (
    f"SELECT queue, state, count(*) FROM jobs INDEXED BY jobs_running WHERE {IS_RUNNING} AND {IS_TASK} GROUP BY queue"
)
EARLY_SCOPES: Final = (
    f"SELECT queue, state, -count(*) FROM jobs INDEXED BY jobs_scopes WHERE {IS_SCOPE} AND {IS_EARLY}"
    " GROUP BY queue, state"
)
"""Scopes are not shown: the index that counts the early jobs has them too, so they are taken off again."""

_NAMES: Final = {code: state.value for state, code in STATES.items()}
_decode_instance: Final = msgspec.msgpack.Decoder(Instance).decode
_decode_effect: Final[Any] = msgspec.msgpack.Decoder(AnyEffect).decode


def events_since(con: Connection, since: Cursor) -> News:
    """Read the log's tail, and what lies between."""
    return news(con, con.execute(TAIL).fetchone(), since)


def job(con: Connection, id: str) -> JobRecord | None:
    """Return one job."""
    kept = con.execute(rows.BY_ID, (id,)).fetchone()
    return rows.record_of(rows.row_of(kept)) if kept else None


def jobs(con: Connection, which: JobFilter) -> JobPage:
    """List jobs of kind `task`, newest first."""
    wanted, given = [IS_TASK], []
    if which.states:
        wanted.append(f"state IN ({among(which.states)})")
    for column, value in (("queue", which.queue), ("task", which.task)):
        if value:
            wanted.append(f"{column} = ?")
            given.append(value)
    found = con.execute(
        f"{rows.SELECT} WHERE {' AND '.join(wanted)} AND number < ? ORDER BY number DESC LIMIT ?",
        (*given, which.before or 1 << 62, which.limit + 1),
    ).fetchall()
    page = [rows.row_of(kept) for kept in found[: which.limit]]
    more = page and len(found) > len(page)
    return JobPage(tuple(map(rows.record_of, page)), page[-1].number if more else 0)


def queues(con: Connection) -> tuple[QueueStats, ...]:
    """Count every queue that has jobs, workers or a pause: from indexes alone, no job is read."""
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    stray: dict[str, int] = {}
    for queue, count, ready_us, strays in con.execute(READY):
        counts.setdefault(queue, {})[JobState.READY.value] = count
        oldest[queue], stray[queue] = ready_us, strays
    for statement in (HELD, OVER, EARLY, RUNNING, EARLY_SCOPES):
        for queue, state, count in con.execute(statement):
            mine = counts.setdefault(queue, {})
            mine[_NAMES[state]] = mine.get(_NAMES[state], 0) + count
    paused = {queue for (queue,) in con.execute("SELECT queue FROM paused")}
    served = [queue for instance in instances(con) for queue in set(instance.queues)]
    with_jobs = {queue for queue, mine in counts.items() if any(mine.values())}
    return tuple(
        QueueStats(
            name=name,
            counts={state.value: mine[state] for state in JobState if (mine := counts.get(name, {})).get(state)},
            paused=name in paused,
            workers=served.count(name),
            oldest_ready_us=oldest.get(name, 0),
            stray=stray.get(name, 0),
        )
        for name in sorted(with_jobs | paused | set(served))
    )


def instances(con: Connection) -> tuple[Instance, ...]:
    """Live instances."""
    found = con.execute("SELECT instance FROM instances ORDER BY number").fetchall()
    return tuple(_decode_instance(instance) for (instance,) in found)


def cache_stats(con: Connection, file: DatabaseFile) -> CacheStats:
    """Count the shared tier."""
    position, before, epoch, time_us = con.execute(
        "SELECT position, before_position, epoch, time_us FROM ledger"
    ).fetchone()
    now = file.now_us(time_us)
    entries, size = con.execute(
        "SELECT count(*), coalesce(sum(length(value)), 0) FROM entries WHERE until_us = 0 OR until_us > ?", (now,)
    ).fetchone()
    return CacheStats(
        entries=entries,
        bytes=size,
        intents=con.execute("SELECT count(*) FROM intents").fetchone()[0],
        tokens=con.execute("SELECT count(*) FROM tokens WHERE until_us > ?", (now,)).fetchone()[0],
        position=position,
        log_length=position - before,
        epoch=epoch,
    )


def outbox(con: Connection, limit: int) -> Outbox:
    """Read effects for other partitions, oldest first."""
    found = con.execute("SELECT effect FROM outbox ORDER BY id LIMIT ?", (limit,)).fetchall()
    return Outbox(tuple(_decode_effect(effect) for (effect,) in found))


def is_alive(con: Connection, attempt: Attempt) -> bool:
    """Say whether an attempt is running here."""
    row = con.execute(
        f"SELECT 1 FROM jobs WHERE id = ? AND fence = ? AND {IS_RUNNING}", (attempt.job, attempt.fence)
    ).fetchone()
    return row is not None
