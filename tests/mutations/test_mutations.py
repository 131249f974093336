"""Every rule is needed: with one taken out, the test named after it fails, and passes otherwise."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.clock import VirtualClock
from tests.conformance.world import World
from tests.mutations.mutants import MUTANTS, Mutant

from selaras._stores.memory import MemoryStore


async def _run(mutant: Mutant) -> None:
    clock = VirtualClock()
    world = World(MemoryStore(clock, partitions=mutant.partitions, entropy=Random(1)), clock)
    await world.begin()
    await mutant.caught_by(world, **mutant.arguments)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
async def test_a_store_without_the_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    await _run(mutant)
    original = getattr(mutant.where, mutant.method)

    def mutated(self: Any, *arguments: Any) -> Any:
        return mutant.instead(original, self, *arguments)

    monkeypatch.setattr(mutant.where, mutant.method, mutated)

    with pytest.raises(AssertionError):
        await _run(mutant)


def test_every_rule_of_the_store_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}

    # P2, P5 and P6 are rules of the reader and P23 is one of Redis.
    assert {f"P{number}" for number in range(1, 23)} - {"P2", "P5", "P6"} <= rules
