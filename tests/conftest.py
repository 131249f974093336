"""What every test may ask for: time, chance and each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from tests.clock import VirtualClock
from tests.stores import KINDS, make_store

from selaras._contracts.store import Store


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def entropy() -> Random:
    return Random(20_251_129)


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock, entropy: Random
) -> AsyncIterator[Store]:
    """Each kind of store, open."""
    store = make_store(request.param, tmp_path, clock, entropy)
    await store.open()
    yield store
    await store.close()
