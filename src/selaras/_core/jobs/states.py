"""The words: states of a job, and what can happen to it."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands."""

    BLOCKED = "blocked"  # waits for parents, or for the scope that made it
    SCHEDULED = "scheduled"  # waits for its time: a delay, a back-off, a snooze
    HELD = "held"  # waits for its line
    READY = "ready"  # may be claimed; of a line: its head
    RUNNING = "running"  # claimed under a lease
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the dead letters
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # waited longer than it was allowed to


class JobEvent(StrEnum):
    """What moves a job from one state to another."""

    UNBLOCK = "unblock"  # the last parent ended, or the scope succeeded
    DUE = "due"  # its time has come
    HOLD = "hold"  # its place at the head was given to another
    PROMOTE = "promote"  # its line was freed, or it takes the head's place
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"  # no attempts left, or the body said so
    RETRY = "retry"
    SNOOZE = "snooze"  # uncounted, by the body's wish
    RELEASE = "release"  # uncounted: never started, or given back at shutdown
    GIVE_BACK = "give_back"  # uncounted: this worker does not know the task, or cannot bind its arguments
    LOSE = "lose"  # the worker was lost
    EXHAUST = "exhaust"  # lost once too often
    CANCEL = "cancel"
    SUPERSEDE = "supersede"  # a newer job holds its unique key
    EXPIRE = "expire"
    REVIVE = "revive"  # retried by hand
