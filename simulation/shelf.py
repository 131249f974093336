"""A host tier that all processes of a world share, and to which everything happens: nothing that it says may be believed."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import Final

from selaras._contracts.shelf import Found, ShelfDown, Told
from simulation.loop import Loop

OWNER: Final = b"simulation"

_TRIP: Final = 0.000_05
_PATIENCE: Final = 0.005
_LATE_MOST: Final = 3.0
_KEPT_MOST: Final = 500


class SimulatedShelf:
    """What stands there, and what has ever stood there."""

    def __init__(self) -> None:
        self.items: dict[bytes, Found] = {}
        self.past: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT_MOST)
        self._count = 0

    def set(self, name: bytes, data: bytes) -> None:
        """Let this stand there."""
        self._count += 1
        self.items[name] = Found(data, self._count)
        self.past.append((name, data))


class ShelfLink:
    """One process's way there. `rate`: how often something goes wrong with a look or with what is put."""

    url = "simulated"

    def __init__(self, shelf: SimulatedShelf, loop: Loop, chance: Random, rate: float) -> None:
        self._shelf = shelf
        self._loop = loop
        self._chance = chance
        self._rate = rate

    def ask(self, name: bytes, told: Told) -> None:
        """See `Shelf`."""
        if self._goes_wrong():
            self._mishap(name)
        if self._goes_wrong():
            asyncio.get_running_loop().call_later(_PATIENCE, told, ShelfDown("it says nothing"))
            return
        before, trip = self._chance.random() * _TRIP, self._chance.random() * _TRIP
        if self._goes_wrong():
            trip = self._chance.random() * _LATE_MOST  # a process that stood still hears what was true long ago
        asyncio.get_running_loop().call_later(before, self._look, name, told, trip)

    def _look(self, name: bytes, told: Told, trip: float) -> None:
        asyncio.get_running_loop().call_later(trip, told, self._shelf.items.get(name))

    def put(self, name: bytes, data: bytes, ttl_s: int, *, over: int | None = None) -> None:
        """See `Shelf`."""
        del ttl_s
        delay = self._chance.random() * (_LATE_MOST if self._goes_wrong() else _TRIP)
        self._loop.outside_later(delay, self._arrive, name, data, over)

    def _arrive(self, name: bytes, data: bytes, over: int | None) -> None:
        there = self._shelf.items.get(name)
        if over is None or (there.seen if there else 0) == over or self._goes_wrong():
            self._shelf.set(name, data)

    async def close(self) -> None:
        """See `Shelf`."""

    # -- mishaps

    def _goes_wrong(self) -> bool:
        return self._chance.random() < self._rate

    def _mishap(self, name: bytes) -> None:
        """Lose it, all of it, bring an old entry back, put another's there, or damage it."""
        shelf, chance = self._shelf, self._chance
        match int(chance.random() * 5):
            case 0:
                shelf.items.pop(name, None)
            case 1:
                shelf.items.clear()
            case 2 if shelf.past:
                old = chance.choice(list(shelf.past))
                shelf.set(*old)
            case 3 if shelf.past:
                shelf.set(name, chance.choice(list(shelf.past))[1])
            case _:
                found = shelf.items.get(name)
                if found is not None:
                    damaged = bytearray(found.data)
                    damaged[int(chance.random() * len(damaged))] ^= 1 << int(chance.random() * 8)
                    shelf.items[name] = Found(bytes(damaged), found.seen)
