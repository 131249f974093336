"""Writes that wait for replicas: what goes over one connection at the same time shares one `WAIT`.

    scripts of whoever came meanwhile ─┐
                                       ├─ one write: [script] [script] ... [WAIT] ─> replies, at once ... replicas, in time
    a WAIT under way: they gather ─────┘

`WAIT` holds up all that comes behind it on its connection, and vouches for all that was written over it before. With one for
each write, the last of many would wait for all the others' replicas, too; so nobody waits for more than two: the
one under way when it came, and its own.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from functools import partial
from typing import Any

from selaras._stores.redis.wire import Wire, pack


class Convoy:
    """The writes over one connection.

    Args:
        within_ms: so long may replicas take. silence_s: and so long the server beyond that.

    Attributes:
        loaded: SHA-1 of scripts that were loaded over it: a call that is refused for want of its script waits once more.
    """

    def __init__(self, wire: Wire, within_ms: int, silence_s: float) -> None:
        self.loaded = set[str]()
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._question = pack("WAIT", 1, within_ms)
        self._patience_s = silence_s + within_ms / 1_000
        self._under_way: Future[Any] | None = None
        self._gathering: Future[Any] | None = None

    async def send(self, packed: bytes, wanted: int, patience_s: float) -> tuple[Any, Any]:
        """Return the replies as `Wire.send` does, and what was answered to the `WAIT` behind them. Raises WireLost."""
        until = self._loop.time() + patience_s
        while (ahead := self._under_way) is not None:
            await asyncio.wait((ahead,))
        if self._gathering is None:
            self._gathering = self._loop.create_future()
            self._gathering.add_done_callback(self._answered)
            self._wire.at_flush(partial(self._depart, self._gathering))
        replicas = self._gathering
        replies = await self._wire.send(packed, wanted, max(until - self._loop.time(), 0.001))
        return replies, await asyncio.shield(replicas)

    def _depart(self, replicas: Future[Any]) -> None:
        """All who spoke in this turn of the loop are on board."""
        self._gathering, self._under_way = None, replicas
        self._wire.send_for(replicas, self._question, 1, self._patience_s)

    def _answered(self, replicas: Future[Any]) -> None:
        self._under_way = None
        if not replicas.cancelled():
            replicas.exception()  # whoever waited has it; nobody may have
