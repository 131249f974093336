"""The life of a job: one table, from which stores, tests and documents are derived.

    blocked ──unblock──> scheduled | ready | held
    scheduled ──due──> ready | held
    held ──promote──> ready ──hold──> held
    ready ──claim──> running
    running ──succeed──> succeeded      running ──fail, exhaust──> failed
    running ──retry, snooze, give_back──> scheduled
    running ──release, lose──> ready | held
    failed ──revive──> scheduled | ready | held
    blocked, scheduled, held, ready ──cancel, expire──> cancelled, expired
    running ──cancel, supersede──> cancelled

`ready | held` is one decision, made by the line: a job without a line is `ready`; a job with one
joins the line, and the line says who is its head. The first state of a pair is where a job arrives
when nothing stands in its way.
"""

from __future__ import annotations

from typing import Final

from selaras._core.jobs.states import JobEvent as E, JobState as S

_ADMITTED = frozenset({S.READY, S.HELD})
_WAITING = frozenset({S.SCHEDULED, S.READY, S.HELD})

TRANSITIONS: Final[dict[tuple[S, E], frozenset[S]]] = {
    (S.BLOCKED, E.UNBLOCK): _WAITING,
    (S.SCHEDULED, E.DUE): _ADMITTED,
    (S.HELD, E.PROMOTE): frozenset({S.READY}),
    (S.READY, E.HOLD): frozenset({S.HELD}),
    (S.READY, E.CLAIM): frozenset({S.RUNNING}),
    (S.RUNNING, E.SUCCEED): frozenset({S.SUCCEEDED}),
    (S.RUNNING, E.FAIL): frozenset({S.FAILED}),
    (S.RUNNING, E.EXHAUST): frozenset({S.FAILED}),
    (S.RUNNING, E.RETRY): _WAITING,
    (S.RUNNING, E.SNOOZE): _WAITING,
    (S.RUNNING, E.GIVE_BACK): _WAITING,
    (S.RUNNING, E.RELEASE): _ADMITTED,
    (S.RUNNING, E.LOSE): _ADMITTED,
    (S.RUNNING, E.CANCEL): frozenset({S.CANCELLED}),
    (S.RUNNING, E.SUPERSEDE): frozenset({S.CANCELLED}),
    (S.FAILED, E.REVIVE): _WAITING,
    **{
        (state, event): frozenset({end})
        for state in (S.BLOCKED, S.SCHEDULED, S.HELD, S.READY)
        for event, end in ((E.CANCEL, S.CANCELLED), (E.EXPIRE, S.EXPIRED))
    },
}
"""(state, event) -> the states in which the job may stand afterwards. What is not here is refused."""

FINAL: Final = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.EXPIRED})
"""States a job leaves only by hand."""

WAITING: Final = frozenset({S.BLOCKED, S.SCHEDULED, S.HELD, S.READY})
"""States of a job that nobody runs."""

SETTLING: Final = frozenset({E.SUCCEED, E.FAIL, E.RETRY, E.SNOOZE, E.RELEASE, E.GIVE_BACK, E.CANCEL})
"""Events by which the worker that runs an attempt may end it; the others are the store's own."""

UNCOUNTED: Final = frozenset({E.SNOOZE, E.RELEASE, E.GIVE_BACK, E.LOSE})
"""Ends of an attempt that give the attempt back. `lose` is counted apart, as `lost`."""


def ending(event: E, *, scope: bool = False, asked: bool = False, spent: bool = False) -> tuple[E, S | None]:
    """Return what the end of an attempt comes to: what happens to its job, and where that ends. None: it waits again.

    Args:
        event: what its worker said, or `lose`.
        scope: it was a `writing()` scope or a lock: nothing runs that again.
        asked: somebody had asked for its cancel: whatever has not ended by itself does now.
        spent: it was lost as often as it may be.
    """
    if event is E.SUCCEED:
        return event, S.SUCCEEDED
    if event is E.FAIL and not scope:
        return event, S.FAILED
    if asked or event in (E.CANCEL, E.FAIL):
        return E.CANCEL, S.CANCELLED
    if event is E.LOSE and (scope or spent):
        return E.EXHAUST, S.FAILED
    return event, None


def sources(event: E) -> frozenset[S]:
    """Return the states in which `event` may happen."""
    return frozenset(state for state, happening in TRANSITIONS if happening is event)


def allowed(state: S, event: E, after: S) -> bool:
    """Say whether `event` may move a job from `state` to `after`."""
    return after in TRANSITIONS.get((state, event), frozenset())
