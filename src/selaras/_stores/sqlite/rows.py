"""A job's row, to and from SQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from selaras._contracts.partition import Waiting
from selaras._core.jobs.job import (
    MOVING,
    Edge,
    Ended,
    JobKind,
    JobRecord,
    NewJob,
    Parent,
    Standing,
    UniqueUntil,
    standing,
)
from selaras._core.jobs.states import JobState
from selaras._stores.sqlite.connection import UNREADABLE, Value
from selaras._stores.sqlite.schema import KINDS, LINED, OTHER, PLAIN, STATES

_WIDE: Final = (
    "number", "id", "kind", "way", "awaited", "priority", "place", "ready_us", "lost", "joined", "created_us", "due_us",
    "expires_us", "result_ttl_us", "strayed_us", "cancel_requested", "queue", "task", "lane", "line", "unique_key",
    "payload", "meta", "more", "asker", "registered_us", "state", "fence", "attempt", "started_us", "reason", "error",
    "progress",
)  # fmt: skip
_RUN: Final = (
    "number", "instance", "fence", "turn", "started_us", "attempt", "way", "asked", "reason", "error", "progress",
)  # fmt: skip
_END: Final = (
    "number", "state", "fence", "attempt", "started_us", "ended_us", "keep_until_us", "reason", "error", "progress",
    "result",
)  # fmt: skip
_RUN_AT: Final = len(_WIDE)
_END_AT: Final = _RUN_AT + len(_RUN)

FROM: Final = (
    "FROM jobs AS j LEFT JOIN runs AS r ON r.number = j.number LEFT JOIN ends AS e ON e.number = j.number"
    " LEFT JOIN lines AS h ON h.name = j.line AND h.head = j.id"
)
STATE: Final = f"""
    coalesce(e.state, iif(r.number IS NULL, iif(h.head IS NULL, j.state, {STATES[JobState.READY]}), {STATES[JobState.RUNNING]}))
"""
"""How a job of `FROM` stands."""

_COLUMNS: Final = ", ".join([
    *(f"j.{name}" for name in _WIDE),
    *(f"r.{name}" for name in _RUN),
    *(f"e.{name}" for name in _END),
    "i.id", "h.ready_us",
])  # fmt: skip
SELECT: Final = f"SELECT {_COLUMNS} {FROM} LEFT JOIN instances AS i ON i.number = r.instance"
BY_ID: Final = f"{SELECT} WHERE j.id = ?"
BY_IDS: Final = f"{SELECT} WHERE j.id IN (SELECT value FROM json_each(?))"
INSERT: Final = f"INSERT INTO jobs ({', '.join(_WIDE)}) VALUES ({', '.join('?' * len(_WIDE))})"
UPDATE: Final = f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in _WIDE[2:])} WHERE number = ?"
MOVE: Final = "UPDATE jobs SET state = ?, place = ?, ready_us = ? WHERE number = ?"
"""Of a job that waits, and nothing of it has changed but where."""

HAND_OUT: Final = f"""
    UPDATE jobs SET state = {STATES[JobState.RUNNING]}, way = {OTHER}, lane = '', fence = 0, attempt = 0, started_us = 0,
        reason = '', error = NULL, progress = NULL WHERE number = ?
