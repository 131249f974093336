"""What a job's record says of what was done to it by no body: the one place where the stores take these words from."""

from __future__ import annotations

from enum import StrEnum

from selaras._core.jobs.states import JobState


class Reason(StrEnum):
    """Words for people; %s and %d stand for what is named beside each, in Python's way and in that of Lua."""

    LOST = "worker lost"
    LOST_AGAIN = "worker lost %d times"  # so many
    LOST_SAYING = "worker lost %d times; the last time: %s"  # so many; what is known of the last
    STOPPED = "worker stopped"
    UNHEARD = "given back: its worker stopped, or never received it"
    UNWANTED = "nobody waits for the lock any more"
    SUPERSEDED = "superseded by %s"  # a job
    LATE = "it waited too long"
    UNROUTABLE = "unroutable: no worker knows task '%s'"  # a task
    PARENT_FAILED = "parent %s failed"  # a job
    PARENT_ENDED = "parent %s %s"  # a job; its state
    ROLLED_BACK = "the transaction or writing() scope that enqueued it was rolled back"
    PARENT_GONE = "parent %s is not known: never enqueued, or no longer kept"  # a job


def parent_ended(parent: str, state: JobState | None, *, is_scope: bool) -> str:
    """Say why a job is cancelled that waited for this parent; `state` None: it is not known."""
    if state is None:
        return Reason.PARENT_GONE % parent
    # The id of a scope is one that nobody was ever told.
    return Reason.ROLLED_BACK.value if is_scope else Reason.PARENT_ENDED % (parent, state)


def exhausted(lost: int, last: str) -> str:
    """Say why a job is not tried again that lost so many workers; `last`: the reason of the last loss."""
    return Reason.LOST_AGAIN % lost if last == Reason.LOST else Reason.LOST_SAYING % (lost, last)
