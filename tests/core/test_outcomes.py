"""What the end of a body does to its job, and how an exception is remembered."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from selaras._core.errors import LeaseLost, SelarasError
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import Claim, Settlement
from selaras._core.jobs.lease import Trust
from selaras._core.jobs.lifecycle import TRANSITIONS, UNCOUNTED
from selaras._core.jobs.outcome import (
    Cancelled,
    End,
    Failed,
    Misfit,
    Raised,
    Released,
    Returned,
    TimedOut,
    Unreadable,
    Unstorable,
    said,
    settlement_of,
)
from selaras._core.jobs.retry import Policy
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.outcomes import Fail, Retry, Snooze

ENDS: list[End] = [
    Returned(b"x"),
    Raised(ValueError("no")),
    Raised(Retry(delay=5)),
    Raised(Snooze(60)),
    Raised(Fail("no such product")),
    TimedOut(),
    Unstorable("too large"),
    Cancelled(),
    Released(started=True),
    Misfit("unknown task"),
    Unreadable("cut"),
]


def claim(number: int = 1) -> Claim:
    return Claim(job="j", fence=7, number=number, task="t", payload=b"")


def settle(end: End, *, number: int = 1, policy: Policy = Policy()) -> Settlement:
    return settlement_of(claim(number), end, policy, Random(1))


@given(st.sampled_from(ENDS), st.integers(1, 10), st.integers(0, 5))
def test_every_end_is_a_transition_of_a_running_job(end: End, number: int, retries: int) -> None:
    settlement = settle(end, number=number, policy=Policy(retries=retries))

    assert (settlement.job, settlement.fence) == ("j", 7)
    assert (JobState.RUNNING, settlement.event) in TRANSITIONS
    assert (settlement.error is not None) == (settlement.event in {JobEvent.RETRY, JobEvent.FAIL})
    assert settlement.delay_us >= 0


@given(st.integers(1, 10), st.integers(0, 6))
def test_retries_3_means_four_runs(number: int, retries: int) -> None:
    for end in (Raised(ValueError()), TimedOut(), Raised(Retry())):
        event = settle(end, number=number, policy=Policy(retries=retries)).event
        assert event is (JobEvent.RETRY if number <= retries else JobEvent.FAIL)


def test_a_body_may_say_how_it_ends() -> None:
    assert settle(Returned(b"v")).result == b"v"
    assert settle(Raised(Retry(delay=5))).delay_us == 5_000_000
    assert settle(Raised(Retry("later", delay="2m"))).delay_us == 120_000_000
    snoozed = settle(Raised(Snooze(60, "not open yet")), number=99)
    assert (snoozed.event, snoozed.delay_us) == (JobEvent.SNOOZE, 60_000_000)
    assert snoozed.event in UNCOUNTED
    failed = settle(Raised(Fail("no such product")))
    assert failed.event is JobEvent.FAIL
    assert failed.reason == "Fail: no such product"


def test_a_retry_remembers_what_made_it_retry() -> None:
    try:
        try:
            raise KeyError("rate")
        except KeyError as error:
            raise Retry(delay=1) from error
    except Retry as retry:
        failure = said(retry).failure

    assert (failure.type, failure.message) == ("KeyError", "'rate'")
    assert "test_outcomes.py" in failure.traceback


def test_a_result_that_cannot_be_stored_fails_without_another_run() -> None:
    settlement = settle(Unstorable("value is 2,000,000 bytes"), number=1)

    assert settlement.event is JobEvent.FAIL
    assert Failure.decode(settlement.error).type == "NotEncodable"


def test_what_never_started_or_does_not_fit_here_is_given_back_uncounted() -> None:
    for end in (Released(started=False), Misfit("unknown task 'x'")):
        settlement = settle(end)
        assert settlement.event in UNCOUNTED
        assert not settlement.started
    assert settle(Released(started=True)).started
    assert settle(Misfit("x")).delay_us > 0


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("mine"),
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        KeyboardInterrupt(),
        StopIteration(3),
        StopAsyncIteration(),
        GeneratorExit(),
        SystemExit(0),
        LeaseLost("mine"),
        SelarasError("mine"),
    ],
)
def test_whatever_a_body_raises_is_an_ordinary_failure(error: BaseException) -> None:
    settlement = settle(Raised(error))

    assert settlement.event is JobEvent.RETRY
    assert Failure.decode(settlement.error).type == type(error).__name__


def test_what_another_process_says_means_the_same() -> None:
    for error in (ValueError("x"), Retry(delay=3), Snooze(4), Fail("y")):
        told: Failed = said(error)
        assert settle(told) == settle(Raised(error))


# -- exceptions as text


class NeedsMore(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Deadly(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - any exception is the point
        return caught


def chained_to_itself() -> BaseException:
    error = ValueError("ring")
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (NeedsMore("refused", 402), "NeedsMore", "refused"),
        (ValueError(threading.Lock()), "ValueError", "lock"),
        (Mute("x"), "Mute", "its text raised RuntimeError"),
        (Deadly(), "Deadly", "its text raised SystemExit"),
        (ValueError("a\ud800b"), "ValueError", r"a\ud800b"),
        (ExceptionGroup("many", [ValueError("one"), Mute()]), "ExceptionGroup", "many"),
        (chained_to_itself(), "ValueError", "ring"),
    ],
)
def test_br_029_an_exception_is_told_whatever_it_does(error: BaseException, kind: str, text: str) -> None:
    failure = Failure.decode(Failure.of(raised(error)).encode())

    assert failure.type == kind
    assert text in failure.message
    assert "test_outcomes.py" in failure.traceback
    assert kind in failure.traceback


def test_br_029_groups_and_causes_are_told_with_it() -> None:
    try:
        try:
            raise ValueError("the cause")
        except ValueError as error:
            raise ExceptionGroup("both", [KeyError("k"), OSError(5, "io")]) from error
    except ExceptionGroup as error:
        story = Failure.of(error).traceback

    for text in ("ValueError: the cause", "direct cause", "both", "KeyError: 'k'", "OSError: [Errno 5] io"):
        assert text in story


def test_br_093_texts_are_cut_to_a_bound_with_head_and_tail() -> None:
    error: BaseException = ValueError("<head>" + "x" * 50_000_000 + "<tail>")
    stored = Failure.of(error).encode()
    failure = Failure.decode(stored)

    assert len(stored) < 16_384
    assert failure.message.startswith("<head>")
    assert failure.message.endswith("<tail>")
    assert "characters cut" in failure.message


def test_br_093_deep_recursion_and_long_chains_are_cut() -> None:
    def deeper() -> Any:
        return deeper()

    def chain(length: int) -> None:
        try:
            if length:
                chain(length - 1)
            else:
                raise ValueError("root")
        except ValueError as error:
            raise ValueError(f"link {length}" + "é" * 3_000) from error

    for make in (deeper, lambda: chain(100)):
        with pytest.raises((RecursionError, ValueError)) as caught:
            make()
        stored = Failure.of(caught.value).encode()
        assert len(stored) <= 16_384
        assert "left out" in Failure.decode(stored).traceback


@given(st.text(st.characters(exclude_categories=()), max_size=5_000), st.integers(1, 40))
def test_br_093_no_text_is_larger_than_the_bound(text: str, times: int) -> None:
    stored = Failure.of(ValueError(text * times)).encode()

    assert len(stored) <= 16_384
    assert Failure.decode(stored).type == "ValueError"


def test_bytes_that_are_no_failure_are_told_and_never_raised_over() -> None:
    for noise in (None, b"", b"\xc1", b"\x01\x02", b"cos\nsystem"):
        assert Failure.decode(noise).type == "Unknown"


# -- leases


def test_a_lease_is_trusted_from_when_its_renewal_was_sent_and_ends_before_the_stores_does() -> None:
    trust = Trust.of(15_000_000)

    assert not trust.holds(0)
    trust.renewed(1_000)
    trust.renewed(500)  # a reply that came late
    assert trust.holds(1_000 + 13_499_999_999)
    assert not trust.holds(1_000 + 13_500_000_000)
    trust.void()
    assert not trust.holds(1_001)
