"""Work that many wait for and one does: nobody's cancellation is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_UNDER_WAY: Final[set[asyncio.Task[Any]]] = set()
"""Tasks that nobody may be waiting for any more: somebody must hold them."""


class Interrupted(Exception):
    """The loop that did the work has ended before it. Whoever still wants it begins it anew."""


class Once(Generic[T]):
    """Work under way, in a task of its own on the loop that began it. Any loop may wait for it."""

    def __init__(self) -> None:
        self._ended: Future[T] = Future()
        # As running: a waiter that is cancelled cannot cancel it then.
        self._ended.set_running_or_notify_cancel()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin; called once, by whoever made it."""
        own(self._run(work))

    async def wait(self) -> T:
        """Wait for it. Raises what it raised; Interrupted: its loop has ended."""
        return await asyncio.wrap_future(self._ended)

    def value(self) -> T | None:
        """Return what it came to; None: it goes on, or it failed."""
        return self._ended.result() if self._ended.done() and self._ended.exception() is None else None

    @property
    def failed(self) -> bool:
        """Whether it ended without a value."""
        return self._ended.done() and self._ended.exception() is not None

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            value = await work()
        except asyncio.CancelledError:
            self._ended.set_exception(Interrupted())
            raise
        except BaseException as error:  # noqa: BLE001 - it goes to those who wait
            self._ended.set_exception(error)
        else:
            self._ended.set_result(value)


def own(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work that goes on whoever stops waiting for it; the loop's end ends it."""
    task = asyncio.get_running_loop().create_task(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return task


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that must be done though the caller is cancelled meanwhile."""
    return await asyncio.shield(own(work))
