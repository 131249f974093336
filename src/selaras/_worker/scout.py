"""Looks ahead: where more jobs wait than there is room for, what the next ones will read is brought meanwhile.

It has a task of its own and waits for no load, so no turn waits for it. While there is room it looks at nothing: what
waits is claimed at once.
"""

from __future__ import annotations

import asyncio
from asyncio import Event
from collections.abc import Callable, Sequence
from typing import Final

from selaras._contracts.clock import Clock
from selaras._contracts.host import Host
from selaras._contracts.observer import Observer
from selaras._contracts.partition import Partition
from selaras._core.errors import StoreUnavailable
from selaras._core.events import Trouble
from selaras._worker.telling import tell

LOOK_EVERY: Final = 0.02
"""The heads of queues are looked at no more often."""


class Scout:
    """Looks at the first `most` jobs that wait in each partition."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        host: Host,
        clock: Clock,
        observer: Observer,
        *,
        queues: Sequence[str],
        most: int,
    ) -> None:
        self._partitions = partitions
        self._host = host
        self._clock = clock
        self._observer = observer
        self._queues = tuple(queues)
        self._most = most
        self._full: set[int] = set()  # partitions in which work may wait, or waited, that there is no room for
        self._rung = Event()

    def ring(self, partition: int) -> None:
        """Work may wait in a partition that there is no room for."""
        self._full.add(partition)
        self._rung.set()

    async def run(self, is_full: Callable[[], bool]) -> None:
        """Look ahead for ever, while it is full: a turn that is on its way takes all room for a moment, too."""
        tasks = frozenset(self._host.tasks)
        while True:
            await self._rung.wait()
            await self._clock.sleep(LOOK_EVERY)
            self._rung.clear()
            full = sorted(self._full)
            self._full.clear()
            if not is_full():
                continue
            try:
                looks = (self._partitions[index].peek(self._queues, tasks, self._most) for index in full)
                found = dict(zip(full, await asyncio.gather(*looks), strict=True))
                # Looked at the next time, too: what is known of them is not forgotten.
                self._full.update(index for index, waiting in found.items() if waiting)
                self._host.ahead([one for waiting in found.values() for one in waiting], self._most)
            except StoreUnavailable:  # the turns tell of it
                pass
            except Exception as error:  # noqa: BLE001 - what it does is help, and nothing depends on it
                tell(self._observer, Trouble(where="looking ahead", error=f"{type(error).__name__}: {error}"))
