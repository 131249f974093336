"""Keeps a store's house from a process in which no worker does: of producers and readers, of scopes and locks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from selaras._app.process.once import own
from selaras._app.process.relaying import relay
from selaras._contracts.clock import Clock, Entropy
from selaras._contracts.store import Store
from selaras._core.errors import StoreUnavailable
from selaras._worker.keeper import ask_after

_log = logging.getLogger("selaras")

EVERY_S: Final = 60.0
"""A process that has a store open, and no worker, keeps house so often: where there are producers and readers only, nobody else
would expire jobs, end what killed processes held, trim logs and drop values whose time is over."""

SPREAD: Final = 0.5
"""Processes do not keep house in step."""

MET_EVERY_NS: Final = 5_000_000_000
"""One whose readers meet write intents keeps house so often: a holder that was killed would keep them off their caches longer."""

ROUNDS: Final = 20
"""So often a round goes on at once because more waits; then others have their turn."""

MORE_S: Final = 1.0
"""After so long it goes on."""

_USED_EVERY_NS: Final = 1_000_000_000
_MOST: Final = 100
_END_S: Final = 1.0


class Housekeeping:
    """What a process does for the store beside its own affairs.

    Attributes:
        workers: that run in this process, and keep house.
    """

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self.workers = 0
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._again_ns = [0] * len(store.partitions)  # when whoever uses scopes and locks may do it again
        self._met_ns = 0  # when a reader that meets an intent may ask for it again
        self._asked: asyncio.Task[bool] | None = None
        self._now_and_then: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Do it now and then on the running loop, unless a loop that runs does so."""
        task = self._now_and_then
        if task is None or task.done() or task.get_loop().is_closed():
            self._now_and_then = own(self._for_ever())

    def cease(self) -> None:
        """Do it no more."""
        task, self._now_and_then = self._now_and_then, None
        if task is not None and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def end_asked(self) -> None:
        """Let what a reader asked for end: a process may live for one read only, and so the next."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([asked], timeout=_END_S)

    async def used(self, partition: int) -> None:
        """Tend a partition, once a second at most. Whoever uses scopes and locks does so: where no worker runs, nobody
        else would soon end what a killed process held.
        """
        now = self._clock.instant_ns()
        if now >= self._again_ns[partition]:
            self._again_ns[partition] = now + _USED_EVERY_NS
            with suppress(StoreUnavailable):
                await self._tend(partition)

    def met_an_intent(self) -> None:
        """A reader passes its cache because somebody writes: it may be that nobody does any more, and nobody else looks.

        All partitions are looked after: what holds an intent here may have its home elsewhere.
        """
        now = self._clock.instant_ns()
        if now >= self._met_ns and not self.workers:
            self._met_ns = now + MET_EVERY_NS
            self._asked = own(self._tend_all())

    async def _for_ever(self) -> None:
        goes_on = False
        while True:
            await self._clock.sleep(MORE_S if goes_on else EVERY_S * (1 + SPREAD * self._entropy.random()))
            goes_on = not self.workers and await self._tend_all()

    async def _tend_all(self) -> bool:
        """Do what is to be done in all partitions. Returns whether more waits."""
        goes_on = False
        for partition in range(len(self._store.partitions)):
            try:
                rounds = 1
                while (more := await self._tend(partition)) and rounds < ROUNDS:
                    rounds += 1
                goes_on = goes_on or more
            except StoreUnavailable:  # whoever wants something of it will say so
                pass
            except Exception as error:  # noqa: BLE001 - it must not end
                _log.warning("housekeeping in %s failed: %s: %s", self._store.url, type(error).__name__, error)
        return goes_on

    async def _tend(self, partition: int) -> bool:
        """Do one round, and what follows from it in other partitions. Returns whether more waits."""
        here = self._store.partitions[partition]
        tended = await here.tend(_MOST)
        if tended.orphans:
            await ask_after(self._store.partitions, here, tended.orphans)
        if tended.outbox:
            await relay(self._store)
        return tended.again
