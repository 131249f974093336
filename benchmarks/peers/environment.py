"""Each peer's own virtual environment: made once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.peer import Peer
from benchmarks.peers.processes import last_line

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "selaras" / "peers"


class Unusable(Exception):
    """A peer, or what it needs, that can't be measured; the message is its row."""


class Environment:
    """A peer's interpreter and packages.

    Attributes:
        versions: by package, of those that the peer wants shown.
    """

    def __init__(self, peer: Peer, *, renew: bool) -> None:
        """Make it if it isn't there, or if the newest versions are asked for.

        Raises:
            Unusable: the packages can't be installed.
        """
        packages = [package.replace("{root}", str(ROOT)) for package in peer.packages]
        wanted = json.dumps([sys.version, packages])
        self._folder = CACHE / f"{peer.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
        stamp = self._folder / "complete"
        if renew or not stamp.exists():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._make(packages)
            stamp.touch()
        self.python = str(self._folder / "bin" / "python")
        self.versions = self._versions_of(peer.shown)

    def _make(self, packages: Sequence[str]) -> None:
        arguments = [part for package in packages for part in package.split(" ")]  # "-e path" are two
        if shutil.which("uv") and not subprocess.run(["uv", "--version"], capture_output=True, check=False).returncode:
            steps = [
                ["uv", "venv", "--quiet", "--python", sys.executable, str(self._folder)],
                ["uv", "pip", "install", "--quiet", "--python", str(self._folder / "bin" / "python"), *arguments],
            ]
        else:
            steps = [
                [sys.executable, "-m", "venv", str(self._folder)],
                [str(self._folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments],
            ]
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Unusable(f"not installed: {' '.join(done.stderr.split())[-300:]}")

    def _versions_of(self, packages: Sequence[str]) -> dict[str, str]:
        program = (
            "import json, sys; from importlib.metadata import version; "
            "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
        )
        said = subprocess.run([self.python, "-c", program, *packages], capture_output=True, text=True, check=False)
        if said.returncode:
            raise Unusable(f"not installed: {last_line(said.stderr)}")
        versions: dict[str, str] = json.loads(said.stdout)
        return versions
