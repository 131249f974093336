"""A partition: jobs, lines, entries, intents and log that change together, in one atomic step a verb.

The laws every store keeps (P-numbers: the protocol's rules):

    L1  Each verb is atomic and takes effect between its call and its reply. Its `News` is read in the same step.
    L2  Within a `turn`: settlements first, in the order given; then what is due; then claims, highest priority
        first, then by place. So a claim sees the effects of every settle before it (G1).
    L3  A claim plants an intent for each written key of this partition and appends one event a key. The entry it
        replaces becomes the pre-image, if the intent stands alone (P7, P10).
    L4  A settle must match (instance, job, fence); otherwise it is refused, and what the attempt may have
        written (`writes`, `keys`, `planted`, `puts`) is voided (P9, G4). It removes only its own intents.
    L5  A put is stored only by `succeed`, over its own sole, clean intent; otherwise it voids its key (P8).
    L6  To void a key: one event; its entry and token go; its intents become unclean and lose their pre-image.
        Voiding never removes an intent (P7).
    L7  A fill is accepted only from the exact, unvoided token, while no intent stands, if none of its tags nor its
        family has an event after the token was granted, and not below the key's floor (P11, P12, P13).
    L8  Fences, tokens and stamps come from one counter, `max(last + 1, now)`, with the epoch in its high bits,
        never reused (P15). "Now" is the store's time: it does not go back when a wall clock does.
    L9  Turns are numbered by the instance; a repeat returns the same outcomes, of its claims those that still stand, and
        fresh news (P16). What a heartbeat released meanwhile, or a later turn settled, is another's or over: to hand it
        out once more would run it twice.
    L10 Of a line at most one job runs. Its head is the first by (priority, time of joining) that may run (P21);
         promoted, it has the place among all that are ready at which it joined, so that a line is not starved by a backlog.
    L11 What belongs to another partition goes into the outbox in the same step, and is delivered at least once;
        accepting a delivery twice does no more than void once more (P17, P22).
    L12 What no attempt follows lets go of everything: whatever ends a job, by hand or by itself, frees its line, its
        unique key and its intents; those of lost attempts after a grace (P18).
    L13 What waits for a job is told of its end within a bound (`TOLD_PER_STEP`) by the verb that ends it; who is left is told
        by the turns and rounds of housekeeping that follow, in steps, and until then the job is kept.
    L14 An intent on an open name (`_core/cache/opening.py`) opens a tag or family in this partition: its events are that
        tag's or family's, and while an intent stands there its last event lies behind every position, so that L5 and L7
        refuse what bears it. Whatever removes the intent appends one more event (P7, P12). While an open name is closed
        (`closes`), no fill is accepted that bears it (P13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from selaras._core.cache.entry import Intent, Look
from selaras._core.jobs.job import (
    Abandoned,
    Admission,
    Attempt,
    Claim,
    Edge,
    Fate,
    JobKind,
    JobRecord,
    NewJob,
    Put,
    Refusal,
    Settled,
    Settlement,
    Standing,
)
from selaras._core.jobs.states import JobState
from selaras._core.positions import Cursor, News


class Instance(Struct, frozen=True, kw_only=True):
    """A process as the store knows it: the owner of leases. `id` is new at every start (P16)."""

    id: str
    lease_us: int
    name: str = ""
    pid: int = 0
    host: str = ""
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    bell: str = ""


class TurnRequest(Struct, frozen=True, kw_only=True):
    """Settle, claim and hear the news in one step.

    Attributes:
        number: counts the instance's turns from 1; a repeat of a number is answered from memory (P16). Two turns in
            flight may arrive in either order.
        acked: all turns up to this one were received or given up: the store forgets them, and does nothing for them.
        queues: those to claim from; () claims nothing.
        tasks: task names this worker knows and has room for; a job of another task is laid aside for workers that do.
        full: those that it knows and has no room for now: their jobs are laid aside, but nobody is missed for them.
        limit: the most claims wanted.
        idle: when nothing can be claimed, ring this instance's bell for new work in `queues`.
    """

    instance: str
    number: int
    since: Cursor
    acked: int = 0
    settlements: tuple[Settlement, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: frozenset[str] = frozenset()
    full: frozenset[str] = frozenset()
    limit: int = 0
    idle: bool = False
    progress: tuple[tuple[str, int, bytes], ...] = ()


class Waiting(Struct, frozen=True):
    """A job that waits to be claimed, as far as it says what it will read and write; see `Claim`."""

    job: str
    task: str
    payload: bytes
    meta: bytes = b""
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    input: bytes | None = None


class TurnReply(Struct, frozen=True, kw_only=True):
    """What a turn came to.

    Attributes:
        enrolled: False: the instance's lease ran out or it was never enrolled; nothing was claimed, settlements
            were refused. Enrol again under a new id.
        settled: one a settlement, in order.
        more: ready work that this worker could claim was left, or may come: of some end not all were told yet (L13).
        next_due_us: microseconds until the next scheduled job is due; -1: none.
        cancels: attempts of this instance that were asked to end.
        outbox: effects wait to be delivered to other partitions.
    """

    news: News
    enrolled: bool = True
    settled: tuple[Settled, ...] = ()
    claims: tuple[Claim, ...] = ()
    more: bool = False
    next_due_us: int = -1
    cancels: tuple[Attempt, ...] = ()
    outbox: bool = False


class HeartbeatRequest(Struct, frozen=True, kw_only=True):
    """Renew the instance's lease.

    Attributes:
        last_turn: the last turn whose reply was received.
        held: attempts it still answers for. What turns up to `last_turn` claimed and is not named here is
            released uncounted: its reply was lost (P16).
        abandoned: attempts it gives up as lost: their bodies are past every deadline and cannot be ended (P19), or died.
        settlements: settles that the main connection could not deliver (P19).
        scopes: `writing()` scopes and locks it still answers for, named from before their request is sent until their
            settle is done: fence 0 means asked for, and matches by the job alone.
        names_scopes: `scopes` is complete: what it does not name is ended as lost, be it running or a lock in line.
    """

    instance: str
    last_turn: int
    held: tuple[Attempt, ...] = ()
    abandoned: tuple[Abandoned, ...] = ()
    settlements: tuple[Settlement, ...] = ()
    scopes: tuple[Attempt, ...] = ()
    names_scopes: bool = False


class HeartbeatReply(Struct, frozen=True, kw_only=True):
    """`lost`: attempts of `held` that are no longer this instance's."""

    enrolled: bool
    lost: tuple[Attempt, ...] = ()
    cancels: tuple[Attempt, ...] = ()
    settled: tuple[Settled, ...] = ()


