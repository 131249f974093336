"""Real servers for tests: one alone, with Sentinel, as a Cluster; each on a private port, in a folder of its own.

A server is started, stopped, killed, paused (SIGSTOP) and started again as a test says, and spoken to with `call`:

    with RedisServer() as server:
        server.call("CONFIG", "SET", "maxmemory", "10mb")
        app = Selaras(server.url)

What still runs when the tests end, or are killed, ends with them (`watcher.py`). `shared_server()` is the one server of
this process that any test may use that leaves its settings alone.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import quote

from tests.redis.binaries import Binary, binary
from tests.redis.certificates import Certificates
from tests.redis.resp import Connection, Reply, ServerError

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 20.0
SLOTS: Final = 16_384

# Below the ports that the system gives to outgoing connections: one of those could take the port of a server that is
# about to be started again, or, dialling it, be connected to itself. A cluster's bus is 10,000 higher, and below them too.
_PORTS: Final = range(10_000, 22_000)
_BUS: Final = 10_000

_OUTAGE: Final = (OSError, ServerError, LookupError)


class NotStarted(Exception):
    """The server ended instead of answering; the end of its log."""


# ---------------------------------------------------------------- processes


class _Ground:
    """This process's folder for servers, and the watcher that clears it when this process has ended."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="selaras-servers-"))
        self._numbers = itertools.count(1)
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", Path(__file__).with_name("watcher.py"), self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the tests
        )
        self._pipe: IO[bytes] = self._watcher.stdin  # type: ignore[assignment] # it is a pipe
        atexit.register(self._close)

    def room(self, name: str) -> Path:
        room = self.folder / f"{next(self._numbers)}-{name}"
        room.mkdir()
        return room

    def tell(self, sign: str, pid: int) -> None:
        self._pipe.write(f"{sign}{pid}\n".encode())
        self._pipe.flush()

    def _close(self) -> None:
        self._pipe.close()
        self._watcher.wait(PATIENCE_S)


@cache
def _ground() -> _Ground:
    return _Ground()


class Process(ABC):
    """A server's process, whatever its part."""

    def __init__(self, name: str) -> None:
        self.folder = _ground().room(name)
        self.port = free_port()
        self._port_known = False  # to clients, by an earlier start
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def arguments(self) -> Sequence[str | Path]:
        """What to run; called at every start."""

    # -- the process

    def start(self, *, wait: bool = True) -> Self:
        """Start it; `wait` until it answers and has loaded its data, else `until_started` does."""
        self._launch()
        return self.until_started() if wait else self

    def until_started(self) -> Self:
        """Wait until it answers; on another port where a process was faster to take the one it had."""
        for last in (False, False, True):
            try:
                until(self._ready, f"{self} answers")
            except NotStarted:
                if last or self._port_known or "already in use" not in self.log():
                    raise
                self.port = free_port()
                self._launch()
            else:
                self._port_known = True
                break
        return self

    def _launch(self) -> None:
        assert self._process is None, "it runs already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                list(self.arguments()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _ground().tell("+", self._process.pid)

    def _ready(self) -> bool:
        if self._process and self._process.poll() is not None:
            self._gone()
            raise NotStarted(self.log()[-2000:])
        # A stranger on this port has another pid.
        return self.info("server").get("process_id") == str(self.pid) and not self._loading()

    def _loading(self) -> bool:
        return self.info("persistence").get("loading", "0") == "1"

    def stop(self) -> None:
        """Ask it to end, as an operator would: what its settings say it keeps is on disk then."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if not self._process:
            return
        self._process.send_signal(how)
        self.resume()  # a paused one hears nothing
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._gone()

    def _gone(self) -> None:
        assert self._process
        _ground().tell("-", self._process.pid)
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process, "it doesn't run"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- speaking to it

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def connect(self, *, timeout: float = 5.0) -> Connection:
        return Connection(self.address, timeout=timeout)

    def call(self, *words: str | bytes | float, timeout: float = 5.0) -> Reply:
        """One command over a connection of its own."""
        with self.connect(timeout=timeout) as connection:
            return connection.call(*words)

    def info(self, section: str = "all") -> dict[str, str]:
        """INFO's fields."""
        return _fields(self.call("INFO", section))

    def calls(self) -> dict[str, int]:
        """How often each command was carried out since `CONFIG RESETSTAT`."""
        return {
            name.removeprefix("cmdstat_"): int(said.partition("calls=")[2].partition(",")[0])
            for name, said in self.info("commandstats").items()
        }

    # -- its lifetime as a block

    def __enter__(self) -> Self:
        return self if self._process else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def __str__(self) -> str:
        return f"{type(self).__name__} at {self.port}"


