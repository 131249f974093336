"""Random histories: the Redis store and the reference, given the same verbs under the same clock, say the same. And the
store never meets what it has not written itself: its housekeeping, which looks through all of it, finds nothing to mend.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final

from hypothesis import settings
from tests.conformance.test_agreement import Histories
from tests.redis.servers import shared_server
from tests.stores import ForgetfulPartition

from selaras._core.jobs.lifecycle import FINAL, WAITING
from selaras._core.jobs.states import JobState
from selaras._core.positions import START

_ROUNDS = 4
"""Housekeeping looks through jobs, and then through lines: a history has few of either."""

STAND: Final[Mapping[str, Collection[JobState]]] = {
    "ended": FINAL,
    "expiry": WAITING,
    "far": [JobState.BLOCKED],
    "offers": [JobState.READY],
    "strays": [JobState.READY],
}
"""Indexes of jobs, and in what state those are that stand there. Housekeeping drops others in time: until then they cost."""


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
                assert isinstance(partition, ForgetfulPartition)
                self._look_at_indexes(partition)
                for _ in range(_ROUNDS):
                    self.run(partition.tend(1_000))
        assert "not written there" not in shared_server().log()[self._said :]

    def _look_at_indexes(self, partition: ForgetfulPartition) -> None:
        for index, states in STAND.items():
            for member in partition.members(index):
                record, _ = self.run(partition.job(member[8:], START))
                assert record is not None, (index, member)
                assert record.state in states, (index, member)


class RedisHistoriesOfTwoPartitions(RedisHistories):
    """Effects cross from one to the other."""

    partitions = 2


TestOnePartition = RedisHistories.TestCase
TestTwoPartitions = RedisHistoriesOfTwoPartitions.TestCase
TestOnePartition.settings = TestTwoPartitions.settings = settings(
    max_examples=settings().max_examples // 4, stateful_step_count=40
)
