"""Bounds and graces that every store keeps, so that stores agree step by step. Times in microseconds."""

from __future__ import annotations

from typing import Final

EPOCH_SHIFT: Final = 52
"""The epoch stands above the 52 low bits of a fence: microseconds since 1970 fit there until 2112."""

NEWS_MOST: Final = 10_000
"""A reader further behind than this drops its local tier instead of hearing each event."""

LOG_LENGTH: Final = 50_000
"""Events kept; a reader that is further behind is told to reset."""

DUE_PER_TURN: Final = 1_000
"""Jobs whose time has come that one turn lets go on; more are left to the next one."""

TOLD_PER_STEP: Final = 500
"""Dependents that one verb tells of the ends of their parents; more are left to the turns and the housekeeping that follow."""

REAP_GRACE_US: Final = 2_000_000
"""The least time between the two looks at an expired lease; see `reap_grace_us`."""

INTENT_GRACE_US: Final = 30_000_000
"""How long the intents of a lost attempt stand when no attempt follows it: a zombie may still commit (P18)."""

FLOOR_US: Final = 86_400_000_000
"""How long a version floor stands after it was last raised: a datastore that answers later than that is not a replica that
lags, but one that was put back (P13)."""

LOCK_ACCEPT_US: Final = 5_000_000
"""A lock that is granted and not fetched for so long passes to the next in line (P21)."""

OPEN_POSITION: Final = 1 << 53
"""Where the last event of a tag or family stands while it is open: behind every position there will be."""

SHUT_FILL_US: Final = 1_000_000
"""Of a key whose fill was refused because a tag or family of it is open, readers are told so for so long."""

ORPHAN_US: Final = 30_000_000
"""An intent whose home is elsewhere is asked after when it has stood so long (P17)."""

LAID_ASIDE_PER_TURN: Final = 1_000
"""A turn that meets so many jobs which its worker cannot have goes on in the next one."""

ASIDE_AT_ONCE: Final = 100
"""Jobs that a turn looks at together, at least, while its worker has no room for some tasks."""

UNROUTABLE_US: Final = 3_600_000_000
"""A job that no worker knows for so long is reported as unroutable."""

HISTORY_MOST: Final = 20
"""Ended attempts remembered per job, the latest."""


def reap_grace_us(lease_us: int) -> int:
    """Return how long after the first look at an expired lease the second one comes (P19).

    The first look may be the first thing that happens after a time in which nobody could reach the store: every
    process that lives must then have had the time for a heartbeat. They come each third of a lease, so half of one
    holds one heartbeat and some margin.
    """
    return max(REAP_GRACE_US, lease_us // 2)
