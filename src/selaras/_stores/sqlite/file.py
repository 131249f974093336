"""One partition's file: prepares it, hands out connections, and notices when it is no longer there."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakSet

from selaras._contracts.clock import Clock, Entropy
from selaras._core.errors import StoreUnavailable
from selaras._stores.sqlite import epochs, schema
from selaras._stores.sqlite.connection import (
    BUSY_MOST_S,
    Connection,
    DatabaseError,
    Link,
    begin,
    connect,
    roll_back,
    unavailable,
)

LOOK_EVERY_NS: Final = 200_000_000
"""How often a file is looked at, to see that it is still the one we opened."""

MARK_EVERY_NS: Final = 1_000_000_000
"""How often it is noted how far the file has come."""

_INDEX_HEADER_BYTES: Final = 48


class DatabaseFile:
    """A file on disk, and what this process knows about it."""

    def __init__(
        self, path: Path, clock: Clock, entropy: Entropy, *, index: int, partitions: int, synchronous: str
    ) -> None:
        self.path = path
        self.index = index
        self.partitions = partitions
        self.clock = clock
        self.entropy = entropy
        self.generation = 0  # grows when the file was found to be another one
        self._synchronous = synchronous
        self._lock = Lock()
        self._identity = ""  # empty: it must be prepared before it is used
        self._epoch = 0
        self._looked_ns = 0
        self._time_us = 0
        self.furthest = 0  # the highest counter that was committed here: what is read later stands at least there
        self._marked_ns = 0
        self._log_path = Path(f"{path}-wal")
        self._links: WeakSet[FileLink] = WeakSet()

    def link(self, *, writes: bool) -> FileLink:
        """Make a link to whatever file is there."""
        link = FileLink(self, writes=writes)
        self._links.add(link)
        return link

    def open(self, *, writes: bool, patience_s: float) -> Connection:
        """Open a connection; the first one creates or checks the file. Raises StoreUnavailable, StoreMismatch."""
        self.prepare(patience_s)
        return connect(self.path, synchronous=self._synchronous, writes=writes, patience_s=patience_s)

    def prepare(self, patience_s: float = BUSY_MOST_S) -> None:
        """Create or check the file, unless that was done. Raises StoreUnavailable, StoreMismatch."""
        if self._identity:
            return
        if not self._lock.acquire(timeout=patience_s):
            raise StoreUnavailable(f"the store {self.path.absolute()} is being opened: nothing was done, ask again")
        try:
            if not self._identity:
                self._prepare(patience_s)
        finally:
            self._lock.release()

    def now_us(self, time_us: int, offset_us: int) -> int:
        """Return the store's time, from what the ledger holds: not before any that was told (L8).

        It goes with the time since boot, which no operator sets; all processes of the host share the offset (P15).
        """
        self._time_us = now = max(self.instant_us() + offset_us, time_us, self._time_us)
        return now

    def instant_us(self) -> int:
        """Return the time since boot."""
        return self.clock.instant_ns() // 1_000

    def check(self) -> None:
        """Look, now and then, whether the file is still the one we opened.

        Raises:
            StoreUnavailable: it was deleted, replaced or emptied. The next use begins with what is there then, in a new
                epoch.
        """
        now_ns = self.clock.instant_ns()
        if 0 <= now_ns - self._looked_ns < LOOK_EVERY_NS:
            return
        self._looked_ns = now_ns
        if self._identity and epochs.identity(self.path) != self._identity:
            self.forget(is_another=True)
            raise StoreUnavailable(
                f"the store {self.path.absolute()} was deleted or replaced while it was open: "
                "nothing was done; the next call begins with the file that is there now"
            )
        if self._identity and epochs.is_empty(self.path):
            self.forget(is_another=True)
            raise StoreUnavailable(
                f"the store {self.path.absolute()} was truncated while it was open, so all that was in it is gone: "
                "nothing was done; the next call begins anew"
            )

    def reached(self, counter: int) -> None:
        """Note, now and then, how far the file has come: a commit has brought it here."""
        self.furthest = max(self.furthest, counter)
        now_ns = self.clock.instant_ns()
        if not 0 <= now_ns - self._marked_ns < MARK_EVERY_NS:
            self.mark(now_ns)

    def mark(self, now_ns: int = 0) -> None:
        """Write down how far the file has come."""
        self._marked_ns = now_ns
        if self._identity and self.furthest > epochs.mark_of(self.path):
            epochs.set_mark(self.path, self.furthest)

    def log_size(self) -> int:
        """Return the size of the write-ahead log's file in bytes: of what is in it, or was before it began anew."""
        try:
            return self._log_path.stat().st_size
        except OSError:
            return 0

    def compare(self, counter: int, furthest: int) -> None:
        """Compare the counter that the file tells with where it had come before it was asked.

        Raises:
            StoreUnavailable: it went back: a copy was restored into it. The next use begins a new epoch (P20).
        """
        if counter < furthest:
            self.forget(is_another=True)
            raise StoreUnavailable(
                f"the store {self.path.absolute()} went back to an older state while it was open, as when a backup is "
                "restored into it: nothing was done; the next call begins with what is there now, and nothing cached"
            )

    def forget(self, *, is_another: bool = False) -> None:
        """Prepare the file anew before its next use, in a new epoch if it is another file than before.

        Every idle connection of this process is closed at once: SQLite locks a file for as long as one is open,
        and while an emptied file is locked, nobody can begin anew in it.
        """
        if not self._identity:
            return
        with self._lock:
            if self._identity:
                self._identity = ""
                self._epoch += is_another or epochs.is_empty(self.path)
                self.furthest = 0
                self.generation += 1
        for link in list(self._links):
            link.release()

    def void_log(self, identity: str) -> None:
        """Empty the log of a file that was emptied, so that closing it copies no remains of the log into it.

        The caller has a connection open to the file of that identity: nobody else can have begun anew in it.
        """
        if epochs.is_empty(self.path) and epochs.identity(self.path) == identity:
            try:
                os.truncate(self._log_path, 0)
            except OSError:  # there is none
                pass

    @property
    def identity(self) -> str:
        """What tells the file from another one; empty: it must be prepared before it is used."""
        return self._identity

    def _prepare(self, patience_s: float) -> None:
        try:
            con = connect(self.path, synchronous=self._synchronous, writes=True, patience_s=patience_s)
            try:
                begin(con, patience_s)
                if schema.is_new(con):
                    schema.create(con, index=self.index, partitions=self.partitions)
                schema.check(con, self.path, index=self.index, partitions=self.partitions)
                now_us = epochs.set_clock(con, instant_us=self.instant_us(), wall_us=self.clock.wall_us())
                self._epoch = epochs.check_epoch(con, self.path, known=self._epoch, entropy=self.entropy, now_us=now_us)
                con.execute("COMMIT")
            finally:
                roll_back(con)
                con.close()
        except DatabaseError as error:
            raise unavailable(error, self.path) from error
        self._identity = epochs.identity(self.path)
        self._looked_ns = self.clock.instant_ns()


