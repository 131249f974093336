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
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from selaras._contracts.clock import Entropy
from selaras._core.errors import StoreMismatch, StoreRefused, StoreUnavailable
from selaras._core.jobs.retry import Backoff
from selaras._stores.endings import at_end_of_loop
from selaras._stores.redis.address import Endpoint, Names, RedisAddress
from selaras._stores.redis.convoy import Convoy
from selaras._stores.redis.dialling import ask_once, dial, tls_doubt
from selaras._stores.redis.errors import RIGHTS_PAGE, Meaning, Passing, meaning_of, told
from selaras._stores.redis.rights import QUESTION, QUESTION_SHA, calls, is_sentinel, lacking, too_old, vital
from selaras._stores.redis.topology import Topology, redirection
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, Word, pack, rest, tail

Command = Sequence[Word]

ATTEMPTS: Final = Backoff(first_us=20_000, most_us=1_000_000)
"""Between two attempts at a server that failed: many processes make them."""

LOOKS: Final = Backoff(first_us=10_000, most_us=200_000)
"""How often a caller that waits looks whether it can go on: somebody else may have the partition now."""

DISCOVERIES_S: Final = 0.1
"""The least time between two questions who has what."""

PROBE_S: Final = 0.4
"""A silent server's second chance: with the time until it is asked, less than `max_lag`."""

ASKING: Final = pack("ASKING")


