"""Hints that a log has grown. They may be lost: the log is the truth (P1)."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from selaras._cache.follower import Follower
from selaras._cache.local import LocalTier
from selaras._core.positions import Pushed, nothing_pushed

HINT_S: Final = 0.001
"""A hint that a log has grown waits so long: for others, and for a turn whose reply brings the same news."""


class Hints:
    """Follows hints: what they bring is applied at once if it can be, else the log is looked at soon."""

    def __init__(
        self,
        followers: Sequence[Follower],
        local: LocalTier,
        instant: Callable[[], int],
        *,
        catch_up: Callable[[int, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._followers = followers
        self._local = local
        self._instant = instant
        self._catch_up = catch_up
        self._waiting: dict[int, int] = {}
        self._following: set[asyncio.Task[None]] = set()

    def grown(self, partition: int, position: int, read: Callable[[], Pushed | None] = nothing_pushed) -> None:
        """A log is said to have reached `position` (-1: not known): what its news void leaves the local tier now, if they
        were pushed and follow what is applied, else soon. On a running loop.
        """
        follower = self._followers[partition]
        if not len(self._local) or 0 <= position <= follower.applied.position:
            return
        pushed = read()
        if pushed is not None and follower.pushed(pushed):
            return
        waiting = self._waiting.get(partition)
        if waiting is None:
            get_running_loop().call_later(HINT_S, self._follow, partition)
            self._waiting[partition] = position
        elif waiting >= 0:
            self._waiting[partition] = position if position < 0 else max(waiting, position)

    def _follow(self, partition: int) -> None:
        position = self._waiting.pop(partition, 0)
        if 0 <= position <= self._followers[partition].applied.position:
            return
        task = get_running_loop().create_task(self._catch_up(partition, self._instant()))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
