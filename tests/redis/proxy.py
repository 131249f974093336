"""A TCP proxy that does what networks do: it delays, throttles, cuts, refuses, loses a reply, and falls silent.

    with RedisServer() as server, Proxy(server.address, round_trip_s=0.002) as proxy:
        app = Selaras(proxy.through(server.url))
        proxy.lose_reply()      # the next command is done, and its answer never comes
        proxy.swallow()         # connections stay open, nothing goes through
        proxy.heal()

It runs in a thread of its own; for measuring, in a process: `python -m tests.redis.proxy 127.0.0.1:6379
--round-trip-ms 2` prints where it listens and runs until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from tests.redis.servers import HOST, PATIENCE_S, free_port

T = TypeVar("T")

# So much of one direction may wait in here; then the sender is not read from, as a full pipe would have it.
_HELD_BYTES: Final = 65_536


class Link:
    """One client's connection and the one made to the server for it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.swallows = False
        self.up = _Way(proxy, self, is_reply=False)
        self.down = _Way(proxy, self, is_reply=True)

    @property
    def late_replies(self) -> int:
        """Pieces of replies that are held back."""
        return len(self.down._queue)

    def cut(self) -> None:
        """Reset both connections now; in the proxy's loop."""
        self.up.abort()
        self.down.abort()
        self._proxy._links.pop(self, None)


