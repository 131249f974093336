"""Waits between attempts: within their bounds, growing, spread."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from selaras._core.errors import ConfigurationError
from selaras._core.jobs.retry import Backoff, Policy


class Fixed:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 10), st.floats(1, 1_000))
def test_every_wait_keeps_within_the_bounds(attempt: int, chance: float, jitter: float, factor: float) -> None:
    backoff = Backoff(jitter=jitter, factor=factor)

    assert 1_000_000 <= backoff.delay_us(attempt, Fixed(chance)) <= 300_000_000


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_waits_never_shrink_from_attempt_to_attempt(attempt: int, chance: float) -> None:
    backoff = Backoff()

    assert backoff.delay_us(attempt + 1, Fixed(chance)) >= backoff.delay_us(attempt, Fixed(chance))


def test_the_default_goes_from_one_second_to_five_minutes() -> None:
    plain = Backoff(jitter=0)

    assert [plain.delay_us(n, Fixed(0)) // 1_000_000 for n in (1, 2, 3, 9, 10, 99)] == [1, 2, 4, 256, 300, 300]


@given(st.integers(1, 30))
def test_jobs_that_failed_together_come_back_apart(attempt: int) -> None:
    chance = Random(attempt)
    waits = [Backoff().delay_us(attempt, chance) for _ in range(200)]

    assert max(waits) - min(waits) > 0.3 * min(waits)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(first_us=2, most_us=1),
        lambda: Backoff(first_us=-1),
        lambda: Backoff(factor=0.5),
        lambda: Backoff(factor=float("nan")),
        lambda: Backoff(jitter=-0.1),
        lambda: Policy(retries=-1),
        lambda: Policy(timeout_us=-5),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make()  # type: ignore[operator]


def test_zero_is_a_setting_like_any_other() -> None:
    assert Backoff(first_us=0, most_us=0, factor=1, jitter=0).delay_us(3, Fixed(0.5)) == 0
    assert Backoff(factor=1_000, jitter=10).factor == 1_000
    none = Policy(retries=0, timeout_us=0, max_lost=0, result_ttl_us=0, failed_ttl_us=0, stray_delay_us=0)
    assert none.retries == none.stray_delay_us == 0
