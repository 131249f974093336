"""A job's row, to and from SQL."""



from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from selaras._core.jobs.job import Edge, Ended, JobKind, JobRecord, NewJob, Parent, UniqueUntil
from selaras._core.jobs.states import JobState
from selaras._stores.sqlite.connection import Value
from selaras._stores.sqlite.schema import KINDS, STATES

_KEPT: Final = (
    "number", "id", "state", "kind", "plain", "awaited", "priority", "place", "ready_us", "fence", "attempt", "lost",
    "turn", "joined", "created_us", "due_us", "expires_us", "started_us", "ended_us", "keep_until_us", "result_ttl_us",
    "strayed_us", "cancel_requested", "queue", "task", "lane", "instance", "line", "unique_key", "reason",
    "payload", "meta", "more", "result", "error", "progress",
)  # fmt: skip

SELECT: Final = f"SELECT {', '.join(_KEPT)} FROM jobs"
BY_ID: Final = f"{SELECT} WHERE id = ?"
INSERT: Final = f"INSERT INTO jobs ({', '.join(_KEPT)}) VALUES ({', '.join('?' * len(_KEPT))})"
UPDATE: Final = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _KEPT[2:])} WHERE number = ?"

_PLAIN: Final = (
    "number", "id", "state", "priority", "place", "ready_us", "created_us", "due_us", "expires_us", "result_ttl_us",
    "queue", "task", "payload", "meta", "more",
)  # fmt: skip
INSERT_PLAIN: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) VALUES ({', '.join('?' * len(_PLAIN))}) ON CONFLICT (id) DO NOTHING"
)


class Rest(Struct, frozen=True, array_like=True):
    """What of a request no query asks for."""

    expires_in_us: int = 0
    ordered: bool = False
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    wants_preimage: bool = False
    unique_until: UniqueUntil = UniqueUntil.STARTED
    max_lost: int = 3
    failed_ttl_us: int = 7 * 86_400_000_000


class _More(Struct, frozen=True, array_like=True):
    rest: Rest
    waits: list[Parent] = []
    positions: dict[int, int] = {}
    input: bytes | None = None
    stuck: list[str] = []
    history: list[Ended] = []


_USUAL: Final = Rest()
_encode: Final = msgspec.msgpack.encode
_decode_more: Final = msgspec.msgpack.Decoder(_More).decode
_STATES: Final = {code: state for state, code in STATES.items()}
_KINDS: Final = {code: kind for kind, code in KINDS.items()}


@dataclass(slots=True)
class Row:
    """A job, as it changes within one verb."""

    number: int  # order of enqueueing
    id: str
    created_us: int
    state: JobState = JobState.BLOCKED
    plain: bool = False
    awaited: bool = False  # another job may wait for it
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


def more_of(new: NewJob) -> bytes | None:
    """Return what the column `more` keeps of a plain job."""
    if new.expires_in_us == 0 and new.max_lost == _USUAL.max_lost and new.failed_ttl_us == _USUAL.failed_ttl_us:
        return None
    return _encode(_More(rest_of(new)))


def row_of(kept: Any) -> Row:
    """Make a row of what `SELECT` returns."""
    (
        number, job, state, kind, plain, awaited, priority, place, ready_us, fence, attempt, lost, turn, joined,
        created_us, due_us, expires_us, started_us, ended_us, keep_until_us, result_ttl_us, strayed_us, cancel_requested, queue,
        task, lane, instance, line, unique, reason, payload, meta, more, result, error, progress,
    ) = kept  # fmt: skip
    row = Row(
        number, job, created_us, _STATES[state], bool(plain), bool(awaited), priority, place, ready_us, fence, attempt, lost, turn,
        joined, due_us, expires_us, started_us, ended_us, keep_until_us, result_ttl_us, strayed_us,
        bool(cancel_requested), queue, task, _KINDS[kind], lane, instance, line, unique, reason, payload, meta,
        result=result, error=error, progress=progress, is_stored=True,
    )  # fmt: skip
    if more is not None:
        kept_more = _decode_more(more)
        row.rest, row.positions, row.input = kept_more.rest, kept_more.positions, kept_more.input
        row.waits = {(one.job, one.edge): one for one in kept_more.waits}
        row.stuck, row.history = kept_more.stuck, kept_more.history
    return row


def kept_of(row: Row) -> tuple[Value, ...]:
    """Return what `INSERT` takes; from the third on, and then the number, what `UPDATE` does."""
    more: bytes | None = None
    if row.waits or row.positions or row.stuck or row.history or row.input is not None or row.rest != _USUAL:
        waits = list(row.waits.values())
        more = _encode(_More(row.rest, waits, row.positions, row.input, row.stuck, row.history))
    return (
        row.number, row.id, STATES[row.state], KINDS[row.kind], row.plain, row.awaited, row.priority, row.place, row.ready_us,
        row.fence, row.attempt, row.lost, row.turn, row.joined, row.created_us, row.due_us, row.expires_us,
        row.started_us, row.ended_us, row.keep_until_us, row.result_ttl_us, row.strayed_us, row.cancel_requested,
        row.queue, row.task, row.lane, row.instance, row.line, row.unique, row.reason, row.payload, row.meta, more,
        row.result, row.error, row.progress,
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
