"""The datastore of a run, and the truth about it: numbers in memory that all processes share.

Of each row, the version that is committed, and the newest one whose writer was told that its write is done. A read that
began after that and returns an older version is stale: nothing is judged by a clock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

CELL: Final = 8


class Tally(IntEnum):
    """What each process counts."""

    READS = 0
    STALE = 1
    LOADS = 2
    WRITES = 3
    JOBS = 4
    READY = 5
    HOSTED = 6


class Ground:
    """The shared numbers.

    Attributes:
        committed, acknowledged: by row.
    """

    def __init__(self, path: Path, rows: int, processes: int) -> None:
        self._file = os.open(path, os.O_RDWR)  # open for as long as the process lives, like the memory
        cells = memoryview(mmap.mmap(self._file, _cells(rows, processes) * CELL)).cast("Q")
        self._stop = cells[:1]
        self._processes = processes
        self._tallies = cells[1 : 1 + processes * len(Tally)]
        rest = cells[1 + processes * len(Tally) :]
        self.rows = rows
        self.committed, self.acknowledged = rest[:rows], rest[rows:]

    @classmethod
    def make(cls, path: Path, rows: int, processes: int) -> Ground:
        """Make a new one, all zeros."""
        path.write_bytes(bytes(_cells(rows, processes) * CELL))
        return cls(path, rows, processes)

    # -- the datastore

    def commit(self, row: int) -> int:
        """Write a row; return its new version."""
        with self._alone():
            version = self.committed[row] + 1
            self.committed[row] = version
            return version

    def acknowledge(self, row: int, version: int) -> None:
        """The writer of this version was told that it is done: from here on nobody may be given an older one."""
        with self._alone():
            self.acknowledged[row] = max(self.acknowledged[row], version)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    # -- the run

    @property
    def over(self) -> bool:
        """Whether everybody is to end."""
        return bool(self._stop[0])

    def end(self) -> None:
        """Let everybody end."""
        self._stop[0] = 1

    def tally(self, process: int) -> memoryview:
        """Return the counters of one process, which alone writes them."""
        return self._tallies[process * len(Tally) : (process + 1) * len(Tally)]

    def total(self, what: Tally) -> int:
        """Return a counter's sum over all processes."""
        return sum(self.tally(process)[what] for process in range(self._processes))


def _cells(rows: int, processes: int) -> int:
    return 1 + processes * len(Tally) + 2 * rows
