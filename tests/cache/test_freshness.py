"""The one rule for what is not asked anew."""

from __future__ import annotations

from hypothesis import given, strategies as st

from selaras._core.cache.freshness import Level, Need, may_join, proves, since_of

INSTANTS = st.integers(0, 100)
LAG = 20


@given(st.one_of(st.just("strict"), st.just("causal"), st.integers(0, 10)), INSTANTS)
def test_no_level_reaches_further_back_than_max_lag(level: Level, now: int) -> None:
    assert now - LAG <= since_of(level, now_ns=now, max_lag_ns=LAG) <= now


def test_levels_in_order() -> None:
    def since(level: Level) -> int:
        return since_of(level, now_ns=10_000, max_lag_ns=5_000)

    assert (since("strict"), since("causal"), since(2), since(100)) == (10_000, 5_000, 8_000, 5_000)


@given(INSTANTS, INSTANTS, INSTANTS, INSTANTS, INSTANTS, st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_what_is_served_is_proven_to_be_as_new_as_every_reason_asks(
    since: int, claim: int, confirmed: int, sent: int, floor: int, applied: int, position: int, at_home: bool
) -> None:
    need = Need(since, claim, home=0 if at_home else 1, position=position)

    served = proves(need, partition=0, applied=applied, confirmed_ns=confirmed, sent_ns=sent, floor_ns=floor)

    latest = max(confirmed, sent)
    assert served == (latest > since and latest > floor and (latest > claim or (at_home and applied >= position)))


@given(INSTANTS, INSTANTS, INSTANTS, INSTANTS)
def test_only_what_began_after_every_reason_is_joined(since: int, claim: int, started: int, floor: int) -> None:
    assert may_join(Need(since, claim), started_ns=started, floor_ns=floor) == (started > max(since, claim, floor))


def test_instants_that_cannot_be_told_apart_prove_nothing() -> None:
    assert not proves(Need(5), partition=0, applied=9, confirmed_ns=5)
    assert not may_join(Need(5), started_ns=5)