# ---------------------------------------------------------------- one server


class RedisServer(Process):
    """One Redis or Valkey server.

    Settings are those of its configuration file with underscores: `RedisServer(maxmemory="10mb", appendonly="yes")`.
    Nothing is kept over a restart unless they say so. With `certificates` it speaks TLS only, and demands a client's
    certificate unless told `tls_auth_clients="no"`.
    """

    def __init__(
        self,
        binary_: Binary | None = None,
        *,
        certificates: Certificates | None = None,
        password: str = "",
        **settings: str | int,
    ) -> None:
        self.binary = binary_ or binary(tls=certificates is not None)
        super().__init__(self.binary.name)
        self.certificates = certificates
        self.password = password
        self.settings: dict[str, str | int] = settings

    def arguments(self) -> list[str | Path]:
        settings: dict[str, str | int | Path] = {
            "bind": HOST,
            "port": 0 if self.certificates else self.port,
            "dir": self.folder,
            "unixsocket": self.socket,
            "save": "",
            "repl-diskless-sync-delay": 0,
            "repl-ping-replica-period": 1,
            "enable-debug-command": "local",
        }
        if self.binary.version < (7,):
            del settings["enable-debug-command"]
        if self.certificates:
            settings |= {
                "tls-port": self.port,
                "tls-ca-cert-file": self.certificates.authority.certificate,
                "tls-cert-file": self.certificates.server.certificate,
                "tls-key-file": self.certificates.server.key,
            }
        if self.password:
            settings |= {"requirepass": self.password, "masterauth": self.password}
        settings |= {name.replace("_", "-"): value for name, value in self.settings.items()}
        return [
            self.binary.path,
            *itertools.chain(*((f"--{name}", *_words(value)) for name, value in settings.items())),
        ]

    def restart(self, *, lose: bool = False) -> Self:
        """Stop and start it at the same port; `lose` what was on disk."""
        if lose:
            self.kill()
            self.lose()
        else:
            self.stop()
        return self.start()

    def lose(self) -> None:
        """Remove what it kept on disk; it doesn't run."""
        for path in (*self.folder.glob("*.rdb"), *self.folder.glob("appendonlydir/*"), *self.folder.glob("*.aof")):
            path.unlink()

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def url(self) -> str:
        return self.url_for()

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket}"

    def url_for(self, user: str = "", password: str = "", *, db: int = 0, query: str = "", host: str = HOST) -> str:
        """The URL of its database for a user; a TLS server's names the authority and the client's certificate."""
        password = password or self.password
        who = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        if self.certificates:
            pair = self.certificates.client
            files = f"ssl_ca_certs={self.certificates.authority.certificate}"
            query = "&".join(filter(None, (query, files, f"ssl_certfile={pair.certificate}&ssl_keyfile={pair.key}")))
        scheme = "rediss" if self.certificates else "redis"
        return f"{scheme}://{who}{host}:{self.port}/{db}{'?' * bool(query)}{query}"

    def add_user(self, name: str, password: str, *rules: str) -> str:
        """Make an ACL user that may do only what the rules say, and give its URL."""
        self.call("ACL", "SETUSER", name, "reset", "on", f">{password}", *rules)
        return self.url_for(name, password)

    def connect(self, *, timeout: float = 5.0) -> Connection:
        tls = self.certificates.context() if self.certificates else None
        return Connection(self.address, tls=tls, password=self.password, timeout=timeout)

    def clear(self) -> None:
        """Remove every key and function; known scripts stay."""
        self.call("FLUSHALL", "SYNC")

    # -- replication

    def follow(self, master: RedisServer | None) -> None:
        """Become a replica of that one, and wait until it has all of its data; None: become a master."""
        if master is None:
            self.call("REPLICAOF", "NO", "ONE")
            return
        self.call("REPLICAOF", HOST, master.port)

        def is_online() -> bool:
            """The master's word counts, too: it waits for the first acknowledgement."""
            known = [text for name, text in master.info("replication").items() if name.startswith("slave")]
            return self.is_in_step() and any(f"port={self.port},state=online" in text for text in known)

        until(is_online, f"{self} follows {master}")

    def is_in_step(self) -> bool:
        """Whether it is a replica and connected to its master."""
        return self.info("replication").get("master_link_status") == "up"

    def replica(self, **settings: str | int) -> RedisServer:
        """Another server like this one, started, that follows it."""
        replica = RedisServer(self.binary, certificates=self.certificates, password=self.password)
        replica.settings = {**self.settings, **settings}
        replica.start().follow(self)
        return replica


