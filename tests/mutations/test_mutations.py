"""Every rule is needed: with one taken out, the test named after it fails, and passes otherwise."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.clock import VirtualClock
from tests.conformance.test_histories import run_histories
from tests.conformance.world import World
from tests.mutations.mutants import MUTANTS, Mutant

from selaras._stores.memory import MemoryStore

SHOWN_BY_HISTORIES = (
    "replies carry no news",
    "a stored value's position is the reply's tail",
    "intents are a single slot",
    "a settle removes others' intents",
    "an invalidation removes intents",
    "a fill does not look at intents",
    "an invalidation leaves intents clean",
    "a tag leaves intents clean",
    "a put needs no sole, clean intent",
    "any end stores its puts",
    "an attempt that started gives its pre-image back",
    "tokens start again with the key",
    "any token fills",
    "an invalidation leaves tokens",
    "a fill does not look at tags",
    "a hit does not look at tags",
    "an invalidation inside a job takes effect at once only",
    "an intent on a tag opens nothing",
    "an event closes what is open",
    "the first of several writers closes it",
    "a lost attempt's intents go",
    "the last lost attempt's intents have no grace",
)
"""Rules whose lack makes a tier show what is not true: random histories find that on their own."""


def _take_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(mutant.where, mutant.method)

    def mutated(self: Any, *arguments: Any) -> Any:
        return mutant.instead(original, self, *arguments)

    monkeypatch.setattr(mutant.where, mutant.method, mutated)


async def _run(mutant: Mutant) -> None:
    clock = VirtualClock()
    world = World(MemoryStore(clock, partitions=mutant.partitions, entropy=Random(1)), clock)
    await world.begin()
    await mutant.caught_by(world, **mutant.arguments)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
async def test_a_store_without_the_rule_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    await _run(mutant)
    _take_out(mutant, monkeypatch)

    with pytest.raises(AssertionError):
        await _run(mutant)


@pytest.mark.parametrize("taken_out", SHOWN_BY_HISTORIES)
async def test_random_histories_find_out_as_well(taken_out: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.taken_out == taken_out]
    _take_out(mutant, monkeypatch)

    with pytest.raises(AssertionError, match=r"the datastore|the pre-image"):
        await run_histories("memory-1", folder, looks_inside=False)


def test_every_rule_of_the_store_has_a_mutant() -> None:
    rules = {mutant.rule for mutant in MUTANTS}

    # P2, P5 and P6 are rules of the reader and P23 is one of Redis.
    assert {f"P{number}" for number in range(1, 23)} - {"P2", "P5", "P6"} <= rules
