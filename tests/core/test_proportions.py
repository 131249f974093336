"""Bounds of a proportion."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from selaras._core.proportions import at_most


@pytest.mark.parametrize(
    ("seen", "tries", "bound"),
    [
        (0, 1, 0.95),
        (0, 10_000_000, 2.9957e-7),  # the rule of three: close to 3 / n
        (1, 100, 0.04656),
        (5, 100, 0.10225),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(seen: int, tries: int, bound: float) -> None:
    assert at_most(seen, tries) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize(("seen", "tries"), [(1, 10), (9, 10), (50, 1_000), (400, 1_000)])
def test_were_the_proportion_the_bound_so_few_would_be_seen_one_time_in_twenty(seen: int, tries: int) -> None:
    bound = at_most(seen, tries)

    chances = (comb(tries, count) * bound**count * (1 - bound) ** (tries - count) for count in range(seen + 1))

    assert sum(chances) == pytest.approx(0.05)


def test_where_nothing_was_tried_anything_may_be() -> None:
    assert at_most(0, 0) == 1.0
    assert at_most(7, 7) == 1.0


@given(integers(0, 3_000), integers(1, 10_000_000))
def test_it_lies_above_what_was_seen_and_falls_with_more_tries(seen: int, more: int) -> None:
    tries = seen + more

    bound = at_most(seen, tries)

    assert seen / tries < bound <= 1
    assert at_most(seen, 2 * tries) < bound or bound == 1
