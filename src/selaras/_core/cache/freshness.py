"""How fresh a value must be, and whether what is at hand is: the one rule for everything that is not asked anew.

    what a reader needs                    what a value in the local tier can prove
    ------------------------------------   ------------------------------------------------------------
    since: its level, never further back   the latest instant as of which nothing is known against it:
           than `max_lag` (P2, G7)         the log was known to its end then (`confirmed`), or the value
    floor: when an answer for this key     itself was asked for then (`sent`)
           was last given out (P4)
    claim: inside a job, its receipt; in   the same instant; in the claim's own partition a log that was
           its own partition a position    applied up to the claim's position is as good (P1)

An instant is a moment of this machine's clock in nanoseconds. "After" is strict: two instants that a clock cannot
tell apart prove nothing about their order.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

Level: TypeAlias = Literal["strict", "causal"] | int
"""`strict`: as of now. `causal`: as of the claim; outside of jobs, as of all this process was told. A number: at most
so many microseconds old."""

BOUNDED: Final = 1_000_000
"""The level of a read that names none, outside of jobs."""


class Need(Struct, frozen=True):
    """What one read must see.

    Attributes:
        since_ns: an instant; what the datastore held then, or something newer.
        claim_ns: the receipt of the claim of the job that reads; 0: not inside a job.
        home, position: the claim's partition, and how far its log reached then; -1: none.
    """

    since_ns: int
    claim_ns: int = 0
    home: int = -1
    position: int = 0

    @property
    def join_ns(self) -> int:
        """What is under way may be joined only if it began after this."""
        return max(self.since_ns, self.claim_ns)


def since_of(level: Level, *, now_ns: int, max_lag_ns: int) -> int:
    """Return the instant as of which a read called at `now_ns` must be fresh, its claim aside."""
    if level == "strict":
        return now_ns
    if level == "causal":
        return now_ns - max_lag_ns
    return now_ns - min(level * 1_000, max_lag_ns)


def proves(need: Need, *, partition: int, applied: int, confirmed_ns: int, sent_ns: int = 0, floor_ns: int = 0) -> bool:
    """Say whether a value of the local tier may be served, given that no applied event speaks against it.

    Args:
        partition: the value's partition. `applied`: how far its log is applied here.
        confirmed_ns: when the request was sent that proved `applied` to be the log's end.
        sent_ns: when the request was sent that brought the value.
        floor_ns: when an answer for this key was last given out from elsewhere.
    """
    latest = max(confirmed_ns, sent_ns)
    if latest <= max(need.since_ns, floor_ns):
        return False
    if latest > need.claim_ns:
        return True
    return partition == need.home and applied >= need.position


def may_join(need: Need, *, started_ns: int, floor_ns: int = 0) -> bool:
    """Say whether a read or load that began at `started_ns` is fresh enough for this reader, too."""
    return started_ns > max(need.join_ns, floor_ns)
