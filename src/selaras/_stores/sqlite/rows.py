"""A job's row, to and from SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from selaras._core.jobs.job import Edge, Ended, JobKind, JobRecord, NewJob, Parent, UniqueUntil
from selaras._core.jobs.states import JobState
from selaras._stores.sqlite.connection import Value

_KEPT: Final = (
    "number", "id", "state", "plain", "priority", "place", "ready_us", "fence", "attempt", "lost", "turn", "joined",
    "created_us", "due_us", "expires_us", "started_us", "ended_us", "keep_until_us", "result_ttl_us", "strayed_us",
    "cancel_requested", "queue", "task", "kind", "lane", "instance", "line", "unique_key", "reason",
    "payload", "meta", "rest", "waits", "positions", "input", "stuck", "result", "error", "progress", "history",
)  # fmt: skip

SELECT: Final = f"SELECT {', '.join(_KEPT)} FROM jobs"
BY_ID: Final = f"{SELECT} WHERE id = ?"
INSERT: Final = f"INSERT INTO jobs ({', '.join(_KEPT)}) VALUES ({', '.join('?' * len(_KEPT))})"
UPDATE: Final = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _KEPT[2:])} WHERE number = ?"

_PLAIN: Final = (
    "number", "id", "state", "priority", "place", "ready_us", "created_us", "due_us", "expires_us", "result_ttl_us",
    "queue", "task", "payload", "meta", "rest",
)  # fmt: skip
INSERT_PLAIN: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) VALUES ({', '.join('?' * len(_PLAIN))}) ON CONFLICT (id) DO NOTHING"
)


class Rest(Struct, frozen=True, array_like=True):
    """What of a job no query asks for."""

    expires_in_us: int = 0
    ordered: bool = False
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    wants_preimage: bool = False
    unique_until: UniqueUntil = UniqueUntil.STARTED
    max_lost: int = 3
    failed_ttl_us: int = 7 * 86_400_000_000


_USUAL: Final = Rest()
_encode: Final = msgspec.msgpack.encode
_decode_rest: Final = msgspec.msgpack.Decoder(Rest).decode
_decode_waits: Final = msgspec.msgpack.Decoder(list[Parent]).decode
_decode_positions: Final = msgspec.msgpack.Decoder(dict[int, int]).decode
_decode_names: Final = msgspec.msgpack.Decoder(list[str]).decode
_decode_history: Final = msgspec.msgpack.Decoder(list[Ended]).decode
_STATES: Final = {state.value: state for state in JobState}
_KINDS: Final = {kind.value: kind for kind in JobKind}


@dataclass(slots=True)
class Row:
    """A job, as it changes within one verb."""

    number: int  # order of enqueueing
    id: str
    created_us: int
    state: JobState = JobState.BLOCKED
    plain: bool = False
    priority: int = 0
    place: int = 0  # order of becoming ready
    ready_us: int = 0
    fence: int = 0
    attempt: int = 0
    lost: int = 0
    turn: int = 0  # the turn that claimed it
    joined: int = 0  # order in its line; 0: it will join at the tail
    due_us: int = 0
    expires_us: int = 0
    started_us: int = 0
    ended_us: int = 0
    keep_until_us: int = 0
    result_ttl_us: int = 0
    strayed_us: int = 0
    cancel_requested: bool = False
    queue: str = ""
    task: str = ""
    kind: JobKind = JobKind.TASK
    lane: str = ""  # its task, once a worker did not know it
    instance: str = ""
    line: str = ""
    unique: str = ""
    reason: str = ""
    payload: bytes = b""
    meta: bytes = b""
    rest: Rest = _USUAL
    waits: dict[tuple[str, Edge], Parent] = field(default_factory=dict[tuple[str, Edge], Parent])
    positions: dict[int, int] = field(default_factory=dict[int, int])
    input: bytes | None = None
    stuck: list[str] = field(default_factory=list[str])  # parents that ended `failed`
    result: bytes | None = None
    error: bytes | None = None
    progress: bytes | None = None
    history: list[Ended] = field(default_factory=list[Ended])
    is_stored: bool = False

    def renew(self, new: NewJob) -> None:
        """Take everything of a request but its id."""
        self.priority, self.result_ttl_us = new.priority, new.result_ttl_us
        self.queue, self.task, self.kind, self.line, self.unique = new.queue, new.task, new.kind, new.line, new.unique
        self.payload, self.meta, self.rest = new.payload, new.meta, rest_of(new)
        self.plain = is_plain(new)


def is_plain(new: NewJob) -> bool:
    """Say whether nothing but the job's own row is touched when it is enqueued, claimed and settled."""
    return not (
        new.line
        or new.writes
        or new.unique
        or new.parents
        or new.serves
        or new.positions
        or new.ordered
        or new.kind is not JobKind.TASK
    )


