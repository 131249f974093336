"""What a worker does, as records: the source of logs, progress displays and telemetry.

Labels come from declarations (task, queue, partition); ids of jobs are for messages, never for labels.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from selaras._core.jobs.states import JobEvent


class WorkerStarted(Struct, frozen=True, kw_only=True):
    """A worker is enrolled and takes work."""

    instance: str
    name: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    pid: int


class Reenrolled(Struct, frozen=True, kw_only=True):
    """The store had let the instance go. What ran was told to stop; the worker goes on under a new instance."""

    was: str
    instance: str
    running: int


class WorkerStopping(Struct, frozen=True, kw_only=True):
    """No more work is taken. `hard`: nothing is waited for either."""

    reason: str
    running: int
    hard: bool = False


class WorkerStopped(Struct, frozen=True, kw_only=True):
    """The worker has ended. `given_back`: attempts that were running when grace was over.

    `unheard`: the store was not reached at the end: what ran goes on elsewhere after the lease only.
    """

    code: int
    given_back: int = 0
    unheard: bool = False


class Turned(Struct, frozen=True, kw_only=True):
    """One turn was answered.

    Attributes:
        ended: (event, count) of the settlements it carried.
        refused: how many of them were refused, since the lease was lost.
        took_us: from the sending to the reply.
        events: invalidations it brought.
    """

    partition: int
    claimed: int
    ended: tuple[tuple[JobEvent, int], ...]
    refused: int
    took_us: int
    events: int


class AttemptEnded(Struct, frozen=True, kw_only=True):
    """A body has ended; what became of it is decided by the settle that follows.

    Attributes:
        ran_us: from start to end. error: the failure, encoded.
        stop: why it was told to stop, as in `Stop`; "": it was not.
    """

    job: str
    task: str
    queue: str
    number: int
    event: JobEvent
    reason: str
    ran_us: int
    error: bytes | None = None
    stop: str = ""


class AttemptStopped(Struct, frozen=True, kw_only=True):
    """A body was told to end before its time. `stop`: as in `Stop`."""

    job: str
    task: str
    stop: str
    ran_us: int


class AttemptAbandoned(Struct, frozen=True, kw_only=True):
    """A body ignored that it was told to stop, past every patience.

    `mode` "loop": the coroutine was cut off where it stood. Else it goes on: its attempt is given up as lost (P19).
    """

    job: str
    task: str
    mode: str
    over_us: int


class SettleRefused(Struct, frozen=True, kw_only=True):
    """An attempt's end was refused: its lease had been lost. `wrote`: it may have written, and that was voided."""

    job: str
    task: str
    fence: int
    event: JobEvent
    wrote: bool


class LeaseLapsed(Struct, frozen=True, kw_only=True):
    """The lease could not be renewed in time: nothing of this partition is started until it is; `running` go on (P18)."""

    partition: int
    running: int


class StoreLost(Struct, frozen=True, kw_only=True):
    """A partition did not answer; -1: the store has not been reached yet. Told once until it is back."""

    partition: int
    error: str


class StoreBack(Struct, frozen=True, kw_only=True):
    """A partition answers again."""

    partition: int
    away_us: int


class LoopLagged(Struct, frozen=True, kw_only=True):
    """Something blocks the worker's loop. `stack`: where the loop's thread is, innermost call last."""

    lag_us: int
    job: str
    task: str
    stack: str


class Recycling(Struct, frozen=True, kw_only=True):
    """The process ends because a body blocks its loop past its timeout and grace; its supervisor replaces it."""

    job: str
    task: str


class BodyDied(Struct, frozen=True, kw_only=True):
    """A child process ended while it ran a body. `code`: as in subprocess; None: it could not be started."""

    pid: int
    code: int | None


class ChildStarted(Struct, frozen=True, kw_only=True):
    """A process of a fleet was started."""

    slot: int
    pid: int


class Restarting(Struct, frozen=True, kw_only=True):
    """A fleet lets its processes end in order, and starts fresh ones in their places. `reason`: for people."""

    reason: str


class ChildDied(Struct, frozen=True, kw_only=True):
    """A process of a fleet ended unasked; it is replaced after `again_in_us`."""

    slot: int
    pid: int
    code: int
    again_in_us: int


class Housekept(Struct, frozen=True, kw_only=True):
    """A round of housekeeping did something."""

    partition: int
    promoted: int
    lost: int
    expired: int
    purged: int
    unroutable: int


class Trouble(Struct, frozen=True, kw_only=True):
    """Something failed that the worker survives, and that points at a mistake. `where`: what it was doing."""

    where: str
    error: str


WorkerEvent: TypeAlias = (
    WorkerStarted
    | Reenrolled
    | WorkerStopping
    | WorkerStopped
    | Turned
    | AttemptEnded
    | AttemptStopped
    | AttemptAbandoned
    | SettleRefused
    | LeaseLapsed
    | StoreLost
    | StoreBack
    | LoopLagged
    | Recycling
    | BodyDied
    | ChildStarted
    | ChildDied
    | Restarting
    | Housekept
    | Trouble
)
