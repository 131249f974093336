"""What the scripts keep and are sent, as arrays: a script finds a field by its place (`scripts.STRUCTS`)."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct

from selaras._core.jobs.states import JobState

STATES: Final = {state: code for code, state in enumerate(JobState, 1)}
"""States as scripts know them."""

STATE_OF: Final = {code: state for state, code in STATES.items()}

PAGE: Final = 128
"""Numbers of jobs that one page tells."""

Pairs = list[tuple[str, Any]]
"""(name, value) for some names."""

Homes = list[str | int]
"""Of names that belong to other partitions, each name and then its partition: scripts cannot hash names themselves."""


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

    state: int
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
    is_stray: bool = False
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


class Line(Struct, frozen=True, array_like=True):
    """A line: who holds it, who of those that wait may be claimed, and in which groups so many wait (P21)."""

    holder: str
    head: str
    groups: list[str]
    waiting: int


class Told(Struct, frozen=True, array_like=True):
    """What a turn came to: told again if it is repeated (P16), and the list of what it claimed while some of that runs."""

    position: int
    settled: list[Any]
    claims: list[str]  # job, fence, ...
    preimages: list[Any]  # (job, pre-images)