@cache
def shared_server() -> RedisServer:
    """This process's server for every test that leaves its settings alone; ends with the process."""
    server = RedisServer().start()
    atexit.register(server.kill)
    return server


# ---------------------------------------------------------------- Sentinel


class Sentinel(Process):
    """One of the three that watch; its configuration is its own file, which it rewrites."""

    def __init__(self, binary_: Binary, watched: str, master: RedisServer, *, quorum: int) -> None:
        super().__init__("sentinel")
        self._binary = binary_
        self._watched = watched
        self._master = master
        self._quorum = quorum

    def arguments(self) -> list[str | Path]:
        file = self.folder / "sentinel.conf"
        if not file.exists() or not self._port_known:
            lines = [
                f"port {self.port}",
                f"bind {HOST}",
                f"dir {self.folder}",
                f"sentinel monitor {self._watched} {HOST} {self._master.port} {self._quorum}",
                f"sentinel down-after-milliseconds {self._watched} 500",
                f"sentinel failover-timeout {self._watched} 2000",
                f"sentinel parallel-syncs {self._watched} 1",
            ]
            if self._master.password:
                lines.append(f"sentinel auth-pass {self._watched} {self._master.password}")
            file.write_text("\n".join(lines) + "\n")
        return [self._binary.path, file, "--sentinel"]

    def _loading(self) -> bool:
        return False  # it has no data


