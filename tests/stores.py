"""Every kind of store, by name: what it is and how many partitions it has."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from tests.clock import VirtualClock

from selaras._contracts.store import Store
from selaras._stores.memory import MemoryStore
from selaras._stores.sqlite.store import SqliteStore

KINDS: Final = ("memory-1", "memory-4", "sqlite-1", "sqlite-4")


def make_store(kind: str, folder: Path, clock: VirtualClock, entropy: Random) -> Store:
    """Make a store that is not open yet."""
    name, _, count = kind.partition("-")
    if name == "memory":
        return MemoryStore(clock, partitions=int(count), entropy=entropy)
    return SqliteStore(folder / "selaras.db", clock, partitions=int(count), entropy=entropy)
