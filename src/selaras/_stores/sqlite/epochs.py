"""Notices that a partition lost its memory, and begins a new epoch (P20).

A file that was restored from a copy has another inode, and one that went through a crash of its host may have
lost its last commits: both show as a difference from what the file itself remembers. A copy that was put back in
place, with the same inode, shows by its counter: it stands below the mark in a small file beside it (`<path>-mark`),
which is written about once a second. Not noticed is a copy that is younger than the last mark of a process that crashed.
A copy that is restored into a file in use, through SQLite, shows by the counter, too: it stands below what a process
committed itself (`DatabaseFile.compare`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from selaras._contracts.clock import Entropy
from selaras._contracts.limits import EPOCH_SHIFT
from selaras._stores.sqlite.connection import Connection

_BEHIND_US: Final = 1_000_000
"""The latest time told may be ahead by what the offset was slewed, not by more."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def live_marks(path: Path) -> dict[str, str]:
    """Return what changes when the memory of a file cannot be trusted: its host's boot and its own identity."""
    return {"boot": boot_id(), "file": identity(path)}


def boot_id() -> str:
    """Return the id of this host's boot; empty where the system tells none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def identity(path: Path) -> str:
    """Return what tells a file from another one that took its name; empty if there is none."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - twice as fast, and asked often
    except OSError:
        return ""
    return f"{stat.st_dev}:{stat.st_ino}"


def is_empty(path: Path) -> bool:
    """Say whether the file is there and holds nothing."""
    try:
        return os.stat(path).st_size == 0  # noqa: PTH116 - twice as fast, and asked often
    except OSError:
        return False


def mark_of(path: Path) -> int:
    """Return the counter that the file had reached for certain; 0: nobody noted one."""
    try:
        return int(_mark_path(path).read_text())
    except (OSError, ValueError):
        return 0


def set_mark(path: Path, counter: int) -> None:
    """Note that what is committed has reached this counter."""
    try:
        _mark_path(path).write_text(f"{counter}\n")
    except OSError:  # a copy put back in place may go unnoticed, and nothing else
        pass


def _mark_path(path: Path) -> Path:
    return Path(f"{path}-mark")


def check_epoch(con: Connection, path: Path, *, known: int, entropy: Entropy, now_us: int) -> int:
    """Begin a new epoch if the file's marks are not the live ones, or its epoch or counter are behind. Returns the epoch.

    Inside the caller's transaction.
    """
    live = live_marks(path)
    stored = dict(con.execute("SELECT name, value FROM meta WHERE name IN ('boot', 'file')"))
    epoch, counter = con.execute("SELECT epoch, counter FROM ledger").fetchone()
    marked = mark_of(path)
    if stored and (stored != live or epoch < known or counter < marked):
        # Above every epoch that the lost part may have had: its fences and positions must not come again.
        epoch = max(epoch + 1, known, (marked >> EPOCH_SHIFT) + (counter < marked))
        begin_epoch(con, epoch, event_id=entropy.getrandbits(63), now_us=now_us)
    elif not stored and known:
        epoch = known
        begin_epoch(con, epoch, event_id=entropy.getrandbits(63), now_us=now_us)
    # What the mark was noted for is over: whatever is stamped from here on stands above it.
    con.execute("UPDATE ledger SET counter = max(counter, ?)", (epoch << EPOCH_SHIFT,))
    if stored != live:
        con.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(live.items()))
    return int(epoch)


def set_clock(con: Connection, *, instant_us: int, wall_us: int) -> int:
    """Fix the offset of the store's time to the time since boot, at the first use of the file in a boot. Returns the time.

    Inside the caller's transaction, before `check_epoch`. Where no boot id is told, a time since boot that went back
    shows that there was one.
    """
    time_us, offset_us = con.execute("SELECT time_us, offset_us FROM ledger").fetchone()
    boot = con.execute("SELECT value FROM meta WHERE name = 'boot'").fetchone()
    if not time_us or boot is None or boot[0] != boot_id() or offset_us + instant_us < time_us - _BEHIND_US:
        time_us = max(time_us, wall_us)
        offset_us = time_us - instant_us
        con.execute("UPDATE ledger SET offset_us = ?, slewed_us = ?", (offset_us, instant_us))
    return max(int(time_us), int(offset_us) + instant_us)


def begin_epoch(con: Connection, epoch: int, *, event_id: int, now_us: int) -> None:
    """Trust no entry, token or pre-image of the old epoch, and no lease until it is renewed."""
    con.execute("DELETE FROM entries")
    con.execute("DELETE FROM tokens")
    con.execute("UPDATE intents SET clean = 0, preimage = NULL")
    # No cursor of the old epoch can match: the log begins anew, behind an event that nobody has seen.
    con.execute("DELETE FROM events")
    con.execute(
        "UPDATE ledger SET position = position + 1, event_id = ?, before_position = position + 1, before_id = ?,"
        " epoch = ?",
        (event_id, event_id, epoch),
    )
    # Looked at once already: a worker that lives has the grace to renew, the others are reaped after it (P19).
    con.execute("UPDATE instances SET until_us = min(until_us, ?), suspected_us = max(?, 1)", (now_us, now_us))
