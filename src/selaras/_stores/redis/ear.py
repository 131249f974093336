"""Hears what servers push: rings for this process's bells, and that a log has grown.

    partition ─> who holds it ─> the subscription connection there, shared ─> its channels
                     ^                         │ lost; the slot moved
                     └─────── a little later ──┘

Laws:
    - What is pushed is a hint. It may be lost, and whenever it may have been (a connection made anew), every bell
      rings for the partitions it is about and their logs are said to have grown: somebody looks, and hears it from the
      store. A new epoch is said, too: the store has forgotten whose bells it is to ring.
    - What a process has done itself it hears of, too, and mostly from the reply first: so a log's news is passed on when
      those who wait for a reply of this turn of the loop have had it, and its events are read by whoever needs them.
    - It lives on one loop, the first that needs it; when that one is closed, on the next that does.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Final

from selaras._core.errors import StoreRefused, StoreUnavailable
from selaras._core.jobs.retry import Backoff
from selaras._core.positions import Grown, Pushed, nothing_pushed
from selaras._stores.redis.address import Endpoint
from selaras._stores.redis.bell import RedisBell
from selaras._stores.redis.cells import decode_pushed
from selaras._stores.redis.context import Common
from selaras._stores.redis.dialling import dial
from selaras._stores.redis.errors import Meaning, meaning_of, told
from selaras._stores.redis.lines import Lines
from selaras._stores.redis.topology import referred
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, pack, rest

PING_S: Final = 5.0
"""How often a subscription is asked whether it is still there: as often as an idle worker turns without being rung."""

PONG_S: Final = 1.0

UNKNOWN: Final = -1
"""In the place of a position: the log may have grown."""

AGAIN: Final = Backoff(first_us=50_000, most_us=2_000_000)

_MESSAGES: Final = (b"message", b"smessage")


class Ear:
    """All subscriptions of a store in this process."""

    def __init__(self, common: Common, lines: Callable[[], Lines]) -> None:
        self._common = common
        self._lines = lines
        self._sharded = common.address.shape == "cluster"
        self._lock = Lock()
        self._bells: dict[str, RedisBell] = {}
        self._told: list[Grown] = []
        self._hearing: _Hearing | None = None
        self.refused: StoreUnavailable | None = None

    def make_bell(self, address: str) -> RedisBell:
        """Make a bell that rings when its channel is spoken on."""
        bell = RedisBell(
            address,
            partitions=self._common.partitions,
            attend=self.attend,
            refused=lambda: self.refused,
            forget=self._forget,
        )
        with self._lock:
            self._bells = {**self._bells, address: bell}
        self._renew()
        return bell

    def listen(self, told: Grown) -> None:
        """Tell of logs that have grown."""
        with self._lock:
            self._told = [*self._told, told]
        self._renew()

    def attend(self) -> None:
        """See to it that somebody listens; on a running loop."""
        hearing = self._hearing
        if hearing is not None and not hearing.loop.is_closed():
            return
        if not (self._bells or self._told):
            return
        lines = self._lines()
        with self._lock:
            if self._hearing is None or self._hearing.loop.is_closed():
                self._hearing = _Hearing(self, lines)

    async def close(self) -> None:
        """Listen no longer."""
        hearing, self._hearing = self._hearing, None
        self._bells, self._told = {}, []
        if hearing is None or hearing.loop.is_closed():
            return
        if hearing.loop is asyncio.get_running_loop():
            await hearing.close()
        else:
            try:
                hearing.loop.call_soon_threadsafe(hearing.end)
            except RuntimeError:  # it was closed meanwhile
                pass

    def moved(self, partition: int) -> None:
        """The partition is held by another server now; from any loop."""
        hearing = self._hearing
        if hearing is not None:
            hearing.soon(hearing.moved, partition)

    def _forget(self, bell: RedisBell) -> None:
        with self._lock:
            self._bells = {address: one for address, one in self._bells.items() if one is not bell}
        self._renew()

    def _renew(self) -> None:
        """Channels came or went."""
        hearing = self._hearing
        if hearing is not None:
            hearing.soon(hearing.renew)

    # -- for the one that hears

    @property
    def common(self) -> Common:
        """What all connections of the store share."""
        return self._common

    @property
    def sharded(self) -> bool:
        """Channels belong to slots, as keys do."""
        return self._sharded

    def channels(self, partition: int) -> set[str]:
        """Return what is to be listened to in a partition."""
        stem = self._common.names.stem(partition)
        channels = {f"{stem}bell:{address}" for address in self._bells}
        return channels | {f"{stem}news"} if self._told else channels

    def heard(self, partition: int, name: str, said: bytes) -> None:
        """Pass on what was said on a channel."""
        if name == "news":
            position, read = _news_of(said)
            if position == UNKNOWN:
                self.may_have_missed(partition)
            else:
                self._tell(partition, position, read)
        elif (bell := self._bells.get(name.removeprefix("bell:"))) is not None:
            bell.ring_for(partition)

    def may_have_missed(self, partition: int) -> None:
        """Something may have been said that nobody heard."""
        for bell in self._bells.values():
            bell.ring_for(partition)
        self._tell(partition, UNKNOWN)

    def _tell(self, partition: int, position: int, read: Callable[[], Pushed | None] = nothing_pushed) -> None:
        for listener in self._told:
            listener(partition, position, read)


def _news_of(said: bytes) -> tuple[int, Callable[[], Pushed | None]]:
    """Read what was said of a log: its position, and perhaps its new events."""
    position, _, events = said.partition(b"\n")
    if not position.isdigit():
        return UNKNOWN, nothing_pushed
    return int(position), partial(decode_pushed, events) if events else nothing_pushed


class _Hearing:
    """The subscriptions of a store, on the loop they live on."""

    def __init__(self, ear: Ear, lines: Lines) -> None:
        self.loop: AbstractEventLoop = lines.loop
        self.lines = lines
        self._ear = ear
        self._stems = [ear.common.names.stem(index) for index in range(ear.common.partitions)]
        self._pieces: dict[Endpoint, Task[_Earpiece]] = {}
        self._known: dict[bytes, tuple[int, str]] = {}  # channel -> its partition, and its name there
        self._places: list[_Earpiece | None] = [None] * ear.common.partitions
        self._turns: list[Future[None]] = []  # by partition: done when it must be looked for anew
        self._turns = [self.loop.create_future() for _ in self._stems]
        self._tasks = [self.loop.create_task(self._attend(index)) for index in range(len(self._stems))]

    def soon(self, act: Callable[..., None], *args: Any) -> None:
        """Do something on the loop; from any thread."""
        try:
            self.loop.call_soon_threadsafe(act, *args)
        except RuntimeError:  # it is closed
            pass

    def moved(self, index: int) -> None:
        """Look for the partition anew."""
        if not self._turns[index].done():
            self._turns[index].set_result(None)

    def renew(self) -> None:
        """Channels came or went."""
        self._known.clear()
        for index, piece in enumerate(self._places):
            if piece is not None:
                piece.hold(index, self._ear.channels(index))

    async def _attend(self, index: int) -> None:
        """Listen to one partition, wherever it is, for ever."""
        tries = 0
        while True:
            self._turns[index] = turn = self.loop.create_future()
            try:
                before, piece = self._places[index], await self._piece(await self.lines.find(index))
                if before is not None and before is not piece:
                    before.hold(index, set())
                    if before.idle:  # its server may hold nothing of ours any more, nor be asked again
                        before.end()
                self._places[index] = piece
                piece.hold(index, self._ear.channels(index))
                await piece.in_step()
                self._ear.refused = None
                self._ear.may_have_missed(index)
                tries = 0
                await asyncio.wait((turn, piece.over), return_when=asyncio.FIRST_COMPLETED)
            except StoreUnavailable as error:
                if isinstance(error, StoreRefused):
                    self._ear.refused = error
            tries += 1
            await rest(AGAIN.delay_us(tries, self._ear.common.entropy) / 1e6)

    async def _piece(self, endpoint: Endpoint) -> _Earpiece:
        """Return the subscription connection to a server; all who need it share one attempt."""
        task = self._pieces.get(endpoint)
        if task is None or (task.done() and (task.exception() is not None or task.result().over.done())):
            task = self._pieces[endpoint] = self.loop.create_task(_Earpiece.make(self, endpoint))
            task.add_done_callback(lambda made: made.cancelled() or made.exception())
        await asyncio.wait((task,))
        if (error := task.exception()) is not None:
            self._ear.common.topology.doubt(endpoint)
            raise type(error)(str(error))
        return task.result()

    # -- what earpieces say

    @property
    def ear(self) -> Ear:
        """Whose hearing it is."""
        return self._ear

    def said(self, channel: bytes, message: bytes) -> None:
        """Pass a message on."""
        known = self._known.get(channel)
        if known is None:
            text = channel.decode()
            index = self._index_of(text)
            if index is None:
                return
            known = self._known[channel] = index, text[len(self._stems[index]) :]
        if known[1] == "news":
            self.loop.call_soon(self._ear.heard, *known, message)
        else:
            self._ear.heard(*known, message)

    def unsubscribed(self, piece: _Earpiece, channel: str) -> None:
        """The server ended a subscription: if we did not ask for that, its slot has moved."""
        index = self._index_of(channel)
        if index is not None and piece.dropped(index, channel):
            self._ear.common.topology.doubt(piece.endpoint)
            self.moved(index)

    def refused(self, piece: _Earpiece, error: Exception) -> None:
        """A subscription was refused: its slot is elsewhere, or it is not allowed."""
        meaning = meaning_of(error)
        if meaning in (Meaning.MOVED, Meaning.ASK):
            try:
                slot, there = referred(str(error), piece.endpoint)
            except StoreUnavailable as unread:
                piece.wire.abort(str(unread))
                return
            for index, one in enumerate(self._places):
                if one is piece and self._ear.common.names.slot(index) == slot:
                    self._ear.common.topology.moved(index, there)
                    self.moved(index)
            return
        why = told(error, meaning, where=str(piece.endpoint), doing="subscriptions")
        if isinstance(why, StoreRefused):
            self._ear.refused = why
        piece.wire.abort(str(why))

    def _index_of(self, channel: str) -> int | None:
        return next((index for index, stem in enumerate(self._stems) if channel.startswith(stem)), None)

    # -- the end

    def end(self) -> None:
        """Listen no longer."""
        for task in self._tasks:
            task.cancel()
        for made in self._pieces.values():
            if not made.done():
                made.cancel()
            elif not made.cancelled() and made.exception() is None:
                made.result().end()

    async def close(self) -> None:
        """Listen no longer, and wait until nobody does."""
        self.end()
        await asyncio.gather(*self._tasks, *self._pieces.values(), return_exceptions=True)


class _Earpiece:
    """A subscription connection to one server, and what it is subscribed to."""

    def __init__(self, hearing: _Hearing, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.over: Future[None] = hearing.loop.create_future()
        self.wire: Wire
        self._hearing = hearing
        self._held: dict[int, set[str]] = {}
        self._pings: Task[None] | None = None

    @classmethod
    async def make(cls, hearing: _Hearing, endpoint: Endpoint) -> _Earpiece:
        piece = cls(hearing, endpoint)
        common = hearing.ear.common
        piece.wire = await dial(
            endpoint, common.address.account, let_in=common.let_in, on_push=piece.pushed, on_lost=piece.lost
        )
        hearing.lines.beside.add(piece.wire)
        piece._pings = hearing.loop.create_task(piece.ping())
        return piece

    def hold(self, partition: int, wanted: set[str]) -> None:
        """Be subscribed to these channels of a partition, and to no others of it."""
        held = self._held.get(partition, set())
        letter = "S" if self._hearing.ear.sharded else ""
        for verb, channels in (("SUBSCRIBE", wanted - held), ("UNSUBSCRIBE", held - wanted)):
            if channels:
                self.wire.tell(pack(letter + verb, *sorted(channels)))
        self._held[partition] = wanted

    @property
    def idle(self) -> bool:
        """It is subscribed to nothing."""
        return not any(self._held.values())

    def dropped(self, partition: int, channel: str) -> bool:
        """Note that a subscription is over. Returns whether it was meant to last."""
        held = self._held.get(partition, set())
        lasted = channel in held
        self._held[partition] = held - {channel}
        return lasted

    async def in_step(self) -> None:
        """Wait until what was said has been heard by the server."""
        try:
            await self.wire.send(pack("PING"), 1, PONG_S)
        except WireLost as error:
            self.wire.abort(str(error))
            raise self._hearing.ear.refused or StoreUnavailable(f"{self.endpoint}: {error}") from error

    async def ping(self) -> None:
        """Notice that it is dead, though nobody says so."""
        while not self.over.done():
            await rest(PING_S)
            try:
                await self.in_step()
            except StoreUnavailable:
                return

    def pushed(self, push: Any) -> None:
        """Hear what comes unasked."""
        if push.__class__ is ReplyError:
            self._hearing.refused(self, push)
        elif push[0] in _MESSAGES:
            self._hearing.said(push[1], push[2])
        elif push[0] == b"sunsubscribe" and push[1] is not None:
            self._hearing.unsubscribed(self, push[1].decode())

    def lost(self, wire: Wire) -> None:
        """The connection is over."""
        self._hearing.lines.beside.discard(wire)
        if not self.over.done():
            self.over.set_result(None)
            self._hearing.ear.common.topology.doubt(self.endpoint)

    def end(self) -> None:
        """End it."""
        if self._pings is not None:
            self._pings.cancel()
        self.wire.abort("the store was closed")
