"""A memcached as a shelf: a connection for each loop that reads, made when it is asked and again when it was lost."""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import AsyncGenerator, Callable
from typing import Final

from selaras._contracts.shelf import ShelfDown, Told
from selaras._stores.endings import at_end_of_loop
from selaras._stores.memcached.address import Address
from selaras._stores.memcached.line import Line

DIAL_S: Final = 1.0
"""A connection that is not there by then is tried anew when somebody asks again."""


class _Loop:
    """One loop's connection, or the making of it, and who waits for that."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.line: Line | None = None
        self.dialling: Task[None] | None = None
        self.waiting: list[tuple[bytes, Told]] = []
        self.timer: TimerHandle | None = None
        self._last: AsyncGenerator[None] | None = None

    def end_with_loop(self) -> None:
        """End the connection with a loop that nobody closed the shelf on."""
        self._last = at_end_of_loop(self.cut)

    def cut(self) -> None:
        """End the connection, now."""
        if self.dialling is not None:
            self.dialling.cancel()
        self.give_up_waiting("it is closed")
        if self.line is not None:
            self.line.abort("it is closed")

    def give_up_waiting(self, reason: str) -> None:
        """Whoever waits for the connection does without it."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        waiting, self.waiting = self.waiting, []
        for _, told in waiting:
            told(ShelfDown(reason))


class MemcachedShelf:
    """One memcached. `patience_us`: how long an answer may take."""

    def __init__(self, where: Address, *, patience_us: int) -> None:
        self._where = where
        self._patience_s = patience_us / 1_000_000
        self._loops: dict[int, _Loop] = {}
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """Where it is."""
        return self._where.shown

    def ask(self, name: bytes, told: Told) -> None:
        """Tell what stands under a name."""
        here = self._here()
        if here.line is not None:
            here.line.ask(name, told)
            return
        here.waiting.append((name, told))
        if here.timer is None:
            here.timer = here.loop.call_later(self._patience_s, here.give_up_waiting, "it is still being connected")
        if here.dialling is None:
            here.dialling = here.loop.create_task(self._dial(here))

    def put(self, name: bytes, data: bytes, ttl_s: int, *, over: int | None = None) -> None:
        """Put something there, if there is a connection."""
        here = self._here()
        if here.line is not None:
            here.line.put(name, data, ttl_s, over)

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():  # a forked child has its parent's sockets, and must not speak over them
            self._pid = os.getpid()
            self._loops = {}
        here = self._loops.get(id(loop))
        if here is None or here.loop is not loop:
            for place, other in tuple(self._loops.items()):
                if other.loop.is_closed():
                    self._loops.pop(place, None)
            here = self._loops[id(loop)] = _Loop(loop)
            here.end_with_loop()
        return here

    async def _dial(self, here: _Loop) -> None:
        try:
            async with asyncio.timeout(DIAL_S):
                line = await dial(self._where, patience_s=self._patience_s, lost=lambda line: self._lost(here, line))
        except (OSError, ShelfDown, TimeoutError) as error:
            here.give_up_waiting(f"{self.url}: {str(error) or type(error).__name__}")
        else:
            here.line = line
            if here.timer is not None:
                here.timer.cancel()
                here.timer = None
            waiting, here.waiting = here.waiting, []
            for name, told in waiting:
                line.ask(name, told)
        finally:
            here.dialling = None

    def _lost(self, here: _Loop, line: Line) -> None:
        if here.line is line:
            here.line = None

    async def close(self) -> None:
        """Close the connections of all loops."""
        running = asyncio.get_running_loop()
        loops, self._loops = tuple(self._loops.values()), {}
        for here in loops:
            if here.loop is running:
                await self._close(here)
            elif not here.loop.is_closed():
                try:
                    here.loop.call_soon_threadsafe(here.cut)
                except RuntimeError:  # it was closed meanwhile
                    pass

    async def _close(self, here: _Loop) -> None:
        dialling = here.dialling
        here.cut()
        if dialling is not None:
            await asyncio.wait([dialling])


async def dial(where: Address, *, patience_s: float, lost: Callable[[Line], None]) -> Line:
    """Connect and find out whom one speaks to. Raises OSError, ShelfDown."""
    loop = asyncio.get_running_loop()

    def make() -> Line:
        return Line(loop, patience_s=patience_s, lost=lost)

    if where.path:
        _, line = await loop.create_unix_connection(make, where.path)
    else:
        _, line = await loop.create_connection(make, where.host, where.port)
    try:
        await line.greet()
    except BaseException:
        line.abort("nobody greeted")
        raise
    return line
