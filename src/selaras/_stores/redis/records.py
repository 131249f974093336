"""What the scripts keep and are sent, as arrays: a script finds a field by its place (`scripts.STRUCTS`)."""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from selaras._core.codec import UNREADABLE
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import NewJob
from selaras._core.jobs.states import JobState

STATES: Final = {state: code for code, state in enumerate(JobState, 1)}
"""States as scripts know them."""

Code = Annotated[int, Meta(ge=1, le=len(STATES))]
"""A state, as scripts know it."""

Fence = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
"""A fence, token, stamp or effect id, as scripts have it: text that sorts."""

STATE_OF: Final = {code: state for state, code in STATES.items()}

PAGE: Final = 128
"""Numbers of jobs that one page tells."""

MENDED_LEASE_US: Final = 15_000_000
"""The lease that an instance has from here on whose row was written over."""

ARRANGED_AT_ONCE: Final = 200
"""Lines in which several queues wait that one step looks at once served queues have changed."""

LOOKED_AT: Final = 20
MENDED_AT_ONCE: Final = 200
"""Jobs or lines that one round of housekeeping looks at: as a rule, and once something was met that was written over."""

EXPIRED_PER_TURN: Final = 1_000
TAKEN_AT_ONCE: Final = 1_000
"""Jobs that expired while they were ready, that a turn which meets them lets go; attempts that are taken from
lost workers, or given back by one that ends. The next call goes on.
"""

OWNERS_MOST: Final = 20_000
"""Intents among which one script looks for those of keys that were written over."""

PUSHED_MOST: Final = 16
"""Events that are said where a log's growth is: of more, only that there are."""

Pairs = list[tuple[str, Any]]
"""(name, value) for some names."""

Homes = list[str | int]
"""Of names that belong to other partitions, each name and then its partition: scripts cannot hash names themselves."""


DAMAGED: Final = (*UNREADABLE, struct.error)
"""What reading rows that nobody here wrote may raise."""


def _corrupt() -> Failure:
    """Return with what a job ends that was written over: with what its worker says where a store hands it out so."""
    try:
        msgspec.msgpack.decode(NO_META)
    except msgspec.DecodeError as error:
        return Failure("CorruptBytes", str(error))
    raise AssertionError(NO_META)


NO_META: Final = b"\xc1"
"""The one byte that MessagePack never uses: what stands in a job's meta before bytes that cannot be read."""

CORRUPT: Final = _corrupt()
_NEW: Final = NewJob(id="", task="")


class Profile(Struct, frozen=True, array_like=True):
    """What the jobs of one task usually have in common; the scripts unpack it once for all that do."""

    task: str
    queue: str
    priority: int
    kind: str
    result_ttl_us: int
    failed_ttl_us: int
    max_lost: int
    ordered: bool
    wants_preimage: bool
    unique_until: str
    on_conflict: str


class Extra(Struct, frozen=True, array_like=True):
    """What else a job has that is not plain. A plain one has none, and its delay is told beside it. Fields that are as
    here are left out at the end.
    """

    line: str = ""
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    unique: str = ""
    parents: tuple[tuple[str, str, int], ...] = ()  # (job, edge, home)
    positions: tuple[int, ...] = ()  # partition, position, ...
    due_us: int = 0
    delay_us: int = 0
    expires_in_us: int = 0
    homes: Homes = []


UNKNOWN: Final = Profile(
    "",
    _NEW.queue,
    _NEW.priority,
    _NEW.kind.value,
    _NEW.result_ttl_us,
    _NEW.failed_ttl_us,
    _NEW.max_lost,
    _NEW.ordered,
    _NEW.wants_preimage,
    _NEW.unique_until.value,
    _NEW.on_conflict.value,
)
"""What is taken for the profile of a job whose own cannot be read."""


OTHER: Final = 0
PLAIN: Final = 1
LINED: Final = 2
"""How a job goes: plain (nothing but its time stands between it and a worker, and nothing hangs on its end); lined, which
is the same behind a line of its own partition, with at most one key there that it writes; or any other way."""


class Row(Struct, frozen=True, array_like=True):
    """What changes of a job. Fields that are as here are left out at the end.

    That of a plain or lined job is put together and taken apart as text: the first three fields, then a tail that all
    jobs of one claim have in common. Up to `attempt` it has its fields while it runs, up to `result` when it has succeeded.
    """

    state: Code
    fence: str = ""
    number: int = 0
    instance: str = ""
    turn: int = 0  # the turn that claimed it
    started_us: int = 0
    way: int = OTHER
    queue: str = ""  # unless it goes another way: as its end needs it
    result_ttl_us: int = 0  # likewise
    attempt: int = 0
    ended_us: int = 0
    keep_until_us: int = 0
    result: Raw = Raw(b"\xc2")
    due_us: int = 0
    expires_us: int = 0
    place: int = 0  # order of becoming ready
    ready_us: int = 0
    joined: int = 0  # order in its line; 0: it will join at the tail
    is_apart: bool = False
    strayed_us: int = 0
    lost: int = 0
    asker: str = ""  # the instance that asked for this scope or lock
    error: Raw = Raw(b"\xc2")
    reason: str = ""
    progress: Raw = Raw(b"\xc2")
    cancel_requested: bool = False
    unsure: bool = False  # an attempt ended so that a write of it may still land
    left: list[str | int] = []  # keys elsewhere on which such attempts left their intents, each with its partition
    registered_us: int = 0  # when its parents elsewhere were last told of it; 0: it waits for none there
    waits: list[tuple[str, str, int]] = []  # (parent, edge, home)
    positions: list[int] = []  # partition, position, ...
    input: Raw = Raw(b"\xc2")
    stuck: list[str] = []  # parents that ended `failed`
    history: list[tuple[int, str, str, int, str, bool]] = []  # as Ended
    is_awaited: bool = False  # others wait for it
    has_planted: bool = False  # its attempt planted intents beside its declared ones


