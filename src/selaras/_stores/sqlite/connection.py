"""Opens connections, begins transactions, says in our words what went wrong, and stays whole across a fork.

The one file that knows the driver.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import Lock
from time import sleep
from typing import Any, Final, TypeAlias
from weakref import WeakSet

import msgspec

from selaras._core.errors import NotEncodable, SelarasError, StoreUnavailable

HELD_ON_MOST: Final = 10_000
"""What a connection remembers beyond a verb, of each kind: places without a value, jobs that have intents, jobs that run or are
the first of their lines, lines. More are read again when they are asked for.
"""

Connection: TypeAlias = sqlite3.Connection
DatabaseError: Final = sqlite3.Error
SQLITE_VERSION: Final = sqlite3.sqlite_version
Value: TypeAlias = int | str | bytes | None

BUSY_MOST_S: Final = 30.0
"""How long a writer waits for another process's transaction before it says so."""

UNREADABLE: Final = (ValueError, TypeError, RecursionError)
"""What decoding a column raises that somebody else has written over. A row must not take others with it."""

_READ_MOST_S: Final = 1.0
"""How long a reader waits: only for a process that takes a log up again after a crash."""

WAL_KEPT_BYTES: Final = 64 * 1024 * 1024
"""What a write-ahead log keeps of its file when it begins anew."""

_encode_json: Final = msgspec.json.encode
_FORK_WAIT_S: Final = 5.0
_SPIN_LEAST_S: Final = 0.000_05
_SPIN_MOST_S: Final = 0.002
_CACHE_KIB: Final = 64 * 1024
_jitter = Random()  # only spreads retries


def connect(path: Path, *, synchronous: str, writes: bool, patience_s: float = BUSY_MOST_S) -> Connection:
    """Open one connection to a database file, which is created if it is missing and `writes`.

    `patience_s`: how long a writer waits for whoever is in the way.

    Raises:
        StoreUnavailable: with the path and what to do about it.
    """
    try:
        con = sqlite3.connect(
            path if writes else f"{path.absolute().as_uri()}?mode=rw",
            uri=not writes,
            timeout=0 if writes else _READ_MOST_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
    except sqlite3.Error as error:
        raise unavailable(error, path) from error
    try:
        if writes:
            _patiently(lambda: con.execute("PRAGMA journal_mode = wal").fetchone(), patience_s)
            con.execute(f"PRAGMA synchronous = {synchronous}")
            con.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            con.execute("PRAGMA wal_autocheckpoint = 0")  # `Writer` does it, off the event loop
            con.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        else:
            con.execute("PRAGMA query_only = on")
    except sqlite3.Error as error:
        con.close()
        raise unavailable(error, path) from error
    return con


def begin_at_once(con: Connection) -> bool:
    """Begin to write, unless another connection is writing. Returns whether it began."""
    try:
        con.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False
        raise
    return True


def begin(con: Connection, patience_s: float = BUSY_MOST_S) -> None:
    """Begin to write, as soon as whoever is writing has ended.

    SQLite's own busy handler sleeps up to 100 ms between looks; a transaction here takes a few hundred
    microseconds, so we look much more often, at random moments so that two processes do not keep step.
    """
    _patiently(lambda: con.execute("BEGIN IMMEDIATE"), patience_s)


def _patiently(step: Callable[[], object], patience_s: float) -> None:
    waited, pause = 0.0, _SPIN_LEAST_S
    while True:
        try:
            step()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or waited >= patience_s:
                raise
        else:
            return
        nap = _SPIN_LEAST_S + _jitter.random() * pause
        sleep(nap)
        waited += nap
        pause = min(pause * 1.5, _SPIN_MOST_S)


def run_each(con: Connection, statement: str, values: list[tuple[Any, ...]]) -> None:
    """Run a statement for each of these values."""
    if len(values) == 1:
        con.execute(statement, values[0])
    elif values:
        con.executemany(statement, values)


def roll_back(con: Connection) -> None:
    """Undo what was begun, if anything was."""
    if con.in_transaction:
        try:
            con.execute("ROLLBACK")
        except sqlite3.Error:  # SQLite had already rolled it back, as it does when the disk is full
            pass


def is_listed(name: str) -> bool:
    """Say whether a name can be an element of `as_list`: SQLite reads JSON's texts up to a NUL."""
    return "\0" not in name


def as_list(values: Sequence[int | str | None]) -> str:
    """Write numbers, or names, as `json_each` reads them; names that it cannot read are left out."""
    text = _encode_json(values).decode()
    if "\\u0000" in text:
        text = _encode_json([value for value in values if not isinstance(value, str) or is_listed(value)]).decode()
    return text


def is_busy(error: Exception) -> bool:
    """Say whether another connection was in the way."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def is_broken(error: BaseException) -> bool:
    """Say whether the connection itself is no longer to be trusted, so that it must be opened anew."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_READONLY"))