"""
"""Of a job that waits no more: how it stands is kept elsewhere."""

RUN: Final = f"INSERT OR REPLACE INTO runs ({', '.join(_RUN)}) VALUES ({', '.join('?' * len(_RUN))})"
END: Final = f"INSERT OR REPLACE INTO ends ({', '.join(_END)}) VALUES ({', '.join('?' * len(_END))})"

_PLAIN: Final = (
    "number", "id", "state", "priority", "place", "ready_us", "created_us", "due_us", "way", "expires_us",
    "result_ttl_us", "queue", "task", "payload", "meta", "more",
)  # fmt: skip
INSERT_PLAIN: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) VALUES ({', '.join('?' * len(_PLAIN))}) ON CONFLICT (id) DO NOTHING"
)
INSERT_READY: Final = f"""
    INSERT INTO jobs (
        number, id, state, priority, place, ready_us, created_us, due_us, result_ttl_us, queue, task, payload, meta, more
    ) VALUES (?, ?, {STATES[JobState.READY]}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""
"""Of a plain job that may be claimed at once: its place comes right after its number, and it is ready when it is made."""


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
    unsure: bool = False
    left: tuple[str, ...] = ()


_USUAL: Final = Rest()
_NO_MORE: Final = _More(_USUAL)
UNREADABLE_META: Final = b"\xc1"
"""The one byte that MessagePack never uses."""

_encode: Final = msgspec.msgpack.encode
_decode_more: Final = msgspec.msgpack.Decoder(_More).decode
_STATES: Final = {code: state for state, code in STATES.items()}
_KINDS: Final = {code: kind for kind, code in KINDS.items()}
_READY: Final = STATES[JobState.READY]
_RUNNING: Final = STATES[JobState.RUNNING]
_IN_LINE: Final = (STATES[JobState.HELD], _READY)
_COUNTED_THEMSELVES: Final = (_READY, _RUNNING)
_TASK: Final = KINDS[JobKind.TASK]


class Kept(Struct, eq=False):
    """Where the tables have a job, so that only what differs is written.

    Attributes:
        state: as `jobs` has it; -1: it is not there yet.
        ready, member, run, end: its rows there, `member` but for the number; None where it has none.
        counted: its queue and state in `counts`.
    """

    state: int = -1
    ready: tuple[Value, ...] | None = None
    member: tuple[Value, ...] | None = None
    run: tuple[Value, ...] | None = None
    end: tuple[Value, ...] | None = None
    counted: tuple[str, int] | None = None


class Row(Struct, eq=False):
    """A job, as it changes within one verb."""

    number: int  # order of enqueueing
    id: str
    created_us: int
    state: JobState = JobState.BLOCKED
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
    holder: int = 0  # the number of `instance`
    line: str = ""
    unique: str = ""
    reason: str = ""
    payload: bytes = b""
    meta: bytes = b""
    rest: Rest = _USUAL
    waits: dict[tuple[str, Edge], Parent] = {}
    positions: dict[int, int] = {}
    input: bytes | None = None
    stuck: list[str] = []  # parents that ended `failed`
    result: bytes | None = None
    error: bytes | None = None
    progress: bytes | None = None
    history: list[Ended] = []
    unsure: bool = False  # an attempt ended so that a write of it may still land
    left: tuple[str, ...] = ()  # keys elsewhere on which such attempts left their intents
    registered_us: int = 0  # when its parents elsewhere were last told of it; 0: it has none
    asker: str = ""  # the instance that asked for this scope or lock
    kept: Kept = field(default_factory=Kept)
    is_altered: bool = False  # more has changed than where it waits, or who runs it

    def renew(self, new: NewJob) -> None:
        """Take everything of a request but its id."""
        self.priority, self.result_ttl_us = new.priority, new.result_ttl_us
        self.queue, self.task, self.kind, self.line, self.unique = new.queue, new.task, new.kind, new.line, new.unique
        self.payload, self.meta, self.rest = new.payload, new.meta, rest_of(new)


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


def row_of(kept: Any, lane_of: Callable[[str, str], int] = lambda queue, task: 0) -> Row:
    """Make a row of what `SELECT` returns. `lane_of` returns a lane's code; only a row that may change needs it."""
    (
        number, job, kind, _, awaited, priority, place, ready_us, lost, joined, created_us, due_us, expires_us,
        result_ttl_us, strayed_us, cancel_requested, queue, task, lane, line, unique, payload, meta, more,
        asker, registered_us, state, fence, attempt, started_us, reason, error, progress,
    ) = kept[:_RUN_AT]  # fmt: skip
    wide_state = state
    run, end, (instance, head_us) = kept[_RUN_AT:_END_AT], kept[_END_AT:-2], kept[-2:]
    holder = turn = ended_us = keep_until_us = 0
    result: bytes | None = None
    if end[0] is not None:
        _, state, fence, attempt, started_us, ended_us, keep_until_us, reason, error, progress, result = end
    elif run[0] is not None:
        _, holder, fence, turn, started_us, attempt, _, _, reason, error, progress = run
        state = _RUNNING
    elif head_us is not None:
        state, place, ready_us = _READY, joined, head_us
    where = Kept(
        wide_state,
        (lane_of(queue, lane), priority, place, number) if state == _READY and kind == _TASK else None,
        (line, kind, queue, priority, joined, job) if line and state in _IN_LINE else None,
        run if run[0] is not None else None,
        end if end[0] is not None else None,
        (queue, state) if kind == _TASK and state not in _COUNTED_THEMSELVES else None,
    )
    row = Row(
        number, job, created_us, _STATES[state], bool(awaited), priority, place, ready_us, fence, attempt, lost, turn,
        joined, due_us, expires_us, started_us, ended_us, keep_until_us, result_ttl_us, strayed_us,
        bool(cancel_requested), queue, task, _KINDS[kind], lane, instance or "", holder, line, unique, reason,
        payload, meta, result=result, error=error, progress=progress, asker=asker, registered_us=registered_us, kept=where,
    )  # fmt: skip
    kept_more = _more_of(more, row) if more is not None else None
    if kept_more is not None:
        row.rest, row.positions, row.input = kept_more.rest, kept_more.positions, kept_more.input
        row.waits = {(one.job, one.edge): one for one in kept_more.waits}
        row.stuck, row.history = kept_more.stuck, kept_more.history
        row.unsure, row.left = kept_more.unsure, kept_more.left
    return row


def waiting_of(job: str, task: str, payload: bytes, meta: bytes, more: Any) -> Waiting:
    """Show a job that waits to be claimed. One whose bytes cannot be read says nothing of what it writes."""
    try:
        kept = _NO_MORE if more is None else _decode_more(more)
    except UNREADABLE:
        return Waiting(job, task, payload, UNREADABLE_META)
    return Waiting(job, task, payload, meta, kept.rest.writes, kept.rest.serves, kept.input)


def _more_of(more: Any, row: Row) -> _More | None:
    """Read the column `more`. Of what cannot be read the bytes go to the job's meta, behind one that no meta begins with:

    so whoever claims it dead-letters it, and never runs it without what it writes.
    """
    try:
        return _decode_more(more)
    except UNREADABLE:
        row.meta = UNREADABLE_META + (more if isinstance(more, bytes) else str(more).encode(errors="replace"))
        return None


def rest_kept(more: bytes | None) -> Rest | None:
    """Return what the column `more` says of a job on the short way; None: it cannot be read."""
    if more is None:
        return _USUAL
    try:
        return _decode_more(more).rest
    except UNREADABLE:
        return None


def wide_of(row: Row) -> tuple[Value, ...]:
    """Return what `jobs` keeps of a row. Of one that waits no more how it stands is kept elsewhere."""
    state = STATES[row.state]
    if state > _READY:
        return (*_facts_of(row, OTHER), _RUNNING, 0, 0, 0, "", None, None)
    return (
        *_facts_of(row, _way_of(row)), state, row.fence, row.attempt, row.started_us, row.reason, row.error, row.progress,
    )  # fmt: skip


def counted_of(row: Row) -> tuple[str, int] | None:
    """Return under which queue and state `counts` has a row."""
    state = STATES[row.state]
    return (row.queue, state) if row.kind is JobKind.TASK and state not in _COUNTED_THEMSELVES else None


def member_of(row: Row) -> tuple[Value, ...] | None:
    """Return what `members` keeps of a row, but for its number."""
    if not row.line or STATES[row.state] not in _IN_LINE:
        return None
    return (row.line, KINDS[row.kind], row.queue, row.priority, row.joined, row.id)


def run_of(row: Row) -> tuple[Value, ...]:
    """Return what `runs` keeps of a row."""
    return (
        row.number, row.holder, row.fence, row.turn, row.started_us, row.attempt, OTHER, row.cancel_requested,
        row.reason, row.error, row.progress,
    )  # fmt: skip


def end_of(row: Row) -> tuple[Value, ...]:
    """Return what `ends` keeps of a row."""
    return (
        row.number, STATES[row.state], row.fence, row.attempt, row.started_us, row.ended_us, row.keep_until_us, row.reason,
        row.error, row.progress, row.result,
    )  # fmt: skip


def _facts_of(row: Row, way: int) -> tuple[Value, ...]:
    more: bytes | None = None
    if row.waits or row.positions or row.stuck or row.history or row.input is not None or row.rest != _USUAL:
        waits = list(row.waits.values())
        more = _encode(_More(row.rest, waits, row.positions, row.input, row.stuck, row.history, row.unsure, row.left))
    return (
        row.number, row.id, KINDS[row.kind], way, row.awaited, row.priority, row.place, row.ready_us, row.lost, row.joined,
        row.created_us, row.due_us, row.expires_us, row.result_ttl_us, row.strayed_us, row.cancel_requested,
        row.queue, row.task, row.lane, row.line, row.unique, row.payload, row.meta, more,
        row.asker, row.registered_us if row.state is JobState.BLOCKED else 0,
    )  # fmt: skip


def _way_of(row: Row) -> int:
    """Return the way of a job that waits; see `jobs` in the schema."""
    rest = row.rest
    if (
        row.unique
        or row.awaited
        or row.expires_us
        or row.attempt
        or row.lost
        or row.strayed_us
        or row.history
        or row.waits
        or row.positions
        or row.input is not None
        or rest.serves
        or rest.ordered
        or row.kind is not JobKind.TASK
    ):
        return OTHER
    if row.line:
        return LINED
    return OTHER if rest.writes else PLAIN


def standing_of(row: Row) -> Standing | None:
    """Return a job whole, if it can be taken over."""
    if row.state not in MOVING or row.kind is not JobKind.TASK:
        return None
    rest = row.rest
    return standing(
        job=NewJob(
            id=row.id,
            task=row.task,
            payload=row.payload,
            meta=row.meta,
            queue=row.queue,
            priority=row.priority,
            expires_in_us=rest.expires_in_us,
            line=row.line,
            ordered=rest.ordered,
            writes=rest.writes,
            serves=rest.serves,
            wants_preimage=rest.wants_preimage,
            unique=row.unique,
            unique_until=rest.unique_until,
            parents=tuple(row.waits.values()),
            max_lost=rest.max_lost,
            result_ttl_us=row.result_ttl_us,
            failed_ttl_us=rest.failed_ttl_us,
        ),
        row=row,
    )


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
