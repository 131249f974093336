"""Runs an app's workers as processes of their own, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

from selaras._app.work.working import AppWorker
from selaras._contracts.observer import Observer
from selaras._worker.fleet import LIFELINE, Fleet, follow_fleet
from selaras._worker.loops import run
from selaras._worker.signals import StoppedEarly as StoppedEarly, stopped_early as stopped_early
from selaras._worker.system import system_clock, system_entropy

T = TypeVar("T")

FLEET_VARIABLE = LIFELINE
"""Set in a process that a fleet started."""


Watching: TypeAlias = Callable[[Callable[[str], None]], AbstractContextManager[None]]
"""While it is open it calls what it was given whenever the processes must be started anew, with the reason."""


def run_fleet(command: Sequence[str], processes: int, observer: Observer, watching: Watching | None = None) -> int:
    """Keep so many processes of `command` running until told to stop. Returns the exit code of the whole."""
    fleet = Fleet(command, processes, system_clock(), system_entropy(), observer)
    with watching(fleet.restart) if watching else nullcontext():
        return fleet.run()


def run_alone(worker: AppWorker) -> int:
    """Run one worker as this process; stop it, too, when the fleet that started this process is gone."""
    follow_fleet(lambda _: worker.stop())
    return int(run_on_loop(worker.run()))


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a fresh loop, the fastest there is."""
    return run(main)
