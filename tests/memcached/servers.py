"""Real memcached servers for tests, on private ports or sockets in a folder of their own."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from tests.redis.binaries import leave_out
from tests.redis.servers import HOST, NotStarted, Process, until


class MemcachedServer(Process):
    """One memcached: on a socket file, or on TCP. It is killed, paused and started again as a test says."""

    def __init__(self, *, tcp: bool = False, megabytes: int = 16, options: Sequence[str] = ()) -> None:
        binary = which("memcached")
        if binary is None:
            leave_out("no memcached on this machine: tests of the host tier on a real one are left out")
        super().__init__("memcached")
        self._binary = str(binary)
        self._tcp = tcp
        self._megabytes = megabytes
        self._options = tuple(options)

    def arguments(self) -> Sequence[str | Path]:
        where = ("-l", HOST, "-p", str(self.port)) if self._tcp else ("-s", str(self.socket), "-a", "0600")
        return (self._binary, "-u", getpass.getuser(), "-U", "0", "-m", str(self._megabytes), *where, *self._options)

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def url(self) -> str:
        return f"memcached://{HOST}:{self.port}" if self._tcp else f"unix://{self.socket}"

    def say(self, command: str, end: bytes = b"\r\n") -> list[str]:
        """Say one command over a connection of its own; return the lines of its answer."""
        family, where = (socket.AF_INET, self.address) if self._tcp else (socket.AF_UNIX, str(self.socket))
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect(where)
            connection.sendall(command.encode() + b"\r\n")
            answer = b""
            while not answer.endswith(end):
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
        return answer.decode("latin-1").split("\r\n")

    def stats(self) -> dict[str, str]:
        lines = (line.split(" ", 2) for line in self.say("stats", b"END\r\n"))
        return {words[1]: words[2] for words in lines if words[0] == "STAT"}

    def flush(self) -> None:
        """Lose everything it holds."""
        self.say("flush_all")

    def restart(self) -> None:
        self.kill()
        self.start()

    def _until_ready(self) -> None:
        until(self._ready, f"{self} answers")

    def _ready(self) -> bool:
        if self._process and self._process.poll() is not None:
            self._gone()
            raise NotStarted(self.log()[-2000:])
        try:
            return self.stats().get("pid") == str(self.pid)
        except OSError:
            return False
