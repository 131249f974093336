"""How long a store is waited for, by a loop that may be busy itself."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, CancelledError, Task, TimerHandle
from types import TracebackType
from typing import Any, Final

STEPS: Final = 4
LATE_STEPS_MOST: Final = 40
"""So many late steps at the most are not counted: whoever waits must not wait for ever where the loop always stands."""


class Patience:
    """Ends the wait of the current task after `seconds`: its CancelledError becomes a TimeoutError. Not re-usable.

    A time in which the loop stood is nobody's answer that was late: it may have come long ago, or the question has not
    gone out yet. So the time is counted in steps, and one whose end was looked at late does not count.
    """

    __slots__ = ("_cancelling", "_due", "_ended", "_handle", "_late", "_left", "_loop", "_step", "_task")

    def __init__(self, seconds: float) -> None:
        self._step = seconds / STEPS
        self._left = STEPS
        self._late = 0
        self._ended = False
        self._loop: AbstractEventLoop
        self._task: Task[Any]
        self._handle: TimerHandle
        self._due = 0.0
        self._cancelling = 0

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "a store is asked by a task"
        self._task, self._cancelling = task, task.cancelling()
        self._again(self._loop.time())

    def _again(self, now: float) -> None:
        self._due = now + self._step
        self._handle = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._due > self._step / 2 and self._late < LATE_STEPS_MOST:
            self._late += 1
        else:
            self._left -= 1
        if self._left:
            self._again(now)
            return
        self._ended = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.cancel()
        if self._ended and self._task.uncancel() <= self._cancelling and kind is CancelledError:
            raise TimeoutError from error
