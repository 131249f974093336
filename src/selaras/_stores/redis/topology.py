"""Which server holds which partition, and how that is found out anew.

A map is replaced as a whole, so that any thread may read it. What doubts it is told to it; it is made anew
by whoever needs it next.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import structs

from selaras._core.errors import ConfigurationError, StoreRefused, StoreUnavailable
from selaras._stores.redis.address import Account, Endpoint, Names, RedisAddress

LOOK_S: Final = 1.0
"""So long a node may take to tell the map; then the next one is asked."""

_REFERS: Final = re.compile(r"(?:MOVED|ASK) ([0-9]{1,5}) (\S*):([0-9]{1,5})", re.ASCII)

Ask = Callable[[Endpoint, Account, tuple[str, ...]], Awaitable[Any]]
"""Ask a server one command over a connection made for that. Raises StoreUnavailable."""


class Topology(Protocol):
    """A map of partitions to servers."""

    def place(self, partition: int) -> Endpoint | None:
        """Return who holds the partition; None: nobody is known to."""
        ...

    def doubt(self, endpoint: Endpoint) -> None:
        """It did not answer, or is not the master: find out anew before the next attempt."""
        ...

    def moved(self, partition: int, endpoint: Endpoint) -> None:
        """A server said who holds the partition."""
        ...

    @property
    def doubted(self) -> bool:
        """The map should be made anew."""
        ...

    async def discover(self, ask: Ask) -> None:
        """Make the map anew. Raises StoreUnavailable."""
        ...


def topology_of(address: RedisAddress, names: Names, partitions: int) -> Topology:
    """Make the map of an address, still empty where it must be asked for."""
    match address.shape:
        case "single":
            return Single(address.endpoints[0])
        case "sentinel":
            return Sentinels(address)
        case "cluster":
            return Cluster(address, [names.slot(index) for index in range(partitions)])


class Single:
    """One server for all."""

    doubted = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def place(self, partition: int) -> Endpoint | None:
        """See `Topology`."""
        del partition
        return self._endpoint

    def doubt(self, endpoint: Endpoint) -> None:
        """There is no other."""

    def moved(self, partition: int, endpoint: Endpoint) -> None:
        """See `Topology`."""
        del partition
        raise ConfigurationError(
            f"{self._endpoint} is a node of a cluster (it refers us to {endpoint}): say so, redis+cluster://{self._endpoint}"
        )

    async def discover(self, ask: Ask) -> None:
        """There is nothing to find out."""


class Sentinels:
    """The master of a service, as the first sentinel that answers says."""

    def __init__(self, address: RedisAddress) -> None:
        self.sentinels = list(address.endpoints)
        self.account = address.sentinel_account
        self.question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
        self._service = address.service
        self._master: Endpoint | None = None
        self._said: Mapping[Endpoint, Endpoint] = {}  # by sentinel, when all were asked last
        self.doubted = True

    def place(self, partition: int) -> Endpoint | None:
        """See `Topology`."""
        del partition
        return self._master

    def doubt(self, endpoint: Endpoint) -> None:
        """See `Topology`."""
        if endpoint == self._master:
            self.doubted = True

    def moved(self, partition: int, endpoint: Endpoint) -> None:
        """See `Topology`."""
        del partition
        raise ConfigurationError(
            f"the master of {self._service!r} is a node of a cluster: use redis+cluster://{endpoint}"
        )

    async def discover(self, ask: Ask) -> None:
        """See `Topology`."""
        silent: list[StoreUnavailable] = []
        for sentinel in tuple(self.sentinels):
            try:
                answer = await ask(sentinel, self.account, self.question)
            except StoreUnavailable as error:
                silent.append(error)
                continue
            if answer is None:
                silent.append(StoreUnavailable(f"{sentinel} does not know it"))
                continue
            self._follow(sentinel, self.named(answer))
            return
        if silent and all("unknown command 'SENTINEL'" in str(error) for error in silent):
            raise StoreRefused(
                f"{self.sentinels[0]} is no sentinel: name the sentinels' hosts and ports, or the server itself, redis://…"
            )
        raise _nobody(f"no sentinel tells the master of {self._service!r}", silent)

    def told(self, said: Mapping[Endpoint, Endpoint]) -> bool:
        """Hear whom each sentinel names that answers now. Returns whether that is news: another master than ours.

        While word of a failover goes round some name the old one yet: whoever has changed its mind is ahead of them.
        """
        before, self._said = self._said, {**self._said, **said}
        ahead = [sentinel for sentinel, master in said.items() if before.get(sentinel, master) != master]
        if not ahead and len(set(said.values())) == 1:
            ahead = list(said)
        if not ahead or self._master is None or said[ahead[0]] == self._master:
            return False
        self._follow(ahead[0], said[ahead[0]])
        return True

    def _follow(self, sentinel: Endpoint, master: Endpoint) -> None:
        # The one that knows is asked first the next time.
        self.sentinels = [sentinel, *(one for one in self.sentinels if one != sentinel)]
        self._master = master
        self.doubted = False

    @staticmethod
    def named(answer: list[bytes]) -> Endpoint:
        """Read whom a sentinel names."""
        return Endpoint(answer[0].decode(), int(answer[1]))


class Cluster:
    """The masters of a cluster, each with its slots."""

    def __init__(self, address: RedisAddress, slots: list[int]) -> None:
        self._seeds = address.endpoints
        self._account = structs.replace(address.account, connect_s=LOOK_S, silence_s=LOOK_S)
        self._slots = slots
        self._nodes: tuple[Endpoint, ...] = ()
        self._map: Mapping[int, Endpoint] = {}  # of partitions
        self.doubted = True

    def place(self, partition: int) -> Endpoint | None:
        """See `Topology`."""
        return self._map.get(partition)

    def doubt(self, endpoint: Endpoint) -> None:
        """See `Topology`."""
        self._nodes = (*(node for node in self._nodes if node != endpoint), endpoint)  # asked last
        self.doubted = True

    def moved(self, partition: int, endpoint: Endpoint) -> None:
        """See `Topology`."""
        slot = self._slots[partition]
        here = {index: endpoint for index, one in enumerate(self._slots) if one == slot}
        self._map = {**self._map, **here}
        if endpoint not in self._nodes:
            self._nodes = (*self._nodes, endpoint)

    async def discover(self, ask: Ask) -> None:
        """See `Topology`."""
        silent: list[StoreUnavailable] = []
        for node in dict.fromkeys((*self._nodes, *self._seeds)):
            try:
                ranges = await ask(node, self._account, ("CLUSTER", "SLOTS"))
            except StoreUnavailable as error:
                silent.append(error)
                continue
            self._learn(node, ranges)
            self.doubted = False
            return
        if silent and all("cluster support disabled" in str(error) for error in silent):
            raise StoreRefused(f"{self._seeds[0]} is no node of a cluster: say redis://{self._seeds[0]}")
        raise _nobody("no node of the cluster answers", silent)

    def _learn(self, asked: Endpoint, ranges: list[Any]) -> None:
        places: dict[int, Endpoint] = {}
        nodes: dict[Endpoint, None] = {}
        for first, last, *holders in ranges:
            known = [_endpoint(asked, holder) for holder in holders]
            nodes.update(dict.fromkeys(known))
            for index, slot in enumerate(self._slots):
                if first <= slot <= last:
                    places[index] = known[0]
        self._map = places
        self._nodes = tuple(nodes)


def _nobody(said: str, errors: Sequence[StoreUnavailable]) -> StoreUnavailable:
    """Return what is said where nobody answered. Where each has refused us, waiting does not help."""
    is_refused = bool(errors) and all(isinstance(error, StoreRefused) for error in errors)
    kind = StoreRefused if is_refused else StoreUnavailable
    return kind(f"{said}: {'; '.join(map(str, errors))}")


def _endpoint(asked: Endpoint, holder: list[Any]) -> Endpoint:
    """Read `[host, port, id, ...]`; a node that does not know its own name is where it was asked."""
    host = holder[0].decode() if holder[0] else ""
    return Endpoint(asked.host if host in ("", "?") else host, int(holder[1]))


def redirection(text: str, asked: Endpoint) -> Endpoint:
    """Read `MOVED 3999 host:port` or `ASK ...`; without a host it is the one that was asked. Raises StoreUnavailable."""
    return referred(text, asked)[1]


def referred(text: str, asked: Endpoint) -> tuple[int, Endpoint]:
    """Read a redirection with its slot. Raises StoreUnavailable: it names no server."""
    found = _REFERS.fullmatch(text)
    if found is None:
        raise StoreUnavailable(f"{asked} refers us to no server that could be asked: {text[:200]!r}")
    slot, host, port = found.groups()
    return int(slot), Endpoint(host.strip("[]") or asked.host, int(port))
