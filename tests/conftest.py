"""What every test may ask for: time, chance and each kind of store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.clock import VirtualClock
from tests.redis.binaries import summary
from tests.stores import KINDS, clear_servers, make_store

from selaras._contracts.store import Store

_MEMORY = Path("/dev/shm")

# `HYPOTHESIS_PROFILE=dev pytest …` looks for new examples, and longer.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", deadline=None, max_examples=500, print_blob=True)
# What fails under a mutant is not looked at: nobody makes it shorter.
settings.register_profile("mutant", settings.get_profile("ci"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers the tests met, and what had to be left out for want of one."""
    terminalreporter.write_line(f"Redis and Valkey servers: {summary()}")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a test does to the environment, a command line called in this process among it, ends with the test."""
    with patch.dict(os.environ):
        yield


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def entropy() -> Random:
    return Random(20_251_129)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a store's files; in memory where the system offers that, since thousands are made."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, folder: Path, clock: VirtualClock, entropy: Random
) -> AsyncIterator[Store]:
    """Each kind of store, open."""
    store = make_store(request.param, folder, clock, entropy)
    await store.open()
    yield store
    await store.close()
    clear_servers()