class Enqueued(Struct, frozen=True):
    """One admission a job, in order."""

    admissions: tuple[Admission, ...]
    news: News
    outbox: bool = False


class ReadRequest(Struct, frozen=True):
    """A look at one key.

    Attributes:
        lease_us: how long a load may take: the token's life. 0: no token is wanted.
        distrust: the stamp of an entry whose bytes were found corrupt: it is dropped first.
        renews: the stamp of an entry that the reader wants to load anew: if it still stands, a token comes with it,
            one at a time as ever. The entry stays until it is filled over or voided, and so does the token.
    """

    key: str
    family: str = ""
    lease_us: int = 0
    distrust: int = 0
    renews: int = 0


class ReadReply(Struct, frozen=True):
    """One look a key, in order; all true at `news.tail`."""

    looks: tuple[Look, ...]
    news: News


class Fill(Struct, frozen=True):
    """A loaded value, under the token that allowed the load."""

    put: Put
    token: int


class FillReply(Struct, frozen=True):
    """For each fill the (position, stamp) it was stored at, or None if refused."""

    stored: tuple[tuple[int, int] | None, ...]
    news: News


class Invalidation(Struct, frozen=True):
    """Names to void: keys of this partition; tags and families are told to every partition (P12).

    `versions` and `closes`: as in a settlement; the latter, open names too.
    """

    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    closes: tuple[tuple[str, int], ...] = ()


