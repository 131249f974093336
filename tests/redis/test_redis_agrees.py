"""Random histories: the Redis store and the reference, given the same verbs under the same clock, say the same."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from tests.conformance.test_agreement import Histories


class RedisHistories(Histories):
    """The memory store and the Redis store, side by side."""

    kinds: ClassVar[tuple[str, ...]] = ("memory", "redis")


class RedisHistoriesOfTwoPartitions(RedisHistories):
    """Effects cross from one to the other."""

    partitions = 2


TestOnePartition = RedisHistories.TestCase
TestTwoPartitions = RedisHistoriesOfTwoPartitions.TestCase
TestOnePartition.settings = TestTwoPartitions.settings = settings(
    max_examples=settings().max_examples // 4, stateful_step_count=40
)
