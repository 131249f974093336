"""The stores that chaos runs on, and what can go wrong with each."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct
from tests.redis.proxy import Proxy
from tests.redis.servers import Cluster, RedisServer, Sentinels

_TMPFS_MIB: Final = 160
"""Room for a write-ahead log of the greatest length, and a file beside it."""


class Ill(Struct, frozen=True):
    """What was done. `heal` undoes it after `seconds`; the rest as in `Fault`."""

    seconds: float = 0.0
    heal: Callable[[], object] = lambda: None
    loses: bool = False
    moves: bool = False
    forks: bool = False


Act = Callable[[Random], Ill]


class Ground(ABC):
    """A store. `lossy`: with faults that may lose what was answered."""

    def __init__(self, *, lossy: bool) -> None:
        self.lossy = lossy
        self.left_out: list[str] = []
        self._stack = ExitStack()

    @abstractmethod
    def open(self) -> str:
        """Start it. Returns its URL."""

    @abstractmethod
    def acts(self) -> Mapping[str, Act]:
        """Return what can be done to it."""

    def heal(self) -> None:  # noqa: B027 - what heals by itself needs nothing
        """Make it whole."""

    def close(self) -> None:
        """End it."""
        self._stack.close()


# ---------------------------------------------------------------- SQLite


class OnSqlite(Ground):
    """A file, where the machine allows in a small file system of its own, which can be filled."""

    _folder: Path
    _can_fill = False

    def open(self) -> str:
        """Start it. Returns its URL."""
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="selaras-chaos-")))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS_MIB}m", "selaras-chaos", str(self._folder)]
        if os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self._can_fill = True
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(self._folder)], check=False)
        else:
            self.left_out.append("disk-full: no file system may be mounted here")
        return f"sqlite:///{self._folder / 'selaras.db'}"

    def acts(self) -> Mapping[str, Act]:
        """Return what can be done to it."""
        acts: dict[str, Act] = {"foreign-lock": self._lock}
        if self._can_fill:
            acts["disk-full"] = self._fill
        return acts

    def _lock(self, chance: Random) -> Ill:
        """Another program holds the file's write lock."""
        connection = sqlite3.connect(self._folder / "selaras.db", timeout=10, isolation_level=None)
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            connection.close()
            return Ill()

        def heal() -> None:
            connection.execute("rollback")
            connection.close()

        return Ill(chance.uniform(0.5, 5), heal)

    def _fill(self, chance: Random) -> Ill:
        ballast = self._folder / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass
        return Ill(chance.uniform(1, 4), lambda: ballast.unlink(missing_ok=True))

    def heal(self) -> None:
        """Make it whole."""
        (self._folder / "ballast").unlink(missing_ok=True)


# ---------------------------------------------------------------- servers


def _flush_scripts(server: RedisServer) -> Ill:
    server.call("SCRIPT", "FLUSH")
    return Ill()


def _storm(server: RedisServer, chance: Random) -> Ill:
    """Every connection is killed, several times."""
    for _ in range(chance.randrange(1, 6)):
        for kind in ("normal", "pubsub"):
            server.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    return Ill()


