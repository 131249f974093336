"""What the end of a body does to its job: one pure decision.

Returned  ─> succeed
Raised    ─> retry, or fail when no attempt is left; Retry, Snooze and Fail say it themselves
TimedOut  ─> as Raised
Unstorable ─> fail, without another run: its side effects are done
Cancelled ─> cancel
Released  ─> release (uncounted)
Misfit    ─> give_back (uncounted): another worker may know the task or its parameters
Unreadable ─> fail; the raw bytes stay with the job
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct

from selaras._core.durations import format_us
from selaras._core.jobs.failure import Failure, cut
from selaras._core.jobs.job import Claim, Settlement
from selaras._core.jobs.retry import Chance, Policy
from selaras._core.jobs.states import JobEvent
from selaras._core.outcomes import Fail, Retry, Snooze

_REASON_MOST = 300


class Returned(Struct, frozen=True):
    """The body returned; `result` is its encoded value, None when nobody wants it."""

    result: bytes | None = None


class Raised(Struct, frozen=True):
    """The body raised: any exception at all, an asyncio.CancelledError of its own included."""

    error: BaseException


class Failed(Struct, frozen=True):
    """As Raised, told by another process, which keeps the exception.

    `retry_us`, `snooze_us`: it raised Retry or Snooze with this delay; `final`: it raised Fail.
    """

    failure: Failure
    final: bool = False
    retry_us: int | None = None
    snooze_us: int | None = None


class TimedOut(Struct, frozen=True):
    """The body ran longer than the task's timeout."""


class Unstorable(Struct, frozen=True):
    """The body returned a value that cannot be stored. `reason` names the path or the limit."""

    reason: str


class Cancelled(Struct, frozen=True):
    """Somebody cancelled the job. `reason`: by default what they gave, which the store keeps."""

    reason: str = ""


class Released(Struct, frozen=True):
    """The worker gives the attempt back; `started`: its body had begun."""

    started: bool
    reason: str = "the worker stopped"


class Misfit(Struct, frozen=True):
    """This worker does not know the task, or cannot bind the arguments to its parameters."""

    reason: str


class Unreadable(Struct, frozen=True):
    """The payload's bytes cannot be decoded by anyone."""

    reason: str


End = Returned | Raised | Failed | TimedOut | Unstorable | Cancelled | Released | Misfit | Unreadable


def settlement_of(claim: Claim, end: End, policy: Policy, chance: Chance) -> Settlement:
    """Return the settlement that `end` of the attempt `claim` means; its cache effects are added by the caller."""
    match end:
        case Returned(result):
            return Settlement(claim.job, claim.fence, JobEvent.SUCCEED, result=result)
        case Raised(error):
            return settlement_of(claim, said(error), policy, chance)
        case Failed(failure, _, _, snooze_us) if snooze_us is not None:
            reason = _line("snoozed", failure.message)
            return Settlement(claim.job, claim.fence, JobEvent.SNOOZE, delay_us=snooze_us, reason=reason)
        case Failed(failure, final, retry_us, _):
            return _failed(claim, failure, policy, chance, final=final, delay_us=retry_us)
        case TimedOut():
            text = f"ran longer than its timeout of {format_us(policy.timeout_us)}"
            return _failed(claim, Failure("TimeoutError", text), policy, chance)
        case Unstorable(reason):
            return _failed(claim, Failure("NotEncodable", cut(reason, 2_000)), policy, chance, final=True)
        case Unreadable(reason):
            return _failed(claim, Failure("CorruptBytes", cut(reason, 2_000)), policy, chance, final=True)
        case Cancelled(reason):
            return Settlement(claim.job, claim.fence, JobEvent.CANCEL, reason=_line(reason))
        case Released(started, reason):
            return Settlement(claim.job, claim.fence, JobEvent.RELEASE, reason=_line(reason), started=started)
        case Misfit(reason):
            return Settlement(
                claim.job,
                claim.fence,
                JobEvent.GIVE_BACK,
                reason=_line(reason),
                delay_us=policy.stray_delay_us,
                started=False,
            )
        case _:
            assert_never(end)


def said(error: BaseException) -> Failed:
    """Return what an exception says about its job, as a record that can be sent to another process."""
    match error:
        case Snooze():
            return Failed(Failure("Snooze", error.message), snooze_us=error.delay_us)
        case Retry():
            cause = error.__cause__
            failure = Failure.of(error if cause is None else cause)
            return Failed(failure, retry_us=error.delay_us)
        case Fail():
            return Failed(Failure.of(error), final=True)
        case _:
            return Failed(Failure.of(error))


def _failed(
    claim: Claim, failure: Failure, policy: Policy, chance: Chance, *, final: bool = False, delay_us: int | None = None
) -> Settlement:
    reason = _line(failure.type, failure.message)
    if final or claim.number > policy.retries:
        return Settlement(claim.job, claim.fence, JobEvent.FAIL, error=failure.encode(), reason=reason)
    if delay_us is None:
        delay_us = policy.backoff.delay_us(claim.number, chance)
    return Settlement(claim.job, claim.fence, JobEvent.RETRY, error=failure.encode(), reason=reason, delay_us=delay_us)


def _line(head: str, message: str = "") -> str:
    text = f"{head}: {message}" if message else head
    return cut(text.partition("\n")[0], _REASON_MOST)
