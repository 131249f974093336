"""A world of processes on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cache.world import World


@pytest.fixture(params=["memory-1", "sqlite-1"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """One partition, in memory and in a file."""
    async with World(request.param, tmp_path) as world:
        yield world


@pytest.fixture(params=["memory-4", "sqlite-4"])
async def wide_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Four partitions."""
    async with World(request.param, tmp_path) as world:
        yield world
