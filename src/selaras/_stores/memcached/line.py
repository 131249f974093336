"""One connection to a memcached, for one event loop: what is said in one turn of the loop goes out in one write.

    ask, put ─> buffer ──call_soon──> one write ─> server ─> replies, in order ─> who asked

Laws:
    - Replies answer commands in order, so none needs a name of its own.
    - A server that owes an answer and says nothing for `patience_s` is given up with its connection: everybody who waits
      is told so at once. A loop that was held up looks at what has arrived before it gives up anything.
    - Where the server has them, it is spoken to in meta commands (1.6); older ones in the classic ones.

Everything that differs between the two languages is in `Meta` and `Classic`.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle, Transport
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from selaras._contracts.shelf import Found, ShelfDown, Told

_GRACE_S: Final = 0.001
_END: Final = b"\r\n"
_DIGITS_MOST: Final = 20


class Garbled(Exception):
    """What came is no answer to what was asked."""


class Tongue(Protocol):
    """How things are said to a server, and how its answers read."""

    def ask(self, name: bytes) -> bytes:
        """Say: what stands there?"""
        ...

    def put(self, name: bytes, data: bytes, ttl_s: int, over: int | None) -> bytes:
        """Say: put this there."""
        ...

    def found(self, data: bytes, start: int) -> tuple[Found | None, int] | None:
        """Read an answer to `ask`: what stands there and where the answer ends; None: it is not all here yet."""
        ...


class Meta:
    """Meta commands: an answer of one line, and no name repeated."""

    def ask(self, name: bytes) -> bytes:
        """Say: what stands there?"""
        return b"mg %b v c\r\n" % name

    def put(self, name: bytes, data: bytes, ttl_s: int, over: int | None) -> bytes:
        """Say: put this there."""
        mode = b"" if over is None else b" C%d" % over if over else b" ME"
        return b"ms %b %d T%d%b\r\n%b\r\n" % (name, len(data), ttl_s, mode, data)

    def found(self, data: bytes, start: int) -> tuple[Found | None, int] | None:
        """Read an answer to `ask`."""
        end = data.find(_END, start)
        if end < 0:
            return None
        words = data[start:end].split()
        if words == [b"EN"]:
            return None, end + 2
        if len(words) != 3 or words[0] != b"VA" or words[2][:1] != b"c":
            raise Garbled(data[start:end])
        return _valued(data, end + 2, _number(words[1]), _number(words[2][1:]), b"\r\n")


class Classic:
    """The commands that every server has."""

    def ask(self, name: bytes) -> bytes:
        """Say: what stands there?"""
        return b"gets %b\r\n" % name

    def put(self, name: bytes, data: bytes, ttl_s: int, over: int | None) -> bytes:
        """Say: put this there."""
        if over:
            return b"cas %b 0 %d %d %d\r\n%b\r\n" % (name, ttl_s, len(data), over, data)
        return b"%b %b 0 %d %d\r\n%b\r\n" % (b"set" if over is None else b"add", name, ttl_s, len(data), data)

    def found(self, data: bytes, start: int) -> tuple[Found | None, int] | None:
        """Read an answer to `ask`."""
        end = data.find(_END, start)
        if end < 0:
            return None
        words = data[start:end].split()
        if words == [b"END"]:
            return None, end + 2
        if len(words) != 5 or words[0] != b"VALUE":
            raise Garbled(data[start:end])
        return _valued(data, end + 2, _number(words[3]), _number(words[4]), b"\r\nEND\r\n")


def _number(word: bytes) -> int:
    if not word.isdigit() or len(word) > _DIGITS_MOST:
        raise Garbled(word)
    return int(word)


def _valued(data: bytes, start: int, size: int, seen: int, close: bytes) -> tuple[Found, int] | None:
    end = start + size
    if len(data) < end + len(close):
        return None
    if data[end : end + len(close)] != close:
        raise Garbled(data[end : end + len(close)])
    return Found(data[start:end], seen), end + len(close)


class Line(asyncio.Protocol):
    """A connection. Made by `shelf.dial`; used from its loop only."""

    def __init__(self, loop: AbstractEventLoop, *, patience_s: float, lost: Callable[[Line], None]) -> None:
        self._loop = loop
        self._patience_s = patience_s
        self._lost = lost
        self._transport: Transport | None = None
        self._tongue: Tongue = Meta()
        self._said: list[bytes] = []
        self._rest = b""
        self._owed: deque[tuple[float, Told | None]] = (
            deque()
        )  # when it was said, and who hears the answer; None: a put
        self._heard_at = 0.0
        self._timer: TimerHandle | None = None
        self._is_late = False
        self._greeting: Future[None] | None = None
        self.largest = 1 << 20
        """Bytes of an item, its name and header included."""
        self.version = ""

    # -- said

    def ask(self, name: bytes, told: Told) -> None:
        """Ask what stands there."""
        self._say(self._tongue.ask(name), told)

    def put(self, name: bytes, data: bytes, ttl_s: int, over: int | None) -> None:
        """Put something there; nobody hears what became of it."""
        if len(data) + len(name) + 64 < self.largest:
            self._say(self._tongue.put(name, data, ttl_s, over), None)

    def _say(self, text: bytes, told: Told | None) -> None:
        if self._transport is None:
            if told is not None:
                self._loop.call_soon(told, ShelfDown("the connection is closed"))
            return
        if not self._said:
            self._loop.call_soon(self._flush)
        self._said.append(text)
        self._owed.append((self._loop.time(), told))

    def _flush(self) -> None:
        said, self._said = self._said, []
        if self._transport is None:
            return
        self._transport.write(b"".join(said))
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience_s, self._look)

    def _look(self) -> None:
        """Is it silent for too long?"""
        self._timer = None
        if not self._owed or self._transport is None:
            return
        since = max(self._owed[0][0], self._heard_at)
        left = self._patience_s - (self._loop.time() - since)
        if left <= 0 and self._is_late:
            self.abort(f"no answer within {self._patience_s * 1000:g} ms")
            return
        # Timers may run before what has arrived is read: once more, a moment later, before it is given up.
        self._is_late = left <= 0
        self._timer = self._loop.call_later(_GRACE_S if self._is_late else left, self._look)

    # -- heard

    async def greet(self) -> None:
        """Find out which language it speaks, and how large its items may be. Raises ShelfDown."""
        assert self._transport is not None
        self._greeting = self._loop.create_future()
        self._transport.write(b"mn\r\nversion\r\nstats settings\r\n")
        await self._greeting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on what is answered, as far as it is here."""
        data = self._rest + data if self._rest else data
        self._heard_at, self._is_late = self._loop.time(), False
        try:
            if self._greeting is not None:
                self._rest = self._welcomed(data)
                return
            self._rest = data[self._heard(data) :]
        except Garbled as error:
            self.abort(f"it answered {error.args[0][:80]!r}")

    def _heard(self, data: bytes) -> int:
        start = 0
        while start < len(data):
            if not self._owed:
                raise Garbled(data[start:])
            told = self._owed[0][1]
            if told is None:
                end = data.find(_END, start)
                if end < 0:
                    break
                if data.startswith((b"ERROR", b"CLIENT_ERROR"), start):
                    raise Garbled(data[start:end])
                start = end + 2
                self._owed.popleft()
                continue
            answer = self._tongue.found(data, start)
            if answer is None:
                break
            found, start = answer
            self._owed.popleft()
            told(found)
        return start

    def _welcomed(self, data: bytes) -> bytes:
        if not data.endswith(b"END\r\n") or self._greeting is None:
            return data
        first, version, *settings = data.split(_END)
        if first == b"ERROR":
            self._tongue = Classic()
        elif first != b"MN":
            raise Garbled(first)
        self.version = version.removeprefix(b"VERSION ").decode("ascii", "replace")
        for line in settings:
            if line.startswith(b"STAT item_size_max "):
                self.largest = _number(line.rpartition(b" ")[2])
        greeting, self._greeting = self._greeting, None
        if not greeting.done():
            greeting.set_result(None)
        return b""

    @property
    def speaks_meta(self) -> bool:
        """Whether it is spoken to in meta commands."""
        return isinstance(self._tongue, Meta)

    # -- its end

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        self._end(str(exc) if exc else "it closed the connection")

    def abort(self, reason: str) -> None:
        """Give the connection up, now."""
        transport = self._transport
        self._end(reason)
        if transport is not None:
            transport.abort()

    def _end(self, reason: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._said.clear()
        owed, self._owed = self._owed, deque()
        down = ShelfDown(reason)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(down)
        self._lost(self)
        for _, told in owed:
            if told is not None:
                told(down)
