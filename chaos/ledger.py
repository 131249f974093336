"""The datastore of the chaos program: rows that count their versions, and what each version came from."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from chaos.history import Commit

_SCHEMA = """
create table if not exists row (key text primary key, version int not null, fence int not null) without rowid;
create table if not exists done (job text primary key, version int not null) without rowid;
create table if not exists past (key text, version int, job text, fence int, at int, primary key (key, version)) without rowid;
"""


class Ledger:
    """One process's connection to it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._connection.executescript("pragma journal_mode = wal; pragma synchronous = off;" + _SCHEMA)

    def version(self, key: str) -> int:
        """Return a row's version; 0: it was never written."""
        found = self._connection.execute("select version from row where key = ?", [key]).fetchone()
        return int(found[0]) if found else 0

    def write(self, key: str, job: str, fence: int) -> int:
        """Write a row once for each job, whatever attempt does it, and none that lost its place. Returns the row's version.

        0: refused, since a higher fence has been here. Fence 0 is a scope's: whoever runs beside it may write, too.
        """
        execute = self._connection.execute
        execute("begin immediate")
        try:
            version, last = execute("select version, fence from row where key = ?", [key]).fetchone() or (0, 0)
            if 0 < fence < last:
                return 0
            if not execute("select 1 from done where job = ?", [job]).fetchone():
                version += 1
                execute("insert into done values (?, ?)", [job, version])
                at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                execute("insert into past values (?, ?, ?, ?, ?)", [key, version, job, fence, at])
            execute("insert or replace into row values (?, ?, ?)", [key, version, max(fence, last)])
        finally:
            execute("commit")
        return int(version)

    # -- afterwards

    def commits(self) -> list[Commit]:
        """Return every version of every row."""
        rows = self._connection.execute("select key, version, job, fence, at from past order by key, version")
        return [Commit(key=key, version=version, job=job, fence=fence, at=at) for key, version, job, fence, at in rows]

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()
