"""What all connections of a store share: where it is, how scripts are called there, how long a caller waits."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from selaras._contracts.clock import Entropy
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.retry import Backoff
from selaras._stores.redis.address import Endpoint, Names, RedisAddress
from selaras._stores.redis.topology import Topology
from selaras._stores.redis.wire import Wire, WireLost, Word, rest, tail

Command = Sequence[Word]

LOOKS: Final = Backoff(first_us=10_000, most_us=200_000)
"""How often a caller that waits looks whether it can go on: somebody else may have the partition now."""


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


async def share(task: Task[Wire], patience: Patience, delay: Callable[[], str]) -> Wire:
    """Wait for what others wait for, too: nobody's end ends it. `delay`: says what takes so long."""
    await asyncio.wait((task,), timeout=max(patience.left_s, 0))
    if not task.done():
        raise StoreUnavailable(delay())
    if task.cancelled():
        raise StoreUnavailable("the store was closed")
    if (error := task.exception()) is not None:
        raise repeated(error)
    return task.result()


def repeated(error: BaseException) -> BaseException:
    """Return an error for one of several who hear of it."""
    if isinstance(error, StoreUnavailable):
        return type(error)(str(error))
    return error
