"""How a worker process ends, as an exit code; the supervisor and people read it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of a worker process. 2 stays the command line's, for wrong usage."""

    STOPPED = 0  # an orderly stop: everything was settled or given back
    FAILED = 1  # it could not start, or ended by an error of its own
    LEFT = 3  # the store could not be reached, to begin or to hear of the end: what it held runs again after its lease
    HALTED = 4  # a second signal: stopped hard
    RECYCLED = 75  # a body blocks the process: a fresh one should take its place (EX_TEMPFAIL)
