"""How many may be at something at once."""

from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future
from collections import deque


class Bound:
    """About so many at once, and the others in a line: as long as there is room a whole party enters. Where there is room it
    costs no more than counting. Who did not enter stands in the line; and all leave.
    """

    __slots__ = ("_free", "_line", "_loop")

    def __init__(self, loop: AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._free = most
        self._line: deque[tuple[Future[None], int]] = deque()

    def enters(self, party: int) -> bool:
        """Enter if there is room: nobody stands in the line then. Returns whether it did."""
        if self._free <= 0:
            return False
        self._free -= party
        return True

    async def turn(self, party: int) -> None:
        """Stand in the line until whoever leaves makes room."""
        place: Future[None] = self._loop.create_future()
        self._line.append((place, party))
        try:
            await place
        except CancelledError:
            if not place.cancelled():  # it was its turn already
                self.leave(party)
            raise

    def leave(self, party: int) -> None:
        """Hand the room to the first in the line."""
        self._free += party
        while self._line and self._free > 0:
            place, waiting = self._line.popleft()
            if not place.done():
                self._free -= waiting
                place.set_result(None)
