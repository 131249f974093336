"""A job as the store knows it, and the records that move it.

Records are frozen msgspec structs: cheap to make by the ten thousand, and their equality is by value,
so that two stores can be compared step by step. Times are the store's, in microseconds; 0 means "none".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from selaras._core.cache.entry import Entry
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.reasons import Reason
from selaras._core.jobs.states import JobEvent, JobState

DEFAULT_QUEUE: Final = "default"


class JobKind(StrEnum):
    """What stands behind a job's row. Only `task` is shown to people."""

    TASK = "task"
    WRITING = "writing"  # a `key.writing()` scope outside jobs: intents and children with a lease
    LOCK = "lock"  # an `app.lock()` outside jobs: it stands in the same line


class Edge(StrEnum):
    """When a parent's end lets its dependent go."""

    AFTER = "after"  # it succeeded; cancelled or expired: the dependent is cancelled; failed: it waits on
    VALUE = "value"  # as AFTER, and its result is the dependent's first argument
    FINISHED = "finished"  # it ended, however
    SCOPE = "scope"  # the writing() scope succeeded or was lost; raised: the dependent is cancelled


class Parent(Struct, frozen=True, gc=False):
    """One thing a job waits for. `home` is the partition that knows it."""

    job: str
    edge: Edge = Edge.AFTER
    home: int = 0


class UniqueUntil(StrEnum):
    """How long a job keeps its unique key."""

    STARTED = "started"
    FINISHED = "finished"


