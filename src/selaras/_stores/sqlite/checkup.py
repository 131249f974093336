"""Looks at a store's files as a physician would: changes nothing, and says what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from selaras._contracts.finding import Finding, doubtful, fine, wrong
from selaras._core.errors import StoreMismatch, StoreUnavailable
from selaras._stores.sqlite import schema
from selaras._stores.sqlite.connection import SQLITE_VERSION, Connection, DatabaseError, connect
from selaras._stores.sqlite.file import partitions_in

# Of other machines, or without the shared memory that the write-ahead log's index is.
# Source: sqlite.org/wal.html, "All processes using a database must be on the same host computer".
_NETWORKED: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "nfs"}
    | {"nfs4", "ocfs2", "smb3", "smbfs", "vboxsf"}
)
_PASSING: Final = {
    "tmpfs": "memory: it is gone when the machine restarts",
    "ramfs": "memory: it is gone when the machine restarts",
    "overlay": "a container's own layer: it is gone with the container",
}
_WAL_LONG_BYTES: Final = 256 * 1024 * 1024
_SPARE_LEAST_BYTES: Final = 512 * 1024 * 1024
_MIB: Final = 1024 * 1024


def check_up(path: Path, partitions: int | None) -> Iterator[Finding]:
    """Look at a store; `partitions`: what the URL says, if it does. Takes as long as reading the files does."""
    yield fine("SQLite", "", f"version {SQLITE_VERSION}")
    if not path.exists():
        yield doubtful("file", str(path), "there is none", "a worker or the program makes it when it starts")
        yield from _place(path)
        return
    yield from _place(path)
    count = partitions or partitions_in(path) or 1
    for index in range(count):
        yield from _file(path if index == 0 else Path(f"{path}.p{index}"), index, count)


def _place(path: Path) -> Iterator[Finding]:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield wrong("folder", str(folder), "it may not be written to", "SQLite makes files beside the store: allow it")
    kind = file_system_of(folder)
    if kind in _NETWORKED:
        yield wrong(
            "file system",
            str(folder),
            f"{kind}: processes of several machines, or without shared memory, would damage the store there",
            "put it on a disk of this machine; for several machines use redis://",
        )
    elif kind in _PASSING:
        yield doubtful("file system", str(folder), f"{kind}, {_PASSING[kind]}", "put it on a disk, or a volume")
    elif kind:
        yield fine("file system", str(folder), kind)
    usage = shutil.disk_usage(folder)
    room = f"{usage.free // _MIB:,} MiB free of {usage.total // _MIB:,}"
    if usage.free < _SPARE_LEAST_BYTES:
        yield doubtful("disk", str(folder), room, "make room: a full disk takes no jobs", free_bytes=usage.free)
    else:
        yield fine("disk", str(folder), room, free_bytes=usage.free)


def _file(path: Path, index: int, partitions: int) -> Iterator[Finding]:
    where = str(path)
    if not path.exists():
        yield wrong(
            "file", where, f"partition {index} of {partitions} is missing", "restore it from where it was moved"
        )
        return
    try:
        with closing(connect(path, synchronous="normal", writes=False)) as con:
            schema.check(con, path, index=index, partitions=partitions)
            yield from _open_file(con, path)
    except StoreMismatch as error:
        yield wrong("file", where, str(error), "do as it says, or name another file")
    except (DatabaseError, StoreUnavailable) as error:
        yield wrong("file", where, str(error), "if it is damaged: stop all programs, and restore a backup")


def _open_file(con: Connection, path: Path) -> Iterator[Finding]:
    where = str(path)
    wal = Path(f"{path}-wal")
    size, wal_size = path.stat().st_size, wal.stat().st_size if wal.exists() else 0
    if not os.access(path, os.W_OK):
        yield wrong("file", where, "it may not be written to", "let this user write to it")
    pages, free = (con.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    unused = f", {free * 100 // pages} % of it unused" if pages and free * 4 > pages else ""
    yield fine("size", where, f"{size / _MIB:,.1f} MiB{unused}", bytes=size)
    mode = con.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        yield doubtful(
            "write-ahead log", where, f"journal mode {mode}", "something else changed it; the next start sets it again"
        )
    elif wal_size > _WAL_LONG_BYTES:
        yield doubtful(
            "write-ahead log",
            where,
            f"{wal_size / _MIB:,.1f} MiB",
            "some program keeps a transaction open, so it cannot be emptied: end that one",
            bytes=wal_size,
        )
    else:
        yield fine("write-ahead log", where, f"{wal_size / _MIB:,.1f} MiB", bytes=wal_size)
    [said] = con.execute("PRAGMA quick_check(1)").fetchone()
    if said == "ok":
        yield fine("integrity", where, "ok")
    else:
        yield wrong("integrity", where, str(said), "stop all programs, keep a copy of the file, and restore a backup")


def file_system_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of file system that a folder is on; "" where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        at = Path(before.split(" ")[4].replace("\\040", " "))
        if folder.resolve().is_relative_to(at) and len(at.parts) >= best:  # what was mounted later hides the earlier
            best, kind = len(at.parts), after.split(" ")[0]
    return kind
