"""Heartbeats: on a loop in a thread of its own, over connections of its own, whatever the other loops do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest
from selaras._core.errors import StoreUnavailable

Beat = Callable[[HeartbeatRequest], Coroutine[Any, Any, HeartbeatReply]]

T = TypeVar("T")

_END_S: Final = 1.0


class PulseLoop:
    """The loop and its thread, shared by all heartbeats of a store in this process; there while one of them is."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def enter(self) -> None:
        """Somebody is going to beat."""
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._serve, args=(self._loop,), name="selaras-redis-pulse", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """Somebody will beat no longer."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until it is done. Raises StoreUnavailable: the store was closed."""
        loop = self._loop
        if loop is None:
            work.close()
            raise StoreUnavailable("the store was closed")
        try:
            return asyncio.run_coroutine_threadsafe(work, loop).result()
        except (CancelledError, asyncio.CancelledError) as error:
            raise StoreUnavailable("the store was closed") from error

    def stop(self) -> None:
        """End the thread; who waits gets StoreUnavailable."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_S)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(_last_words())
        loop.run_until_complete(loop.shutdown_asyncgens())  # its connections end so
        loop.close()


class RedisPulse:
    """The way in of one heart."""

    def __init__(self, loop: PulseLoop, beats: Sequence[Beat]) -> None:
        self._loop = loop
        self._beats = beats
        self._open = True
        loop.enter()

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        """See `Pulse`."""
        return self._loop.run(self._beats[partition](request))

    def close(self) -> None:
        """See `Pulse`."""
        if self._open:
            self._open = False
            self._loop.leave()


async def _last_words() -> None:
    """Give what was cancelled its turn."""
    here = asyncio.current_task()
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not here), return_exceptions=True)
