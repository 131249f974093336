"""What the judge of a simulated world lets pass, and what not."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from simulation.loop import Loop
from simulation.promises import Promises
from simulation.trace import Trace
from simulation.truth import Commit, Datastore
from simulation.world import unended

from selaras._app.values.warming import Warmed
from selaras._core.cache.consistency import Found
from selaras._core.jobs.job import Edge, JobKind, JobRecord, Parent
from selaras._core.jobs.states import JobState

SECOND = 1_000_000_000
KEY = "item:1"


@pytest.fixture
def promises() -> Promises:
    """Of a row whose versions 1 and 2 were committed and told at once; three seconds have passed since."""
    loop = Loop(Random(1), lambda context: None)
    promises = Promises(loop, Trace(loop), partitions=1)
    promises.truth = Datastore(loop, Random(1), lambda key, job, fence: False, fenced=False, lag_s=0)
    began = loop.now_ns
    promises.truth.rows[KEY] = [Commit(1, began, began, "a", 1), Commit(2, began + 1, began + 1, "b", 2)]
    loop.now_ns += 3 * SECOND
    return promises


def broken(promises: Promises) -> str:
    return promises.broken.promise if promises.broken else ""


@pytest.mark.parametrize("before", [(2, 0), (0, 2)])
def test_its_own_put_answers_a_body_whatever_its_process_was_told_meanwhile(
    promises: Promises, before: tuple[int, int]
) -> None:
    promises.read("p", KEY, 1, how="", called_ns=1, needed_ns=0, before=before, own=1, put=1)
    assert broken(promises) == ""

    promises.read("p", KEY, 1, how="", called_ns=1, needed_ns=0, before=before, own=1)
    assert broken(promises) in ("G5", "G8")


def test_what_a_body_put_does_not_excuse_another_answer(promises: Promises) -> None:
    promises.read("p", KEY, 1, how="", called_ns=1, needed_ns=0, before=(2, 2), put=2)

    assert broken(promises) == "G8"


def test_an_audit_may_call_stale_only_what_nobody_had_told_of_for_a_second(promises: Promises) -> None:
    found = Found(0, "item", KEY, "", "", "", "local", 1, 0)
    untold = Commit(3, promises.truth.rows[KEY][0].at_ns, 1 << 62, "", 0)

    promises.truth.rows[KEY].append(untold)
    promises.found_stale("p", found)
    assert broken(promises) == ""

    promises.truth.rows[KEY].remove(untold)
    promises.found_stale("p", found)
    assert broken(promises) == "audits"


def test_a_value_that_was_served_although_an_event_had_voided_it_is_a_broken_promise(promises: Promises) -> None:
    promises.found_stale("p", Found(0, "item", KEY, "", "", "", "local", 1, 2))

    assert broken(promises) == "G1"


@pytest.mark.parametrize("warmed", [Warmed(held=1), Warmed(held=1, failed=1)])
def test_warming_accounts_for_each_key_and_does_not_fail(promises: Promises, warmed: Warmed) -> None:
    promises.warmed("p", [KEY, "late:1"], Warmed(held=1, failed=1))
    assert broken(promises) == ""

    promises.warmed("p", [KEY, "item:2"], warmed)
    assert broken(promises) == "warm"


def test_a_job_that_waits_for_one_that_is_blocked_for_good_need_not_end() -> None:
    failed = a_record("failed", JobState.FAILED)
    stuck = replace(a_record("stuck", JobState.BLOCKED, Parent("failed")), stuck_on="failed")
    after_it = a_record("after it", JobState.BLOCKED, Parent("stuck", Edge.FINISHED))
    and_that = a_record("and that", JobState.BLOCKED, Parent("after it"))
    runs = a_record("runs", JobState.RUNNING)
    after_that = a_record("after that", JobState.BLOCKED, Parent("runs"))
    records = {one.id: one for one in (and_that, after_it, stuck, failed, runs, after_that)}

    assert [one.id for one in unended(records)] == ["runs", "after that"]


def a_record(id: str, state: JobState, *parents: Parent) -> JobRecord:
    return JobRecord(
        id=id, task="t", queue="default", kind=JobKind.TASK, state=state, priority=0, payload=b"", meta=b"", attempt=0, lost=0,
        fence=0, instance="", created_us=0, due_us=0, started_us=0, ended_us=0, keep_until_us=0, line="", unique="", writes=(),
        parents=parents, result=None, error=None, reason="", progress=None, cancel_requested=False, stuck_on="", strayed_us=0,
        history=(),
    )  # fmt: skip
