"""Time and chance, handed in, so that whole fleets can run under a virtual clock and a seed."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The two times of the product, and waiting.

    `instant_ns` orders what happens in one machine and never stands still, not even while it sleeps
    (CLOCK_BOOTTIME). `wall_us` is civil time, for a store's own clock and for people; nothing that
    must be ordered rests on it.
    """

    def instant_ns(self) -> int:
        """Return nanoseconds since an arbitrary start; never goes back, counts sleep."""
        ...

    def wall_us(self) -> int:
        """Return microseconds since 1970-01-01 UTC; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class Entropy(Protocol):
    """Where randomness comes from; `random.Random` is one."""

    def getrandbits(self, k: int, /) -> int:
        """Return `k` random bits."""
        ...

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...
