"""The local tier: values in this process, bounded by bytes and entries, safe from scans.

S3-FIFO: newcomers stand in a small queue (a tenth of the room) and most leave it unread; what was read there, or comes
back soon after it left, moves to the main queue, where each pass over it costs it one of its reads. A hit is one
increment; no order is kept, so that hits need no lock.

Source: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any, Final

from selaras._cache.floors import Floors

NEVER: Final = 1 << 62
"""An instant that does not come: the expiry of what has none."""

READS_COUNTED: Final = 3
_READS_TO_STAY = 1  # unread in the small queue, and a newcomer leaves
_SMALL_SHARE = 10
_OVERHEAD = 320  # bytes of an entry beside its value: measured with tracemalloc, key of 20 characters
_OBJECT_FACTOR = 3  # an object takes about so many times the bytes of its encoding
_LARGEST_SHARE = 8  # a value larger than this share of the room is not kept at all
_GHOSTS_LEAST = 64
_SWEPT_AT_ONCE = 128
_COMPACT_FROM = 256


class LocalEntry:
    """One value. `value` is the object itself where it may be shared, else its bytes.

    Attributes:
        position, stamp: order it among the values of its key (P4).
        sent_ns: when the request was sent that brought it.
        expires_ns: when its ttl is over; never later than the shared tier's own expiry.
        early_ns: when this process may load it anew, while it is served on; not after `expires_ns`.
        floor_ns: when an answer for this key was last given out from elsewhere.
        vetted: the position up to which tag and family events are known not to touch it.
    """

    __slots__ = (
        "alive",
        "early_ns",
        "expires_ns",
        "family",
        "floor_ns",
        "in_main",
        "key",
        "partition",
        "position",
        "reads",
        "sent_ns",
        "size",
        "stamp",
        "tags",
        "value",
        "vetted",
    )

    def __init__(
        self,
        key: str,
        value: Any,
        *,
        partition: int,
        family: str,
        tags: tuple[str, ...],
        position: int,
        stamp: int,
        sent_ns: int,
        expires_ns: int,
        size: int,
        early_ns: int = NEVER,
    ) -> None:
        self.key = key
        self.value = value
        self.partition = partition
        self.family = family
        self.tags = tags
        self.position = position
        self.stamp = stamp
        self.sent_ns = sent_ns
        self.expires_ns = expires_ns
        self.early_ns = min(early_ns, expires_ns)
        self.size = size
        self.vetted = position
        self.floor_ns = 0
        self.reads = 0
        self.in_main = False
        self.alive = True


def size_of(key: str, data: bytes, *, shared: bool) -> int:
    """Return about how many bytes an entry takes."""
    return _OVERHEAD + len(key) + len(data) * (_OBJECT_FACTOR if shared else 1)


class LocalTier:
    """Entries by key. `entries` may be read by any thread without the lock; all else takes it."""

    def __init__(self, *, bytes_most: int, entries_most: int, floors: Floors, instant: Callable[[], int]) -> None:
        self.lock = RLock()
        self.floors = floors
        # Of answers alone: a floor is also set where an entry is dropped that may have been given out until then.
        self.answers = Floors(floors.max_lag_ns)
        self.entries: dict[str, LocalEntry] = {}
        self.bytes = 0
        self._bytes_most = bytes_most
        self._entries_most = entries_most
        self._instant = instant
        self._small: deque[LocalEntry] = deque()
        self._main: deque[LocalEntry] = deque()
        self._small_bytes = 0
        self._small_entries = 0
        self._ghosts: dict[str, None] = {}
        self._to_sweep: list[str] = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def ghosts(self) -> int:
        """Keys remembered without their values."""
        return len(self._ghosts)

    @property
    def queued(self) -> int:
        """Places in both queues, those of entries that are gone among them."""
        return len(self._small) + len(self._main)

    # -- in

    def store(self, entry: LocalEntry) -> bool:
        """Keep a value, unless a newer one stands there. Returns whether the tier now holds it or a newer one."""
        with self.lock:
            held = self.entries.get(entry.key)
            if held is not None:
                if (held.position, held.stamp) <= (entry.position, entry.stamp):
                    self._renew(held, entry)
                self._make_room()
                return held.alive
            if entry.size > self._bytes_most // _LARGEST_SHARE or not self._entries_most:
                return False
            entry.floor_ns = self.floors.take(entry.key)
            self._admit(entry)
            self._make_room()
            return entry.alive

    def _renew(self, held: LocalEntry, new: LocalEntry) -> None:
        # The value first: a reader without the lock then sees the new value with the old one's proofs, never the
        # other way round.
        held.value = new.value
        held.tags = new.tags
        held.stamp = new.stamp
        held.position = new.position
        held.vetted = new.vetted
        held.sent_ns = max(held.sent_ns, new.sent_ns)
        held.expires_ns = new.expires_ns
        held.early_ns = new.early_ns
        self.bytes += new.size - held.size
        if not held.in_main:
            self._small_bytes += new.size - held.size
        held.size = new.size

    def _admit(self, entry: LocalEntry) -> None:
        entry.in_main = entry.key in self._ghosts
        if entry.in_main:
            del self._ghosts[entry.key]
            self._main.append(entry)
        else:
            self._small.append(entry)
            self._small_bytes += entry.size
            self._small_entries += 1
        self.entries[entry.key] = entry
        self.bytes += entry.size

    # -- out

    def void(self, key: str, position: int) -> None:
        """An event at `position` speaks against what was true before it."""
        entry = self.entries.get(key)
        if entry is not None and entry.position < position:
            with self.lock:
                if entry.alive and entry.position < position:
                    self._drop(entry)

    def drop(self, key: str) -> None:
        """Whatever stands there must not be served any more."""
        with self.lock:
            entry = self.entries.get(key)
            if entry is not None:
                self._drop(entry)

    def drop_partition(self, partition: int) -> None:
        """Drop all that belongs to a partition: its log was not followed to its end."""
        with self.lock:
            for entry in [entry for entry in self.entries.values() if entry.partition == partition]:
                self._drop(entry)

    def lift(self, key: str, now_ns: int, *, answered: bool = True) -> None:
        """An answer for `key` was given out that did not come from this tier (P4). `answered` False: an old one."""
        with self.lock:
            if answered:
                self.answers.lift(key, now_ns)
            entry = self.entries.get(key)
            if entry is None:
                self.floors.lift(key, now_ns)
            elif entry.floor_ns < now_ns:
                entry.floor_ns = now_ns

    def sweep(self, now_ns: int) -> None:
        """Look at a few entries and drop those whose time is over; all get their turn."""
        with self.lock:
            self.floors.prune(now_ns)
            self.answers.prune(now_ns)
            if not self._to_sweep:
                self._to_sweep = list(self.entries)
            for _ in range(min(_SWEPT_AT_ONCE, len(self._to_sweep))):
                entry = self.entries.get(self._to_sweep.pop())
                if entry is not None and entry.expires_ns <= now_ns:
                    self._drop(entry)
            self._trim_ghosts()
            self._compact()

    def _drop(self, entry: LocalEntry) -> None:
        """Remove an entry. It may have been given out until now, so now is its key's floor."""
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())
        if entry.reads:  # a key in use that is written often would else start anew each time
            self._remember(entry.key)
        self._compact()

    def _remove(self, entry: LocalEntry) -> None:
        del self.entries[entry.key]
        entry.alive = False
        entry.value = None
        self.bytes -= entry.size
        if not entry.in_main:
            self._small_bytes -= entry.size
            self._small_entries -= 1

    def _compact(self) -> None:
        """Take the places of entries that are gone out of the queues, once they are the most."""
        if self.queued < _COMPACT_FROM or self.queued < 2 * len(self.entries):
            return
        self._small = deque(entry for entry in self._small if entry.alive and not entry.in_main)
        self._main = deque(entry for entry in self._main if entry.alive)

    # -- eviction

    def _make_room(self) -> None:
        while self.bytes > self._bytes_most or len(self.entries) > self._entries_most:
            small_is_full = (
                self._small_bytes * _SMALL_SHARE > self._bytes_most
                or self._small_entries * _SMALL_SHARE > self._entries_most
            )
            if self._small_entries and (small_is_full or self._small_entries == len(self.entries)):
                self._leave_small()
            else:
                self._leave_main()

    def _leave_small(self) -> None:
        entry = self._small.popleft()
        if not entry.alive:
            return
        if entry.reads >= _READS_TO_STAY:
            self._small_bytes -= entry.size
            self._small_entries -= 1
            entry.in_main, entry.reads = True, 0
            self._main.append(entry)
            return
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())
        self._remember(entry.key)

    def _leave_main(self) -> None:
        entry = self._main.popleft()
        if not entry.alive:
            return
        if entry.reads:
            entry.reads -= 1
            self._main.append(entry)
            return
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())

    def _remember(self, key: str) -> None:
        self._ghosts.pop(key, None)
        self._ghosts[key] = None
        if len(self._ghosts) > 2 * self._ghosts_most():
            self._trim_ghosts()

    def _trim_ghosts(self) -> None:
        extra = len(self._ghosts) - self._ghosts_most()
        if extra > 0:
            for key in list(self._ghosts)[:extra]:
                del self._ghosts[key]

    def _ghosts_most(self) -> int:
        return len(self.entries) + _GHOSTS_LEAST


def count_read(entry: LocalEntry) -> None:
    """Note a hit; a read lost to another thread does no harm."""
    if entry.reads < READS_COUNTED:
        entry.reads += 1