def _fill_memory(server: RedisServer, chance: Random) -> Ill:
    """No room for anything new; or, with a volatile policy, for no cached value."""
    policy = chance.choice(["noeviction", "volatile-lru"])
    server.call("CONFIG", "SET", "maxmemory-policy", policy)
    server.call("CONFIG", "SET", "maxmemory", max(1, int(server.info("memory")["used_memory"]) // 2))

    def heal() -> None:
        if server.running:
            server.call("CONFIG", "SET", "maxmemory", 0)

    return Ill(chance.uniform(0.5, 3), heal)


class OnRedis(Ground):
    """One server, behind a network that fails."""

    _server: RedisServer
    _proxy: Proxy

    def open(self) -> str:
        """Start it. Returns its URL."""
        self._server = self._stack.enter_context(RedisServer(appendonly="yes", appendfsync="always"))
        self._proxy = self._stack.enter_context(Proxy(self._server.address))
        return self._proxy.through(self._server.url)

    def acts(self) -> Mapping[str, Act]:
        """Return what can be done to it."""
        acts: dict[str, Act] = {
            "cut": lambda _: self._net(self._proxy.cut),
            "delay": lambda chance: self._net(
                lambda: self._proxy.delay(chance.uniform(0.02, 0.4)), chance.uniform(0.5, 3)
            ),
            "throttle": lambda chance: self._net(lambda: self._proxy.throttle(20_000), chance.uniform(0.5, 3)),
            "swallow": lambda chance: self._net(self._proxy.swallow, chance.uniform(0.5, 6)),
            "half-open": self._half_open,
            "lose-reply": lambda chance: self._net(lambda: self._proxy.lose_reply(chance.choice([0, 0, 40, 4_000]))),
            "refuse": lambda chance: self._net(self._proxy.refuse, chance.uniform(0.5, 5)),
            "pause": self._pause,
            "restart": self._restart,
            "crash": self._crash,
            "script-flush": lambda _: _flush_scripts(self._server),
            "client-kill": lambda chance: _storm(self._server, chance),
            "maxmemory": lambda chance: _fill_memory(self._server, chance),
        }
        if self.lossy:
            acts |= {"restart-lost": self._lose, "flushdb": self._flush}
        return acts

    def heal(self) -> None:
        """Make it whole."""
        self._proxy.heal()
        self._server.resume()
        self._server.call("CONFIG", "SET", "maxmemory", 0)

    def _net(self, do: Callable[[], None], seconds: float = 0.0) -> Ill:
        do()
        return Ill(seconds, self._proxy.heal)

    def _half_open(self, chance: Random) -> Ill:
        """One connection stays, and nothing goes through."""
        links = self._proxy.links
        if links:
            self._proxy.swallow_link(chance.choice(links))
        return Ill(chance.uniform(2, 8), self._proxy.heal)

    def _pause(self, chance: Random) -> Ill:
        self._server.pause()
        return Ill(chance.uniform(0.5, 5), self._server.resume)

    def _restart(self, _: Random) -> Ill:
        self._server.restart()
        return Ill()

    def _crash(self, chance: Random) -> Ill:
        self._server.kill()
        return Ill(chance.uniform(0, 3), self._server.start)

    def _lose(self, _: Random) -> Ill:
        self._server.restart(lose=True)
        return Ill(loses=True)

    def _flush(self, _: Random) -> Ill:
        self._server.call("FLUSHALL")
        return Ill(loses=True)


class OnSentinel(Ground):
    """A master, a replica and three sentinels; what was answered is on both, unless `lossy`."""

    _all: Sentinels

    def open(self) -> str:
        """Start it. Returns its URL."""
        self._all = self._stack.enter_context(Sentinels(appendonly="yes", appendfsync="always"))
        return self._all.url_for(query="" if self.lossy else "durability=replicated")

    def acts(self) -> Mapping[str, Act]:
        """Return what can be done to it."""
        return {
            "failover": self._fail_over,
            "replaced-alive": self._replace_alive,
            "pause": self._pause,
            "sentinel-killed": self._kill_sentinel,
            "script-flush": lambda _: _flush_scripts(self._all.master),
            "client-kill": lambda chance: _storm(self._all.master, chance),
            "maxmemory": lambda chance: _fill_memory(self._all.master, chance),
        }

    def _fail_over(self, _: Random) -> Ill:
        old = self._all.master
        old.kill()
        self._all.until_master(old)
        old.start()
        self._until_whole()
        return Ill(moves=True, loses=self.lossy)

    def _replace_alive(self, chance: Random) -> Ill:
        """The old master goes on as one, until a sentinel makes it a replica."""
        old = self._all.master
        chance.choice(self._all.sentinels).call("SENTINEL", "FAILOVER", self._all.NAME)
        self._all.until_master(old)
        self._until_whole()
        return Ill(moves=True, loses=self.lossy, forks=True)

    def _pause(self, chance: Random) -> Ill:
        """It comes back as a master that has been replaced, or before anybody noticed."""
        master = self._all.master
        master.pause()

        def heal() -> None:
            master.resume()
            self._until_whole()

        return Ill(chance.uniform(0.2, 6), heal, moves=True, loses=self.lossy)

    def _kill_sentinel(self, chance: Random) -> Ill:
        sentinel = chance.choice(self._all.sentinels)
        sentinel.kill()
        return Ill(chance.uniform(0.5, 3), sentinel.start)

    def _until_whole(self) -> None:
        from tests.redis.servers import until

        until(lambda: all(replica.is_in_step() for replica in self._all.replicas), "the replica follows", 60)


class OnCluster(Ground):
    """Three masters with a replica each; what was answered is on both, unless `lossy`."""

    _all: Cluster

    def open(self) -> str:
        """Start it. Returns its URL."""
        self._all = self._stack.enter_context(Cluster(appendonly="yes", appendfsync="always"))
        return self._all.url + ("?partitions=4" if self.lossy else "?partitions=4&durability=replicated")

    def acts(self) -> Mapping[str, Act]:
        """Return what can be done to it."""

        def master(chance: Random) -> RedisServer:
            return chance.choice(self._all.masters)

        return {
            "failover": self._fail_over,
            "handover": self._hand_over,
            "migration": self._migrate,
            "pause": self._pause,
            "script-flush": lambda chance: _flush_scripts(master(chance)),
            "client-kill": lambda chance: _storm(master(chance), chance),
            "maxmemory": lambda chance: _fill_memory(master(chance), chance),
        }

    def heal(self) -> None:
        """Make it whole."""
        self._all.until_ok()

    def _slot(self, chance: Random) -> int:
        return self._all.slot("{airline." + str(chance.randrange(4)) + "}")

    def _fail_over(self, chance: Random) -> Ill:
        slot = self._slot(chance)
        old = self._all.owner(slot)
        old.kill()
        self._all.until_owner(slot, old)
        old.start()
        self._all.until_ok()
        return Ill(moves=True, loses=self.lossy)

    def _hand_over(self, chance: Random) -> Ill:
        """A replica takes over in order: nothing is lost."""
        slot = self._slot(chance)
        old = self._all.owner(slot)
        replicas = self._all.replicas_of(old)
        if replicas:
            replicas[0].call("CLUSTER", "FAILOVER")
            self._all.until_owner(slot, old)
        return Ill()

    def _migrate(self, chance: Random) -> Ill:
        slot = self._slot(chance)
        owner = self._all.owner(slot)
        target = chance.choice([master for master in self._all.masters if master is not owner])
        self._all.migrate(slot, target)
        self._all.until_ok()
        return Ill()

    def _pause(self, chance: Random) -> Ill:
        node = chance.choice(self._all.masters)
        node.pause()

        def heal() -> None:
            node.resume()
            self._all.until_ok()

        return Ill(chance.uniform(0.2, 4), heal, moves=True, loses=self.lossy)


GROUNDS: Final[Mapping[str, type[Ground]]] = {
    "sqlite": OnSqlite,
    "redis": OnRedis,
    "sentinel": OnSentinel,
    "cluster": OnCluster,
}
