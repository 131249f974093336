"""Worlds with a host tier to which everything happens: no promise is broken, and one that is taken out is missed."""

from __future__ import annotations

import pytest
from simulation.plan import Plan, plan_of
from simulation.world import run

from selaras._cache.family import Slot
from selaras._cache.host import HostTier
from selaras._core.cache.hosted import Hosted


def a_plan(seed: int, jobs: int) -> Plan:
    return plan_of(seed, jobs=jobs, store="memory", shelf=0.1)


@pytest.mark.parametrize("seed", [501, 503])
def test_no_promise_is_broken_whatever_becomes_of_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served = 0
    serve = HostTier._serve

    def counted(self: HostTier, *args: object) -> object:
        nonlocal served
        reading = serve(self, *args)  # type: ignore[arg-type] # as they came
        served += reading is not None
        return reading

    monkeypatch.setattr(HostTier, "_serve", counted)

    result = run(a_plan(seed, 150))

    assert (result.broken, result.what) == ("", "")
    assert served


def test_a_tier_that_events_do_not_speak_against_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def sound(self: HostTier, slot: Slot, hosted: Hosted) -> bool:
        return self._is_of_this_log(hosted, self._followers[slot.partition])

    monkeypatch.setattr(HostTier, "_is_sound", sound)

    assert any(run(a_plan(seed, 400)).broken in ("G1", "G2", "G5", "G8") for seed in range(500, 506))