class Sentinels:
    """A master, its replicas and three sentinels that agree on them.

    After `kill(the master)` a replica is the master within 2 to 3 seconds; within 7 where their votes were split, and
    they elect again.
    """

    NAME: Final = "selaras-master"

    def __init__(
        self, binary_: Binary | None = None, *, replicas: int = 1, password: str = "", **settings: str | int
    ) -> None:
        self.binary = binary_ or binary()
        self._first = RedisServer(self.binary, password=password)
        self._first.settings = settings
        self._replicas = replicas
        self.servers: list[RedisServer] = [self._first]
        self.sentinels: list[Sentinel] = []

    def start(self) -> Self:
        self._first.start()
        self.servers += [self._first.replica() for _ in range(self._replicas)]
        self.sentinels = [Sentinel(self.binary, self.NAME, self._first, quorum=2) for _ in range(3)]
        for sentinel in self.sentinels:
            sentinel.start(wait=False)
        until(self.agreed, "the sentinels know each other and the replicas")
        return self

    def agreed(self) -> bool:
        """Whether every sentinel knows the others, and all replicas as reachable."""
        for sentinel in self.sentinels:
            known = _pairs(sentinel.call("SENTINEL", "MASTER", self.NAME))
            if (known["num-other-sentinels"], known["num-slaves"]) != (
                str(len(self.sentinels) - 1),
                str(self._replicas),
            ):
                return False
            replicas = sentinel.call("SENTINEL", "REPLICAS", self.NAME)
            assert isinstance(replicas, list)
            if any(_pairs(replica)["flags"] != "slave" for replica in replicas):
                return False
        return True

    @property
    def master(self) -> RedisServer:
        """Whom the sentinels name."""
        for sentinel in self.sentinels:
            if sentinel.running:
                address = sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
                assert isinstance(address, list)
                return next(server for server in self.servers if str(server.port) == address[1])
        raise AssertionError("no sentinel runs")

    @property
    def replicas(self) -> list[RedisServer]:
        master = self.master
        return [server for server in self.servers if server is not master]

    def until_master(self, other_than: RedisServer) -> RedisServer:
        """Wait for the failover: until the sentinels name another one and it takes writes."""

        def moved() -> bool:
            master = self.master
            return master is not other_than and master.info("replication")["role"] == "master"

        until(moved, f"the sentinels name another master than {other_than}")
        return self.master

    @property
    def url(self) -> str:
        return self.url_for()

    def url_for(self, *, db: int = 0, query: str = "") -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        who = f":{quote(self._first.password, safe='')}@" if self._first.password else ""
        return f"redis+sentinel://{who}{hosts}/{self.NAME}/{db}{'?' * bool(query)}{query}"

    def stop(self) -> None:
        for process in (*self.sentinels, *self.servers):
            process.kill()

    def __enter__(self) -> Self:
        return self if self.sentinels else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# ---------------------------------------------------------------- Cluster


