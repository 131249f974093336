"""What processes note of what they do: one JSON line each, written at once, so that it outlives whoever wrote it.

Instants are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share, and no jump of the wall moves.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

NEVER: int = 1 << 62


class Note(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something that happened in one process."""


class Opened(Note, frozen=True, kw_only=True):
    """A process is at work."""

    at: int


class Enqueued(Note, frozen=True, kw_only=True):
    """These jobs were accepted, or, when not `sure`, may have been: the call failed. `called`: the enqueue's call."""

    jobs: list[str]
    called: int
    at: int
    sure: bool = True


class Claimed(Note, frozen=True, kw_only=True):
    """An attempt was handed out, by a turn first sent at `sent` whose reply came at `got`."""

    job: str
    fence: int
    writes: tuple[str, ...]
    sent: int
    got: int


class Settled(Note, frozen=True, kw_only=True):
    """An attempt's end was answered. `sent`: when it was first sent; `got`: when the answer came."""

    job: str
    fence: int
    event: str
    refused: bool
    sent: int
    got: int


class Ran(Note, frozen=True, kw_only=True):
    """A body began."""

    job: str
    fence: int
    at: int


class Left(Note, frozen=True, kw_only=True):
    """A body ended."""

    job: str
    fence: int
    at: int


class Read(Note, frozen=True, kw_only=True):
    """A cached value was read: the version that its row had.

    Attributes:
        level: how fresh it had to be: "strict", "causal", "declared" (a `Read(...)` parameter) or at most so many seconds old.
        job, fence: the attempt in whose body it was read; "" and 0: outside of jobs.
        own: what this very attempt had committed to the key before.
        expects: the least version that the program itself knows of: what a chain's last link wrote.
    """

    key: str
    version: int
    level: str | float
    called: int
    at: int
    tier: str = ""
    job: str = ""
    fence: int = 0
    own: int = 0
    expects: int = 0


class Wrote(Note, frozen=True, kw_only=True):
    """A transaction of the datastore has returned: the row has this version. `scope`: a `writing()` one, not a job's."""

    key: str
    version: int
    at: int
    job: str = ""
    fence: int = 0
    scope: bool = False


class Voided(Note, frozen=True, kw_only=True):
    """An `invalidate`, or the end of a `writing()` scope, has returned: the caller reads nothing older from then on."""

    key: str
    called: int
    at: int


class Told(Note, frozen=True, kw_only=True):
    """A waiter was told that a job has succeeded."""

    job: str
    at: int


class Erred(Note, frozen=True, kw_only=True):
    """A call failed, as calls may in an outage."""

    what: str
    at: int


Any: TypeAlias = Opened | Enqueued | Claimed | Settled | Ran | Left | Read | Wrote | Voided | Told | Erred


class Fault(Struct, frozen=True, kw_only=True):
    """Something was done to the fleet. `of`: the process it was done to, if it was one.

    Attributes:
        loses: what the store had answered may be gone: jobs and intents.
        moves: intents may be gone, and no job: a replica without the last claims is the master now.
        forks: two masters stand side by side: a process may be at the replaced one for `FORKED_NS` yet.
    """

    kind: str
    began: int
    ended: int
    of: str = ""
    loses: bool = False
    moves: bool = False
    forks: bool = False


class Commit(Struct, frozen=True, kw_only=True):
    """A version of a row, as the datastore itself keeps it. `at`: within its transaction."""

    key: str
    version: int
    job: str
    fence: int
    at: int


class History(Struct, kw_only=True):
    """All there is to judge.

    Attributes:
        notes: by process, in the order it wrote them.
        died: when a process had surely ended; those that are not named ran to the end.
        ends: the state of each job when all was over, as the store tells it; "" for none of that id.
        lossless: nothing was done that may lose what was answered.
    """

    notes: dict[str, list[Any]]
    commits: list[Commit] = []
    faults: list[Fault] = []
    died: dict[str, int] = {}
    ends: dict[str, str] = {}
    lossless: bool = True


def now() -> int:
    """Return this instant."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Notebook:
    """Where this process writes; `FOLDER/NAME.notes`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = os.open(folder / f"{name}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, note: Any) -> None:
        """Write one line, in one call."""
        os.write(self._file, msgspec.json.encode(note) + b"\n")


_DECODER = msgspec.json.Decoder(Any)


def read_notes(folder: Path) -> dict[str, list[Any]]:
    """Read what all processes wrote. The last line of a killed one may be cut."""
    notes: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("*.notes")):
        whole = path.read_bytes().split(b"\n")[:-1]
        notes[path.stem] = [_DECODER.decode(line) for line in whole]
    return notes
