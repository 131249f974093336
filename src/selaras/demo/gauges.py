"""How reads were answered: each worker process says so in a file of its own, and the screen adds them up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple

from selaras import Selaras

_EVERY_S: Final = 0.2


class Reads(Struct, frozen=True):
    """Reads so far, by where the answer came from.

    Attributes:
        local: this process's memory.
        claim: it came along with the job, which is about to write that key.
        shared: the store.
        loaded: the datastore.
    """

    local: int = 0
    claim: int = 0
    shared: int = 0
    loaded: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def ratios(self) -> dict[str, float]:
        """Return each tier's share of all reads."""
        total = sum(astuple(self)) or 1
        return {tier: round(count / total, 4) for tier, count in asdict(self).items()}


def reads_of(app: Selaras) -> Reads:
    """Add up the reads that this process's cache has answered."""
    families = app.process().cache.stats()["families"].values()
    return Reads(
        local=sum(family["local"] + family["own"] for family in families),
        claim=sum(family["preimages"] for family in families),
        shared=sum(family["shared"] for family in families),
        loaded=sum(family["loads"] for family in families),
    )


@contextmanager
def reporting(count: Callable[[], Reads]) -> Generator[None, None, None]:
    """Keep this process's file up to date. What a killed process counted last is lost."""
    directory = os.environ.get("SELARAS_DEMO_GAUGES")
    if not directory:
        yield  # a worker started by hand: nobody looks
        return
    file = Path(directory, f"{os.getpid()}.json")
    ending = threading.Event()

    def write() -> None:
        draft = file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(count()))
        draft.replace(file)  # a reader sees the old file or the new one, never half of one

    def keep_writing() -> None:
        while not ending.wait(_EVERY_S):
            write()

    thread = threading.Thread(target=keep_writing, name="gauges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        write()


def has_read(directory: Path, pid: int) -> bool:
    """Say whether a process has come so far that it reads for its jobs."""
    file = directory / f"{pid}.json"
    return file.exists() and sum(astuple(msgspec.json.decode(file.read_bytes(), type=Reads))) > 0


def read_all(directory: Path) -> Reads:
    """Add up what all processes have said, dead ones included."""
    total = Reads()
    for file in directory.glob("*.json"):
        total += msgspec.json.decode(file.read_bytes(), type=Reads)
    return total
