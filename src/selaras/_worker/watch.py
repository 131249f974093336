"""Watches the loop from a thread: how late it is, and whether a body blocks it for good."""

from __future__ import annotations

import asyncio
import sys
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from selaras._contracts.clock import Clock
from selaras._contracts.observer import Observer
from selaras._core.events import LoopLagged
from selaras._worker.attempts import Held, Roster
from selaras._worker.telling import tell

LOOK_EVERY: Final = 0.25
LAG_NS: Final = 1_000_000_000
"""A loop that did not come round for so long is reported, once until it comes round."""

STACK_MOST: Final = 12


class Watch:
    """A thread that asks the loop for a sign of life and looks at what runs when none comes.

    Args:
        on_blocked: called in this thread, once an attempt, when its body has blocked the loop past its deadline and
            `patience_ns` more.
        on_look: called in this thread at each look.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        clock: Clock,
        roster: Roster,
        observer: Observer,
        *,
        patience_ns: int,
        on_blocked: Callable[[Held], None],
        on_look: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._loop_thread: int | None = None
        self._now = clock.instant_ns
        self._roster = roster
        self._observer = observer
        self._patience_ns = patience_ns
        self._on_blocked = on_blocked
        self._on_look = on_look
        self._asked_ns = 0  # a sign of life was asked for then; 0: it came
        self._reported = False
        self._ending = Event()
        self._thread = Thread(target=self._run, name="selaras-watch", daemon=True)
        self.lag_ns = 0  # the worst of late; whoever shows it may set it back

    def start(self, loop_thread: int) -> None:
        """Begin to watch the loop that runs in the thread of this identity."""
        self._loop_thread = loop_thread
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY):
            self._on_look()
            if not self._asked_ns:
                self._asked_ns, self._reported = self._now(), False
                try:
                    self._loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed
                    return
                continue
            late = self._now() - self._asked_ns
            if late >= LAG_NS:
                self._look(late)

    def _answer(self) -> None:
        self.lag_ns = max(self.lag_ns, self._now() - self._asked_ns)
        self._asked_ns = 0

    def _look(self, late_ns: int) -> None:
        held = self._roster.find(asyncio.current_task(self._loop))
        if not self._reported:
            self._reported = True
            claim = held.run.claim if held else None
            event = LoopLagged(
                lag_us=late_ns // 1_000,
                job=claim.job if claim else "",
                task=claim.task if claim else "",
                stack=self._stack(),
            )
            tell(self._observer, event)
        if held and not held.abandoned and held.deadline_ns and held.deadline_ns + self._patience_ns <= self._now():
            self._on_blocked(held)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread or 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the only way to see another thread
        return "".join(traceback.format_stack(frame)[-STACK_MOST:]) if frame else ""