class Owner(Struct, frozen=True):
    """Who owns an intent: an attempt at home in some partition."""

    home: int
    job: str
    fence: int


class Planted(Struct, frozen=True):
    """`refusal` is LEASE_LOST when the owner, at home here, is not a running attempt of the instance."""

    news: News
    refusal: Refusal | None = None


class Grant(Struct, frozen=True):
    """A lock or writing scope: `fence` 0 means it still stands in line."""

    fence: int
    news: News
    refusal: Refusal | None = None


class SettleReply(Struct, frozen=True):
    """As `TurnReply.settled`."""

    settled: tuple[Settled, ...]
    news: News
    outbox: bool = False


class Effect(Struct, frozen=True, kw_only=True, tag_field="effect"):
    """Something decided in one partition that another one must do.

    `sender` is the partition that posted it, and `id` comes from the sender's counter (L8): it grows, in every epoch.
    What is delivered twice, or late, is known by it. -1: nobody posted it, and so it cannot be known again.
    """

    id: int = 0
    to: int = 0
    sender: int = -1


class Register(Effect, frozen=True, kw_only=True, tag="register"):
    """Tell `child`, at home in `home`, when `parent` ends; if it has ended, at once."""

    parent: str
    child: str
    edge: Edge
    home: int


class Parted(Effect, frozen=True, kw_only=True, tag="parted"):
    """A parent ended: `state` None means it is not known here. `positions` is what its effects reached."""

    parent: str
    child: str
    edge: Edge
    state: JobState | None
    value: bytes | None = None
    reason: str = ""
    positions: tuple[tuple[int, int], ...] = ()


class Resolve(Effect, frozen=True, kw_only=True, tag="resolve"):
    """Remove the owner's intents on `keys`; store `puts` where they may be (L5). Not found: void (P9).

    `stand_us` > 0: the owner was lost for good; let them stand that long, then void (P18).
    `versions` and `closes`: floors of keys of the receiver, set in the same step (P13).
    """

    owner: Owner
    keys: tuple[str, ...] = ()
    puts: tuple[Put, ...] = ()
    stand_us: int = 0
    versions: tuple[tuple[str, int], ...] = ()
    closes: tuple[tuple[str, int], ...] = ()


class Void(Effect, frozen=True, kw_only=True, tag="void"):
    """Void these names."""

    names: Invalidation


class Admit(Effect, frozen=True, kw_only=True, tag="admit"):
    """Enqueue this child at its home."""

    job: NewJob


class FreeUnique(Effect, frozen=True, kw_only=True, tag="free_unique"):
    """The directory entry of `unique` is free if `job`, at home with the sender, still holds it."""

    unique: str
    job: str


class HoldUnique(Effect, frozen=True, kw_only=True, tag="hold_unique"):
    """`job`, at home in `home`, had begun and waits again: it takes the entry of `unique` if nobody has it, or `replacing`.

    Whoever has it instead is asked whether it is a newer twin: see `MeetTwin`.
    """

    unique: str
    job: str
    home: int
    replacing: str = ""


class MeetTwin(Effect, frozen=True, kw_only=True, tag="meet_twin"):
    """The entry of `unique` is `twin`'s. If that has a right to it, `job` gives way (`Supersede`).

    If it has none any more, `job` takes the entry over (`HoldUnique`). If it is not known here, it may be on its way in,
    or never come: `job` goes on without the name, for it must not be dropped for nothing.
    """

    unique: str
    job: str
    home: int
    twin: str


class Supersede(Effect, frozen=True, kw_only=True, tag="supersede"):
    """`job` gives way to a newer twin, unless it has begun again: it ends `cancelled`, "superseded by" it."""

    job: str
    by: str


AnyEffect = Register | Parted | Resolve | Void | Admit | FreeUnique | HoldUnique | MeetTwin | Supersede


class Outbox(Struct, frozen=True):
    """Effects for other partitions, oldest first."""

    effects: tuple[AnyEffect, ...]