class Cluster:
    """Masters that share the 16,384 slots evenly, each with its replicas.

    `Cluster(masters=1, replicas=0)` is one server that speaks as a cluster. After `kill(a master)` its replica takes
    over within 1.5 to 3 seconds. Made by the servers' own commands: no command-line client is needed.
    """

    def __init__(
        self,
        binary_: Binary | None = None,
        *,
        masters: int = 3,
        replicas: int = 1,
        password: str = "",
        **settings: str | int,
    ) -> None:
        self.binary = binary_ or binary()
        self._masters = masters
        self._password = password
        self.nodes = [RedisServer(self.binary, password=password) for _ in range(masters * (1 + replicas))]
        for node in self.nodes:
            node.settings = {
                "cluster_enabled": "yes",
                "cluster_node_timeout": 1000,
                "cluster_require_full_coverage": "no",
                "cluster_allow_replica_migration": "no",
                "cluster_replica_validity_factor": 0,
                **settings,
            }

    def start(self) -> Self:
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.until_started()
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        bounds = [SLOTS * i // len(masters) for i in range(len(masters) + 1)]
        for i, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for i, master in enumerate(masters):
            master.call("CLUSTER", "ADDSLOTS", *range(bounds[i], bounds[i + 1]))
        for node in self.nodes[1:]:
            self.nodes[0].call("CLUSTER", "MEET", HOST, node.port)
        until(lambda: all(len(self.seen_by(node)) == len(self.nodes) for node in self.nodes), "all nodes have met")
        for i, replica in enumerate(replicas):
            replica.call("CLUSTER", "REPLICATE", self.id(masters[i % len(masters)]))
        self.until_ok()
        return self

    def until_ok(self) -> None:
        """Wait until every running node finds the cluster whole and every running replica has its master's data."""
        until(self.is_ok, "the cluster is ok")

    def is_ok(self) -> bool:
        """Whether every running node finds the cluster whole."""
        for node in self.nodes:
            if node.running:
                if _fields(node.call("CLUSTER", "INFO"))["cluster_state"] != "ok":
                    return False
                role = node.info("replication")
                if role["role"] == "slave" and role["master_link_status"] != "up":
                    return False
        return True

    # -- who is who

    def id(self, node: RedisServer) -> str:
        return str(node.call("CLUSTER", "MYID"))

    def seen_by(self, node: RedisServer) -> list[list[str]]:
        """The nodes that one has met, each as the fields of CLUSTER NODES."""
        lines = [line.split(" ") for line in str(node.call("CLUSTER", "NODES")).splitlines()]
        return [fields for fields in lines if "handshake" not in fields[2] and "noaddr" not in fields[2]]

    @property
    def masters(self) -> list[RedisServer]:
        """The running masters."""
        return [node for node in self.nodes if node.running and node.info("replication")["role"] == "master"]

    def replicas_of(self, master: RedisServer) -> list[RedisServer]:
        id = self.id(master)
        ports = {fields[1].split("@")[0].rpartition(":")[2] for fields in self.seen_by(master) if fields[3] == id}
        return [node for node in self.nodes if str(node.port) in ports]

    def slot(self, key: str) -> int:
        slot = self.masters[0].call("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int)
        return slot

    def owner(self, slot: int) -> RedisServer:
        """The master of a slot, as the masters themselves see it."""
        for master in self.masters:
            if self._owner_id(slot, seen_by=master) == self.id(master):
                return master
        raise LookupError(f"no running master has slot {slot}")

    def _owner_id(self, slot: int, seen_by: RedisServer) -> str:
        for fields in self.seen_by(seen_by):
            for part in fields[8:]:
                first, _, last = part.partition("-")
                if not part.startswith("[") and int(first) <= slot <= int(last or first):
                    return fields[0]
        return ""

    # -- what happens to it

    def until_owner(self, slot: int, other_than: RedisServer) -> RedisServer:
        """Wait until another master has the slot, and every running node knows."""

        def moved() -> bool:
            owner = self.owner(slot)
            views = {self._owner_id(slot, seen_by=node) for node in self.nodes if node.running}
            return owner is not other_than and views == {self.id(owner)} and self.is_ok()

        until(moved, f"slot {slot} has another master than {other_than}")
        return self.owner(slot)

    def begin_migration(self, slot: int, target: RedisServer) -> None:
        """Open a slot: its keys may be at either node from now on."""
        source = self.owner(slot)
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id(target))

    def move_keys(self, slot: int, target: RedisServer, count: int = 100) -> int:
        """Move up to so many of an open slot's keys; how many there were."""
        source = self.owner(slot)
        keys = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        assert isinstance(keys, list)
        if keys:
            auth = ("AUTH", self._password) if self._password else ()
            source.call("MIGRATE", HOST, target.port, "", 0, 5000, *auth, "KEYS", *(str(key) for key in keys))
        return len(keys)

    def end_migration(self, slot: int, target: RedisServer) -> None:
        """Close a slot: it is the target's, which has all its keys."""
        id = self.id(target)
        for node in (target, *(master for master in self.masters if master is not target)):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", id)

    def migrate(self, slot: int, target: RedisServer) -> None:
        """Move a slot with all its keys."""
        self.begin_migration(slot, target)
        while self.move_keys(slot, target):
            pass
        self.end_migration(slot, target)

    # -- the rest

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        who = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis+cluster://{who}{hosts}"

    def clear(self) -> None:
        for master in self.masters:
            master.clear()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self if self.nodes[0].running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


# ---------------------------------------------------------------- waiting, ports, replies


def until(said: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Wait until it is so; an outage on the way means: not yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            if said():
                return
            why = "not so yet"
        except _OUTAGE as error:
            why = repr(error)
        assert time.monotonic() < end, f"not within {seconds:g} s: {what} ({why})"
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens at now, nor at the bus port above it."""
    while True:
        port = SystemRandom().choice(_PORTS)
        if _is_free(port) and _is_free(port + _BUS):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _words(value: str | int | Path) -> list[str]:
    return [str(value)] if value == "" or " " not in str(value) else str(value).split(" ")


def _fields(reply: Reply) -> dict[str, str]:
    """`name:value` lines."""
    return dict(line.split(":", 1) for line in str(reply).splitlines() if ":" in line and not line.startswith("#"))


def _pairs(reply: Reply) -> dict[str, str]:
    """A map of the older protocol: names and values in turn."""
    assert isinstance(reply, list)
    return dict(zip(map(str, reply[::2]), map(str, reply[1::2]), strict=True))
