"""One connection to one server, for one event loop: what is said in one turn of the loop goes out in one write.

    send(...) ─> buffer ──call_soon──> one write ─> server ─> replies, in order ─> the callers' futures

Laws:
    - Replies answer commands in order, whatever became of the caller: a reply nobody waits for any more is dropped.
    - A failure says whether the command was written (`WireLost.sent`). Written and unanswered: it may have been done.
    - A caller waits no longer than it said. A server that says nothing at all for `silence_s` while somebody waits is
      given up with its connection; before that, after `quiet_s`, `on_quiet` is told, who may ask another way.
    - What cannot be written yet is kept here; whoever adds to it looks at `stuffed` and waits for `room` first.

This file alone knows how bytes become replies (hiredis).
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, Transport
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import hiredis

Word = bytes | str | int | float

_pack = cast("Callable[[tuple[Word, ...]], bytes]", getattr(hiredis, "pack_command"))  # noqa: B009 - its own types say: of one word

ReplyError: Final = hiredis.ReplyError
"""What an error of the server comes as, within a reply: it is returned, not raised."""

BUFFER_MOST: Final = 4 * 1024 * 1024
"""So many bytes may wait for a server that does not read."""

TICK_S: Final = 0.05
"""How exactly deadlines are kept."""

QUIET_S: Final = 0.5
"""A server that owes an answer for so long is asked another way whether it lives."""

_NOTHING: Final = object()
_PUSHED: Final = frozenset(
    (b"message", b"smessage", b"subscribe", b"ssubscribe", b"unsubscribe", b"sunsubscribe", b"pmessage")
)


class WireLost(Exception):
    """No reply will come. `sent` False: the command was never written, so nothing was done."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Answer(Protocol):
    """Who is told a reply. A future is one; any other is told at once, and must not raise."""

    def done(self) -> bool:
        """Nobody waits any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Hear the reply, or a list of them."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Hear that no reply will come: WireLost."""
        ...


class _Waiting:
    """A caller, and the replies it has so far."""

    __slots__ = ("future", "replies", "since", "until", "wanted")

    def __init__(self, future: Answer, wanted: int, since: float, until: float) -> None:
        self.future = future
        self.wanted = wanted
        self.since = since
        self.until = until
        self.replies: list[Any] | None = None if wanted == 1 else []


def pack(*words: Word) -> bytes:
    """Return a command as the server reads it."""
    return _pack(words)


def tail(words: tuple[Word, ...]) -> bytes:
    """Return words as they stand at the end of a command, without the count that begins it."""
    packed = _pack(words)
    return packed[packed.index(b"\n") + 1 :]


async def rest(seconds: float) -> None:
    """Wait, in real time: servers do not live in a virtual one."""
    loop = asyncio.get_running_loop()
    woken: Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _wake, woken)
    try:
        await woken
    finally:
        timer.cancel()


