"""A world on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.clock import VirtualClock
from tests.conformance.world import World

from selaras._contracts.store import Store


@pytest.fixture
async def world(store: Store, clock: VirtualClock) -> AsyncIterator[World]:
    world = World(store, clock)
    await world.begin()
    yield world
    world.close()
