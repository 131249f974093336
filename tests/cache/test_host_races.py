"""Every race again, with a host tier between: once beside the local tier, once in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cache import test_races
from tests.cache.shelf import OWNER, FakeShelf
from tests.cache.world import World

# They hold a trip to the store that is not made any more; their likes are in `test_host`.
_OF_OTHER_TRIPS = {
    "test_f2_a_late_reply_does_not_fill_the_local_tier_after_the_news_overtook_it",
    "test_b2_silence_is_not_taken_for_no_news",
}

globals().update(
    {name: test for name, test in vars(test_races).items() if name.startswith("test_") and name not in _OF_OTHER_TRIPS}
)


@pytest.fixture(params=["memory-1", "memory-1 without a local tier"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """All processes share a shelf."""
    kind, _, alone = str(request.param).partition(" ")
    async with World(kind, tmp_path, shelf=FakeShelf(), owner=OWNER, local_entries=0 if alone else 1_000) as world:
        yield world


def test_no_race_was_left_out() -> None:
    assert set(vars(test_races)) > _OF_OTHER_TRIPS
