"""Who waits for which job in this process: told at once when a worker of the same process ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock


class Watch:
    """One waiter's interest in one job."""

    __slots__ = ("_event", "_loop")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self, seconds: float) -> None:
        """Return when the job may have ended, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()

    def tell(self) -> None:
        """Wake it, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # its loop is closed: nobody waits there any more
            pass


class Ends:
    """The watches of a process. A watch is a hint: who waits looks by itself, too."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._watches: dict[str, set[Watch]] = {}
        self._told_lonely: set[str] = set()

    def __len__(self) -> int:
        return len(self._watches)

    @contextmanager
    def watch(self, job: str) -> Generator[Watch]:
        """Watch a job while this is entered."""
        watch = Watch()
        with self._lock:
            self._watches.setdefault(job, set()).add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                watches = self._watches[job]
                watches.discard(watch)
                if not watches:
                    del self._watches[job]

    def ended(self, job: str) -> None:
        """Tell whoever waits for this job."""
        if job in self._watches:
            for watch in tuple(self._watches.get(job, ())):
                watch.tell()

    def may_tell(self, queue: str) -> bool:
        """Say whether nobody was told of this queue's lack of workers yet."""
        return queue not in self._told_lonely

    def told(self, queue: str) -> None:
        """Somebody was."""
        self._told_lonely.add(queue)
