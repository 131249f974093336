"""Looks at a log's end on one event loop, and who may share them."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Coroutine
from typing import Any

Own = Callable[[Coroutine[Any, Any, None]], Task[None]]
"""Begins something that ends with the cache at the latest."""


class _Check:
    """A look at a log's end under way, who waits for it, and for whom it was sent too soon."""

    __slots__ = ("behind", "sent_ns", "waiting")

    def __init__(self, sent_ns: int, waiting: list[Future[None]]) -> None:
        self.sent_ns = sent_ns
        self.waiting = waiting
        self.behind: list[Future[None]] = []


class Checks:
    """All looks at logs' ends under way on one loop. `check` looks, given a partition and the instant of sending."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        instant: Callable[[], int],
        own: Own,
        check: Callable[[int, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._loop = loop
        self._instant = instant
        self._own = own
        self._check = check
        self._under_way: dict[int, _Check] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._under_way)

    def close(self) -> None:
        """Begin no more."""
        self._closed = True

    async def after(self, index: int, since_ns: int) -> None:
        """Return once a look at a log's end that was sent after `since_ns` has been heard.

        Those who wait at the same moment share one look; those for whom the one under way was sent too soon share the next.
        Each waits for a future of its own: every strict read comes by here.

        Raises:
            StoreUnavailable: it could not be had.
        """
        place: Future[None] = self._loop.create_future()
        check = self._under_way.get(index)
        if check is None:
            self._begin(index, [place])
        elif check.sent_ns > since_ns:
            check.waiting.append(place)
        else:
            check.behind.append(place)
        await place

    def _begin(self, index: int, waiting: list[Future[None]]) -> None:
        check = self._under_way[index] = _Check(self._instant(), waiting)
        task = self._own(self._check(index, check.sent_ns))
        task.add_done_callback(lambda task: self._ended(index, check, task))

    def _ended(self, index: int, check: _Check, task: Task[None]) -> None:
        del self._under_way[index]
        error = None if task.cancelled() else task.exception()
        for place in check.waiting:
            if place.done():  # whoever waited was cancelled
                continue
            if task.cancelled():
                place.cancel()
            elif error is not None:
                place.set_exception(error)
            else:
                place.set_result(None)
        behind = [place for place in check.behind if not place.done()]
        if self._closed:
            for place in behind:
                place.cancel()
        elif behind:
            self._begin(index, behind)