class Settle(Struct, frozen=True, array_like=True):
    """A settlement, as it is sent. Most successes are sent in fewer words."""

    job: str
    fence: str
    event: str
    result: bytes | bool
    error: bytes | bool
    reason: str
    delay_us: int
    puts: list[Any]
    keys: tuple[str, ...]
    tags: tuple[str, ...]
    families: tuple[str, ...]
    versions: Pairs
    closes: Pairs
    children: list[tuple[str, bytes, int]]  # (id, what was enqueued, home)
    planted: tuple[str, ...]
    writes: tuple[str, ...]
    serves: tuple[str, ...]
    started: bool
    unsure: bool
    homes: Homes


class Adopted(Struct, frozen=True, array_like=True):
    """A job as it stood in another store; see `Standing`."""

    id: str
    blob: Raw
    state: int
    created_us: int
    due_us: int
    expires_us: int
    place: int
    joined: int
    attempt: int
    lost: int
    unsure: bool
    input: Raw | bool
    error: Raw | bool
    progress: Raw | bool
    reason: str
    strayed_us: int
    ended_us: int
    keep_until_us: int
    history: list[tuple[int, str, str, int, str, bool]]
    keeps_line: bool


class Holder(Struct, frozen=True, array_like=True):
    """An instance and its lease."""

    code: int  # order of enrolling
    until_us: int
    suspected_us: int
    acked: int
    lease_us: int
    queues: list[str]
    bell: str
    idle: list[str] | bool  # the queues for whose jobs it wants to be woken
    instance: bytes
    last: int = 0  # the highest number of its turns
    short: list[int] = []  # outcomes of turns that it has not acknowledged: number, successes


class Line(Struct, frozen=True, array_like=True):
    """A line: who holds it, who of those that wait may be claimed, and in which groups so many wait (P21)."""

    holder: str
    head: str
    groups: list[str]
    waiting: int


class Standing(Struct, frozen=True, array_like=True):
    """One of the intents on a key, in order of planting."""

    home: int
    job: str
    fence: Fence
    planted_us: int
    planted_at: int
    clean: bool
    preimage: bytes | bool  # the entry that it replaced
    until_us: int  # it falls by itself then; 0: it does not
    epoch: int


class Floor(Struct, frozen=True, array_like=True):
    """What a key's values must not lie below, and until when none is stored."""

    version: Fence | bool
    closed_until_us: int


class Name(Struct, frozen=True, array_like=True):
    """Who has a name in the directory."""

    job: str
    home: int


class Dependent(Struct, frozen=True, array_like=True):
    """Who waits for a job."""

    child: str
    edge: str
    home: int


class Told(Struct, frozen=True, array_like=True):
    """What a turn came to: told again if it is repeated (P16), and the list of what it claimed while some of that runs."""

    position: int
    settled: list[Any]
    claims: list[str]  # job, fence, ...
    preimages: list[Any]  # (job, pre-images)


class Hash(NamedTuple):
    """What the rows of a hash are.

    Attributes:
        check: the function that tells a sound one; None: any text is.
        mend: the function that makes something of a damaged one; None: it goes.
        is_packed: they are MessagePack.
    """

    check: str | None = None
    mend: str | None = None
    is_packed: bool = False


HASHES: Final = {
    "jobs": Hash(),
    "dyn": Hash(),
    "queues": Hash(),
    "turns": Hash("IS_TOLD", "mend_turn", is_packed=True),
    "accepted": Hash("is_accepted"),
    "entries": Hash("is_entry"),
    "tokens": Hash("is_token"),
    "lines": Hash("IS_LINE", "mend_lost_line", is_packed=True),
    "directory": Hash("IS_NAME", is_packed=True),
    "holders": Hash("IS_HOLDER", "mend_holder", is_packed=True),
    "intents": Hash("are_intents", "mend_intents", is_packed=True),
    "floors": Hash("IS_FLOOR", "mend_floor", is_packed=True),
}
"""The hashes whose rows scripts read by `hash`. Jobs are checked where they are made of two rows (`get_row`)."""
