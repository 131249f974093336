"""The processes of a run: workers and clients, started, killed, stopped, replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final

from chaos.history import now
from selaras._app.work.fleet import FLEET_VARIABLE
from selaras._worker.exits import Exit

ROOT: Final = Path(__file__).parents[1]
_ORDERLY: Final = (Exit.STOPPED, Exit.LEFT)
_FAKETIME: Final = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
_SHARED_MEMORY: Final = Path("/dev/shm")
"""Where libfaketime keeps two files a process."""

STOP_S: Final = 60.0


class Member:
    """One process."""

    def __init__(self, name: str, module: str, folder: Path, environment: Mapping[str, str], lifeline: int) -> None:
        self.name = name
        self.module = module
        self.clock = folder / f"{name}.clock"
        extra = {"CHAOS_NAME": name, FLEET_VARIABLE: str(lifeline)}
        if clocks_jump():
            self.set_clock(0)
            extra |= {
                "LD_PRELOAD": str(_FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        with (folder / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env={**environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lifeline,),
                start_new_session=True,  # a Ctrl-C is for the run
            )
        self.stopped = False
        self.leaving = False

    def set_clock(self, seconds: int) -> None:
        """Put its wall clock so far from the true one."""
        self.clock.write_text(f"{seconds:+d}\n")

    @property
    def alive(self) -> bool:
        """Whether it runs, or stands still."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


class Fleet:
    """All of them. What ends by itself when nobody asked is told in `troubles`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], chance: Random, *, flights: int) -> None:
        self.died: dict[str, int] = {}
        self.troubles: list[str] = []
        self.members: list[Member] = []
        self._folder = folder
        self._environment = {**environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        self._chance = chance
        self._flights = flights
        self._started = 0
        self._lifeline, self._held = os.pipe()

    def start(self, module: str, *, flies: bool = False) -> Member:
        """Start one."""
        self._started += 1
        name = f"{module.rpartition('.')[2]}-{self._started}"
        environment = {**self._environment, "CHAOS_FLIGHTS": str(self._flights if flies else 0)}
        member = Member(name, module, self._folder, environment, self._lifeline)
        self.members.append(member)
        return member

    def of(self, module: str) -> list[Member]:
        """Return those that run, or stand still."""
        return [member for member in self.members if member.module == module and member.alive]

    def any(self, *modules: str) -> Member | None:
        """Return one that runs, and does not stand still."""
        running = [member for module in modules for member in self.of(module) if not (member.stopped or member.leaving)]
        return self._chance.choice(running) if running else None

    def kill(self, member: Member) -> None:
        """`kill -9`, and another in its place."""
        member.signal(signal.SIGKILL)
        member.process.wait()
        self.died[member.name] = now()
        self.start(member.module)

    def stop(self, member: Member) -> None:
        """SIGSTOP."""
        member.signal(signal.SIGSTOP)
        member.stopped = True

    def go_on(self, member: Member) -> None:
        """SIGCONT."""
        if member.alive:
            member.signal(signal.SIGCONT)
        member.stopped = False

    def deploy(self, member: Member) -> None:
        """Another in its place, then SIGTERM: what runs there ends in order."""
        self.start(member.module)
        member.leaving = True  # a second signal would stop it hard
        member.signal(signal.SIGTERM)

    def look(self) -> None:
        """Note who has ended, and replace who ended unasked."""
        for member in self.members:
            code = member.process.poll()
            if code is None or member.name in self.died:
                continue
            self.died[member.name] = now()
            if not self._is_orderly(member, code) and code != Exit.RECYCLED:
                self.troubles.append(f"{member.name} ended with {code}: {self._last_words(member)}")
            if not member.leaving:
                self.start(member.module)

    def end(self, module: str) -> None:
        """Ask all of a kind to end in order, and wait until they have."""
        for member in self.of(module):
            self.go_on(member)
            if not member.leaving:
                member.signal(signal.SIGTERM)
        for member in self.of(module):
            try:
                member.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.troubles.append(f"{member.name} did not end within {STOP_S:g} s of SIGTERM")
                member.process.kill()
                member.process.wait()
        for member in self.members:
            if member.module == module and member.name not in self.died:
                self.died[member.name] = now()
                if not self._is_orderly(member, member.process.returncode):
                    self.troubles.append(
                        f"{member.name} ended with {member.process.returncode}: {self._last_words(member)}"
                    )

    def _is_orderly(self, member: Member, code: int) -> bool:
        if code in _ORDERLY:
            return True
        # One that was told to end before it took any work has nothing to put in order; one that cannot reach the store
        # when it starts says so and ends, and whoever supervises it starts another.
        notes = self._folder / f"{member.name}.notes"
        begun = notes.exists() and notes.read_bytes().count(b"\n") > 1
        return not begun and (
            code == -signal.SIGTERM or (code == Exit.FAILED and "StoreUnavailable" in self._last_words(member))
        )

    def close(self) -> None:
        """End whatever is left, and take away what libfaketime leaves of processes that were killed."""
        for member in self.members:
            if member.alive:
                member.process.kill()
                member.process.wait()
            for left in _SHARED_MEMORY.glob(f"*faketime_*_{member.process.pid}"):
                left.unlink()
        os.close(self._held)
        os.close(self._lifeline)

    def _last_words(self, member: Member) -> str:
        lines = (self._folder / f"{member.name}.log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-3:])


def clocks_jump() -> bool:
    """Say whether wall clocks can be moved here."""
    return _FAKETIME.exists()
