"""Rules are taken out, one at a time: the search must find each within a few seeds, or its silence means nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from simulation.plan import plan_of
from simulation.world import run
from tests.cache import test_mutations as cache
from tests.mutations.mutants import MUTANTS

from selaras._cache.auditing import Auditor, Sample
from selaras._core.errors import StoreUnavailable
from selaras._stores.memory.partition import MemoryPartition
from selaras._worker.turning import Turner

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.timeout(240)  # a few seconds on a machine that is free

SEEDS_MOST = 24
JOBS = 120


def store(taken_out: str) -> Callable[[Patch], None]:
    """Take a rule out of the memory store, as tests/mutations does."""
    mutant = next(one for one in MUTANTS if one.taken_out == taken_out)

    def take_out(patch: Patch) -> None:
        original = getattr(mutant.where, mutant.method)
        patch.setattr(mutant.where, mutant.method, lambda self, *given: mutant.instead(original, self, *given))

    take_out.__name__ = taken_out
    return take_out


def an_unanswered_turn_is_given_up(patch: Patch) -> None:
    turn = Turner._turn

    async def once(self: Turner, sent: Any) -> None:
        before = self._is_away

        def away(number: int, error: Exception) -> None:
            before(number, error)
            if isinstance(error, StoreUnavailable):
                raise asyncio.CancelledError

        self._is_away = away  # type: ignore[method-assign] # as if it were not repeated
        await turn(self, sent)

    patch.setattr(Turner, "_turn", once)


def nobody_reaps(patch: Patch) -> None:
    patch.setattr(MemoryPartition, "_reap", lambda self, now: (0, 0))


def audits_do_not_ask_the_log(patch: Patch) -> None:
    async def never(self: Auditor, sample: Sample) -> bool:
        return False

    patch.setattr(Auditor, "_changed_since", never)


STALE = {"G1", "G2", "G3", "G5", "G7", "G8"}
CROWDED: dict[str, Any] = {"keys": 2, "writers": 2, "readers": 2, "workers": 3, "ttl_s": 0}
FAR: dict[str, Any] = {"partitions": 4, "keys": 5, "writers": 2, "readers": 2}

RULES: list[tuple[Callable[[Patch], None], set[str], dict[str, Any]]] = [
    (store("replies carry no news"), STALE, {}),
    (store("two of a line run at once"), {"lines"}, {}),
    (store("an invalidation leaves intents clean"), STALE, CROWDED),
    (store("a put needs no sole, clean intent"), STALE, CROWDED),
    (store("a hit does not look at tags"), STALE, {}),
    (store("nothing sets a floor or closes a key"), STALE, {}),
    (store("a served key is invalidated by a success only"), STALE, {}),
    (store("an attempt that started gives its pre-image back"), STALE, {}),
    (an_unanswered_turn_is_given_up, {"ends", "no trouble"}, {"faults": {"lost-request": 0.02}}),
    (nobody_reaps, {"ends", "nothing left"}, {"faults": {"crash": 0.003}}),
    (cache.answers_leave_no_floor, STALE, {}),
    (cache.refused_fills_are_kept, STALE, {}),
    (cache.the_body_sees_the_pre_image, {"G2", *STALE}, {}),
    (cache.floors_are_not_asked, STALE, {}),
    (cache.tags_are_told_to_one_partition, STALE, FAR),
    (cache.there_is_no_max_lag, STALE, {**CROWDED, "faults": {"cut": 0.02}, "ahead": 0}),
    (cache.puts_void_nothing, STALE, CROWDED),
    (audits_do_not_ask_the_log, {"audits"}, {**CROWDED, "audit": 1.0, "faults": {}}),
]
"""A rule, the promises that it keeps, and a terrain on which it is needed often."""


@pytest.mark.parametrize(("take_out", "promises", "terrain"), RULES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_rule_that_is_taken_out_is_found(
    take_out: Callable[[Patch], None], promises: set[str], terrain: dict[str, Any], monkeypatch: Patch
) -> None:
    take_out(monkeypatch)
    for seed in range(SEEDS_MOST):
        result = run(replace(plan_of(seed, jobs=JOBS, store="memory"), **terrain))
        if result.broken:
            assert result.broken in promises, (result.broken, result.what)
            return

    pytest.fail(f"no world of {SEEDS_MOST} noticed")
