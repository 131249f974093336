"""Every kind of store, by name: what it is and how many partitions it has."""

from __future__ import annotations

import atexit
import itertools
import os
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from tests.clock import VirtualClock
from tests.redis.binaries import REQUIRED, binaries
from tests.redis.servers import Cluster, RedisServer, Sentinels, shared_server

from selaras._contracts.store import Store
from selaras._stores.memory import MemoryStore
from selaras._stores.redis.address import Names, redis_address
from selaras._stores.redis.caller import Caller
from selaras._stores.redis.partition import RedisPartition
from selaras._stores.redis.rights import rule
from selaras._stores.redis.scripts import LEDGER, script
from selaras._stores.redis.store import FORMAT, RedisStore
from selaras._stores.sqlite.store import SqliteStore

_WANTED: Final = os.environ.get("SELARAS_TEST_STORES")
_ONE_SERVER: Final = ("redis-1", "redis-4") if (binaries() or REQUIRED) and _WANTED != "embedded" else ()
_MANY_SERVERS: Final = ("sentinel-4", "cluster-4", "cluster-16") if _WANTED == "all" else ()
"""Their servers take seconds to start, and their trips are longer: `SELARAS_TEST_STORES=all pytest tests/conformance`;
with `embedded` it is run on no server, and on one partition: that tells what another Python breaks."""

_OF_FOUR: Final = ("memory-4", "sqlite-4") if _WANTED != "embedded" else ()
KINDS: Final = ("memory-1", "sqlite-1", *_OF_FOUR, *_ONE_SERVER, *_MANY_SERVERS)

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

    def __init__(self, caller: Caller, partitions: int, names: Names, server: Callable[[], RedisServer]) -> None:
        super().__init__(caller, partitions)
        self._partitions = partitions
        self._names = names
        self._server = server

    def members(self, index: str) -> list[str]:
        """Return who stands in an index, but for the one that lets its key be there."""
        found = self._server().call("ZRANGE", self._names.key(self.index, index), 0, -1)
        assert isinstance(found, list)
        return [member for member in map(str, found) if member != "\udcff"]

    def calls(self, command: str) -> int:
        """Return how often its server was called by a command."""
        return self._server().calls().get(command, 0)

    def stand(self, index: str, member: str) -> None:
        """Let somebody stand there whom nobody has put there, and first."""
        self._server().call("ZADD", self._names.key(self.index, index), 1, member)

    def overwrite(self, rows: str, field: str, written: Callable[[bytes], bytes] = lambda _: b"something else") -> None:
        """Let somebody else write there. `written`: what, instead of what stood there."""
        key = self._names.key(self.index, rows)
        row = self._server().call("HGET", key, field)
        assert isinstance(row, str), f"nothing stands there: {row}"
        self._server().call("HSET", key, field, written(row.encode(errors="surrogateescape")))

    def damage_marks(self, how: str) -> None:
        """Let somebody else write over where the last events of tags and families stand: `how` is a way, or a position."""
        call, key = self._server().call, self._names.key(self.index, "marks")
        marks = [member for member in self.members("marks") if member.startswith("1:")]
        if how[-1].isdigit() or how.endswith("inf"):
            call("ZADD", key, how, *marks)
        elif how == "a mark":
            (mark,) = marks
            position = call("ZSCORE", key, mark)
            call("ZREM", key, mark)
            call("ZADD", key, str(position), "something else")
        else:
            call("DEL", key)
            if how == "another type":
                call("SET", key, "something else")

    def retype(self, name: str, *, lost: bool = False) -> None:
        """Let somebody else write over a whole key, or take it away."""
        call, key = self._server().call, self._names.key(self.index, name)
        call("DEL", key) if lost else call("SET", key, "something else")

    def intents_left(self, key: str) -> Callable[[], None]:
        """Return what puts the intents on a key back as they stand now, as where an end broke off before it took them away."""
        call, intents, meta = self._server().call, *(self._names.key(self.index, name) for name in ("intents", "meta"))
        left = call("HGET", intents, key)
        assert isinstance(left, str)

        def put_back() -> None:
            call("HSET", intents, key, left.encode(errors="surrogateescape"))
            call("HSET", meta, "mend", "jobs 0")

        return put_back

    def done(self) -> int:
        """Return how many commands the server has run."""
        told = str(self._server().call("INFO", "commandstats"))
        return sum(int(calls) for calls in re.findall(r"calls=(\d+)", told))

    def said(self, field: str) -> str:
        """Return what the partition says of itself."""
        return str(self._server().call("HGET", self._names.key(self.index, "meta"), field))

    def lose_memory(self, *, events: int) -> None:
        """Forget the last `events` events and all entries: a new epoch."""
        keys = [self._names.key(self.index, name) for name in ("meta", "log")]
        self._server().call("EVAL", _LOSE_EVENTS, 2, *keys, events)
        greet = script("greet")
        asked = msgspec.msgpack.encode((FORMAT, self._partitions, self.index, f"lost-{next(_NUMBERS)}", 0, -1))
        keys = [self._names.key(self.index, name) for name in greet.keys]
        self._server().call("EVAL", greet.text, len(keys), *keys, 1, 0, 0, 0, asked)


def make_store(kind: str, folder: Path, clock: VirtualClock, entropy: Random) -> Store:
    """Make a store that is not open yet."""
    name, _, text = kind.partition("-")
    count = int(text)
    match name:
        case "memory":
            return MemoryStore(clock, partitions=count, entropy=entropy)
        case "redis":
            return _redis_store(_url_of_one(), lambda _: shared_server(), count, clock, entropy)
        case "sentinel":
            return _redis_store(_sentinels().url, lambda _: _sentinels().master, count, clock, entropy)
        case "cluster":
            return _redis_store(_cluster().url, lambda slot: _cluster().owner(slot), count, clock, entropy)
        case _:
            return SqliteStore(folder / "selaras.db", clock, partitions=count, entropy=entropy)


def _redis_store(
    url: str, server_of: Callable[[int], RedisServer], count: int, clock: VirtualClock, entropy: Random
) -> RedisStore:
    """Make one of its own on servers that all tests of this process share; `server_of`: who has a slot."""
    address = redis_address(url, f"test-{next(_NUMBERS)}")
    store = RedisStore(address, partitions=count, entropy=entropy, server_time=clock)
    names = Names(address.prefix)
    store.partitions = [
        ForgetfulPartition(
            Caller(store.link, index, entropy, clock.wall_us), count, names, partial(server_of, names.slot(index))
        )
        for index in range(count)
    ]
    return store


def clear_servers() -> None:
    """Remove what stores left on the servers that they shared."""
    if shared_server.cache_info().currsize:
        shared_server().clear()
    if _cluster.cache_info().currsize:
        _cluster().clear()
    if _sentinels.cache_info().currsize:
        _sentinels().master.clear()


@cache
def _url_of_one() -> str:
    """Whatever stores do there, they do as a user that may do no more than the docs say."""
    return shared_server().add_user("store", "pw", *rule("test", "single").replace("test:", "test-*:").split(" "))


@cache
def _sentinels() -> Sentinels:
    sentinels = Sentinels().start()
    atexit.register(sentinels.stop)
    return sentinels


@cache
def _cluster() -> Cluster:
    cluster = Cluster().start()
    atexit.register(cluster.stop)
    return cluster
