"""The servers that the peers keep their jobs in: each its own, on a private port, nothing kept, ended with the run."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.environment import ROOT, Unusable
from benchmarks.peers.processes import Group, until

START_SECONDS: Final = 15.0
TRIP_SECONDS: Final = 0.002


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Redis:
    """A server, and the few commands that the benchmark itself needs of it."""

    def __init__(self, port: int, version: str) -> None:
        self.port, self.version = port, version
        self._stream = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def url(self, port: int = 0, database: int = 0) -> str:
        """Return what a client is given."""
        return f"redis://127.0.0.1:{port or self.port}/{database}"

    def call(self, *words: str) -> bytes:
        """Send a command; return its reply's text."""
        self._stream.write(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        )
        self._stream.flush()
        line = self._stream.readline().rstrip()
        return self._stream.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line[1:]

    def info(self, section: str) -> dict[str, str]:
        """Return a section of INFO."""
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def empty(self) -> None:
        """Drop everything, and wait until no earlier worker is connected any more."""
        if not until(lambda: self.info("clients")["connected_clients"] == "1", seconds=5, every=0.1):
            raise Unusable("a worker of an earlier round is still connected to Redis")
        self.call("FLUSHALL")
        self.call("SCRIPT", "FLUSH")

    def used_bytes(self) -> int:
        """Return the memory that the data takes."""
        return int(self.info("memory")["used_memory"])

    def counted(self) -> dict[str, float]:
        """Return what it has done so far: processor time, calls (those made inside scripts too), reads of a socket."""
        cpu, commands, stats = self.info("cpu"), self.info("commandstats"), self.info("stats")
        ours = ("cmdstat_info", "cmdstat_flushall", "cmdstat_script")
        return {
            "redis_cpu_us": (float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])) * 1e6,
            "calls": sum(
                int(said.partition(",")[0].partition("=")[2])
                for name, said in commands.items()
                if not name.startswith(ours)
            ),
            "trips": float(stats["total_reads_processed"]),
        }


@contextmanager
def redis_server(binary: str | None = None) -> Iterator[Redis]:
    """Start Redis, or Valkey where only that is installed, without persistence. `binary`: this one instead."""
    binary = binary or shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise Unusable("no redis-server or valkey-server was found; on Debian: apt-get install redis-server")
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxclients", "4000"]
    with _folder(None) as folder:
        server = Group([binary, *options, "--dir", str(folder)], folder / "log")
        try:
            if not until(lambda: _accepts(port), seconds=START_SECONDS):
                raise Unusable(f"{binary} does not start: {server.last_words()}")
            about = Redis(port, "").info("server")
            yield Redis(port, about.get("valkey_version") or about["redis_version"])
        finally:
            server.end()


class Postgres:
    """A server."""

    def __init__(self, port: int, version: str) -> None:
        self.port, self.version = port, version

    def url(self, port: int = 0) -> str:
        """Return what a client is given."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/postgres"

    def empty(self, psql: str) -> None:
        """Drop everything."""
        statement = "drop schema public cascade; create schema public"
        command = [psql, self.url(), "--quiet", "--no-psqlrc", "-c", statement]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def postgres_binary(name: str) -> str:
    """Return one of PostgreSQL's programs; Debian keeps the server's out of the path."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    found = shutil.which(name) or (str(beside[-1]) if beside else None)
    if found is None:
        raise Unusable(f"no {name} of PostgreSQL was found; on Debian: apt-get install postgresql")
    return found


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Start PostgreSQL, which a commit does not wait for the disk of: so it is to Redis without persistence what it can be."""
    initdb, postgres = postgres_binary("initdb"), postgres_binary("postgres")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    port = free_port()
    with _folder(user) as folder:
        data = folder / "data"
        made = Group([initdb, "-D", str(data), "-A", "trust", "-U", "postgres"], folder / "log", user=user)
        try:
            if not until(lambda: made.ended, seconds=60) or not (data / "PG_VERSION").exists():
                raise Unusable(f"initdb failed: {made.last_words()}")
        finally:
            made.end()
        options = [
            "synchronous_commit=off",
            "shared_buffers=256MB",
            "max_connections=200",
            "listen_addresses=127.0.0.1",
        ]
        command = [postgres, "-D", str(data), "-p", str(port), "-k", str(folder)]
        server = Group([*command, *[part for option in options for part in ("-c", option)]], folder / "log", user=user)
        try:
            if not until(lambda: _ready(folder, port), seconds=START_SECONDS):
                raise Unusable(f"{postgres} does not start: {server.last_words()}")
            yield Postgres(port, (data / "PG_VERSION").read_text(encoding="ascii").strip())
        finally:
            server.end(signal.SIGINT)  # "fast": it does not wait for clients


def _ready(folder: Path, port: int) -> bool:
    return "ready to accept connections" in (folder / "log").read_text(encoding="utf-8") and _accepts(port)


@contextmanager
def _folder(user: str | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="selaras-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "log").touch()
        if user:
            shutil.chown(folder, user, user)
            shutil.chown(folder / "log", user, user)
        yield folder


@contextmanager
def far_from(port: int) -> Iterator[int]:
    """Put a server 2 ms away: return the port at which it is so."""
    near = free_port()
    command = [sys.executable, "-m", "benchmarks.peers.proxy", str(near), str(port), str(TRIP_SECONDS)]
    with _folder(None) as folder:
        proxy = Group(command, folder / "log", environment={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            if not until(lambda: _accepts(near), seconds=START_SECONDS):
                raise Unusable(f"the proxy does not start: {proxy.last_words()}")
            yield near
        finally:
            proxy.end()


def trip_ms(port: int) -> float:
    """Return what a PING takes."""
    redis = Redis(port, "")
    took = []
    for _ in range(20):
        began = time.perf_counter()
        redis.call("PING")
        took.append((time.perf_counter() - began) * 1e3)
    return sorted(took)[10]
