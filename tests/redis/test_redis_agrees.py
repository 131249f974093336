"""Random histories: the Redis store and the reference, given the same verbs under the same clock, say the same. And the
store never meets what it has not written itself: its housekeeping, which looks through all of it, finds nothing to mend.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from tests.conformance.test_agreement import Histories
from tests.redis.servers import shared_server

_ROUNDS = 4
"""Housekeeping looks through jobs, and then through lines: a history has few of either."""


class RedisHistories(Histories):
    """The memory store and the Redis store, side by side."""

    kinds: ClassVar[tuple[str, ...]] = ("memory", "redis")

    def __init__(self) -> None:
        super().__init__()
        self._said = len(shared_server().log())  # by tests before this one

    def inspect(self) -> None:
        """Look through all of it, too."""
        super().inspect()
        if self.pulses:
            for partition in self.stores[1].partitions:
                for _ in range(_ROUNDS):
                    self.run(partition.tend(1_000))
        assert "not written there" not in shared_server().log()[self._said :]


class RedisHistoriesOfTwoPartitions(RedisHistories):
    """Effects cross from one to the other."""

    partitions = 2


TestOnePartition = RedisHistories.TestCase
TestTwoPartitions = RedisHistoriesOfTwoPartitions.TestCase
TestOnePartition.settings = TestTwoPartitions.settings = settings(
    max_examples=settings().max_examples // 4, stateful_step_count=40
)