def rest_of(new: NewJob) -> Rest:
    """Return what of a request no query asks for."""
    return Rest(
        new.expires_in_us,
        new.ordered,
        new.writes,
        new.serves,
        new.wants_preimage,
        new.unique_until,
        new.max_lost,
        new.failed_ttl_us,
    )


def encoded_rest(new: NewJob) -> bytes | None:
    """Return the same as the column keeps it."""
    rest = rest_of(new)
    return None if rest == _USUAL else _encode(rest)


def row_of(kept: Any) -> Row:
    """Make a row of what `SELECT` returns."""
    (
        number, id, state, plain, priority, place, ready_us, fence, attempt, lost, turn, joined, created_us, due_us,
        expires_us, started_us, ended_us, keep_until_us, result_ttl_us, strayed_us, cancel_requested, queue, task,
        kind, lane, instance, line, unique, reason, payload, meta, rest, waits, positions, input, stuck, result,
        error, progress, history,
    ) = kept  # fmt: skip
    return Row(
        number, id, created_us, _STATES[state], bool(plain), priority, place, ready_us, fence, attempt, lost, turn,
        joined, due_us, expires_us, started_us, ended_us, keep_until_us, result_ttl_us, strayed_us,
        bool(cancel_requested), queue, task, _KINDS[kind], lane, instance, line, unique, reason, payload, meta,
        _decode_rest(rest) if rest is not None else _USUAL,
        {(one.job, one.edge): one for one in _decode_waits(waits)} if waits is not None else {},
        _decode_positions(positions) if positions is not None else {},
        input,
        _decode_names(stuck) if stuck is not None else [],
        result, error, progress,
        _decode_history(history) if history is not None else [],
        True,
    )  # fmt: skip


def kept_of(row: Row) -> tuple[Value, ...]:
    """Return what `INSERT` takes; from the third on, and then the number, what `UPDATE` does."""
    return (
        row.number, row.id, row.state.value, row.plain, row.priority, row.place, row.ready_us, row.fence, row.attempt,
        row.lost, row.turn, row.joined, row.created_us, row.due_us, row.expires_us, row.started_us, row.ended_us,
        row.keep_until_us, row.result_ttl_us, row.strayed_us, row.cancel_requested, row.queue, row.task,
        row.kind.value, row.lane, row.instance, row.line, row.unique, row.reason, row.payload, row.meta,
        _encode(row.rest) if row.rest != _USUAL else None,
        _encode(list(row.waits.values())) if row.waits else None,
        _encode(row.positions) if row.positions else None,
        row.input,
        _encode(row.stuck) if row.stuck else None,
        row.result, row.error, row.progress,
        _encode(row.history) if row.history else None,
    )  # fmt: skip


def record_of(row: Row) -> JobRecord:
    """Show a row."""
    return JobRecord(
        id=row.id,
        task=row.task,
        queue=row.queue,
        kind=row.kind,
        state=row.state,
        priority=row.priority,
        payload=row.payload,
        meta=row.meta,
        attempt=row.attempt,
        lost=row.lost,
        fence=row.fence,
        instance=row.instance,
        created_us=row.created_us,
        due_us=row.due_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        keep_until_us=row.keep_until_us,
        line=row.line,
        unique=row.unique,
        writes=row.rest.writes,
        parents=tuple(row.waits.values()),
        result=row.result,
        error=row.error,
        reason=row.reason,
        progress=row.progress,
        cancel_requested=row.cancel_requested,
        stuck_on=row.stuck[0] if row.stuck else "",
        strayed_us=row.strayed_us,
        history=tuple(row.history),
    )
