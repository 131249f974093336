"""Every kind of store, by name: what it is and how many partitions it has."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from tests.clock import VirtualClock
from tests.redis.binaries import binaries
from tests.redis.servers import shared_server

from selaras._contracts.store import Store
from selaras._stores.memory import MemoryStore
from selaras._stores.redis.address import Names, redis_address
from selaras._stores.redis.caller import Caller
from selaras._stores.redis.partition import RedisPartition
from selaras._stores.redis.scripts import LEDGER, script
from selaras._stores.redis.store import FORMAT, RedisStore
from selaras._stores.sqlite.store import SqliteStore

REDIS_KINDS: Final = ("redis-1", "redis-4") if binaries() else ()
KINDS: Final = ("memory-1", "memory-4", "sqlite-1", "sqlite-4", *REDIS_KINDS)

_NUMBERS: Final = itertools.count(1)

_LOSE_EVENTS: Final = f"""#!lua
local ledger = {{struct.unpack('>{"d" * len(LEDGER)}', redis.call('HGET', KEYS[1], 'ledger'))}}
for _ = 1, math.min(ARGV[1], redis.call('LLEN', KEYS[2]) - 1) do redis.call('RPOP', KEYS[2]) end
local last = redis.call('LINDEX', KEYS[2], -1)
ledger[{LEDGER.index("position") + 1}], ledger[{LEDGER.index("event_id") + 1}] = struct.unpack('>dd', last)
redis.call('HSET', KEYS[1], 'ledger', struct.pack('>{"d" * len(LEDGER)}', unpack(ledger)))
"""


class ForgetfulPartition(RedisPartition):
    """One that can be made to lose its memory, as a failover to a lagging replica would (P20)."""

    def __init__(self, caller: Caller, partitions: int, names: Names) -> None:
        super().__init__(caller, partitions)
        self._partitions = partitions
        self._names = names

    def lose_memory(self, *, events: int) -> None:
        """Forget the last `events` events and all entries: a new epoch."""
        keys = [self._names.key(self.index, name) for name in ("meta", "log")]
        shared_server().call("EVAL", _LOSE_EVENTS, 2, *keys, events)
        greet = script("greet")
        asked = msgspec.msgpack.encode((FORMAT, self._partitions, self.index, f"lost-{next(_NUMBERS)}", 0, -1))
        keys = [self._names.key(self.index, name) for name in greet.keys]
        shared_server().call("EVAL", greet.text, len(keys), *keys, 1, 0, 0, 0, asked)


def make_store(kind: str, folder: Path, clock: VirtualClock, entropy: Random) -> Store:
    """Make a store that is not open yet."""
    name, _, count = kind.partition("-")
    if name == "memory":
        return MemoryStore(clock, partitions=int(count), entropy=entropy)
    if name == "redis":
        return _redis_store(int(count), clock, entropy)
    return SqliteStore(folder / "selaras.db", clock, partitions=int(count), entropy=entropy)


def _redis_store(count: int, clock: VirtualClock, entropy: Random) -> RedisStore:
    """Make one of its own on the server that all tests of this process share."""
    address = redis_address(shared_server().url, f"test-{next(_NUMBERS)}")
    store = RedisStore(address, partitions=count, entropy=entropy, server_time=clock)
    names = Names(address.prefix)
    store.partitions = [
        ForgetfulPartition(Caller(store.link, index, entropy, clock.wall_us), count, names) for index in range(count)
    ]
    return store
