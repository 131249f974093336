"""A store whose replies come late: a verb is executed at once, and its reply is held until the test lets it go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from selaras._contracts.partition import Partition
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._core.positions import Cursor


class Held:
    """One call that is held. `done`: it was executed. `release()`: its reply arrives."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def pause(self) -> None:
        self.done.set()
        await self._released.wait()


class SlowPartition:
    """One partition as one process reaches it.

    Attributes:
        calls: the verbs called, in order.
        down: nothing answers.
        blind: the log's tail cannot be seen without waiting.
    """

    def __init__(self, inner: Partition) -> None:
        self.index = inner.index
        self.inner = inner
        self.calls: list[str] = []
        self.down = False
        self.blind = False
        self._holds: dict[str, list[Held]] = {}

    def hold(self, verb: str) -> Held:
        """Hold the reply of the next call of `verb`."""
        held = Held()
        self._holds.setdefault(verb, []).append(held)
        return held

    def tail_now(self) -> Cursor | None:
        if self.down:
            raise StoreUnavailable("down")
        return None if self.blind else self.inner.tail_now()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        execute = getattr(self.inner, verb)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(verb)
            if self.down:
                raise StoreUnavailable("down")
            reply = await execute(*args, **kwargs)
            waiting = self._holds.get(verb)
            if waiting:
                await waiting.pop(0).pause()
            if self.down:
                raise StoreUnavailable("down")
            return reply

        return call


class SlowStore:
    """A store as one process reaches it."""

    def __init__(self, inner: Store) -> None:
        self.url = inner.url
        self.inner = inner
        self.partitions: Sequence[Any] = [SlowPartition(partition) for partition in inner.partitions]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