class FileLink(Link):
    """One connection to the file that is there now. Made by `DatabaseFile.link`."""

    def __init__(self, file: DatabaseFile, *, writes: bool) -> None:
        super().__init__(lambda: file.open(writes=writes, patience_s=self._patience_s))
        self._file = file
        self._patience_s = 0.0
        self._generation = 0
        self._identity = ""

    @property
    def is_current(self) -> bool:
        """Whether a connection is open to the file as it was last seen: using it opens nothing, so it waits for nobody."""
        return self.is_open and self._generation == self._file.generation

    def to_file(self, patience_s: float) -> Connection:
        """Return a connection to the file that is there now; the caller holds `lock`. Raises StoreUnavailable.

        `patience_s`: how long to wait, if it must be opened, for whoever is in the way.
        """
        try:
            self._file.check()
        except StoreUnavailable:
            self.drop()
            raise
        if self._generation != self._file.generation:
            self.drop()
            self._generation = self._file.generation
        if not self.is_open:
            self._patience_s = patience_s
            con = self.connection()
            self._identity = self._file.identity
            return con
        return self.connection()

    def drop(self) -> None:
        """Close the connection; the caller holds `lock`."""
        if self.is_open:
            self._file.void_log(self._identity)
        super().drop()


class CommitSign:
    """A few bytes that differ after every commit of any process, read without a system call.

    They are the header of SQLite's WAL index, which every writer changes in shared memory as the last act of its
    commit, and every reader looks at as its first. We read them where SQLite has mapped them, rather than
    map the file ourselves: closing a file of our own would drop SQLite's locks on it.

    Source: sqlite.org/walformat.html, section 2.1, "The WAL-Index Header".
    """

    def __init__(self, path: Path) -> None:
        self._view: memoryview | None = None
        address = _mapped_at(f"{path.absolute()}-shm")
        if address:
            header = (ctypes.c_char * _INDEX_HEADER_BYTES).from_address(address)
            self._view = memoryview(header).cast("B")

    def read(self) -> bytes:
        """Return the sign as it is now; empty where the system does not offer one."""
        return bytes(self._view) if self._view is not None else b""

    def end(self) -> None:
        """Never look again: the memory is about to go away."""
        self._view = None


def _mapped_at(name: str) -> int:
    if sys.platform != "linux":
        return 0
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return 0
    here = epochs.identity(Path(name)).partition(":")[2]
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] == here and fields[5] == name and int(fields[2], 16) == 0:
            return int(fields[0].partition("-")[0], 16)
    return 0


def partitions_in(path: Path) -> int:
    """Return how many partitions a store's file says there are; 0: there is none yet, or it cannot be read now."""
    if not path.is_file():
        return 0
    try:
        with closing(connect(path, synchronous="normal", writes=False)) as con:
            found = con.execute("SELECT value FROM meta WHERE name = 'partitions'").fetchone()
    except (DatabaseError, StoreUnavailable):  # opening the store says what is wrong with it
        return 0
    return int(found[0]) if found and isinstance(found[0], int) else 0
