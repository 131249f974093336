"""The connections of one event loop: one a server, found, made, greeted and given up here.

Laws:
    - A connection is used for a partition only after the partition was greeted on it: that is how a lost memory is
      noticed before anything else is done (P20). What has moved in between is greeted anew.
    - One attempt at a server at a time; failed ones grow apart, with jitter, up to a cap.
    - A server that is silent while somebody waits is asked over a second connection: if it answers there, the first
      one is dead, and whoever waits on it learns so within a second.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import AsyncGenerator
from typing import Any, Final

from selaras._core.errors import StoreMismatch, StoreRefused, StoreUnavailable
from selaras._stores.endings import at_end_of_loop
from selaras._stores.redis.address import Endpoint
from selaras._stores.redis.context import Command, Common, Patience, Script, repeated, share
from selaras._stores.redis.convoy import Convoy
from selaras._stores.redis.dialling import ask_once
from selaras._stores.redis.errors import Meaning, Passing, meaning_of, told
from selaras._stores.redis.node import Node
from selaras._stores.redis.topology import redirection
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, pack, rest

DISCOVERIES_S: Final = 0.1
"""The least time between two questions who has what."""

ASKING: Final = pack("ASKING")


class Lines:
    """The connections of a loop.

    Attributes:
        wires: by partition: the connection on which it was greeted, None where there is none.
        beside: others that end with these.
    """

    def __init__(self, common: Common, loop: AbstractEventLoop) -> None:
        self.common = common
        self.loop = loop
        self.wires: list[Wire | None] = [None] * common.partitions
        self.beside: set[Wire] = set()
        # What waits for replicas holds up all that comes behind it on its connection: it has one of its own.
        self._slow_wires: list[Wire | None] = [None] * common.partitions
        self._convoys = dict[Wire, Convoy]()
        self._nodes: dict[tuple[Endpoint, bool], Node] = {}
        self._greetings: dict[tuple[int, bool], Task[Wire]] = {}
        self._discovery: Task[None] | None = None
        self._discover_at = 0.0
        self._last: AsyncGenerator[None] | None = None

    async def reach(self, index: int, patience: Patience, *, slow: bool = False) -> Wire:
        """Return a connection on which the partition was greeted. Raises StoreUnavailable, StoreMismatch."""
        wires = self._slow_wires if slow else self.wires
        while True:
            wire = wires[index]
            if wire is not None and wire.open:
                return wire
            try:
                return await self._greeted(index, patience, slow=slow)
            except (StoreRefused, StoreMismatch):
                raise
            except StoreUnavailable as error:
                if patience.urgent:
                    raise
                await patience.again(self.common.entropy, error)

    async def reach_at(self, endpoint: Endpoint, patience: Patience, *, slow: bool) -> Wire:
        """Return a connection to a server that another one sent us to, this once (ASK)."""
        return await self._node(endpoint, slow=slow).connected(patience)

    def convoy(self, wire: Wire) -> Convoy:
        """Return what those who wait for replicas over a connection share."""
        convoy = self._convoys.get(wire)
        if convoy is None:
            address = self.common.address
            convoy = Convoy(wire, address.replicas_ms, address.account.silence_s)
            if wire.open:
                self._convoys[wire] = convoy
        return convoy

    def node_of(self, wire: Wire) -> Node | None:
        """Return whose connection it is."""
        return next((node for node in self._nodes.values() if node.wire is wire), None)

    def moved(self, index: int, endpoint: Endpoint) -> None:
        """A server said who holds the partition."""
        self.common.topology.moved(index, endpoint)
        self.forget(index)
        self.common.on_moved(index)

    def forget(self, index: int) -> None:
        """Greet the partition again before it is used."""
        self.wires[index] = self._slow_wires[index] = None

    def demoted(self, wire: Wire) -> None:
        """Its server is not the master any more."""
        node = self.node_of(wire)
        if node is not None:
            self.common.topology.doubt(node.endpoint)
        self.leave(wire, "its server is not the master")

    def replaced(self) -> None:
        """Another server is the master of all now: what the one before it would answer counts no more."""
        master = self.common.topology.place(0)
        for node in self._nodes.values():
            if node.endpoint != master and node.wire is not None:
                node.wire.abort(f"{master} is the master now")

    def leave(self, wire: Wire, reason: str) -> None:
        """Use a connection no longer; who waits on it may yet be answered."""
        node = self.node_of(wire)
        self._unused(wire)
        if node is not None:
            node.wire = None
            self.beside.add(wire)
            self.loop.call_later(self.common.address.account.silence_s, wire.abort, reason)

    # -- finding, connecting, greeting

    async def _greeted(self, index: int, patience: Patience, *, slow: bool) -> Wire:
        """Share one attempt among all who need the partition."""
        greeting = self._greetings.get((index, slow))
        if greeting is None:
            greeting = self._greetings[index, slow] = self.loop.create_task(self._greet(index, patience, slow=slow))
            greeting.add_done_callback(lambda done: self._greetings_ended(done, (index, slow)))
        return await share(greeting, patience, lambda: self._delay(index, slow=slow))

    def _delay(self, index: int, *, slow: bool) -> str:
        """Say what takes longer than somebody could wait."""
        endpoint = self.common.topology.place(index)
        node = self._nodes.get((endpoint, slow)) if endpoint is not None else None
        return node.delay() if node is not None else f"{self.common.where(index)} is slow to answer"

    def _greetings_ended(self, task: Task[Wire], place: tuple[int, bool]) -> None:
        self._greetings.pop(place, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may have

    async def _greet(self, index: int, patience: Patience, *, slow: bool) -> Wire:
        endpoint = await self.find(index)
        node = self._node(endpoint, slow=slow)
        wire = await node.connected(patience)
        greeting = _Greeting(self, node, wire, index)
        try:
            await self.common.greet(greeting)
        except _Asked as asked:
            there = self._node(asked.endpoint, slow=slow)
            asked_wire = await there.connected(patience)
            await self.common.greet(_Greeting(self, there, asked_wire, index, asking=True))
        if not wire.open:
            raise Passing(f"{endpoint}: {wire.reason}")
        if self.common.address.shape == "sentinel" and self.common.topology.place(index) != endpoint:
            raise Passing(f"{endpoint} was replaced meanwhile")
        (self._slow_wires if slow else self.wires)[index] = wire
        return wire

    async def find(self, index: int) -> Endpoint:
        """Return who holds a partition. Raises StoreUnavailable: nobody is known to."""
        topology = self.common.topology
        place = topology.place(index)
        if (topology.doubted or place is None) and self.loop.time() >= self._discover_at:
            if self._discovery is None or self._discovery.done():
                self._discovery = self.loop.create_task(topology.discover(ask_once))
                self._discovery.add_done_callback(self._discovered)
            discovery = self._discovery
            await asyncio.wait((discovery,))
            if discovery.cancelled():
                raise StoreUnavailable("the store was closed")
            if (error := discovery.exception()) is not None:
                raise repeated(error)
            found = topology.place(index)
            if place is not None and found != place:
                self.common.on_moved(index)
            place = found
        if place is None:
            last = self._discovery  # a moment ago
            if last is not None and not last.cancelled() and (error := last.exception()) is not None:
                raise repeated(error)
            raise StoreUnavailable(f"no node of {self.common.address.shown} holds the slot of partition {index} now")
        return place

    def _discovered(self, discovery: Task[None]) -> None:
        if not discovery.cancelled():
            discovery.exception()  # whoever waited has it
            self._discover_at = self.loop.time() + DISCOVERIES_S

    def _node(self, endpoint: Endpoint, *, slow: bool) -> Node:
        node = self._nodes.get((endpoint, slow))
        if node is None:
            waits_s = self.common.address.replicas_ms / 1_000 if slow else 0.0
            node = self._nodes[endpoint, slow] = Node(self.common, self.loop, endpoint, waits_s, self.lost)
        return node

    def lost(self, node: Node, wire: Wire) -> None:
        """A connection is over."""
        if node.wire is wire:
            node.wire = None
            self.common.topology.doubt(node.endpoint)
        self._unused(wire)
        self._convoys.pop(wire, None)
        self.beside.discard(wire)

    def _unused(self, wire: Wire) -> None:
        for wires in (self.wires, self._slow_wires):
            for index, one in enumerate(wires):
                if one is wire:
                    wires[index] = None

    # -- the end

    def end_with_loop(self) -> None:
        """End the connections with a loop that nobody closed the store on."""
        self._last = at_end_of_loop(self.end)

    async def finish(self, within_s: float) -> None:
        """Wait until everybody was answered, so long; then end."""
        until = self.loop.time() + within_s
        while self.loop.time() < until and any(node.wire and node.wire.busy for node in self._nodes.values()):
            await rest(0.005)
        self.end()

    def end(self) -> None:
        """End all connections, now."""
        for task in (*self._greetings.values(), self._discovery):
            if task is not None:
                task.cancel()
        for node in self._nodes.values():
            node.end()
        for wire in tuple(self.beside):
            wire.abort("the store was closed")


class _Asked(Exception):
    """The partition is on its way to another server, which must be greeted instead."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint


