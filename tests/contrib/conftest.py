"""Real databases and real stores, each a file of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Victim:
    """A process that a test kills once it has said a word."""

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()


@pytest.fixture
def victim() -> Iterator[Callable[..., Victim]]:
    started: list[Victim] = []

    def start(module: str, folder: Path, *arguments: str) -> Victim:
        started.append(Victim(module, folder, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def until(true: Callable[[], bool], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
