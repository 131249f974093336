"""The datastore as the program's loaders show it: asked in time, counted, and again where it is late (P13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from selaras._cache.family import Family, Slot
from selaras._cache.outcome import Known
from selaras._contracts.clock import Clock
from selaras._core.errors import StaleSource
from selaras._core.outcomes import NotModified

T = TypeVar("T")

_LATE_PAUSE_US = 5_000
_LATE_US_LEAST = 500_000  # how long a datastore may take to show a version that is known to exist
_LATE_US_MOST = 10_000_000


class Source:
    """Calls loaders."""

    def __init__(self, clock: Clock, instant: Callable[[], int]) -> None:
        self._clock = clock
        self._instant = instant
        self._late: set[asyncio.Task[Any]] = set()

    async def load(self, slot: Slot, floor: int | None, known: Known | None = None) -> Any:
        """Ask the datastore, again and again while it answers below the floor.

        Raises:
            StaleSource: it stayed below.
        """
        family = slot.family
        first = self._instant()
        pause_us = _LATE_PAUSE_US
        patience_us = min(max(family.replica_lag_us, _LATE_US_LEAST), _LATE_US_MOST)
        while True:
            started = self._instant()
            try:
                value = await self._in_time(slot, self._ask(slot, known))
            except Exception:
                family.counts.errors += 1
                raise
            family.counts.loads += 1
            family.took((self._instant() - started) // 1_000)
            if not self.is_late(family, value, floor):
                return value
            if self._instant() - first >= patience_us * 1_000:
                if value is None:  # no version to judge by: it may have been deleted. The store will not keep it.
                    return None
                raise StaleSource(
                    f"{slot.key}: the datastore still answers with a version below {floor}, which is known to exist;"
                    f" waited {patience_us / 1_000_000:g} s. Is it a replica that lags? Of a datastore that was put back from a backup"
                    f" versions begin anew: give the family another name, @app.cached(name=...)"
                )
            await self._clock.sleep(pause_us / 1_000_000)
            pause_us *= 2

    async def load_many(self, slots: Sequence[Slot]) -> list[Any]:
        """Ask for several of a family that has a batch loader, once. Returns a value a slot: some may be late."""
        family = slots[0].family
        assert family.load_many is not None
        started = self._instant()
        try:
            values = list(await self._in_time(slots[0], family.load_many([slot.arguments for slot in slots])))
            if len(values) != len(slots):
                raise ValueError(
                    f"the batch loader of {family.name} returned {len(values)} values for {len(slots)} keys;"
                    " it must return one a key, in the same order"
                )
        except Exception:
            family.counts.errors += len(slots)
            raise
        family.counts.loads += len(slots)
        family.took((self._instant() - started) // 1_000)
        return values

    @staticmethod
    def is_late(family: Family, value: Any, floor: int | None) -> bool:
        """Say whether a value lies below its floor."""
        if floor is None or family.version is None:
            return False
        version = None if value is None else family.version(value)
        return version is None or version < floor

    async def ask(self, slot: Slot) -> Any:
        """Ask the datastore once, for nobody who reads: it is not counted, and no version is waited for."""
        return await self._in_time(slot, self._ask(slot, None))

    async def _ask(self, slot: Slot, known: Known | None) -> Any:
        family = slot.family
        if family.load_again is None:
            return await family.load(slot.arguments)
        old = None if known is None else self._decoded(slot, known)
        try:
            return await family.load_again(slot.arguments, old)
        except NotModified:
            if known is None:
                raise RuntimeError(
                    f"the loader of {slot.key} says NotModified, and was given no old value: it may when `old` is not None"
                ) from None
            return self._decoded(slot, known)

    def _decoded(self, slot: Slot, known: Known) -> Any:
        return slot.family.codec.decode(known.entry.value)

    async def _in_time(self, slot: Slot, work: Awaitable[T]) -> T:
        """Wait for a loader no longer than its hard timeout. What it then still does is nobody's."""
        most_us = slot.family.hard_timeout_us
        if not most_us:
            return await work
        loading = self.own(_awaited(work))
        alarm = self.own(self._clock.sleep(most_us / 1_000_000))
        try:
            await asyncio.wait((loading, alarm), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                return loading.result()
            raise TimeoutError(f"{slot.key}: its loader took longer than its hard_timeout, {most_us / 1_000_000:g} s")
        finally:
            alarm.cancel()
            loading.cancel()

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin what may be left alone: its error is nobody's then."""
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, loading: asyncio.Task[Any]) -> None:
        self._late.discard(loading)
        if not loading.cancelled():
            loading.exception()


async def _awaited(work: Awaitable[T]) -> T:
    return await work
