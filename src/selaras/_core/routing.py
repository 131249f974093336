"""Which partition a name belongs to."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from selaras._core.cache.opening import OPENING, home_of_opening
from selaras._core.jobs.job import NewJob


def partition_of(name: str, partitions: int) -> int:
    """Return the partition of a key, line, unique key or job id: the hash of its text; that of an open name stands in it.

    Source of the hash: XXH3-64 (Collet); stable across processes, versions and machines.
    """
    if partitions == 1:
        return 0
    if name[:1] == OPENING:
        home = home_of_opening(name)
        if home is not None:
            return home % partitions
    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) % partitions


def id_entry(id: str) -> str:
    """Return the directory entry of an id that was given (P22); no unique key is of that form: it holds no control characters."""
    return f"\x1fid:{id}"


def home_of(job: NewJob, partitions: int) -> int:
    """Return the partition a job lives in: that of its line, else of its id."""
    return partition_of(job.line or job.id, partitions)
