"""Several worker processes as one: started, replaced when they die, stopped together.

    starting ─> up ─> died unasked ─> resting ─> starting        the rest grows while they die young
                │ └──> told to restart ─> ended ─> starting      at once; one that rests is started at once, too
       first signal: passed on to each, and each ends in order; second: passed on, then killed

Children are programs started by a command, never forks: they import the app by its name, so nothing has to be
pickled and no lock or connection is inherited (BR-099). A child notices that its fleet is gone by the end of a pipe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.observer import Observer
from selaras._core.events import ChildDied, ChildStarted, Restarting
from selaras._core.jobs.retry import Backoff
from selaras._worker.exits import Exit
from selaras._worker.signals import heard_by
from selaras._worker.telling import tell

LIFELINE: Final = "SELARAS_FLEET_FD"
"""The environment variable by which a child finds the pipe to its fleet."""

YOUNG_NS: Final = 10_000_000_000
"""A child that died before this age probably dies of its start."""

REST: Final = Backoff(first_us=500_000, most_us=30_000_000)
LOOK: Final = 0.05
KILL_AFTER: Final = 2.0
"""After a second signal the children have so long to end by themselves."""


class _Slot:
    """A place in the fleet and the process in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.started_ns = 0
        self.start_at_ns = 0
        self.young_deaths = 0
        self.restarting = False  # told to end, so that a fresh one takes its place


class Fleet:
    """Keeps `processes` children of `command` running until a signal, or until all end by themselves (burst).

    Args:
        command: the whole argument vector of one worker process, which must call `follow_fleet`.
        environment: of the children; None: this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        clock: Clock,
        entropy: Entropy,
        observer: Observer,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._clock = clock
        self._entropy = entropy
        self._observer = observer
        self._environment = dict(os.environ if environment is None else environment)
        self._slots = [_Slot(number) for number in range(processes)]
        self._heard: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._signals = 0
        self._kill_at_ns = 0
        self._codes: list[int] = []

    def stop(self, reason: str = "asked to") -> None:
        """As a signal would: the first time in order, the second time hard; from any thread."""
        del reason  # each child tells the signal that it hears
        self._heard.put(self._stop)

    def restart(self, reason: str) -> None:
        """Let every child end in order, and start a fresh one in its place; from any thread."""
        self._heard.put(partial(self._restart, reason))

    def run(self) -> int:
        """Run until every child has ended. Returns the exit code of the whole: 0 if every child ended in order."""
        ours, theirs = os.pipe()
        os.set_inheritable(ours, True)
        try:
            with heard_by(self.stop):
                for slot in self._slots:
                    self._start(slot, ours)
                while self._is_running():
                    self._listen()
                    for slot in self._slots:
                        self._look_after(slot, ours)
        finally:
            os.close(theirs)
            os.close(ours)
        return combined(self._codes)

    def _is_running(self) -> bool:
        return any(slot.popen or slot.start_at_ns for slot in self._slots)

    def _listen(self) -> None:
        try:
            act = self._heard.get(timeout=LOOK)
        except Empty:
            return
        act()

    def _stop(self) -> None:
        self._signals += 1
        if self._signals == 2:
            self._kill_at_ns = self._clock.instant_ns() + int(KILL_AFTER * 1e9)
        for slot in self._slots:
            slot.start_at_ns = 0
            told, slot.restarting = slot.restarting, False
            if slot.popen and not (told and self._signals == 1):  # a second one would stop it hard
                slot.popen.send_signal(signal.SIGTERM)

    def _restart(self, reason: str) -> None:
        if self._signals:
            return
        tell(self._observer, Restarting(reason=reason))
        for slot in self._slots:
            slot.young_deaths = 0
            if slot.popen is None:
                slot.start_at_ns = self._clock.instant_ns()
            elif not slot.restarting:
                slot.restarting = True
                slot.popen.send_signal(signal.SIGTERM)

    def _start(self, slot: _Slot, lifeline: int) -> None:
        slot.popen = subprocess.Popen(
            self._command,
            pass_fds=(lifeline,),
            env={**self._environment, LIFELINE: str(lifeline)},
            # A Ctrl-C in the terminal must reach a child once, from here: twice would stop it hard.
            start_new_session=True,
        )
        slot.start_at_ns, slot.started_ns, slot.restarting = 0, self._clock.instant_ns(), False
        tell(self._observer, ChildStarted(slot=slot.number, pid=slot.popen.pid))

    def _look_after(self, slot: _Slot, lifeline: int) -> None:
        now = self._clock.instant_ns()
        if slot.popen is None:
            if 0 < slot.start_at_ns <= now:
                self._start(slot, lifeline)
            return
        code = slot.popen.poll()
        if code is not None:
            self._ended(slot, slot.popen.pid, code, now)
        elif 0 < self._kill_at_ns <= now:
            slot.popen.kill()

    def _ended(self, slot: _Slot, pid: int, code: int, now: int) -> None:
        slot.popen = None
        if slot.restarting:
            slot.start_at_ns = now
            return
        if self._signals or code == Exit.STOPPED:
            self._codes.append(self._judged(code))
            return
        young = now - slot.started_ns < YOUNG_NS and code != Exit.RECYCLED
        slot.young_deaths = slot.young_deaths + 1 if young else 0
        again_in_us = REST.delay_us(slot.young_deaths, self._entropy) if young else 0
        slot.start_at_ns = now + again_in_us * 1_000 + 1
        tell(self._observer, ChildDied(slot=slot.number, pid=pid, code=code, again_in_us=again_in_us))

    def _judged(self, code: int) -> int:
        """A child that a signal of ours killed had no handler yet or no more: then it held nothing."""
        if self._signals == 1 and code == -signal.SIGTERM:
            return Exit.STOPPED
        return Exit.HALTED if self._signals > 1 and code < 0 else code


def combined(codes: Sequence[int]) -> int:
    """Return the worst of the children's exit codes: 0 only if all are; a death by signal n counts as 128 + n."""
    return max((128 - code if code < 0 else code for code in codes), default=Exit.STOPPED)


def follow_fleet(worker_stop: Callable[[str], None], environment: Mapping[str, str] | None = None) -> None:
    """In a child: stop the worker when its fleet is gone. Does nothing in a process that no fleet started."""
    lifeline = (os.environ if environment is None else environment).get(LIFELINE)
    if lifeline is None:
        return

    def follow(fd: int) -> None:
        try:
            os.read(fd, 1)
        except OSError:
            pass
        worker_stop("its fleet is gone")

    threading.Thread(target=follow, args=(int(lifeline),), name="selaras-lifeline", daemon=True).start()
