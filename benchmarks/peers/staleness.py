"""How many reads were stale: what a lookup job saw, beside what jobs that had ended before it began had written."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from pathlib import Path

from benchmarks.peers.lookups import SAW


def staleness(ledger: Path) -> dict[str, float]:
    """Return the reads, and those that saw a version older than one whose writing job had ended before theirs began."""
    records = list(SAW.iter_unpack(ledger.read_bytes()))
    writes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, ended, row, version, wrote in records:
        if wrote:
            writes[row].append((ended, version))
    ends: dict[int, list[int]] = {}
    newest: dict[int, list[int]] = {}
    for row, written in writes.items():
        written.sort()
        ends[row] = [ended for ended, _ in written]
        newest[row] = list(accumulate((version for _, version in written), max))
    reads, stale, oldest_ms = 0, 0, 0.0
    for began, _, row, version, wrote in records:
        if wrote:
            continue
        reads += 1
        before = bisect_left(ends.get(row, []), began)
        if before and newest[row][before - 1] > version:
            stale += 1
            overtaken = next(end for end, at in zip(ends[row], newest[row], strict=True) if at > version)
            oldest_ms = max(oldest_ms, (began - overtaken) / 1e6)
    return {"reads": reads, "stale": stale, "stale_percent": 100 * stale / max(1, reads), "oldest_ms": oldest_ms}
