"""What audits come to."""

from __future__ import annotations

from random import Random

import pytest

from selaras._core.cache.consistency import (
    FOUND_MOST,
    ONE_SAME,
    ROWS_MOST,
    Audits,
    Found,
    Ledger,
    gap,
    ledger_bytes,
    ledger_of,
    one_stale,
    row_name,
)


def a_found(number: int) -> Found:
    return Found(number, "product", f"product:{number}", "", "", "", "local", 1, 0)


def test_the_share_that_is_certain_lies_below_the_share_that_was_seen() -> None:
    audits = Audits(same=999_999, stale=1)

    assert audits.consistency == pytest.approx(0.999999)
    assert audits.at_least == pytest.approx(1 - 4.74e-6, abs=1e-8)
    assert Audits(same=3_000_000).at_least == pytest.approx(1 - 1e-6, abs=2e-9)
    assert Audits(unsure=5).consistency is None


@pytest.mark.parametrize(
    ("age_us", "place"), [(0, 0), (999_999, 0), (1_000_000, 1), (200_000_000, 3), (10**9, 4), (None, 5)]
)
def test_what_was_stale_is_counted_by_the_time_since_it_was_voided(age_us: int | None, place: int) -> None:
    assert [number for number, count in enumerate(one_stale(age_us).ages) if count] == [place]


def test_ledgers_of_processes_add_up_and_come_back_from_their_bytes() -> None:
    one = Ledger({row_name("a", "t", "q"): ONE_SAME, row_name("b", "", ""): ONE_SAME})
    other = Ledger({row_name("a", "t", "q"): one_stale(None)}, (a_found(1),))

    both = ledger_of(ledger_bytes(one.plus(other)))

    assert both.by()["a", "t", "q"] == ONE_SAME.plus(one_stale(None))
    assert both.by()["b", "", ""] == ONE_SAME
    assert both.found == (a_found(1),)
    assert ledger_of(b"\xc1 something else") == Ledger()


def test_a_ledger_is_bounded_and_forgets_what_is_oldest() -> None:
    ledger = Ledger()
    for number in range(ROWS_MOST + 5):
        ledger = ledger.plus(Ledger({row_name(f"f{number}", "", ""): ONE_SAME}, (a_found(number),)))

    assert len(ledger.rows) == ROWS_MOST
    assert row_name("f0", "", "") not in ledger.rows
    assert [found.at_us for found in ledger.found] == list(range(ROWS_MOST + 5 - FOUND_MOST, ROWS_MOST + 5))


def test_gaps_sample_the_share_that_was_asked_for() -> None:
    chance = Random(1)

    gaps = [gap(0.01, chance.random()) for _ in range(20_000)]

    assert min(gaps) >= 1
    assert sum(gaps) / len(gaps) == pytest.approx(100, rel=0.05)
    assert gap(1.0, 0.99) == 1
