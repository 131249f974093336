"""A memcached of the run's own, to which everything happens: it is killed, stopped, emptied and filled up, all the time.

Nothing of that may make a read stale, or fail.
"""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Final

from benchmarks.peers.environment import Unusable

MEGABYTES: Final = 1
PAUSE_S: Final = 2.0
"""Between two mishaps, on the average."""

STOPPED_S: Final = 0.2
START_S: Final = 10.0
_JUNK: Final = 40


class HurtMemcached:
    """The server, and what was done to it."""

    def __init__(self, folder: Path, chance: Random) -> None:
        found = shutil.which("memcached")
        if found is None:
            raise Unusable("there is no memcached on this machine: install it, or leave --host-tier out")
        self._binary = found
        self._path = folder / "memcached.sock"
        self._chance = chance
        self._over = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.done: Counter[str] = Counter()

    @property
    def url(self) -> str:
        """What a program is given."""
        return f"unix://{self._path}"

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self._process = subprocess.Popen(
            [self._binary, "-u", getpass.getuser(), "-m", str(MEGABYTES), "-I", "512k", "-s", str(self._path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + START_S
        while not self._say(b"version\r\n"):
            if self._process.poll() is not None or time.monotonic() > until:
                raise Unusable("memcached did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def hurt(self) -> None:
        """Do one thing after the other, until the run is over."""
        while not self._over.wait(self._chance.expovariate(1 / PAUSE_S)):
            what = self._chance.choice(("killed", "stopped for a while", "emptied", "filled up"))
            assert self._process is not None
            match what:
                case "killed":
                    self.stop()
                    self._over.wait(self._chance.uniform(0, STOPPED_S))
                    self.start()
                case "stopped for a while":
                    self._process.send_signal(signal.SIGSTOP)
                    self._over.wait(self._chance.uniform(0, STOPPED_S))
                    self._process.send_signal(signal.SIGCONT)
                case "emptied":
                    self._say(b"flush_all\r\n")
                case _:
                    junk = b"x" * 40_000
                    for at in range(_JUNK):
                        self._say(b"set junk%d 0 0 %d\r\n%b\r\n" % (at, len(junk), junk))
            self.done[what] += 1

    def end(self) -> None:
        """Do nothing more to it."""
        self._over.set()

    def _say(self, command: bytes) -> bytes:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(self._path))
            connection.sendall(command)
            return connection.recv(4096)
        return b""


@contextmanager
def hurt_memcached(folder: Path, chance: Random) -> Iterator[HurtMemcached]:
    """Run one, and hurt it, until the block is left."""
    server = HurtMemcached(folder, chance)
    hurting = Thread(target=server.hurt, daemon=True)
    try:
        server.start()
        hurting.start()
        yield server
    finally:
        server.end()
        if hurting.ident is not None:
            hurting.join(START_S)
        server.stop()
