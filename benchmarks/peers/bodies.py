"""What the jobs of all peers do, and the ledger in which each of them says that it ran. Imported in a peer's environment.

A body ends with one write of a few bytes to a file in memory. So the benchmark learns how far a drain is from the size
of a file: it costs no command of the store that is measured, and works alike for threads, forks and loops.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from functools import cache
from typing import Final

URL: Final = os.environ.get("PEERS_URL", "")
LEDGER: Final = os.environ.get("PEERS_LEDGER", "")
WORKER: Final = int(os.environ.get("PEERS_WORKER", "0"))
IO_SECONDS: Final = 0.010
LEASE: Final = float(os.environ.get("PEERS_LEASE", "0"))
"""Seconds after which a silent worker's jobs go to others; 0: as the adapter sets it otherwise."""
BLOCK_SECONDS: Final = float(os.environ.get("PEERS_BLOCK", "8"))
ENDED: Final = 1_000_000
"""Added to the number of a job that notes its end, too."""

RAN: Final = struct.Struct("<qii")
"""When (monotonic, in nanoseconds), which job, which worker."""


@cache
def _ledger() -> int:
    return os.open(LEDGER, os.O_WRONLY | os.O_APPEND)


def ran(number: int) -> None:
    """Note that a job has run."""
    os.write(_ledger(), RAN.pack(time.monotonic_ns(), number, WORKER))


async def noop(number: int) -> None:
    """Do nothing."""
    ran(number)


async def io(number: int) -> None:
    """Wait as for a network."""
    await asyncio.sleep(IO_SECONDS)
    ran(number)


async def zombie(number: int) -> None:
    """Block the loop for several leases, as a body does that computes, or waits for the wrong kind of driver."""
    blocking_zombie(number)


async def lookup(number: int, row: int, writes: int) -> None:
    """Read one row through a cache, or write it."""
    from benchmarks.peers import lookups

    await lookups.lookup(row, bool(writes))
    ran(number)


def blocking_noop(number: int) -> None:
    """Do nothing, in a plain function."""
    ran(number)


def blocking_io(number: int) -> None:
    """Wait as for a network, in a plain function."""
    time.sleep(IO_SECONDS)
    ran(number)


def blocking_zombie(number: int) -> None:
    """Do the same in a plain function."""
    ran(number)
    time.sleep(BLOCK_SECONDS)
    ran(number + ENDED)
