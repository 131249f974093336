"""Every kind of store, by name: what it is and how many partitions it has."""

from __future__ import annotations

import importlib
from pathlib import Path
from random import Random
from typing import Final

import pytest
from tests.clock import VirtualClock

from selaras._contracts.store import Store
from selaras._stores.memory import MemoryStore

KINDS: Final = ("memory-1", "memory-4", "sqlite-1", "sqlite-4")


def make_store(kind: str, folder: Path, clock: VirtualClock, entropy: Random) -> Store:
    """Make a store that is not open yet; skips the test if this kind cannot be made here."""
    name, _, count = kind.partition("-")
    if name == "memory":
        return MemoryStore(clock, partitions=int(count), entropy=entropy)
    try:
        sqlite = importlib.import_module("selaras._stores.sqlite")
        made: Store = sqlite.SqliteStore(folder / "selaras.db", clock, partitions=int(count), entropy=entropy)
    except (ImportError, AttributeError):
        pytest.skip("the SQLite store is not there yet")
    return made