class Reservation(Struct, frozen=True):
    """A directory entry (P22): the job that holds a unique key or an explicit id, and the home it was reserved for."""

    job: str
    home: int
    mine: bool


class Tended(Struct, frozen=True, kw_only=True):
    """What a round of housekeeping did; `again`: it stopped at its bound and more is waiting.

    `orphans`: intents of attempts at home elsewhere that have stood long: ask their home (P17).
    """

    promoted: int = 0
    suspected: int = 0
    lost: int = 0
    expired: int = 0
    purged: int = 0
    unroutable: int = 0
    trimmed: int = 0
    again: bool = False
    orphans: tuple[Intent, ...] = ()
    outbox: bool = False


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs a listing shows, newest first. `before` is the `cursor` of the last page."""

    kind: JobKind = JobKind.TASK
    states: tuple[JobState, ...] = ()
    queue: str = ""
    task: str = ""
    before: int = 0
    limit: int = 50


class JobPage(Struct, frozen=True):
    """A page of jobs; `cursor` 0: it was the last."""

    jobs: tuple[JobRecord, ...]
    cursor: int = 0


class QueueStats(Struct, frozen=True, kw_only=True):
    """One queue at a glance.

    Attributes:
        workers: live instances that serve it.
        oldest_ready_us: since when the job that has waited longest can be claimed; one that stood in a line, since it
            was promoted.
        apart: jobs that were laid aside: a worker did not know their tasks, or had no room for them.
    """

    name: str
    counts: dict[str, int]
    paused: bool = False
    workers: int = 0
    oldest_ready_us: int = 0
    apart: int = 0


class CacheStats(Struct, frozen=True, kw_only=True):
    """The shared tier at a glance."""

    entries: int
    bytes: int
    intents: int
    tokens: int
    position: int
    log_length: int
    epoch: int


class Partition(Protocol):
    """One partition of a store. Every verb is atomic; see the laws at the top of this module.

    Raises (all verbs): StoreUnavailable, and then nothing was done unless the verb says otherwise.
    """

    index: int

    # -- jobs
    async def enqueue(self, jobs: Sequence[NewJob], since: Cursor) -> Enqueued:
        """Admit jobs, each on its own: one that is refused does not stop the others.

        The same id again, with the same task and payload, changes nothing and returns the twin.
        """
        ...

    async def turn(self, request: TurnRequest) -> TurnReply:
        """Settle, then claim, then tell the news (L2)."""
        ...

    async def peek(self, queues: Sequence[str], tasks: frozenset[str], limit: int) -> tuple[Waiting, ...]:
        """Look at the jobs that a worker of these queues and tasks would claim next, in that order, and change nothing.

        At most `limit` are looked at, and those of other tasks left out of the answer; one that has expired may be in it.
        """
        ...

    async def settle(self, instance: str, settlements: Sequence[Settlement], since: Cursor) -> SettleReply:
        """End attempts outside a turn: `writing()` scopes and locks."""
        ...

    async def enroll(self, instance: Instance) -> None:
        """Make the instance known, with a fresh lease; its turns are still known if it was."""
        ...

    async def dismiss(self, instance: str) -> None:
        """The instance ended in order: what it still holds is released uncounted, its lease ends."""
        ...

    # -- cache
    async def read(self, requests: Sequence[ReadRequest], since: Cursor) -> ReadReply:
        """Look at keys, and grant tokens for what is missing."""
        ...

    async def fill(self, fills: Sequence[Fill], since: Cursor) -> FillReply:
        """Store loaded values (L7)."""
        ...

    async def extend_fills(self, tokens: Sequence[tuple[str, int]], lease_us: int) -> None:
        """Renew the tokens of loads that are still running; (key, token)."""
        ...

    async def abandon_fills(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Give tokens back whose load failed, so that the next reader need not wait."""
        ...

    async def invalidate(self, names: Invalidation, since: Cursor) -> News:
        """Void names, now (L6)."""
        ...

    async def plant(self, instance: str, owner: Owner, keys: Sequence[str], since: Cursor) -> Planted:
        """Plant intents of a running attempt (P14, P17): event, entry gone, unclean if another stands.

        Where the attempt's own intent stands already this is an invalidation that leaves it clean. Refused,
        without effect, if a later attempt of the job stands there.
        """
        ...

    async def events_since(self, since: Cursor) -> News:
        """Read the log's tail, and what lies between."""
        ...

    def tail_now(self) -> Cursor | None:
        """Return the log's tail without waiting, or None where that is not possible."""
        ...

    # -- scopes and locks outside jobs
    async def open_scope(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """Begin a `writing()` scope: a running attempt with intents on `job.writes`, at once.

        It ends by `settle`: `succeed`, or `fail` if the block raised (then it is `cancelled`, with its children).
        """
        ...

    async def acquire(self, instance: str, job: NewJob, since: Cursor) -> Grant:
        """Stand in `job.line` for a lock; ask again with the same id until it is granted."""
        ...

    # -- housekeeping
    async def tend(self, limit: int) -> Tended:
        """Due jobs, lost workers (looked at twice, P19), expiry, retention, the log's length; bounded by `limit`."""
        ...

    async def outbox(self, limit: int) -> Outbox:
        """Read effects for other partitions, oldest first."""
        ...

    async def delivered(self, ids: Sequence[int]) -> None:
        """Drop effects that have been accepted elsewhere."""
        ...

    async def accept(self, effects: Sequence[AnyEffect]) -> None:
        """Do what another partition decided; twice is once."""
        ...

    async def reserve(self, name: str, job: str, home: int, replacing: str) -> Reservation:
        """Take the directory entry `name` for `job` (P22), if it is free or held by `replacing` ("" for none).

        `job` itself may replace its entry, to move its home; otherwise an entry of its own stays as it is.
        """
        ...

    async def fates(self, attempts: Sequence[Attempt]) -> tuple[Fate, ...]:
        """Say what became of attempts at home here, one fate each."""
        ...

    # -- inspection
    async def job(self, id: str, since: Cursor) -> tuple[JobRecord | None, News]:
        """Return one job with the log up to now (G8)."""
        ...

    async def jobs(self, which: JobFilter) -> JobPage:
        """List jobs of kind `task`, newest first."""
        ...

    async def queues(self) -> tuple[QueueStats, ...]:
        """Every queue that has jobs, workers or a pause."""
        ...

    async def instances(self) -> tuple[Instance, ...]:
        """Live instances."""
        ...

    async def cache_stats(self) -> CacheStats:
        """Count the shared tier."""
        ...

    async def intents(self, key: str) -> tuple[Intent, ...]:
        """Return the intents that stand on a key."""
        ...

    # -- by hand
    async def cancel(self, id: str, reason: str) -> tuple[JobState | None, bool]:
        """Cancel a job. Returns the state it is in now, and whether this call did it (or, of a running one, asked it)."""
        ...

    async def revive(self, id: str) -> Admission:
        """Retry a failed job by hand: a fresh budget, its history kept.

        Refused as `wrong_state` if it is not `failed`, or if its unique key is held: then `id` names the holder.
        """
        ...

    async def purge(self, states: Sequence[JobState], queue: str, limit: int) -> int:
        """Delete jobs that nobody runs; their unique keys are freed, their dependents told. Returns how many."""
        ...

    async def pause(self, queue: str, *, paused: bool) -> None:
        """Stop or resume claims from a queue; its line heads give their places up (P21)."""
        ...

    # -- from store to store
    async def standing(self, ids: Sequence[str]) -> tuple[Standing | None, ...]:
        """Return jobs as they stand, whole; None: not known, running, or over for good."""
        ...

    async def adopt(self, jobs: Sequence[Standing], epoch: int) -> tuple[bool, ...]:
        """Take jobs over that stood so in another store: its epochs were all below `epoch`, and so are its fences (P15).

        Their parents, `home` as here, must be here before them. A job whose id is there already is left as it is, and
        False returned for it: twice is once.
        """
        ...