class Wire(asyncio.Protocol):
    """A connection. Made by `asyncio.create_connection`; used from its loop only.

    Args:
        silence_s: so long may a server say nothing while somebody waits.
        quiet_s: after so long `on_quiet` is told, once a silence.
        on_lost: told once, when the connection is over.
        on_push: told of what comes unasked: of subscriptions, and then also of errors, which answer nothing there.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        *,
        silence_s: float = 5.0,
        quiet_s: float = QUIET_S,
        on_quiet: Callable[[Wire], None] | None = None,
        on_lost: Callable[[Wire], None] | None = None,
        on_push: Callable[[Any], None] | None = None,
    ) -> None:
        self.open = False
        self.reason = ""
        self.loading = set[str]()  # scripts that somebody is loading over it
        self.heard_at = loop.time()
        self._loop = loop
        self._silence_s = silence_s
        self._quiet_s = quiet_s
        self._on_quiet = on_quiet
        self._on_lost = on_lost
        self.on_push = on_push
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._transport: Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._last_words: list[Callable[[], None]] = []
        self._buffer: list[bytes] = []
        self._buffered = 0  # bytes in the buffer
        self._unwritten = 0  # callers whose commands are there: the last ones that wait
        self._armed = False
        self._paused = False
        self._quiet_told = False
        self._ticking = False
        self._least_s = silence_s  # the shortest patience any caller had
        self._rooms: list[Future[None]] = []

    # -- speaking

    def send(self, packed: bytes, wanted: int, within_s: float) -> Future[Any]:
        """Send packed commands; the future brings the reply, or a list of them where `wanted` is not 1.

        It raises WireLost when the connection is lost or `within_s` is over.
        """
        future: Future[Any] = self._loop.create_future()
        self.send_for(future, packed, wanted, within_s)
        return future

    def send_for(self, future: Answer, packed: bytes, wanted: int, within_s: float) -> None:
        """Send packed commands for somebody else; see `send`."""
        if not self.open:
            future.set_exception(WireLost(self.reason or "not connected", sent=False))
            return
        now = self._loop.time()
        self._waiting.append(_Waiting(future, wanted, now, now + within_s))
        self._unwritten += 1
        self._put(packed)
        if within_s < self._least_s:
            self._least_s = within_s
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK_S, self._tick)

    def at_flush(self, last_word: Callable[[], None]) -> None:
        """Call it when this turn of the loop is over: what it sends goes out with what was sent before. It must not raise."""
        self._last_words.append(last_word)
        self._arm()

    def tell(self, packed: bytes) -> None:
        """Send a command that is answered by what is pushed only: of subscriptions."""
        if self.open:
            self._put(packed)

    def _put(self, packed: bytes) -> None:
        self._buffer.append(packed)
        self._buffered += len(packed)
        if not self._paused:
            self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._last_words:
            self._speak_last()
        self._armed = False
        if self._paused or not self._buffer or self._transport is None:
            return
        # Nothing else can come between: from here on all of it counts as sent.
        packed = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = self._unwritten = 0
        self._transport.write(packed)

    def _speak_last(self) -> None:
        words, self._last_words = self._last_words, []
        for word in words:
            word()

    @property
    def busy(self) -> bool:
        """Somebody waits for a reply."""
        return bool(self._waiting)

    @property
    def stuffed(self) -> bool:
        """The server does not read, and as much waits for it as may."""
        return self._paused and self._buffered > BUFFER_MOST

    async def room(self) -> None:
        """Wait until more may be said, or the connection is over."""
        while self.open and self.stuffed:
            place: Future[None] = self._loop.create_future()
            self._rooms.append(place)
            await place

    # -- hearing

    def data_received(self, data: bytes) -> None:
        """Hand replies out."""
        self.heard_at = self._loop.time()
        self._quiet_told = False
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        gets = reader.gets
        try:
            while (reply := gets()) is not _NOTHING:
                if self.on_push is not None and self._is_pushed(reply):
                    self.on_push(reply)
                    continue
                if not waiting:
                    self.abort(f"{reply}" if reply.__class__ is ReplyError else "it answers what was not asked")
                    return
                first = waiting[0]
                if first.replies is None:
                    waiting.popleft()
                    if not first.future.done():
                        first.future.set_result(reply)
                else:
                    first.replies.append(reply)
                    if len(first.replies) == first.wanted:
                        waiting.popleft()
                        if not first.future.done():
                            first.future.set_result(first.replies)
        except hiredis.ProtocolError as error:
            self.abort(f"it does not speak the protocol ({error})")

    def _is_pushed(self, reply: Any) -> bool:
        kind = reply.__class__
        if kind is hiredis.PushNotification or kind is ReplyError:
            return True
        return kind is list and bool(reply) and reply[0].__class__ is bytes and reply[0] in _PUSHED

    # -- time

    def _tick(self) -> None:
        self._ticking = False
        if not self._waiting or not self.open:
            self._least_s = self._silence_s
            return
        self._ticking = True
        self._loop.call_later(TICK_S, self._tick)
        now = self._loop.time()
        silent_s = now - max(self.heard_at, self._waiting[0].since)
        if silent_s >= self._silence_s:
            self.abort(f"no reply for {self._silence_s:g} s")
            return
        if silent_s >= self._quiet_s and self._on_quiet is not None and not self._quiet_told:
            self._quiet_told = True
            self._on_quiet(self)
        self._end_patience(now)

    def _end_patience(self, now: float) -> None:
        youngest = now - self._least_s
        for one in self._waiting:
            if one.since > youngest:
                return
            if one.until <= now and not one.future.done():
                # Be it written or not: it stays in its place, and may yet reach the server.
                one.future.set_exception(WireLost(f"no reply within {one.until - one.since:g} s", sent=True))

    # -- beginning and end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast(Transport, transport)
        self.open = True

    def pause_writing(self) -> None:
        """The server does not read as fast as we write."""
        self._paused = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._paused = False
        self._flush()
        self._give_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._end(f"{exc}" if exc else "the server closed the connection")

    def abort(self, reason: str) -> None:
        """End it now; who waits is told."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.open:
            return
        self.open = False
        self.reason = reason = reason or "it ended without a word"
        written = len(self._waiting) - self._unwritten
        for place, one in enumerate(self._waiting):
            if not one.future.done():
                one.future.set_exception(WireLost(reason, sent=place < written))
        self._waiting.clear()
        self._buffer.clear()
        self._buffered = self._unwritten = 0
        self._give_room()
        if self._on_lost is not None:
            self._on_lost(self)

    def _give_room(self) -> None:
        for place in self._rooms:
            _wake(place)
        self._rooms.clear()


def _wake(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
