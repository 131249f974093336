"""What people look at: jobs, queues, instances, the shared tier. Reads only, each in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from selaras._contracts.partition import (
    AnyEffect,
    CacheStats,
    Instance,
    JobFilter,
    JobPage,
    Outbox,
    QueueStats,
    Waiting,
)
from selaras._core.jobs.job import Attempt, Fate, JobRecord, Standing, fate_of
from selaras._core.jobs.states import JobState
from selaras._core.positions import Cursor, News
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.connection import Connection, as_list
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.log import TAIL, news
from selaras._stores.sqlite.schema import IS_TASK, KINDS, STATES, among

READY: Final = """
    SELECT l.queue, l.task, w.jobs, coalesce(h.ready_us, j.ready_us)
    FROM (SELECT lane, count(*) AS jobs, min(place), number FROM ready GROUP BY lane) AS w
    JOIN lanes AS l ON l.code = w.lane JOIN jobs AS j ON j.number = w.number
    LEFT JOIN lines AS h ON h.name = j.line AND h.head = j.id
"""
"""Of each lane, how many are in it, and how long the first to come has been ready."""

NEXT: Final = """
    SELECT w.priority, w.place, j.id, j.task, j.payload, j.meta, j.more
    FROM ready AS w CROSS JOIN jobs AS j ON j.number = w.number WHERE w.lane = ? ORDER BY w.priority DESC, w.place LIMIT ?
"""
"""Of a lane, the jobs that are claimed next."""

RUNNING: Final = (
    f"SELECT j.queue, {STATES[JobState.RUNNING]}, count(*) FROM runs AS r JOIN jobs AS j ON j.number = r.number"
    f" WHERE {IS_TASK} GROUP BY j.queue"
)
OTHERS: Final = "SELECT queue, state, jobs FROM counts WHERE jobs > 0"

_READY: Final = JobState.READY.value
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


def standing(con: Connection, ids: Sequence[str]) -> tuple[Standing | None, ...]:
    """Return jobs whole, where they can be taken over."""
    found = (rows.row_of(kept) for kept in con.execute(rows.BY_IDS, (as_list(list(ids)),)))
    known = {row.id: rows.standing_of(row) for row in found}
    return tuple([known.get(id) for id in ids])


def jobs(con: Connection, which: JobFilter) -> JobPage:
    """List jobs of a kind, newest first."""
    wanted = [f"kind = {KINDS[which.kind]}"]
    given: list[str] = []
    if which.states:
        wanted.append(f"{rows.STATE} IN ({among(which.states)})")
    for column, value in (("queue", which.queue), ("task", which.task)):
        if value:
            wanted.append(f"{column} = ?")
            given.append(value)
    found = con.execute(
        f"{rows.SELECT} WHERE {' AND '.join(wanted)} AND j.number < ? ORDER BY j.number DESC LIMIT ?",
        (*given, which.before or 1 << 62, which.limit + 1),
    ).fetchall()
    page = [rows.row_of(kept) for kept in found[: which.limit]]
    more = page and len(found) > len(page)
    return JobPage(tuple(map(rows.record_of, page)), page[-1].number if more else 0)


def waiting(con: Connection, queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
    """Look at the jobs that a worker of these queues and tasks would claim next."""
    paused = {queue for (queue,) in con.execute("SELECT queue FROM paused")}
    wanted = {queue for queue in queues if queue not in paused}
    lanes = [
        code
        for queue, task, code in con.execute("SELECT queue, task, code FROM lanes")
        if queue in wanted and (not task or task in tasks)
    ]
    found = [row for lane in lanes for row in con.execute(NEXT, (lane, limit))]
    found.sort(key=lambda row: (-row[0], row[1]))
    return tuple([rows.waiting_of(*row[2:]) for row in found[:limit] if row[3] in tasks])


def queues(con: Connection) -> tuple[QueueStats, ...]:
    """Count every queue that has jobs, workers or a pause: no waiting job and no job that is over is read."""
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, int] = {}
    apart: dict[str, int] = {}
    for queue, task, count, ready_us in con.execute(READY):
        mine = counts.setdefault(queue, {})
        mine[_READY] = mine.get(_READY, 0) + count
        oldest[queue] = min(ready_us, oldest.get(queue, ready_us))
        apart[queue] = apart.get(queue, 0) + (count if task else 0)
    for statement in (RUNNING, OTHERS):
        for queue, state, count in con.execute(statement):
            counts.setdefault(queue, {})[_NAMES[state]] = count
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
            apart=apart.get(name, 0),
        )
        for name in sorted(with_jobs | paused | set(served))
    )


def instances(con: Connection) -> tuple[Instance, ...]:
    """Live instances."""
    found = con.execute("SELECT instance FROM instances ORDER BY number").fetchall()
    return tuple(_decode_instance(instance) for (instance,) in found)


def cache_stats(con: Connection, file: DatabaseFile) -> CacheStats:
    """Count the shared tier."""
    position, before, epoch, time_us, offset_us = con.execute(
        "SELECT position, before_position, epoch, time_us, offset_us FROM ledger"
    ).fetchone()
    now = file.now_us(time_us, offset_us)
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


def fate(con: Connection, attempt: Attempt) -> Fate:
    """Say what became of an attempt at home here."""
    record = job(con, attempt.job)
    if record is None:
        return Fate.GONE
    return fate_of(attempt.fence, state=record.state, fence=record.fence, history=record.history)
