"""Signals of a worker process.

Plain handlers, not the loop's own: they run even while a body blocks the loop, so that a second signal always stops
the process; and they exist on systems whose loops have no `add_signal_handler` (BR-099).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from selaras._worker.system import system_clock

# Some systems lack some of them.
STOPPING: Final[tuple[signal.Signals, ...]] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGQUIT", "SIGBREAK", "SIGHUP") if hasattr(signal, name)
)

ECHO_NS: Final = 100_000_000
"""Within so long the same signal is one wish: `timeout` sends it to the process and to its group, a terminal to all of a pipeline
and what started it passes it on. Nobody presses a key twice so fast, and a second signal stops hard.
"""

_missed: list[str] = []
"""Names of signals that raised `StoppedEarly` where Python drops what is raised: in a finalizer, say."""


class StoppedEarly(BaseException):
    """A signal to stop, named by the text, came when nothing ran that hears it."""


@contextmanager
def stopped_early() -> Generator[None, None, None]:
    """Raise `StoppedEarly` at a signal to stop, wherever nothing that runs in the block hears signals itself. One whose
    exception is lost is heard by what hears signals next.
    """

    def leave(name: str) -> None:
        _missed[:] = [name]
        raise StoppedEarly(name)

    with heard_by(leave):
        try:
            yield
        finally:
            _missed.clear()


@contextmanager
def heard_by(on_signal: Callable[[str], None]) -> Generator[None, None, None]:
    """Call `on_signal` with the name of each stopping signal while the block runs; not of an echo (`ECHO_NS`).

    It is called in the main thread, between any two of its steps: it should do no more than pass the word on.
    Outside the main thread Python sets no handlers: then whoever owns the main thread stops the worker.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    clock = system_clock()  # a signal comes from the machine, in its time
    heard_at: dict[int, int] = {}

    def heard(number: int, frame: FrameType | None) -> None:
        del frame
        now = clock.instant_ns()
        if now - heard_at.get(number, -ECHO_NS) < ECHO_NS:
            return
        heard_at[number] = now
        on_signal(signal.Signals(number).name)

    # `nohup` says that the end of its terminal is nothing to a program.
    deaf = {number for number in STOPPING if number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN}
    before = {number: signal.signal(number, heard) for number in STOPPING if number not in deaf}
    try:
        if _missed:
            on_signal(_missed.pop())
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