def is_full(error: BaseException) -> bool:
    """Say whether there was no room on the disk."""
    return (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_FULL")


_ADVICE: Final = (
    ("SQLITE_NOTADB", "is not a SQLite database: name another file, or move this one away"),
    ("SQLITE_CORRUPT", "is damaged: restore it from a backup, or move it away to begin anew"),
    ("SQLITE_READONLY", "cannot be written: give this user the right to write the file and its folder"),
    ("SQLITE_CANTOPEN", "cannot be opened: does its folder exist, and may this user write there?"),
    ("SQLITE_PERM", "cannot be opened: give this user the right to read and write it"),
    ("SQLITE_FULL", "cannot grow: the disk is full; free some space"),
    (
        "SQLITE_BUSY",
        f"is kept busy by another process (a writer waits {BUSY_MOST_S:g} s for it): is one stuck in a transaction?",
    ),
    ("SQLITE_IOERR", "cannot be read or written: check the disk"),
)


def unavailable(error: Exception, path: Path) -> StoreUnavailable:
    """Say what is wrong with the file and what to do about it."""
    name = getattr(error, "sqlite_errorname", "") or ""
    for beginning, advice in _ADVICE:
        if name.startswith(beginning):
            return StoreUnavailable(f"the store {path.absolute()} {advice} ({error})")
    return StoreUnavailable(f"the store {path.absolute()} failed: {error}")


def translated(error: Exception, path: Path) -> Exception:
    """Say in our words what the driver said; what is not of the driver stays as it is."""
    if isinstance(error, UnicodeEncodeError):
        return not_text(error)
    return unavailable(error, path) if isinstance(error, DatabaseError) else error


def not_text(error: UnicodeEncodeError) -> SelarasError:
    """Say that a name cannot be kept: SQLite's texts are UTF-8, which has no lone surrogates."""
    return NotEncodable(f"{error.object!r} holds a lone surrogate, which is not text: nothing was done")


class Link:
    """One connection and the lock of whoever uses it: closed around a fork, opened again on demand.

    SQLite's own record of file locks is copied by a fork, and the locks are not; so no connection may be
    open while one happens, or the child's would hold nothing and the parent's last close would
    delete the log under it.
    """

    def __init__(self, open: Callable[[], Connection]) -> None:
        self.lock = Lock()
        self._open = open
        self._con: Connection | None = None
        self._paused = False
        self._closing: list[Callable[[], None]] = []
        _links.add(self)

    @property
    def is_open(self) -> bool:
        """Whether a connection is open."""
        return self._con is not None

    def connection(self) -> Connection:
        """Return the open connection; the caller holds `lock`. Raises StoreUnavailable."""
        if self._con is None:
            self._con = self._open()
        return self._con

    def on_close(self, forget: Callable[[], None]) -> None:
        """Call `forget` just before a connection closes: whatever rests on it ends then."""
        self._closing.append(forget)

    def drop(self) -> None:
        """Close the connection; the caller holds `lock`. The next use opens another one."""
        con, self._con = self._con, None
        if con is not None:
            for forget in self._closing:
                forget()
            try:
                con.close()
            except sqlite3.Error:  # nothing is lost: what was committed stands in the file
                pass

    def pause(self) -> None:
        """Close for a fork, and let nobody open until it is over."""
        self._paused = self.lock.acquire(timeout=_FORK_WAIT_S)
        if self._paused:
            self.drop()

    def resume(self) -> None:
        """The fork is over."""
        if self._paused:
            self._paused = False
            self.lock.release()

    def release(self) -> None:
        """Close the connection, unless somebody is using it just now."""
        if self.lock.acquire(blocking=False):
            try:
                self.drop()
            finally:
                self.lock.release()

    def resume_in_child(self) -> None:
        """The fork is over, in the child: a connection that could not be closed is left to the parent."""
        if not self._paused and self._con is not None:
            _abandoned.append(self._con)
            self._con = None
            self.lock = Lock()
        self.resume()


_links: WeakSet[Link] = WeakSet()
_abandoned: list[Connection] = []  # never closed: closing would undo the parent's work


def _each(step: Callable[[Link], None]) -> Callable[[], None]:
    def run() -> None:
        for link in list(_links):
            step(link)

    return run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_each(Link.pause), after_in_parent=_each(Link.resume), after_in_child=_each(Link.resume_in_child)
    )
