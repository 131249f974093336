"""What a process remembers of turns whose replies may have been lost."""

from __future__ import annotations

from pathlib import Path

from tests.clock import VirtualClock
from tests.sqlite.opened import opened, worker

from selaras._contracts.partition import TurnRequest
from selaras._core.positions import START


async def test_what_a_turn_came_to_is_remembered_until_it_is_acknowledged_or_its_instance_is_gone(
    folder: Path, clock: VirtualClock
) -> None:
    async with opened(folder / "s.db", clock) as partition:
        replies = partition._writer._replies
        await worker(partition)

        def remembered() -> list[int]:
            return [number for number in range(5) if replies.find("w", number)]

        for number, acked in ((1, 0), (2, 0), (3, 1)):
            await partition.turn(TurnRequest(instance="w", number=number, acked=acked, since=START))
        assert remembered() == [2, 3]

        await partition.dismiss("w")
        assert remembered() == []