class Script(Protocol):
    """A script as a link needs it: what it is called, its text and SHA-1, the names of its keys, in order, and whether it writes."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def sha(self) -> str: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def writes(self) -> bool: ...


class Greeting(Protocol):
    """A partition about to be used over a connection that is new to it.

    Attributes:
        run_id: of the server there. eviction: what it does when its memory is full, its `maxmemory-policy`.
    """

    index: int
    run_id: str
    eviction: str

    async def call(self, script: Script, args: Command) -> Any:
        """Run a script over that very connection. Raises StoreUnavailable."""
        ...


class Common:
    """What the connections of all loops share.

    Args:
        greet: run before a partition is used over a new connection. Raises StoreUnavailable or StoreMismatch.
        on_moved: told when a partition is found on another server; from any loop.

    Attributes:
        let_in: the servers that have let us in.
    """

    def __init__(
        self,
        address: RedisAddress,
        names: Names,
        topology: Topology,
        partitions: int,
        entropy: Entropy,
        greet: Callable[[Greeting], Awaitable[None]],
        on_moved: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.address = address
        self.names = names
        self.topology = topology
        self.partitions = partitions
        self.entropy = entropy
        self.greet = greet
        self.on_moved = on_moved
        self.let_in = set[Endpoint]()
        self._prefixes: dict[tuple[str, int, int], bytes] = {}

    def packed(self, index: int, script: Script, args: Command) -> bytes:
        """Return a call of a script, packed: all but its arguments is the same each time."""
        known = (script.sha, index, len(args))
        prefix = self._prefixes.get(known)
        if prefix is None:
            keys = [self.names.key(index, name) for name in script.keys]
            words: tuple[Word, ...] = ("EVALSHA", script.sha, len(keys), *keys)
            prefix = self._prefixes[known] = b"*%d\r\n%b" % (len(words) + len(args), tail(words))
        return prefix + tail(tuple(args))

    def doing(self, index: int, name: str) -> str:
        """Say what is done where, for messages."""
        return f"{name!r} in partition {index}" if self.partitions > 1 else repr(name)

    def maybe_done(self, index: int, name: str, error: WireLost) -> StoreUnavailable:
        """Say that a reply was lost."""
        return StoreUnavailable(
            f"{self.where(index)}: {error}; {self.doing(index, name)} was sent, and may have been done"
        )

    def where(self, index: int) -> str:
        """Say who holds a partition, for messages."""
        return str(self.topology.place(index) or self.address.shown)


class Patience:
    """How long a caller waits yet, and how often it was in vain.

    `urgent`: the caller has somewhere else to go: it does not wait for what is known to be away.
    """

    def __init__(self, seconds: float, *, urgent: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self.urgent = urgent
        self.tries = 0

    @property
    def left_s(self) -> float:
        """Seconds; negative when it is over."""
        return self._until - self._loop.time()

    async def again(self, entropy: Entropy, error: StoreUnavailable) -> None:
        """Wait a little, longer each time. Raises the error where there is no time for that."""
        self.tries += 1
        wait_s = LOOKS.delay_us(self.tries, entropy) / 1e6
        if wait_s >= self.left_s:
            raise error
        await rest(wait_s)


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
        return await _shared(greeting, patience, lambda: self._slow(index, slow=slow))

    def _slow(self, index: int, *, slow: bool) -> str:
        endpoint = self.common.topology.place(index)
        node = self._nodes.get((endpoint, slow)) if endpoint is not None else None
        return node.slow() if node is not None else f"{self.common.where(index)} is slow to answer"

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
                raise _again(error)
            found = topology.place(index)
            if place is not None and found != place:
                self.common.on_moved(index)
            place = found
        if place is None:
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
            node = self._nodes[endpoint, slow] = Node(self, endpoint, waits_s)
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


class Node:
    """A server, as a loop knows it: the connection to it, or when it is tried next."""

    def __init__(self, lines: Lines, endpoint: Endpoint, waits_s: float) -> None:
        self.endpoint = endpoint
        self.wire: Wire | None = None
        self.run_id = ""
        self.eviction = ""
        self._lines = lines
        self._waits_s = waits_s
        self._attempt: Task[Wire] | None = None
        self._probe: Task[None] | None = None
        self._tries = 0
        self._again_at = 0.0
        self._error: BaseException = StoreUnavailable("")

    async def connected(self, patience: Patience) -> Wire:
        """Return the connection. Raises StoreUnavailable: it cannot be made, or could not a moment ago."""
        if self.wire is not None and self.wire.open:
            return self.wire
        if self._attempt is None:
            if self._lines.loop.time() < self._again_at:
                self._lines.common.topology.doubt(self.endpoint)
                raise _again(self._error)
            self._attempt = self._lines.loop.create_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        return await _shared(self._attempt, patience, self.slow)

    def slow(self) -> str:
        """Say that it takes longer than somebody could wait, and why that may be."""
        if self.wire is not None and self.wire.open:
            return f"{self.endpoint} is slow to answer"
        common = self._lines.common
        return (
            f"{self.endpoint}: connecting takes long{tls_doubt(self.endpoint, common.address.account, common.let_in)}"
        )

    def _attempted(self, attempt: Task[Wire]) -> None:
        self._attempt = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._tries, self._again_at = 0, 0.0
            return
        self._tries += 1
        self._error = error
        self._again_at = self._lines.loop.time() + ATTEMPTS.delay_us(self._tries, self._lines.common.entropy) / 1e6
        self._lines.common.topology.doubt(self.endpoint)

    async def _connect(self) -> Wire:
        common = self._lines.common
        wire = await dial(
            self.endpoint,
            common.address.account,
            let_in=common.let_in,
            on_quiet=self._look_again,
            on_lost=lambda wire: self._lines.lost(self, wire),
            waits_s=self._waits_s,
        )
        try:
            info = _info(*[await self._ask(wire, "INFO", of) for of in ("SERVER", "REPLICATION", "MEMORY")])
            if is_sentinel(info):
                raise StoreRefused(
                    f"{self.endpoint} is a sentinel: say so, redis+sentinel://{self.endpoint}/SERVICE, with the name of what it watches"
                )
            if too_old(version := info.get("redis_version", "")):
                raise StoreRefused(
                    f"{self.endpoint} is Redis {version}: Selaras needs Redis 7.0 or newer, or any Valkey"
                )
            if info.get("role") != "master":
                raise StoreUnavailable(f"{self.endpoint} is a replica, or being made one: it takes no writes")
            self.run_id, self.eviction = info["run_id"], info.get("maxmemory_policy", "")
            await self._allowed(wire)
        except BaseException:
            wire.abort("it cannot be used")
            raise
        self.wire = wire
        return wire

    async def _allowed(self, wire: Wire) -> None:
        """See that no script will end half done for want of a right. Raises StoreRefused: it would."""
        address, stem = self._lines.common.address, self._lines.common.names.stem(0)
        needed = vital(address.shape, replicated=address.replicas_ms > 0)
        answer: list[int]
        _, answer = await asyncio.gather(
            self._ask(wire, "SCRIPT", "LOAD", QUESTION),
            self._ask(wire, "EVALSHA", QUESTION_SHA, "0", *calls(needed, stem)),
        )
        lacks = lacking(answer, needed, stem)
        if lacks:
            raise StoreRefused(f"{self.endpoint}: {lacks}. All rights: {RIGHTS_PAGE}; selaras doctor prints the rule")

    async def _ask(self, wire: Wire, *command: Word) -> Any:
        try:
            reply = await wire.send(pack(*command), 1, self._lines.common.address.account.connect_s)
        except WireLost as error:
            raise Passing(f"{self.endpoint}: {error}") from error
        if isinstance(reply, ReplyError):
            raise told(
                reply, meaning_of(reply), where=str(self.endpoint), doing=" ".join(str(word) for word in command[:2])
            )
        return reply

    def _look_again(self, wire: Wire) -> None:
        if self._probe is None or self._probe.done():
            self._probe = self._lines.loop.create_task(self._ask_aside(wire))

    async def _ask_aside(self, wire: Wire) -> None:
        """A second connection tells a dead one from a busy server, which answers neither."""
        begun = self._lines.loop.time()
        account = self._lines.common.address.account
        try:
            async with asyncio.timeout(PROBE_S):
                await ask_once(self.endpoint, account, ("PING",))
                await rest(PROBE_S / 8)  # what was written before the answer has its time to arrive
        except (TimeoutError, StoreUnavailable):
            return
        if wire.heard_at < begun:
            wire.abort("the connection is dead: the server answers over another one")

    def end(self) -> None:
        """End the connection."""
        for task in (self._attempt, self._probe):
            if task is not None:
                task.cancel()
        if self.wire is not None:
            self.wire.abort("the store was closed")


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


async def _shared(task: Task[Wire], patience: Patience, slow: Callable[[], str]) -> Wire:
    """Wait for what others wait for, too: nobody's end ends it. `slow`: says what takes so long."""
    await asyncio.wait((task,), timeout=max(patience.left_s, 0))
    if not task.done():
        raise StoreUnavailable(slow())
    if task.cancelled():
        raise StoreUnavailable("the store was closed")
    if (error := task.exception()) is not None:
        raise _again(error)
    return task.result()


def _again(error: BaseException) -> BaseException:
    """Return an error for one of several who hear of it."""
    if isinstance(error, StoreUnavailable):
        return type(error)(str(error))
    return error


def _info(*answers: bytes) -> dict[str, str]:
    lines = (line.partition(":") for answer in answers for line in answer.decode().splitlines() if line[:1] != "#")
    return {name: value for name, sign, value in lines if sign}