class OnConflict(StrEnum):
    """What an enqueue does when its unique key is taken by a waiting job."""

    KEEP = "keep"
    REPLACE = "replace"


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A job to be enqueued. `payload` and `meta` are opaque to the store.

    Attributes:
        id: any text but "".
        due_us: the instant it becomes due; 0: at once. `delay_us` counts from the store's now instead. No instant
            lies beyond 2**62.
        expires_in_us: unstarted for so long after it was enqueued, it is `expired`; 0: never.
        line: the line it stands in, "" for none. `ordered`: a retry keeps the line while it backs off.
        writes: keys that get an intent at claim. `serves`: keys that are invalidated at settle instead.
        wants_preimage: the claim carries what its intents replaced.
        unique: the unique key, "" for none. `on_conflict="replace"` gives the waiting twin everything of this job but
            its id, and both its old parents and these.
        parents: what it waits for, each with the partition that knows it.
        positions: per partition, the position its dependents' reads must have seen (merged by maximum).
    """

    id: str
    task: str
    payload: bytes = b""
    meta: bytes = b""
    kind: JobKind = JobKind.TASK
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    due_us: int = 0
    delay_us: int = 0
    expires_in_us: int = 0
    line: str = ""
    ordered: bool = False
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    wants_preimage: bool = False
    unique: str = ""
    unique_until: UniqueUntil = UniqueUntil.STARTED
    on_conflict: OnConflict = OnConflict.KEEP
    parents: tuple[Parent, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()
    max_lost: int = 3
    result_ttl_us: int = 3_600_000_000
    failed_ttl_us: int = 7 * 86_400_000_000


class Refusal(StrEnum):
    """Why the store did not do what was asked."""

    ID_CONFLICT = "id_conflict"  # the id belongs to another task or other arguments
    LEASE_LOST = "lease_lost"  # (instance, job, fence) is not the attempt that holds the job
    UNKNOWN_JOB = "unknown_job"
    WRONG_STATE = "wrong_state"  # the table has no such transition


class Admission(Struct, frozen=True, gc=False):
    """What an enqueue came to. `id` is the job that now stands for the request."""

    id: str
    state: JobState
    created: bool = True
    replaced: bool = False
    refusal: Refusal | None = None


class Attempt(Struct, frozen=True, gc=False):
    """The attempt that may speak for a job: (process instance, job, fence)."""

    job: str
    fence: int


class Abandoned(Struct, frozen=True, gc=False):
    """An attempt that its worker gives up as lost. `reason`: what it knows of the end, for people."""

    job: str
    fence: int
    reason: str = Reason.LOST


class Fate(StrEnum):
    """What its home knows of an attempt whose intents stand elsewhere (P17)."""

    RUNNING = "running"  # it runs
    SETTLED = "settled"  # its settle decided about the intents: remove them
    PENDING = "pending"  # it was lost or unsure, and its job is not at its end: leave them to what comes
    GONE = "gone"  # it was lost or unsure and no attempt follows, or it is not known: let them stand a grace, then void


class Claim(Struct, frozen=True, gc=False):
    """A job handed to a worker.

    Attributes:
        number: which attempt this is, counted from 1.
        position: the log's tail in the reply that carries the claim (P1); reads of this partition must have
            applied the log up to here.
        elsewhere: written keys of other partitions: plant them there before the body starts (P17).
        preimages: (key, entry) that its clean, sole intents replaced (P10).
        input: the value of the parent it follows by `Edge.VALUE`; None: no such parent.
        positions: per partition, what it must have seen of others (its parents' effects).
        strayed_us: since when workers have been giving it back as unroutable; 0: they have not.
    """

    job: str
    fence: int
    number: int
    task: str
    payload: bytes
    meta: bytes = b""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    lost: int = 0
    created_us: int = 0
    position: int = 0
    line: str = ""
    ordered: bool = False
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    preimages: tuple[tuple[str, Entry], ...] = ()
    input: bytes | None = None
    positions: tuple[tuple[int, int], ...] = ()
    strayed_us: int = 0


class Put(Struct, frozen=True, gc=False):
    """A value to be stored with a settle, over the attempt's own, sole, clean intent (P8).

    `note`: what readers want to know of it, kept and given back with the value; opaque to the store.
    """

    key: str
    value: bytes
    checksum: int
    expires_in_us: int = 0
    tags: tuple[str, ...] = ()
    family: str = ""
    version: int | None = None
    note: bytes = b""


class Settlement(Struct, frozen=True, gc=False):
    """The one write that ends an attempt.

    Attributes:
        delay_us: when it runs again, for `retry`, `snooze`, `give_back`.
        event: one of `lifecycle.SETTLING`; another is refused as `wrong_state`.
        result: the encoded result of a success.
        error: the encoded error of anything else; opaque to the store.
        reason: one line for people.
        puts: values; stored only by `succeed`, everything else drops them.
        keys, tags, families: what the attempt invalidated beside its declared writes. Keys of other partitions are
            voided there through the outbox; tags and families here only (P12).
        versions: (key, version) floors that this settle sets (P13); `closes`: (key, microseconds) for which
            fills of a key stay refused, since the write named no version.
        children: jobs enqueued by the body; enqueued by `succeed` only.
        planted: keys that got an intent of this attempt during its run (P14), in any partition. Those of its home
            are resolved though they are not named; one that is named and is not there is voided (P9).
        writes: the job's declared keys, repeated so that a refused settle can void them (G4).
        serves: its declared keys of families under `during_write="serve"`, repeated for the same reason, and so that
            other partitions can be told of them first (P17).
        unsure: the body began and was stopped from outside (timeout, cancel, shutdown, killed child): a write of it
            may still reach the datastore. Its intents are not removed but go the way of a lost attempt's (P18). So do, by
            the store's own word, those of a `release` or `give_back` that follows a lost or unsure attempt.
        started: False only for a `release` of an attempt whose body never began: its pre-image may return (P10).
    """

    job: str
    fence: int
    event: JobEvent
    result: bytes | None = None
    error: bytes | None = None
    reason: str = ""
    delay_us: int = 0
    puts: tuple[Put, ...] = ()
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    closes: tuple[tuple[str, int], ...] = ()
    children: tuple[NewJob, ...] = ()
    planted: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    started: bool = True
    unsure: bool = False

    @property
    def names_more(self) -> bool:
        """Whether the attempt did anything to the cache beyond its puts and its declared keys."""
        return bool(self.keys or self.tags or self.families or self.versions or self.closes or self.planted)

    @property
    def may_have_written(self) -> tuple[str, ...]:
        """Every key that the attempt may have changed: what a refused settle voids (G4)."""
        return (*self.writes, *self.serves, *self.keys, *self.planted, *(put.key for put in self.puts))

    @property
    def may_write(self) -> bool:
        """Whether a refused settle voids anything at all."""
        return bool(self.may_have_written or self.tags or self.families or self.closes)


class Settled(Struct, frozen=True, gc=False):
    """What became of a settlement.

    Attributes:
        state: where the job stands now; None when refused.
        stored: (key, position, stamp) of each value stored, each true right after its own store (P3).
        children: the admissions of the children, in order.
    """

    job: str
    fence: int
    state: JobState | None = None
    refusal: Refusal | None = None
    stored: tuple[tuple[str, int, int], ...] = ()
    children: tuple[Admission, ...] = ()


class Ended(Struct, frozen=True):
    """One past attempt, in a job's history. `unsure`: as in its settlement."""

    number: int
    fence: int
    event: JobEvent
    at_us: int
    reason: str = ""
    unsure: bool = False


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job as inspection shows it. `parents`: those it still waits for."""

    id: str
    task: str
    queue: str
    kind: JobKind
    state: JobState
    priority: int
    payload: bytes
    meta: bytes
    attempt: int
    lost: int
    fence: int
    instance: str
    created_us: int
    due_us: int
    started_us: int
    ended_us: int
    keep_until_us: int
    line: str
    unique: str
    writes: tuple[str, ...]
    parents: tuple[Parent, ...]
    result: bytes | None
    error: bytes | None
    reason: str
    progress: bytes | None
    cancel_requested: bool
    stuck_on: str  # the parent that ended `failed`, while it blocks this job
    strayed_us: int
    history: tuple[Ended, ...]


MOVING: Final = frozenset(
    {JobState.BLOCKED, JobState.SCHEDULED, JobState.HELD, JobState.READY, JobState.FAILED},
)
"""States in which a job can be taken over by another store: nobody runs it, and it may run yet."""


class Standing(Struct, frozen=True, kw_only=True):
    """A job in one of the states `MOVING`, whole: what another store needs to take it over.

    Attributes:
        job: what was asked for. Its `parents` are those that it still waits for; what only an admission asks for
            (`due_us`, `delay_us`, `on_conflict`, `positions`) is as by default.
        place, joined: its order among those that are ready, and in its line; 0: it has none.
    """

    job: NewJob
    state: JobState
    created_us: int
    due_us: int
    expires_us: int
    place: int
    joined: int
    attempt: int
    lost: int
    unsure: bool
    input: bytes | None
    error: bytes | None
    progress: bytes | None
    reason: str
    strayed_us: int
    ended_us: int
    keep_until_us: int
    history: tuple[Ended, ...]

    @property
    def keeps_line(self) -> bool:
        """Whether it holds its line though it waits: an ordered retry."""
        job, past = self.job, self.history
        return bool(job.line) and job.ordered and bool(past) and past[-1].event is JobEvent.RETRY


def fate_of(attempt: int, *, state: JobState, fence: int, history: Sequence[Ended]) -> Fate:
    """Say what became of the attempt with this fence, of a job that stands so, whose latest attempt has `fence`.

    Only what is known for sure is `SETTLED`: by it intents are removed, and the write they guard may be under way.
    """
    if attempt == fence and state is JobState.RUNNING:
        return Fate.RUNNING
    ended = next((one for one in history if one.fence == attempt), None)
    if ended is None and attempt == fence and state is JobState.SUCCEEDED:
        return Fate.SETTLED
    if ended is not None and ended.event is not JobEvent.LOSE and not ended.unsure:
        return Fate.SETTLED
    return Fate.GONE if state in FINAL else Fate.PENDING


_SHOWN: Final = tuple(name for name in Standing.__struct_fields__ if name not in {"job", "history"})
_CARRIED: Final = tuple(
    name for name in _SHOWN if name not in {"state", "created_us", "place", "ended_us", "keep_until_us"}
)


def standing(row: Any, job: NewJob) -> Standing:
    """Show a store's row, which has the fields of a `Standing` by the same names. `job`: what was asked for."""
    return Standing(job=job, history=tuple(row.history), **{name: getattr(row, name) for name in _SHOWN})


def carry_over(row: Any, stood: Standing) -> None:
    """Give a new row what a job brings along, but for where it stands now."""
    for name in _CARRIED:
        setattr(row, name, getattr(stood, name))
    row.history = list(stood.history)