class _Greeting:
    def __init__(self, lines: Lines, node: Node, wire: Wire, index: int, *, asking: bool = False) -> None:
        self.index = index
        self.run_id = node.run_id
        self.eviction = node.eviction
        self._lines = lines
        self._node = node
        self._wire = wire
        self._asking = asking

    async def call(self, script: Script, args: Command) -> Any:
        packed = self._lines.common.packed(self.index, script, args)
        reply = await self._send(packed)
        if reply.__class__ is ReplyError and meaning_of(reply) is Meaning.UNLOADED:
            await self._send(pack("SCRIPT", "LOAD", script.text), keyless=True)
            reply = await self._send(packed)
        if reply.__class__ is not ReplyError:
            return reply
        meaning = meaning_of(reply)
        match meaning:
            case Meaning.MOVED:
                self._lines.moved(self.index, redirection(str(reply), self._node.endpoint))
            case Meaning.ASK if not self._asking:
                raise _Asked(redirection(str(reply), self._node.endpoint))
            case Meaning.DEMOTED:
                self._lines.demoted(self._wire)
            case _:
                pass
        doing = self._lines.common.doing(self.index, script.name)
        raise told(reply, meaning, where=str(self._node.endpoint), doing=doing, script=script.text)

    async def _send(self, packed: bytes, *, keyless: bool = False) -> Any:
        within_s = self._lines.common.address.account.silence_s
        try:
            if self._asking and not keyless:
                return (await self._wire.send(ASKING + packed, 2, within_s))[1]
            return await self._wire.send(packed, 1, within_s)
        except WireLost as error:
            raise Passing(f"{self._node.endpoint}: {error}") from error
