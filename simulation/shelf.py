"""A host tier that all processes of a world share, and to which everything happens: nothing that it says may be believed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from selaras._contracts.shelf import Found, ShelfDown, Told
from simulation.loop import Loop
from simulation.plan import Fault

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
    """One process's way there. `strikes`: says whether a fault happens now."""

    url = "simulated"

    def __init__(self, shelf: SimulatedShelf, loop: Loop, chance: Random, strikes: Callable[[Fault], bool]) -> None:
        self._shelf = shelf
        self._loop = loop
        self._draw = chance.random
        self._choice = chance.choice
        self._strikes = strikes

    def ask(self, name: bytes, told: Told) -> None:
        """See `Shelf`."""
        self._suffer(name)
        if self._strikes("shelf-silent"):
            asyncio.get_running_loop().call_later(_PATIENCE, told, ShelfDown("it says nothing"))
            return
        before, trip = self._draw() * _TRIP, self._draw() * _TRIP
        if self._strikes("shelf-late"):
            trip = self._draw() * _LATE_MOST  # a process that stood still hears what was true long ago
        asyncio.get_running_loop().call_later(before, self._look, name, told, trip)

    def _look(self, name: bytes, told: Told, trip: float) -> None:
        asyncio.get_running_loop().call_later(trip, told, self._shelf.items.get(name))

    def put(self, name: bytes, data: bytes, ttl_s: int, *, over: int | None = None) -> None:
        """See `Shelf`."""
        del ttl_s
        delay = self._draw() * (_LATE_MOST if self._strikes("shelf-late") else _TRIP)
        self._loop.outside_later(delay, self._arrive, name, data, over)

    def _arrive(self, name: bytes, data: bytes, over: int | None) -> None:
        there = self._shelf.items.get(name)
        if over is None or (there.seen if there else 0) == over or self._strikes("shelf-blind"):
            self._shelf.set(name, data)

    async def close(self) -> None:
        """See `Shelf`."""

    def _suffer(self, name: bytes) -> None:
        """What has become of an entry before it is asked for."""
        shelf = self._shelf
        if self._strikes("shelf-lost"):
            shelf.items.pop(name, None)
        if self._strikes("shelf-empty"):
            shelf.items.clear()
        if self._strikes("shelf-old") and shelf.past:
            shelf.set(*self._choice(shelf.past))
        if self._strikes("shelf-mixed") and shelf.past:
            shelf.set(name, self._choice(shelf.past)[1])
        found = shelf.items.get(name)
        if found is not None and self._strikes("shelf-damaged"):
            damaged = bytearray(found.data)
            damaged[int(self._draw() * len(damaged))] ^= 1 << int(self._draw() * 8)
            shelf.items[name] = Found(bytes(damaged), found.seen)
