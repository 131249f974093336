"""The tasks a worker is made of.

None may fail: a turn that is never answered, a loop that looks at no deadline any more, hold attempts for ever while the
heart goes on beating for them. So one that does is reported and ends the worker, in order; unlike in a TaskGroup it
doesn't take the others with it.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import Any, Final

from selaras._contracts.observer import Observer
from selaras._core.events import Trouble
from selaras._worker.telling import tell

ENDING_MOST: Final = 1.0


class Company:
    """Owns tasks until they end or it is ended. `on_failure`: told which one failed."""

    def __init__(self, observer: Observer, on_failure: Callable[[str], None]) -> None:
        self._observer = observer
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._tasks: set[Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        """Start a task and hold it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            where = getattr(task.get_coro(), "__qualname__", "a task of the worker")
            tell(self._observer, Trouble(where=where, error=f"{type(error).__name__}: {error}"))
            self._on_failure(where)

    async def end(self) -> None:
        """Cancel what is left and wait for it, not for long."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=ENDING_MOST)
