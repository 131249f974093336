"""The Redis store: its partitions, the way to them, and what wakes this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.store import Bell, Pulse
from selaras._core.errors import StoreMismatch, StoreRefused
from selaras._core.positions import Grown
from selaras._stores.redis.address import CLUSTER_PARTITIONS, Names, RedisAddress
from selaras._stores.redis.caller import Caller
from selaras._stores.redis.context import Common, Greeting
from selaras._stores.redis.ear import Ear
from selaras._stores.redis.link import Link
from selaras._stores.redis.partition import RedisPartition
from selaras._stores.redis.pulse import PulseLoop, RedisPulse
from selaras._stores.redis.scripts import script
from selaras._stores.redis.topology import topology_of

_log = logging.getLogger("selaras")

FORMAT: Final = 2
"""What this version makes of its keys; another number is another layout."""

NEVER: Final = -1
"""In the place of an epoch: none was seen."""

_CHANCE_BITS: Final = 50
_ADDRESS_BITS: Final = 64


class RedisStore:
    """Partitions on one server, on the master that sentinels name, or on a cluster.

    Args:
        server_time: what scripts take for the time; the server's own unless a test gives a clock of its own.
    """

    returns = True

    def __init__(
        self,
        address: RedisAddress,
        *,
        partitions: int = 1,
        entropy: Entropy | None = None,
        server_time: Clock | None = None,
    ) -> None:
        chance = entropy or Random()  # ids of events and bells guard against mistakes, not against people
        self.url = address.shown
        self._address = address
        self._chance = chance
        self._now_us: Callable[[], int] | None = server_time.wall_us if server_time is not None else None
        self._epochs = [NEVER] * partitions
        self._warned = set[str]()  # of these eviction policies
        names = Names(address.prefix)
        topology = topology_of(address, names, partitions)
        common = Common(address, names, topology, partitions, chance, self._greet)
        self.link = Link(common)
        self._ear = Ear(common, self.link.lines)
        common.on_moved = self._ear.moved
        self.link.on_loop = self._ear.attend
        self._pulses = PulseLoop()
        self.partitions = [
            RedisPartition(Caller(self.link, index, chance, self._now_us), partitions) for index in range(partitions)
        ]

    async def open(self) -> None:
        """See `Store`."""
        await self.link.open()

    async def close(self) -> None:
        """See `Store`."""
        await self._ear.close()
        self._pulses.stop()
        await self.link.close()

    def pulse(self) -> Pulse:
        """See `Store`."""
        return RedisPulse(self._pulses, [partition.beat for partition in self.partitions])

    def bell(self) -> Bell:
        """See `Store`."""
        return self._ear.make_bell(f"{self._chance.getrandbits(_ADDRESS_BITS):016x}")

    def listen(self, told: Grown) -> None:
        """See `Store`."""
        self._ear.listen(told)

    async def _greet(self, greeting: Greeting) -> None:
        """Make what must always be there, and notice a lost memory (P20)."""
        index, count = greeting.index, len(self.partitions)
        sharded = self._address.shape == "cluster"
        loses_jobs = greeting.eviction.startswith("allkeys")
        request = (FORMAT, count, index, greeting.run_id, int(sharded), self._epochs[index], loses_jobs)
        now_us = self._now_us() if self._now_us is not None else 0
        words = (now_us, self._chance.getrandbits(_CHANCE_BITS), 0, 0, msgspec.msgpack.encode(request))
        *_, format_, partitions, epoch = await greeting.call(script("greet"), words)
        if not format_:
            raise StoreRefused(
                f"{self.url}: its maxmemory-policy is {greeting.eviction}: full, the server would throw jobs away, so no "
                "store is made there. Set noeviction, or volatile-lru: then only cached values go"
            )
        if format_ != FORMAT:
            raise StoreMismatch(
                f"{self.url}: what is stored under {self._address.prefix!r} has format {format_}, and this version of "
                f"Selaras reads format {FORMAT}: use the version that made it, or another prefix or namespace"
            )
        if partitions != count:
            raise StoreMismatch(
                f"{self.url}: the store under {self._address.prefix!r} was made with {_partitions(partitions)}, and {count} "
                f"{'was' if count == 1 else 'were'} asked for: say ?partitions={partitions} in the URL, or give it another "
                "prefix or namespace"
            )
        self._epochs[index] = max(self._epochs[index], epoch)
        if loses_jobs and greeting.eviction not in self._warned:
            self._warned.add(greeting.eviction)
            _log.warning(
                "%s: its maxmemory-policy is %s: when it is full, the server throws jobs away; set noeviction, or "
                "volatile-lru",
                self.url,
                greeting.eviction,
            )


def _partitions(count: int) -> str:
    return f"{count} partition" if count == 1 else f"{count} partitions"


def usual_partitions(address: RedisAddress) -> int:
    """Return how many partitions a store has if nobody says it: what suits its servers."""
    return CLUSTER_PARTITIONS if address.shape == "cluster" else 1