class _Way(asyncio.Protocol):
    """One direction: what is read at one end is due at the other some time later, in order."""

    def __init__(self, proxy: Proxy, link: Link, *, is_reply: bool) -> None:
        self._proxy = proxy
        self._link = link
        self._is_reply = is_reply
        self._queue: deque[tuple[float, bytes]] = deque()
        self._held = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Transport | None = None
        self._ended = False
        self.passed = 0  # bytes

    @property
    def _writer(self) -> asyncio.Transport | None:
        return (self._link.up if self._is_reply else self._link.down)._reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reader = cast("asyncio.Transport", transport)
        self._proxy._ways.add(self)
        if not self._is_reply:
            self._proxy._dial(self._link)

    def data_received(self, data: bytes) -> None:
        if self._link.swallows or self._proxy._swallows:
            self._link.swallows = True  # for good: the other end will never see these bytes
            return
        self._held += len(data)
        now = self._proxy._loop.time()
        rate = self._proxy._bytes_per_s
        self._due = max(self._due, now + self._proxy._round_trip_s / 2)
        if rate:
            self._due += len(data) / rate
        self._queue.append((self._due, data))
        self._pump()
        if self._held > _HELD_BYTES and self._reader:
            self._reader.pause_reading()

    def _pump(self) -> None:
        """Write what is due, and come back when the next piece is."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        writer = self._writer
        if writer is None:  # not connected yet
            return
        if writer.is_closing():  # nobody is there any more: what is still under way to it is lost
            self._queue.clear()
            self._held = 0
        while self._queue and self._queue[0][0] <= self._proxy._loop.time():
            data = self._queue.popleft()[1]
            self._held -= len(data)
            if self._link.swallows:
                continue
            if self._is_reply and (left := self._proxy._reply_left) is not None:
                if len(data) > left:
                    self._proxy._reply_left = None
                    writer.write(data[:left])
                    self._link.cut()
                    return
                self._proxy._reply_left = left - len(data)
            self.passed += len(data)
            writer.write(data)
        if self._held <= _HELD_BYTES and self._reader and not self._reader.is_reading() and not self._ended:
            self._reader.resume_reading()
        if self._queue:
            self._timer = self._proxy._loop.call_at(self._queue[0][0], self._pump)
        elif self._ended:
            writer.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._proxy._ways.discard(self)
        self._proxy._links.pop(self._link, None)
        if self._link.swallows and not self._is_reply:
            self._link.cut()  # the client is gone: nobody keeps up appearances any more
        elif not self._link.swallows:
            self._pump()

    def abort(self) -> None:
        self._ended = True
        self._queue.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._reader:
            self._reader.abort()


class Proxy:
    """Stands at `address` for the server at `target`; every method may be called from any thread."""

    def __init__(self, target: tuple[str, int], *, round_trip_s: float = 0.0, port: int = 0) -> None:
        self.target = target
        self.port = port or free_port()
        self.accepted = 0  # connections, ever
        self._round_trip_s = round_trip_s
        self._bytes_per_s = 0.0
        self._reply_left: int | None = None
        self._swallows = False
        self._links: dict[Link, None] = {}
        self._ways: set[_Way] = set()  # with an end that is open, if only for what is still under way
        self._dialling: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Its time-outs are exact to the microsecond; those of epoll are whole milliseconds.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def through(self, url: str) -> str:
        """The server's URL with the proxy's port in place of its own."""
        return url.replace(f":{self.target[1]}", f":{self.port}")

    # -- faults

    def delay(self, round_trip_s: float) -> None:
        """Half of it on each way, from the next bytes on."""
        self._in_loop(lambda: setattr(self, "_round_trip_s", round_trip_s))

    def throttle(self, bytes_per_s: float) -> None:
        """So much on each way of each connection."""
        self._in_loop(lambda: setattr(self, "_bytes_per_s", bytes_per_s))

    def cut(self) -> None:
        """Reset every connection; new ones are welcome."""
        self._in_loop(self._cut)

    def refuse(self) -> None:
        """Reset every connection, and refuse new ones."""
        self._do(self._refuse())

    def lose_reply(self, after: int = 0) -> None:
        """Let so many bytes of replies pass from now on, then reset the connection in the midst of them; once.

        With 0 the next command is done by the server, and its client never hears of it.
        """
        self._in_loop(lambda: setattr(self, "_reply_left", after))

    def swallow(self) -> None:
        """Half-open: connections stay, new ones are accepted, and nothing that is sent arrives."""
        self._in_loop(lambda: setattr(self, "_swallows", True))

    def heal(self) -> None:
        """No delay, no faults. Connections that lost bytes are reset, as they would be."""
        self._do(self._heal())

    @property
    def links(self) -> list[Link]:
        """The open connections, in the order they came: for a fault in one of them, see `Link`."""
        return self._in_loop(lambda: list(self._links))

    def swallow_link(self, link: Link) -> None:
        """Half-open, for one connection."""
        self._in_loop(lambda: setattr(link, "swallows", True))

    def cut_link(self, link: Link) -> None:
        """Reset one connection."""
        self._in_loop(link.cut)

    # -- its life

    def start(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def stop(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- in the loop

    async def _listen(self) -> None:
        def accept() -> asyncio.Protocol:
            self.accepted += 1
            link = Link(self)
            self._links[link] = None
            return link.up

        self._server = await self._loop.create_server(accept, HOST, self.port)

    def _dial(self, link: Link) -> None:
        async def dial() -> None:
            try:
                await self._loop.create_connection(lambda: link.down, *self.target)
            except OSError:
                link.cut()
            else:
                link.up._pump()

        task = self._loop.create_task(dial())
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _refuse(self) -> None:
        if self._server:
            self._server.close()
            self._cut()
            await self._server.wait_closed()
            self._server = None

    async def _heal(self) -> None:
        self._round_trip_s = self._bytes_per_s = 0.0
        self._reply_left = None
        self._swallows = False
        for link in [link for link in self._links if link.swallows]:
            link.cut()
        if not self._server:
            await self._listen()

    async def _close(self) -> None:
        await self._refuse()
        self._cut()
        for way in tuple(self._ways):
            way.abort()
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the loop's next turn

    def _in_loop(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            return act()

        return self._do(run())

    def _do(self, coroutine: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.redis.proxy")
    parser.add_argument("target", metavar="HOST:PORT")
    parser.add_argument("--round-trip-ms", type=float, default=2.0)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    with Proxy((host, int(port)), round_trip_s=options.round_trip_ms / 1000, port=options.port) as proxy:
        print(f"{HOST}:{proxy.port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
