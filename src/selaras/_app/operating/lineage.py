"""Reads what all processes noted of values and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from selaras._app.process.audits import audited
from selaras._cache.family import Slot
from selaras._cache.lineage import DIRECTORY, PROCESSES_MOST, hanging_of, page_name
from selaras._cache.notes import Notes
from selaras._contracts.store import Store
from selaras._core.cache.lineage import Happening, directory_of, page_of


async def recent(store: Store) -> list[Happening]:
    """Return what happened lately, in the order of the processes' civil time."""
    pages = await _pages(store)
    return sorted((one for page in pages for one in page_of(page)), key=lambda one: one.at_us)


def concerning(slot: Slot, happenings: Sequence[Happening]) -> list[Happening]:
    """Return those of a value's own key, its family and its tags."""
    names = {slot.key, *hanging_of(slot)}
    return [one for one in happenings if one.key in names]


async def noted(store: Store) -> tuple[int, int]:
    """Return how many notes lie among the values, and their bytes."""
    notes = Notes(store.partitions)
    directory = await notes.read(DIRECTORY)
    _, bytes_of_audits = await audited(store)
    sizes = [bytes_of_audits, len(directory or b""), *(len(page) for page in await _pages(store))]
    return sum(size > 0 for size in sizes), sum(sizes)


async def _pages(store: Store) -> list[bytes]:
    notes = Notes(store.partitions)
    kept = directory_of(await notes.read(DIRECTORY))[-PROCESSES_MOST:]
    names = [page_name(one.process, page) for one in kept for page in range(one.pages)]
    return [page for page in await asyncio.gather(*map(notes.read, names)) if page]
