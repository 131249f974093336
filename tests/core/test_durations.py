"""What people write for a length of time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from selaras._core.durations import US, Duration, duration_us, format_us
from selaras._core.errors import ConfigurationError

CENTURY_US = 100 * 366 * 86_400 * US


@pytest.mark.parametrize(
    ("written", "us"),
    [
        (0, 0),
        (10, 10 * US),
        (0.25, 250_000),
        ("250ms", 250_000),
        ("10m", 600 * US),
        ("1h30m", 5_400 * US),
        ("1h 30m", 5_400 * US),
        ("1.5h", 5_400 * US),
        (" 7D ", 7 * 86_400 * US),
        ("2w", 14 * 86_400 * US),
        ("15", 15 * US),
        ("1.5", 1_500_000),
        ("3us", 3),
        (timedelta(minutes=2, microseconds=1), 120 * US + 1),
    ],
)
def test_a_length_of_time_is_understood(written: Duration, us: int) -> None:
    assert duration_us(written) == us


@pytest.mark.parametrize(
    "wrong",
    [
        -1,
        -0.001,
        "-1",
        "-5m",
        "5m-3s",
        timedelta(seconds=-1),
        float("nan"),
        float("inf"),
        float("-inf"),
        "nan",
        "inf",
        "",
        "  ",
        "ten minutes",
        "10 min",
        "10x",
        "m",
        "1h30",
        True,
        False,
        None,
        b"10m",
        [10],
        1e12,
        "1000000w",
        timedelta(days=40_000),
        10**30,
        10**400,
        1.7e308,
        -1.7e308,
        "9" * 400 + "d",
        "1e400",
    ],
)
def test_what_is_no_length_of_time_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="ttl"):
        duration_us(wrong, name="ttl")  # type: ignore[arg-type]


@given(st.integers(0, CENTURY_US))
def test_a_timedelta_is_exact(us: int) -> None:
    assert duration_us(timedelta(microseconds=us)) == us


@given(st.integers(0, 10**6))
def test_whole_seconds_are_exact_however_they_are_written(seconds: int) -> None:
    assert duration_us(seconds) == duration_us(f"{seconds}s") == duration_us(str(seconds)) == seconds * US


@given(st.one_of(st.floats(), st.text(), st.integers(), st.timedeltas()))
def test_anything_is_either_refused_or_a_length_between_nothing_and_a_century(written: Duration) -> None:
    try:
        us = duration_us(written)
    except ConfigurationError:
        return

    assert isinstance(us, int)
    assert 0 <= us <= CENTURY_US


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "0ms"),
        (1_500, "1.5ms"),
        (250_000, "250ms"),
        (US, "1s"),
        (15 * US, "15s"),
        (90 * US, "1m30s"),
        (600 * US, "10m"),
        (5_400 * US, "1h30m"),
        (7 * 86_400 * US, "7d"),
        (86_400 * US + 500_000, "1d0.5s"),
    ],
)
def test_a_length_of_time_is_said_shortly(us: int, said: str) -> None:
    assert format_us(us) == said


@given(st.integers(0, CENTURY_US // US))
def test_what_is_said_is_understood_again(seconds: int) -> None:
    assert duration_us(format_us(seconds * US)) == seconds * US
