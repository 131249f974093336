"""When a failed job runs again, and how often."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Struct

from selaras._core.errors import ConfigurationError

# Beyond this the exponential has long met its cap; a job may have thousands of attempts.
_EXPONENT_MOST: Final = 64


class Chance(Protocol):
    """Where jitter comes from; `random.Random` is one."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class Backoff(Struct, frozen=True):
    """How long to wait before attempt n + 1: exponential, between `first_us` and `most_us`, with jitter.

    Attributes:
        factor: 1 waits the same each time.
        jitter: how far waits are spread, as a share of the wait; 0 spreads nothing. Jobs that failed together
            should not come back together.
    """

    first_us: int = 1_000_000
    most_us: int = 300_000_000
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.first_us <= self.most_us:
            raise ConfigurationError(f"back-off from {self.first_us} us to {self.most_us} us: the first is the shorter")
        if not 1 <= self.factor <= 1_000:
            raise ConfigurationError(f"back-off factor={self.factor!r}: give a number from 1 to 1000")
        if not 0 <= self.jitter <= 10:
            raise ConfigurationError(f"back-off jitter={self.jitter!r}: give a share from 0 to 10")

    def delay_us(self, attempt: int, chance: Chance) -> int:
        """Return the wait after attempt number `attempt` (from 1) failed.

        The spread is upwards from the exponential and its cap leaves room for it, so that waits at the cap
        are spread like all others and every wait keeps within the two bounds.
        """
        grown = self.first_us * self.factor ** min(max(attempt - 1, 0), _EXPONENT_MOST)
        spread = 1 + self.jitter * chance.random()
        wait = min(grown, self.most_us / (1 + self.jitter)) * spread
        return min(max(round(wait), self.first_us), self.most_us)


class Policy(Struct, frozen=True, kw_only=True):
    """How a task's attempts are judged.

    Attributes:
        retries: attempts after the first one; 0 runs it once.
        timeout_us: how long one attempt may run; 0: for ever.
        max_lost: so many attempts may end with their worker lost, then the job fails.
        ordered: a retry keeps its line while it waits.
        stray_delay_us: how long a job rests that this worker cannot run (an unknown task, other parameters).
    """

    retries: int = 3
    backoff: Backoff = Backoff()
    timeout_us: int = 600_000_000
    max_lost: int = 3
    result_ttl_us: int = 3_600_000_000
    failed_ttl_us: int = 7 * 86_400_000_000
    ordered: bool = False
    stray_delay_us: int = 1_000_000

    def __post_init__(self) -> None:
        for name in ("retries", "timeout_us", "max_lost", "result_ttl_us", "failed_ttl_us", "stray_delay_us"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} is negative; give 0 or more")
