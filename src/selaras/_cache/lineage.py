"""Remembers what happened to values lately, in bounded memory, and leaves it in the store where other processes find it.

A job whose reads are noted is *watched*: its reads go the careful way, and all others pay nothing. So many jobs a second are
watched, and so many happenings noted; the rest is left out, so that a busy worker pays for a bounded number of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from selaras._cache.family import Slot
from selaras._cache.notes import Notes
from selaras._cache.session import Session
from selaras._contracts.clock import Clock
from selaras._contracts.partition import Partition
from selaras._core.cache.lineage import (
    Happening,
    Kept,
    What,
    directory_bytes,
    directory_of,
    page_bytes,
)
from selaras._core.errors import StoreUnavailable

DIRECTORY: Final = "lineage"
PAGE_MOST: Final = 500
"""Happenings of a page: what is written at once at the most."""

PAGES: Final = 8
"""Of each process; the oldest is written over."""

PROCESSES_MOST: Final = 64
"""Whose pages are found; the one that was longest silent is forgotten."""

READS_MOST: Final = 100
"""Reads noted of one job."""

NOTED_A_SECOND: Final = 500
PUBLISH_NS: Final = 1_000_000_000
TTL_US: Final = 86_400_000_000
"""What happened is kept for a day."""


def page_name(process: str, page: int) -> str:
    """Return the name of a page's note."""
    return f"lineage/{process}/{page}"


def hanging_of(slot: Slot) -> tuple[str, ...]:
    """Return what a value goes with besides its key, as happenings name it: as far as that is known without the value."""
    return f"family {slot.family.name}", *(f"tag {tag}" for tag in slot.family.tags_known(slot.arguments))


class Watch:
    """What one job reads. `left_out`: reads beyond those noted."""

    __slots__ = ("left_out", "reads")

    def __init__(self) -> None:
        self.reads: list[tuple[Slot, int | None, str]] = []
        self.left_out = 0

    def saw(self, slot: Slot, position: int | None, tier: str) -> None:
        """A key was read: at which position (None: straight from the datastore), from which tier."""
        if len(self.reads) < READS_MOST:
            self.reads.append((slot, position, tier))
        else:
            self.left_out += 1


_FULL_NS: Final = 20_000_000
"""When as many jobs are watched as may be in a second, others are not even asked for so long."""


class Lineage:
    """One process's.

    Args:
        jobs_a_second: jobs watched a second at the most.
        process: names it in the store; new at every start. where: names it to people.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        clock: Clock,
        *,
        jobs_a_second: int,
        process: str,
        where: str,
        by: Callable[[], tuple[str, str, str]],
    ) -> None:
        self._notes = Notes(partitions)
        self._clock = clock
        self._now_ns = clock.instant_ns
        self._jobs = jobs_a_second
        self._process, self._where = process, where
        self._by = by
        self._second_ns = 0
        self.full_until_ns = 0  # there was no room for another job: not worth a look before
        self._jobs_left = self._noted_left = 0
        self._page: list[Happening] = []
        self._wide: dict[str, Happening] = {}  # those of this page that concern tags and families, the last of each
        self._pages = 0  # full ones
        self._published_ns = self._now_ns()
        self._is_fresh = True
        self._is_publishing = False
        self.recent: deque[Happening] = deque(maxlen=PAGE_MOST * PAGES)
        """What this process remembers, the newest last."""

    # -- noting

    def watch(self, session: Session) -> Watch | None:
        """Watch what a session's job reads, if this second has room for one more."""
        if self._jobs_left <= 0 and not self._next_second():
            self.full_until_ns = session.since_ns + _FULL_NS
            return None
        self._jobs_left -= 1
        watch = Watch()
        session.watcher = watch
        return watch

    def note(
        self, what: What, key: str, *, job: str = "", task: str = "", position: int | None = None
    ) -> Happening | None:
        """Note what happened to a key. Returns None if this second has no room for it."""
        if self._noted_left <= 0 and not self._next_second():
            return None
        self._noted_left -= 1
        happening = Happening(self._clock.wall_us(), what, key, self._where, job, task, position)
        self._add(happening)
        return happening

    def note_here(self, what: What, key: str, *, position: int | None = None) -> Happening | None:
        """The same; the job that runs here did it, if one does."""
        if self._noted_left <= 0 and not self._next_second():
            return None
        task, _, job = self._by()
        return self.note(what, key, job=job, task=task, position=position)

    def note_wide(self, name: str, partition: int, position: int) -> None:
        """Note that a tag or a family is void in one of the partitions: what they all are told is one happening."""
        last = self._wide.get(name)
        if last is not None and partition not in last.positions and last.job == self._by()[2]:
            last.positions[partition] = position
            self._is_fresh = False
            return
        happening = self.note_here(What.VOIDED, name, position=position)
        if happening is not None:
            self._wide[name] = happening
            happening.positions[partition] = position

    def ended(self, watch: Watch, job: str, task: str) -> None:
        """A watched job has ended: note what it read."""
        now = self._clock.wall_us()
        reads = {(slot.key, position, tier): slot for slot, position, tier in watch.reads}
        for (key, position, tier), slot in reads.items():
            hangs_on = hanging_of(slot)
            self._add(Happening(now, What.READ, key, self._where, job, task, position, tier, hangs_on=hangs_on))

    def _next_second(self) -> bool:
        """Begin a new second, if the last is over."""
        now = self._now_ns()
        if now - self._second_ns < 1_000_000_000 or not self._jobs:
            return False
        self._second_ns, self._jobs_left, self._noted_left = now, self._jobs, NOTED_A_SECOND
        return True

    def _add(self, happening: Happening) -> None:
        self.recent.append(happening)
        if len(self._page) >= PAGE_MOST:  # what was not published in time makes way: readers are told what is there
            self._page, self._wide = [], {}
            self._pages += 1
        self._page.append(happening)
        self._is_fresh = False

    # -- publishing

    def is_due(self, now_ns: int) -> bool:
        """Say whether something happened that other processes cannot see yet, and it is time to show it."""
        return not self._is_fresh and not self._is_publishing and now_ns - self._published_ns >= PUBLISH_NS

    async def publish(self) -> None:
        """Leave what happened in the store. What cannot be told now is told the next time."""
        if self._is_fresh or self._is_publishing:
            return
        self._is_publishing, self._is_fresh = True, True
        data, page = page_bytes(self._page), self._pages
        is_told = False
        try:
            is_told = await self._notes.change(page_name(self._process, page % PAGES), lambda _: data, ttl_us=TTL_US)
            is_told = is_told and await self._notes.change(DIRECTORY, self._listed, ttl_us=TTL_US)
        except StoreUnavailable:
            pass
        finally:
            self._is_publishing = False
            self._published_ns = self._now_ns()
            if not is_told:
                self._is_fresh = False

    def _listed(self, data: bytes | None) -> bytes:
        others = [one for one in directory_of(data) if one.process != self._process]
        own = Kept(self._process, min(self._pages + 1, PAGES), self._clock.wall_us())
        return directory_bytes([*others, own][-PROCESSES_MOST:])
