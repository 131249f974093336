"""The worker processes: starts them, kills one now and then where that is wanted, replaces what died, ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from selaras._app.work.fleet import FLEET_VARIABLE

_STOP_S: Final = 30.0


class CrewFailed(Exception):
    """Workers end by themselves: there is something wrong with the program, not with one of them."""


class Crew:
    """Some workers of one app, each a process of its own with a log file of its own."""

    def __init__(self, app: str, size: int, environment: Mapping[str, str], directory: Path) -> None:
        self.kills = 0
        self._command = [sys.executable, "-m", "selaras", "worker", app]
        # A worker stops when the other end of this pipe is gone: none outlives a demo that was killed.
        self._lifeline, self._held = os.pipe()
        self._environment = {**environment, FLEET_VARIABLE: str(self._lifeline)}
        self._directory = directory
        self.size = size
        self._started = 0
        self._workers: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def start(self) -> None:
        """Start all workers; they are at work within half a second."""
        for _ in range(self.size):
            self._workers.append(self._start_one())

    def _start_one(self) -> subprocess.Popen[bytes]:
        self._started += 1
        with self._log(self._started).open("wb") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lifeline,),
            )

    def kill_one(self, at_work: Callable[[int], bool]) -> bool:
        """Kill the worker that has been at work for longest, without a warning. Its jobs stay claimed until its lease ends.

        Args:
            at_work: says of a pid whether it is; one that only starts is left alone, or none would ever get there.

        Returns:
            Whether there was one.
        """
        victim = next((worker for worker in self._workers if at_work(worker.pid)), None)
        if victim is None:
            return False
        self._killed.add(victim.pid)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.kills += 1
        self.replace_dead()
        return True

    def replace_dead(self) -> None:
        """Start a worker for each one that is gone.

        Raises:
            CrewFailed: one ended that nobody killed.
        """
        for worker in self._workers[:]:
            if worker.poll() is None:
                continue
            if worker.pid not in self._killed:
                raise CrewFailed(f"a worker ended with code {worker.returncode}; it said:\n{self._last_words()}")
            self._workers.remove(worker)
            self._workers.append(self._start_one())

    def stop(self) -> None:
        """Ask all to end, and see to it that they do."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            try:
                worker.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        self._workers.clear()
        os.close(self._held)
        os.close(self._lifeline)

    def _log(self, number: int) -> Path:
        return self._directory / f"worker-{number}.log"

    def _last_words(self) -> str:
        logs = (self._log(number).read_text(errors="replace") for number in range(1, self._started + 1))
        return "\n".join(log[-2_000:] for log in logs if "Error" in log or "error" in log)
