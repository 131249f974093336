"""How long a process may trust the lease it holds, told from its own clock (P18).

The store counts a lease from when the renewal *arrived*, which is never before it was sent. So an instance that
counts from the sending, and stops a margin earlier, stops before the store can have given its jobs away:

    sent ──────────── arrived ────────────────────────── store: lease over
      └─ lease - margin ───────────────── here: over
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

# A lease is at least this much longer than it is trusted: clocks of two machines do not run equally fast.
_MARGIN_PART: Final = 10


class Trust(Struct):
    """The local window of one instance's lease.

    Attributes:
        sent_ns: the instant the last answered renewal was sent; 0: never renewed.
    """

    lease_ns: int
    margin_ns: int
    sent_ns: int = 0

    @classmethod
    def of(cls, lease_us: int) -> Trust:
        """Make the window of a lease of this length; nothing is trusted until the first renewal."""
        lease_ns = lease_us * 1_000
        return cls(lease_ns, lease_ns // _MARGIN_PART)

    @property
    def until_ns(self) -> int:
        """The first instant at which the lease is not trusted any more."""
        return self.sent_ns + self.lease_ns - self.margin_ns if self.sent_ns else 0

    def renewed(self, sent_ns: int) -> None:
        """A renewal that was sent at `sent_ns` was granted; replies may arrive out of order."""
        self.sent_ns = max(self.sent_ns, sent_ns)

    def void(self) -> None:
        """The store said that the lease is gone."""
        self.sent_ns = 0

    def holds(self, now_ns: int) -> bool:
        """Say whether the store cannot have ended the lease yet. If not, what was not started must not be."""
        return now_ns < self.until_ns
