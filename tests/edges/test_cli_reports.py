"""What a worker's log says of what happens."""

from __future__ import annotations

import logging
import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from selaras._core.events import (
    AttemptEnded,
    AttemptStopped,
    Housekept,
    LoopLagged,
    SettleRefused,
    Turned,
    WorkerEvent,
    WorkerStopped,
)
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.states import JobEvent
from selaras.cli.reports import Reporter

SAMPLES: dict[str, Any] = {
    "str": "x",
    "int": 3,
    "bool": True,
    "JobEvent": JobEvent.FAIL,
    "int | None": None,
    "bytes | None": None,
    "tuple[str, ...]": ("x",),
    "tuple[tuple[JobEvent, int], ...]": ((JobEvent.FAIL, 2),),
}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, "selaras.worker"):
        yield caplog


def ended(event: JobEvent, reason: str = "") -> AttemptEnded:
    return AttemptEnded(job="j", task="t", queue="q", number=2, event=event, reason=reason, ran_us=1_500)


@pytest.mark.parametrize("kind", typing.get_args(WorkerEvent))
def test_every_event_can_be_told(kind: type[Any], log: pytest.LogCaptureFixture) -> None:
    event = kind(**{name: SAMPLES[kind.__annotations__[name]] for name in kind.__struct_fields__})

    Reporter(every_job=True).heard(event)

    assert log.records
    assert all(record.getMessage() for record in log.records)


@pytest.mark.parametrize("event", list(JobEvent))
def test_every_end_can_be_told(event: JobEvent, log: pytest.LogCaptureFixture) -> None:
    Reporter(every_job=True).heard(ended(event))

    assert "t j" in log.text


def test_a_failure_is_one_line_with_its_reason(log: pytest.LogCaptureFixture) -> None:
    Reporter(every_job=False).heard(ended(JobEvent.FAIL, "ValueError: a\nb\x1b[31m"))

    [record] = log.records
    assert record.levelno == logging.ERROR
    said = "t j failed for good (attempt 2, 1.5ms): ValueError: a\\nb\\x1b[31m; selaras jobs show j"
    assert record.getMessage() == said


def test_a_failure_for_good_points_to_the_line_that_raised(log: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("no price is below 0")
    except ValueError as error:
        failure = Failure.of(error)
    event = msgspec.structs.replace(ended(JobEvent.FAIL, "ValueError: no price"), error=failure.encode())

    Reporter(every_job=False).heard(event)

    assert re.search(r"test_cli_reports.py:\d+ in test_a_failure_for_good.*; selaras jobs show j$", log.messages[0])


def test_one_is_one(log: pytest.LogCaptureFixture) -> None:
    Reporter(every_job=False).heard(Housekept(partition=0, lost=1, promoted=0, expired=0, purged=0, unroutable=2))

    assert log.messages[0] == "1 attempt of lost workers taken back"
    assert log.messages[1] == "2 jobs of tasks that no worker has known for long"


def test_what_fails_by_the_thousand_is_counted_not_told_one_by_one(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter = Reporter(every_job=False)

    for _ in range(1_000):
        reporter.heard(ended(JobEvent.FAIL))
    now[0] += 1
    reporter.heard(ended(JobEvent.FAIL))

    assert [record.getMessage() for record in log.records][-2:] == [
        "t: 990 more ended with fail within a second",
        "t j failed for good (attempt 2, 1.5ms); selaras jobs show j",
    ]
    assert len(log.records) == 12


def refused(count: int) -> list[WorkerEvent]:
    return [
        SettleRefused(job=f"j{number}", task="t", fence=number, event=JobEvent.SUCCEED, wrote=True)
        for number in range(count)
    ]


def turned(refused: int) -> Turned:
    return Turned(partition=0, claimed=0, ended=(), refused=refused, took_us=1, events=0)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_of_hundreds_of_refused_ends_the_first_are_told_and_then_how_many_more(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter = Reporter(every_job=level == logging.DEBUG)
    log.set_level(level, "selaras.worker")

    for event in (*refused(300), turned(300), *refused(200), turned(200), turned(0)):
        reporter.heard(event)
    within = len(log.messages)
    now[0] += 1
    reporter.heard(turned(0))
    reporter.heard(turned(0))

    more = "more were refused their ends, their leases had been lost, within a second"
    if level == logging.DEBUG:
        assert [f"j{number}: its end" in text for number, text in enumerate(log.messages[:300])] == [True] * 300
        assert more not in log.text
    else:
        assert [f"j{number}: its end" in text for number, text in enumerate(log.messages[:10])] == [True] * 10
        assert log.messages[10:] == [f"t: 290 {more}", f"t: 200 {more}"]
        assert within == 11


def test_what_was_left_out_is_told_before_a_worker_has_stopped(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    reporter = Reporter(every_job=False)

    for event in (*refused(12), WorkerStopped(code=0, given_back=0, unheard=False)):
        reporter.heard(event)

    assert log.messages[10:] == [
        "t: 2 more were refused their ends, their leases had been lost, within a second",
        "stopped",
    ]


def test_a_blocked_loop_is_told_with_the_line_that_blocks_it(log: pytest.LogCaptureFixture) -> None:
    stack = '  File "run.py", line 1, in run\n    go()\n  File "shop.py", line 12, in reprice\n    time.sleep(5)\n'

    Reporter(every_job=False).heard(LoopLagged(lag_us=2_500_000, job="j", task="reprice", stack=stack))

    assert log.records[0].getMessage() == "the loop is blocked by reprice j for 2s, at shop.py:12 in reprice"


def test_a_job_whose_lease_was_lost_is_told_once_and_of_voiding_only_if_it_may_have_written(
    log: pytest.LogCaptureFixture,
) -> None:
    reporter = Reporter(every_job=False)
    log.set_level(logging.INFO, "selaras.worker")

    reporter.heard(AttemptStopped(job="j", task="t", stop="lost", ran_us=3))
    reporter.heard(msgspec.structs.replace(ended(JobEvent.RELEASE, "the lease was lost"), stop="lost"))
    for wrote in (False, True):
        reporter.heard(SettleRefused(job="j", task="t", fence=1, event=JobEvent.RELEASE, wrote=wrote))

    said = "t j: its end (release) was refused, its lease had been lost"
    assert log.messages == [said, f"{said}; what it wrote is voided"]


def test_an_end_that_the_store_did_not_hear_of_gives_nothing_back(log: pytest.LogCaptureFixture) -> None:
    Reporter(every_job=False).heard(WorkerStopped(code=3, given_back=2, unheard=True))

    assert log.messages == ["stopped, but the store did not hear of it: what ran goes on elsewhere after the lease"]
