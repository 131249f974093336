"""The table of a job's life: complete, closed, and of one mind with the sets made from it."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from selaras._core.jobs.lifecycle import FINAL, SETTLING, TRANSITIONS, UNCOUNTED, WAITING, allowed, ending, sources
from selaras._core.jobs.states import JobEvent, JobState

states = st.sampled_from(JobState)
events = st.sampled_from(JobEvent)


def test_every_state_is_waiting_running_or_final() -> None:
    assert WAITING | FINAL | {JobState.RUNNING} == set(JobState)
    assert not WAITING & FINAL


def test_every_event_happens_somewhere() -> None:
    assert all(sources(event) for event in JobEvent)


def test_every_state_can_be_reached_and_every_state_but_the_ends_can_be_left() -> None:
    reached = {JobState.BLOCKED}.union(*TRANSITIONS.values())
    left = {state for state, _ in TRANSITIONS}

    assert reached == set(JobState)
    assert left == (set(JobState) - FINAL) | {JobState.FAILED}


def test_only_a_failed_job_leaves_its_end_and_only_by_hand() -> None:
    assert {(state, event) for state, event in TRANSITIONS if state in FINAL} == {(JobState.FAILED, JobEvent.REVIVE)}


def test_a_job_starts_by_a_claim_only() -> None:
    assert {(state, event) for (state, event), after in TRANSITIONS.items() if JobState.RUNNING in after} == {
        (JobState.READY, JobEvent.CLAIM)
    }


def test_whoever_runs_a_job_may_end_it_by_any_settling_event() -> None:
    assert all(JobState.RUNNING in sources(event) for event in SETTLING)
    assert all(JobState.RUNNING in sources(event) for event in UNCOUNTED)


def test_every_waiting_job_can_be_cancelled_and_can_expire() -> None:
    assert sources(JobEvent.EXPIRE) == WAITING
    assert sources(JobEvent.CANCEL) == WAITING | {JobState.RUNNING}


def test_an_attempt_that_is_given_back_does_not_end_the_job() -> None:
    for event in UNCOUNTED:
        assert not TRANSITIONS[JobState.RUNNING, event] & FINAL


@given(states, events, states)
def test_what_the_table_does_not_say_is_refused(state: JobState, event: JobEvent, after: JobState) -> None:
    assert allowed(state, event, after) == (after in TRANSITIONS.get((state, event), ()))


def test_the_sources_of_an_event_are_the_states_it_moves() -> None:
    for state, event in itertools.product(JobState, JobEvent):
        assert (state in sources(event)) == any(allowed(state, event, after) for after in JobState)


@given(st.sampled_from(sorted(SETTLING | {JobEvent.LOSE})), st.booleans(), st.booleans(), st.booleans())
def test_an_attempt_ends_as_the_table_allows(event: JobEvent, scope: bool, asked: bool, spent: bool) -> None:
    happens, final = ending(event, scope=scope, asked=asked, spent=spent)
    after = TRANSITIONS[JobState.RUNNING, happens]

    assert after == {final} if final else not after & FINAL


@given(st.sampled_from(sorted(SETTLING)), st.booleans(), st.booleans())
def test_whoever_was_asked_to_cancel_does_not_wait_again(event: JobEvent, scope: bool, spent: bool) -> None:
    assert ending(event, scope=scope, asked=True, spent=spent)[1] is not None


def test_a_job_is_lost_as_often_as_it_may_be_and_a_scope_once() -> None:
    assert ending(JobEvent.LOSE) == (JobEvent.LOSE, None)
    assert ending(JobEvent.LOSE, spent=True) == (JobEvent.EXHAUST, JobState.FAILED)
    assert ending(JobEvent.LOSE, scope=True) == (JobEvent.EXHAUST, JobState.FAILED)
    assert ending(JobEvent.FAIL, scope=True) == (JobEvent.CANCEL, JobState.CANCELLED)
