"""A TCP proxy that takes its time: `python -m benchmarks.peers.proxy PORT TO_PORT ROUND_TRIP_SECONDS`."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections import deque
from typing import Any


class ExactSelector(selectors.EpollSelector):
    """Epoll whose timeouts are not rounded up to milliseconds: select() on the epoll's own descriptor waits first."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        if timeout is None or timeout > 0:
            select.select([self.fileno()], [], [], timeout)
        return super().select(0)


class End(asyncio.Protocol):
    """One end of a connection; what arrives here leaves at the other end half a round trip later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._transport: asyncio.Transport | None = None
        self._early: deque[bytes] = deque()
        self.other: End | None = None

    def connection_made(self, transport: Any) -> None:
        """Send what came before there was a connection."""
        self._transport = transport
        while self._early:
            transport.write(self._early.popleft())

    def data_received(self, data: bytes) -> None:
        """Hold it for a while."""
        assert self.other
        asyncio.get_running_loop().call_later(self._delay, self.other.write, data)

    def write(self, data: bytes) -> None:
        """Let it go."""
        if self._transport is None:
            self._early.append(data)
        else:
            self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other end, after what is under way."""
        assert self.other
        asyncio.get_running_loop().call_later(self._delay, self.other.close)

    def close(self) -> None:
        """Close."""
        if self._transport:
            self._transport.close()


async def serve(port: int, to: int, trip: float) -> None:
    """Pass on connections for ever."""
    loop = asyncio.get_running_loop()
    connecting: set[asyncio.Task[Any]] = set()

    def accepted() -> End:
        here, there = End(trip / 2), End(trip / 2)
        here.other, there.other = there, here
        task = loop.create_task(loop.create_connection(lambda: there, "127.0.0.1", to))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return here

    server = await loop.create_server(accepted, "127.0.0.1", port, backlog=1_000)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ExactSelector())) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
