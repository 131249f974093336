"""Brings calls to the servers that hold the partitions, from whatever event loop they are made on.

    call ─> the wire of the partition ─> reply
              │ none, lost, MOVED              │ NOSCRIPT: load (one for all), again    ASK: there, this once
              v                                │ SELARASGONE, WRONGTYPE: greet, again
            find, connect, greet (`lines`)     │ TRYAGAIN, LOADING, CLUSTERDOWN, READONLY...: wait, again

Laws:
    - What was sent and not answered is not sent again, unless the caller says that twice is once (`repeats`).
    - What an error reply refused was not done, and is sent again while the caller's patience lasts. A script that broke off
      at a key of another type counts as one whose reply was lost.
    - A script that ran is never sent again for the sake of the commands beside it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from selaras._core.errors import NotReplicated, StoreMismatch, StoreRefused, StoreUnavailable
from selaras._stores.redis.address import Endpoint
from selaras._stores.redis.context import Command, Common, Patience, Script
from selaras._stores.redis.convoy import Convoy
from selaras._stores.redis.errors import FINAL, Loading, Meaning, Passing, is_mistyped, meaning_of, told
from selaras._stores.redis.lines import ASKING, Lines
from selaras._stores.redis.topology import Sentinels, redirection
from selaras._stores.redis.watch import Watch
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, pack

_log = logging.getLogger("selaras")

LOADED_S: Final = 120.0
"""A server that was just started may load what it kept for so long before a process that starts beside it gives up."""

URGENT_S: Final = 1.0
"""The patience of a reader that has somewhere else to go: as long as `max_lag`."""

AT_ONCE_MOST: Final = 5
"""So often a command is sent again at once (moved, asked, loaded, greeted); after that, with a wait before."""

DURABLE: Final = frozenset({"enqueue", "settle", "turn"})
"""Verbs that accept jobs or end attempts. Where the store is to be replicated, their reply comes when a replica has what
they wrote, dependents that the same step released included.
"""


WAITS_MOST: Final = 2
"""For so many waits for replicas a durable call may have to wait: the one under way when it comes, and its own."""


def unheard() -> None:
    """Nobody wants to know."""


class Link:
    """The way to all partitions of a store, for every loop."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self._patience_s = common.address.account.silence_s
        self._replicas_ms = common.address.replicas_ms
        self.on_loop: Callable[[], None] = lambda: None  # called on a loop that is new to it
        self._lock = Lock()
        self._loops: dict[AbstractEventLoop, Lines] = {}
        self._closed = False
        self._watch = Watch(common.topology, self._replaced) if isinstance(common.topology, Sentinels) else None

    async def open(self) -> None:
        """Reach every partition, now; a server that loads its data is waited for, and so, a while, is one that is being replaced.

        Raises StoreUnavailable, StoreMismatch.
        """
        self._closed = False
        lines, common = self.lines(), self.common
        loaded, patience = Patience(LOADED_S, urgent=True), Patience(self._patience_s, urgent=True)
        for index in range(common.partitions):
            while True:
                try:
                    await lines.reach(index, Patience(self._patience_s, urgent=True))
                    break
                except Loading as error:
                    if not loaded.tries:
                        _log.warning("%s; it is waited for, %g s at most", error, LOADED_S)
                    await loaded.again(common.entropy, error)
                except (StoreRefused, StoreMismatch):
                    raise
                except StoreUnavailable as error:
                    # One server that cannot be reached is most likely not there; of several, another takes its place.
                    replaced = common.address.shape != "single" and common.topology.place(index) is not None
                    if not (replaced or isinstance(error, Passing)):
                        raise
                    await patience.again(common.entropy, error)

    async def close(self) -> None:
        """End all connections; what is under way on this loop is waited for, a while."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        with self._lock:
            loops, self._loops = self._loops, {}
        here = asyncio.get_running_loop()
        for loop, lines in loops.items():
            if loop is here:
                await lines.finish(self._patience_s)
            elif not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(lines.end)
                except RuntimeError:  # it was closed meanwhile
                    pass

    def lines(self) -> Lines:
        """Return the connections of the running loop. Raises StoreUnavailable: the store was closed."""
        loop = asyncio.get_running_loop()
        lines = self._loops.get(loop)
        if lines is not None:
            return lines
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"{self.common.address.shown} was closed")
            for other in [other for other in self._loops if other.is_closed()]:
                del self._loops[other]
            lines = self._loops[loop] = Lines(self.common, loop)
        lines.end_with_loop()
        self.on_loop()
        if self._watch is not None:
            self._watch.attend()
        return lines

    def _replaced(self) -> None:
        """The sentinels name another master."""
        with self._lock:
            loops = dict(self._loops)
        for loop, lines in loops.items():
            try:
                loop.call_soon_threadsafe(lines.replaced)
            except RuntimeError:  # it was closed meanwhile
                pass
        for index in range(self.common.partitions):
            self.common.on_moved(index)

    def ready(self, index: int, verb: str = "") -> Wire | None:
        """Return the connection of the running loop on which the partition was greeted, if it may be spoken over at once.

        `verb`: of the script that is to be called there; of one whose reply waits for replicas there is none.
        """
        if self._replicas_ms and verb in DURABLE:
            return None
        wire = self.lines().wires[index]
        return wire if wire is not None and wire.open and not wire.stuffed else None

    def within_s(self, *, urgent: bool) -> float:
        """Return how long a caller waits."""
        return URGENT_S if urgent else self._patience_s

    async def call(
        self,
        index: int,
        script: Script,
        args: Command,
        *,
        urgent: bool = False,
        repeats: bool = False,
        replicated: bool | None = None,
        on_repeat: Callable[[], None] = unheard,
    ) -> Any:
        """Run a script in a partition and return its reply.

        Args:
            urgent: the caller has somewhere else to go: it waits a second at most, and not for a server known to be away.
            repeats: twice does no more than once: it is sent again if its reply is lost.
            replicated: wait until a replica has it, if the store is to be so durable; None: as its verb does (`DURABLE`).
            on_repeat: told when a reply was lost, and the call is about to be sent again.

        Raises:
            NotReplicated: it was done.
            StoreUnavailable: nothing was done, or the text says that it may have been.
        """
        wire, lost, refused = self.lines().wires[index], False, None
        if wire is not None and not wire.stuffed and not (self._replicas_ms and self._waits(script, replicated)):
            # The common case, with nothing that it does not need.
            within_s = URGENT_S if urgent else self._patience_s
            try:
                reply = await wire.send(self.common.packed(index, script, args), 1, within_s)
            except WireLost as error:
                if error.sent and not repeats:
                    raise self.common.maybe_done(index, script.name, error) from error
                lost = error.sent
            else:
                if reply.__class__ is not ReplyError:
                    return reply
                refused = reply  # and so not done: what is to be done about it is found out there
        _, reply, _ = await self.call_among(
            *(index, (), script, args, ()),
            urgent=urgent,
            repeats=repeats,
            replicated=replicated,
            on_repeat=on_repeat,
            lost=lost,
            refused=refused,
        )
        return reply

    async def call_among(
        self,
        index: int,
        before: Sequence[Command],
        script: Script,
        args: Command,
        after: Sequence[Command],
        *,
        urgent: bool = False,
        repeats: bool = False,
        replicated: bool | None = None,
        on_repeat: Callable[[], None] = unheard,
        lost: bool = False,
        refused: Exception | None = None,
    ) -> tuple[list[Any], Any, list[Any]]:
        """Run a script with plain commands before and behind it, in one trip; these must bear being repeated.

        What they meet (a full memory, say) does not stop the script: it stands as an error in the place of their reply.
        `lost`: it was sent before, and its reply was lost. `refused`: it was sent before, and this was the reply.
        """
        waits = self._replicas_ms > 0 and self._waits(script, replicated)
        commands = [pack(*words) for words in before]
        commands.append(self.common.packed(index, script, args))
        commands += [pack(*words) for words in after]
        batch = _Batch(
            *(self, index, commands, script.name),
            repeats=repeats,
            place=len(before),
            script=script,
            waits=waits,
            on_repeat=on_repeat,
        )
        if lost:
            batch.lost()
        if refused is not None:
            batch.refused(refused)
        within_s = self.within_s(urgent=urgent) + (WAITS_MOST * self._replicas_ms / 1_000 if waits else 0)
        replies = await batch.run(Patience(within_s, urgent=urgent))
        if waits:
            self._check_replicas(batch.replicas, index, script.name)
        return replies[: len(before)], replies[len(before)], replies[len(before) + 1 :]

    async def pipeline(self, index: int, commands: Sequence[Command], *, urgent: bool = False) -> list[Any]:
        """Send plain commands to a partition in one trip; they must bear being repeated. Returns their replies, in order.

        Raises:
            StoreUnavailable: one of them was refused.
        """
        if not commands:
            return []
        packed = [pack(*words) for words in commands]
        patience = Patience(URGENT_S if urgent else self._patience_s, urgent=urgent)
        replies = await _Batch(self, index, packed, str(commands[0][0]), repeats=True).run(patience)
        if any(is_mistyped(reply) for reply in replies):
            self.lines().forget(index)  # greeted, it is mended
            replies = await _Batch(self, index, packed, str(commands[0][0]), repeats=True).run(patience)
        for words, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ReplyError):
                raise told(reply, meaning_of(reply), where=self.common.where(index), doing=str(words[0]))
        return replies

    def _waits(self, script: Script, replicated: bool | None) -> bool:
        return script.name in DURABLE if replicated is None else replicated

    def _check_replicas(self, reached: Any, index: int, name: str) -> None:
        if isinstance(reached, int) and reached >= 1:
            return
        raise NotReplicated(
            f"{self.common.doing(index, name)} was done at {self.common.where(index)}, but no replica had it within "
            f"{self._replicas_ms} ms (durability=replicated): a failover now would lose it"
        )


class _Batch:
    """Commands to one partition that go together, until each has its reply.

    Args:
        place: where the script stands among them, -1: there is none.
        waits: for replicas, when the script was done.

    Attributes:
        replicas: what the server answered about them.
    """

    def __init__(
        self,
        link: Link,
        index: int,
        commands: list[bytes],
        name: str,
        *,
        repeats: bool,
        place: int = -1,
        script: Script | None = None,
        waits: bool = False,
        on_repeat: Callable[[], None] = unheard,
    ) -> None:
        self.replicas: Any = None
        self._common = link.common
        self._lines = link.lines()
        self._index = index
        self._commands = commands
        self._name = name
        self._repeats = repeats
        self._place = place
        self._script = script
        self._waits = waits
        self._on_repeat = on_repeat
        self._lost = False
        self._replies: list[Any] = [None] * len(commands)
        self._todo = list(range(len(commands)))
        self._loads = False
        self._gone = False  # when it was sent last
        self._asks: Endpoint | None = None

    def lost(self) -> None:
        """The script was sent, and its reply was lost."""
        self._lost = True
        self._on_repeat()

    def refused(self, error: Exception) -> None:
        """The script was sent, and refused."""
        meaning = meaning_of(error)
        self._loads = meaning is Meaning.UNLOADED
        if meaning is Meaning.MISTYPED:
            self._broke_off(error)

    def _broke_off(self, error: Exception) -> None:
        """The script met a key of another type. Raises StoreUnavailable: it must not be sent again."""
        common, index = self._common, self._index
        self._lines.forget(index)
        if not self._repeats:
            doing = common.doing(index, self._name)
            raise told(error, Meaning.MISTYPED, where=common.where(index), doing=doing)
        self.lost()

    async def run(self, patience: Patience) -> list[Any]:
        """Send what has no reply yet, until all have one. Raises StoreUnavailable."""
        try:
            return await self._run(patience)
        except StoreUnavailable as error:
            is_open = self._lost and self._place in self._todo
            if not is_open or self._script is None or not self._script.writes:
                raise
            doing = self._common.doing(self._index, self._name)
            raise type(error)(f"{error}; {doing} was sent before that, and may have been done") from error

    async def _run(self, patience: Patience) -> list[Any]:
        while self._todo:
            wire, endpoint = await self._reach(patience)
            await wire.room()
            convoy = self._lines.convoy(wire) if self._waits and self._place in self._todo else None
            packed, wanted, places, loads = self._packed(wire, convoy)
            try:
                if convoy is None:
                    replies = await wire.send(packed, wanted, max(patience.left_s, 0.001))
                else:
                    replies, self.replicas = await convoy.send(packed, wanted, patience.left_s)
            except WireLost as error:
                if error.sent and self._place in self._todo:
                    if not self._repeats:
                        raise self._common.maybe_done(self._index, self._name, error) from error
                    self.lost()
                await patience.again(self._common.entropy, StoreUnavailable(f"{endpoint}: {error}"))
                continue
            finally:
                wire.loading.difference_update(loads)
            answers = [replies] if wanted == 1 else [replies[place] for place in places]
            refusal = self._judge(wire, endpoint, answers)
            if refusal is not None or patience.tries >= AT_ONCE_MOST:
                doing = self._common.doing(self._index, self._name)
                why = (
                    "loses keys of the store as soon as they are made: see its maxmemory-policy"
                    if self._gone
                    else "sends us in circles"
                )
                circles = StoreUnavailable(f"{endpoint} {why} ({doing}); nothing was done")
                await patience.again(self._common.entropy, refusal or circles)
            patience.tries += 1
        return self._replies

    async def _reach(self, patience: Patience) -> tuple[Wire, Endpoint]:
        if self._asks is not None:
            return await self._lines.reach_at(self._asks, patience, slow=self._waits), self._asks
        wire = await self._lines.reach(self._index, patience, slow=self._waits)
        node = self._lines.node_of(wire)
        return wire, node.endpoint if node is not None else Endpoint("?")

    def _packed(self, wire: Wire, convoy: Convoy | None) -> tuple[bytes, int, list[int], list[str]]:
        """Return what is to be sent, how many replies will come, where among them are those to what was asked, and the
        scripts that it loads.

        Of all who were told at once that a script is not there, one loads it: his command goes before those of the others.
        """
        parts: list[bytes] = []
        places: list[int] = []
        loads: list[str] = []
        script = self._script
        if script is not None and convoy is not None and script.sha not in convoy.loaded:
            self._loads = True
            convoy.loaded.add(script.sha)
        if script is not None and self._loads and script.sha not in wire.loading:
            parts.append(pack("SCRIPT", "LOAD", script.text))
            loads.append(script.sha)
            wire.loading.update(loads)
        for item in self._todo:
            if self._asks is not None:
                parts.append(ASKING)
            places.append(len(parts))
            parts.append(self._commands[item])
        self._loads, self._asks = False, None
        return b"".join(parts), len(parts), places, loads

    def _judge(self, wire: Wire, endpoint: Endpoint, answers: list[Any]) -> StoreUnavailable | None:
        """Keep what was answered, and see what the rest needs. Returns what must be waited for, if anything."""
        index, again = self._index, set[int]()
        self._gone = False
        refusal: StoreUnavailable | None = None
        for item, reply in zip(self._todo, answers, strict=True):
            self._replies[item] = reply
            if reply.__class__ is not ReplyError:
                continue
            meaning = meaning_of(reply)
            if meaning in FINAL:
                if item == self._place:
                    doing = self._common.doing(index, self._name)
                    text = self._script.text if self._script is not None else ""
                    if meaning is Meaning.REFUSED and text:  # it may have ended half done: once, and no more
                        self._lines.leave(wire, "a script was refused a command")
                    raise told(reply, meaning, where=str(endpoint), doing=doing, script=text)
                continue
            again.add(item)
            match meaning:
                case Meaning.MOVED:
                    self._lines.moved(index, redirection(str(reply), endpoint))
                case Meaning.ASK:
                    self._asks = redirection(str(reply), endpoint)
                case Meaning.UNLOADED:
                    self._loads = True
                case Meaning.GONE:
                    self._gone = True
                    self._lines.forget(index)
                case Meaning.MISTYPED:
                    self._broke_off(reply)
                case _:
                    if meaning is Meaning.DEMOTED:
                        self._lines.demoted(wire)
                    doing = self._common.doing(index, self._name)
                    refusal = StoreUnavailable(f"{endpoint} answered {str(reply)!r} ({doing}); nothing was done")
        if self._place in again:  # what stands behind the script goes behind it again
            again.update(item for item in self._todo if item > self._place)
        self._todo = [item for item in self._todo if item in again]
        return refusal
