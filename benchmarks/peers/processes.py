"""Processes that the benchmark starts: each in a group of its own, and ended with everything that it started itself."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

GRACE_SECONDS: Final = 2.0
_TICK: Final = os.sysconf("SC_CLK_TCK")


_LIVE: Final[set[Group]] = set()


class Group:
    """A process and all that it started."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=log.parent,
                env=environment,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
            )
        self._log = log
        _LIVE.add(self)

    @property
    def ended(self) -> bool:
        """Whether its first process has ended."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """Return the end of what it wrote, for people."""
        return last_line(self.said())

    def said(self) -> str:
        """Return all that it wrote."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def cpu_seconds(self) -> float:
        """Return the processor time it has taken."""
        ticks = 0
        for pid in self._pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(int(field) for field in fields[11:15])
        return ticks / _TICK

    def memory_mb(self) -> float:
        """Return the memory it uses; what it shares with others counts in part."""
        kilobytes = 0
        for pid in self._pids():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
            except OSError:
                continue
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return kilobytes / 1024

    def _pids(self) -> Sequence[int]:
        found, look = [], [self._process.pid]
        while look:
            pid = look.pop()
            found.append(pid)
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    look += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
            except OSError:
                continue
        return found

    def end(self, first: signal.Signals = signal.SIGTERM) -> None:
        """End it, in order if it will."""
        self._signal(first)
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._process.wait()
        _LIVE.discard(self)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass


def last_line(text: str) -> str:
    """Return what a program said last, which of a traceback is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "It said nothing."


def end_all() -> None:
    """End whatever an interrupted run has left."""
    for group in list(_LIVE):
        group.end()


@contextmanager
def running(groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
    """End them all at the end of the block: told together, so that they end side by side."""
    try:
        yield groups
    finally:
        for group in groups:
            group._signal(signal.SIGTERM)  # noqa: SLF001 - its own module
        for group in groups:
            group.end()


def until(happened: Callable[[], bool], *, seconds: float, every: float = 0.005) -> bool:
    """Wait until it has happened; say whether it has."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
