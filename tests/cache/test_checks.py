"""Looks at a log's end: strict readers share them, and none is given one that was sent before it asked."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from selaras._cache.flight import Flights
from selaras._core.errors import StoreUnavailable
from selaras._worker.system import SystemClock


class Looks:
    """Looks that end when they are told to."""

    def __init__(self) -> None:
        self.now = count(1).__next__
        self.sent: list[int] = []
        self.under_way: list[asyncio.Future[None]] = []
        self.flights = Flights(
            asyncio.get_running_loop(),
            SystemClock(),
            self.now,
            fetch=lambda _: asyncio.sleep(0),
            look=lambda voyages: asyncio.sleep(0, [None] * len(voyages)),
            renew=lambda _, __: asyncio.sleep(0),
            check=self._look,
        )

    async def _look(self, _: int, sent_ns: int) -> None:
        self.sent.append(sent_ns)
        self.under_way.append(asyncio.get_running_loop().create_future())
        await self.under_way[-1]

    async def ask(self) -> asyncio.Task[None]:
        """Ask for the log's end as of now."""
        asking = asyncio.create_task(self.flights.checks.after(0, self.now()))
        await _settle()
        return asking

    async def answer(self, error: Exception | None = None) -> None:
        """End the look under way."""
        answered = self.under_way[-1]
        answered.set_result(None) if error is None else answered.set_exception(error)
        await _settle()


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_comes_while_a_look_is_under_way_shares_the_next() -> None:
    looks = Looks()
    first = await looks.ask()
    later = [await looks.ask() for _ in range(3)]
    assert len(looks.sent) == 1

    await looks.answer()
    assert first.done()
    assert not any(one.done() for one in later)
    assert len(looks.sent) == 2

    await looks.answer()
    assert all(one.done() for one in later)
    assert len(looks.sent) == 2
    assert len(looks.flights) == 0


async def test_a_reader_that_goes_away_disturbs_nobody_and_one_that_is_alone_leaves_nothing_to_do() -> None:
    looks = Looks()
    gone, first = await looks.ask(), await looks.ask()
    gone.cancel()
    await _settle()
    assert gone.cancelled()
    assert not first.done()

    await looks.answer()
    later = await looks.ask()
    first.cancel()
    later.cancel()
    await looks.answer()
    assert len(looks.sent) == 2
    assert len(looks.flights) == 0


async def test_those_who_share_a_look_share_its_error_and_the_next_are_not_concerned() -> None:
    looks = Looks()
    first, later = await looks.ask(), await looks.ask()

    await looks.answer(StoreUnavailable("it is away"))
    with pytest.raises(StoreUnavailable, match="it is away"):
        await first
    await looks.answer()
    await later


async def test_who_waits_is_told_when_the_cache_is_closed() -> None:
    looks = Looks()
    first, later = await looks.ask(), await looks.ask()

    await looks.flights.close()
    await _settle()

    assert first.cancelled()
    assert later.cancelled()
    assert len(looks.flights) == 0
