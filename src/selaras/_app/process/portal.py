"""Where blocking calls wait: one event loop in a thread of its own, one a process.

A call runs as a task on that loop, in a copy of the caller's context, so that code in a job's thread stays within its
job. The thread starts at the first call and does not survive a fork: a child makes its own.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from threading import Lock, Thread
from typing import Any, Final, TypeVar, cast

from selaras._core.errors import SelarasError

T = TypeVar("T")

_log = logging.getLogger("selaras")

_THREADS_MOST: Final = 1_000
"""Plain loaders may wait for one another, each in a thread; a smaller pool would be a deadlock waiting for load."""
_CLEANUP_S: Final = 1.0
"""How long an interrupted call may take to put things back, and the loop to end with the program."""


class Portal:
    """The loop and its thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS_MOST, thread_name_prefix="selaras-blocking"))
        self._closing = False
        self._ends: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._thread = Thread(target=self._serve, name="selaras-blocking", daemon=True)
        self._thread.start()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], context: Context) -> T:
        """Run a coroutine to its end, in `context`, and return or raise what it does."""
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            # Whatever it is goes to the caller: a SystemExit must not end the loop that others wait on.
            try:
                ended.set_result(await make())
            except BaseException as error:  # noqa: BLE001 - handed on
                ended.set_exception(error)

        self._loop.call_soon_threadsafe(lambda: tasks.append(self._loop.create_task(run(), context=context)))
        try:
            return ended.result()
        except BaseException:
            if not ended.done():
                self._abandon(tasks, ended)
            raise

    def _abandon(self, tasks: list[asyncio.Task[None]], ended: Future[Any]) -> None:
        """The caller was interrupted: cancel its task, and give it a moment to put things back."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        try:
            ended.exception(_CLEANUP_S)
        except BaseException:  # noqa: BLE001, S110 - the interruption itself is what the caller must see
            pass

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:  # noqa: BLE001, S112 - a task's SystemExit comes out here; its own caller has it
                continue
        for end in reversed(self._ends):
            try:
                self._loop.run_until_complete(end())
            except BaseException as error:  # noqa: BLE001 - the others end all the same
                _log.warning("closing a resource failed: %s: %s", type(error).__name__, error)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def at_end(self, loop: asyncio.AbstractEventLoop, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the portal run this before it ends, if the loop is its own."""
        if loop is self._loop:
            self._ends.append(end)

    def close(self) -> None:
        """End the thread, if it can."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLEANUP_S)


class _Process:
    """The portal of this process."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.portal: Portal | None = None
        # Those of parents, kept so that nobody closes what the parent still uses.
        self.inherited: list[Portal] = []

    def here(self) -> Portal:
        """Return it, made at first need."""
        if self.portal is None:
            with self.lock:
                if self.portal is None:
                    self.portal = Portal()
                    atexit.register(self.portal.close)
        return self.portal

    def forget(self) -> None:
        """Start anew, in a child."""
        self.lock = Lock()
        if self.portal is not None:
            atexit.unregister(self.portal.close)
            self.inherited.append(self.portal)
            self.portal = None


_process: Final = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forget)


def wait_for(make: Callable[[], Coroutine[Any, Any, T]], *, keep: bool = False) -> T:
    """Run a coroutine on the portal and block until it ends.

    Args:
        keep: what it changed in its context holds for the caller from now on: it entered or left a scope.

    Raises:
        SelarasError: this thread runs an event loop, which the call would block.
    """
    refuse_on_loop()
    context = copy_context()
    value = _process.here().call(make, context)
    if keep:
        for variable, changed in context.items():
            if variable.get(_UNSET) is not changed:
                variable.set(changed)
    return value


_UNSET: Final = object()


def at_end(loop: asyncio.AbstractEventLoop, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let this be run at the program's end if the loop is that of blocking calls, which nobody else ends."""
    portal = _process.portal
    if portal is not None:
        portal.at_end(loop, end)


def aio_of(value: Any) -> Any:
    """Return what the twin for coroutines takes: an object's own twin, or those of a list."""
    if isinstance(value, (list, tuple, set, frozenset)):
        several = cast(Iterable[Any], value)
        return [aio_of(one) for one in several]
    return getattr(value, "aio", value)


def refuse_on_loop() -> None:
    """Raise SelarasError if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SelarasError(
        "a blocking call on a running event loop would stop everything on it: await the same call of its `.aio` twin, "
        "or make the call in a thread (asyncio.to_thread)"
    )
