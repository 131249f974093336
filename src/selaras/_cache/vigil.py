"""Notes which write intents readers pass, and says once of one that stands for long who holds it.

An intent that a stuck or slow writer holds is right, and costs each reader of its keys a load. Nobody would know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct

from selaras._cache.family import Slot
from selaras._contracts.clock import Clock
from selaras._contracts.partition import Partition
from selaras._core.cache.entry import Intent
from selaras._core.cache.events import CacheEvent, IntentStands
from selaras._core.cache.opening import open_name, shown_key
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import JobKind
from selaras._core.positions import START, Scope

LONG_US: Final = 10_000_000
"""An intent that readers pass for so long is told of."""

_REMEMBERED_MOST: Final = 1_000


class Holding(Struct, frozen=True):
    """An intent, and who holds it. `since_us`: when its attempt began, by the store's time; 0: nobody knows."""

    intent: Intent
    task: str = ""
    instance: str = ""
    since_us: int = 0
    is_scope: bool = False

    def shown(self, now_us: int) -> str:
        """Say it, for people."""
        what = shown_key(self.intent.key)
        if self.is_scope:
            who = f"a writing() scope ({f'on {self.instance}' if self.instance else 'cut off; its commit may still land'})"
        else:
            who = f"job {self.intent.job}"
            who += f" ({self.task}, on {self.instance or 'no worker now'})" if self.task else ""
        return f"{who} writes {what}" + (f", for {(now_us - self.since_us) / 1e6:.0f} s" if self.since_us else "")


class _Passed:
    """Since when readers have met an intent in a key's place, one after the other."""

    __slots__ = ("last_ns", "looked_ns", "since_ns")

    def __init__(self, now_ns: int) -> None:
        self.since_ns = self.looked_ns = self.last_ns = now_ns


class Vigil:
    """What readers of one process pass. `own` begins a task that somebody ends; `met` hears of each intent that is passed:
    its holder may be gone.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        clock: Clock,
        *,
        tell: Callable[[CacheEvent], None],
        own: Callable[[Coroutine[Any, Any, None]], object],
        met: Callable[[], None] | None = None,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._tell = tell
        self._own = own
        self._met = met
        self._passed: dict[str, _Passed] = {}
        self._told: set[tuple[str, int]] = set()
        self.told = 0

    def passes(self, slot: Slot, tags: tuple[str, ...] = ()) -> None:
        """A reader met an intent there, or might have: its load was not stored."""
        if self._met is not None:
            self._met()
        now = self._clock.instant_ns()
        passed = self._passed.get(slot.key)
        if passed is None or now - passed.last_ns > LONG_US * 1_000:
            if len(self._passed) >= _REMEMBERED_MOST:
                self._passed.clear()
            self._passed[slot.key] = _Passed(now)
            return
        passed.last_ns = now
        if now - passed.looked_ns >= LONG_US * 1_000:
            passed.looked_ns = now
            self._own(self._look(slot, tags))

    async def _look(self, slot: Slot, tags: tuple[str, ...]) -> None:
        try:
            holdings = await self.holdings(slot, tags)
        except StoreUnavailable:
            return
        now_us = self._clock.wall_us()
        for holding in holdings:
            attempt = holding.intent.job, holding.intent.fence
            if attempt in self._told or not holding.since_us or now_us - holding.since_us < LONG_US:
                continue
            if len(self._told) >= _REMEMBERED_MOST:
                self._told.clear()
            self._told.add(attempt)
            self.told += 1
            self._tell(
                IntentStands(
                    family=slot.family.name,
                    key=slot.key,
                    job=holding.intent.job,
                    task=holding.task,
                    instance=holding.instance,
                    stands_us=now_us - holding.since_us,
                    text=holding.shown(now_us),
                )
            )

    async def holdings(self, slot: Slot, tags: tuple[str, ...] = ()) -> list[Holding]:
        """Find the intents on a key, on its family, and on these tags or those that its arguments name."""
        partition, index = self._partitions[slot.partition], slot.partition
        names = [slot.key, open_name(Scope.FAMILY, slot.family.name, index)]
        names += [open_name(Scope.TAG, tag, index) for tag in tags or _tags_of(slot)]
        found = await asyncio.gather(*(partition.intents(name) for name in names))
        return [await self._holding(intent) for intents in found for intent in intents]

    async def _holding(self, intent: Intent) -> Holding:
        if not 0 <= intent.home < len(self._partitions):
            return Holding(intent)
        record, _ = await self._partitions[intent.home].job(intent.job, START)
        if record is None:
            return Holding(intent)
        is_scope = record.kind is JobKind.WRITING
        return Holding(intent, record.task, record.instance, record.started_us, is_scope)


def _tags_of(slot: Slot) -> tuple[str, ...]:
    if slot.family.tags is None:
        return ()
    try:
        return slot.family.tags(slot.arguments, None)
    except Exception:  # noqa: BLE001 - the program's function of a value, and there is none
        return ()
