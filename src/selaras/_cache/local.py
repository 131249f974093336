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

from msgspec import Struct

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
_COMPACTED_AT_ONCE = 8
_COMPACT_FROM = 256
_KEPT_AT_ONCE = 16  # places that eviction passes over, since they were read, for one newcomer
_BLOCK = 1_024
_SHELF_ENTRIES = 2_048
_SHELVES_MOST = 4_095

NEAR_MOST: Final = 43_000
"""Entries that are found at the first look: as many as a table holds that is made larger within 2 ms, and emptied in one."""


class LocalEntry(Struct, gc=False, eq=False):
    """One value. `value` is the object itself where it may be shared, else its bytes. The garbage collector does not look
    at entries: of a million of them a look would take a third of a second, and nothing they hold leads back to them.

    Attributes:
        position, stamp: order it among the values of its key (P4).
        sent_ns: when the request was sent that brought it.
        expires_ns: when its ttl is over; never later than the shared tier's own expiry.
        early_ns: when this process may load it anew, while it is served on; not after `expires_ns`.
        floor_ns: when an answer for this key was last given out from elsewhere.
        vetted: the position up to which tag and family events are known not to touch it.
    """

    key: str
    value: Any
    partition: int
    family: str
    tags: tuple[str, ...]
    position: int
    stamp: int
    sent_ns: int
    expires_ns: int
    size: int
    early_ns: int = NEVER
    floor_ns: int = 0
    vetted: int = 0
    reads: int = 0
    in_main: bool = False
    alive: bool = True

    def __post_init__(self) -> None:
        self.vetted = self.position
        if self.early_ns > self.expires_ns:
            self.early_ns = self.expires_ns


class _Shelf:
    """A part of the tier, by the hash of the key. `young`, `old`: keys remembered without their values, in two
    generations; dicts, since the garbage collector looks into sets whatever they hold.
    """

    __slots__ = ("entries", "old", "young")

    def __init__(self) -> None:
        self.entries: dict[str, LocalEntry] = {}
        self.young: dict[str, None] = {}
        self.old: dict[str, None] = {}

    def remember(self, key: str) -> None:
        """Keep a key without its value: as many as there are entries, and some, in each generation at most."""
        self.young[key] = None
        if len(self.young) >= len(self.entries) + _GHOSTS_LEAST:
            self.old, self.young = self.young, {}

    def trim(self) -> None:
        """Forget keys that are many for the entries left by now."""
        while len(self.young) + len(self.old) > 2 * (len(self.entries) + _GHOSTS_LEAST):
            self.old, self.young = self.young, {}


def size_of(key: str, data: bytes, *, shared: bool) -> int:
    """Return about how many bytes an entry takes."""
    return _OVERHEAD + len(key) + len(data) * (_OBJECT_FACTOR if shared else 1)


class _Queue:
    """First in, first out. In tables of numbers, since those that hold nothing the garbage collector must see are not
    looked into: of a deque of a million entries it would look at each.
    """

    __slots__ = ("_blocks", "_first", "_next")

    def __init__(self) -> None:
        self._blocks: deque[dict[int, LocalEntry]] = deque()
        self._first = self._next = 0

    def __len__(self) -> int:
        return self._next - self._first

    def append(self, entry: LocalEntry) -> None:
        if not self._next % _BLOCK:
            self._blocks.append({})
        self._blocks[-1][self._next] = entry
        self._next += 1

    def popleft(self) -> LocalEntry:
        block = self._blocks[0]
        entry = block.pop(self._first)
        self._first += 1
        if not self._first % _BLOCK:
            self._blocks.popleft()
        return entry


class LocalTier:
    """Entries by key, on many shelves, so that no table is so large that it takes long to make it larger.

    `entries` are those that were looked for lately, up to `NEAR_MOST`: it may be read by any thread without the lock. Whoever
    finds nothing there asks `find`, unless `count`, of all, is no more. All but that takes the lock, and a bounded number of
    steps.
    """

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
        self._shelves = [_Shelf() for _ in range(_shelves_for(min(entries_most, bytes_most // _OVERHEAD)))]
        self._mask = len(self._shelves) - 1
        self.count = 0
        self._counts: dict[int, int] = {}  # the same by partition
        self._small: _Queue = _Queue()
        self._main: _Queue = _Queue()
        self._small_bytes = 0
        self._small_entries = 0
        self._to_sweep: list[str] = []
        self._swept = 0  # shelves, so far
        self._gone: list[dict[str, LocalEntry] | _Queue] = []  # what was dropped at once, to be freed in steps

    def __len__(self) -> int:
        return self.count

    @property
    def ghosts(self) -> int:
        """Keys remembered without their values."""
        return sum(len(shelf.young) + len(shelf.old) for shelf in self._shelves)

    @property
    def queued(self) -> int:
        """Places in both queues, those of entries that are gone among them."""
        return len(self._small) + len(self._main)

    def find(self, key: str) -> LocalEntry | None:
        """Return the entry of a key, wherever it stands; the next look finds it in `entries`."""
        entry = self.entries.get(key)
        if entry is None and self.count > len(self.entries):
            with self.lock:
                entry = self._shelf(key).entries.get(key)
                if entry is not None:
                    self._bring_near(entry)
        return entry

    def _bring_near(self, entry: LocalEntry) -> None:
        if len(self.entries) >= NEAR_MOST:
            self.entries.clear()
        self.entries[entry.key] = entry

    def _shelf(self, key: str) -> _Shelf:
        return self._shelves[hash(key) & self._mask]

    # -- in

    def store(self, entry: LocalEntry) -> bool:
        """Keep a value, unless a newer one stands there. Returns whether the tier now holds it or a newer one."""
        with self.lock:
            shelf = self._shelf(entry.key)
            held = shelf.entries.get(entry.key)
            if held is not None:
                if (held.position, held.stamp) <= (entry.position, entry.stamp):
                    self._renew(held, entry)
                self._make_room()
                return held.alive
            if entry.size > self._bytes_most // _LARGEST_SHARE or not self._entries_most:
                return False
            entry.floor_ns = self.floors.take(entry.key)
            self._admit(entry, shelf)
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

    def _admit(self, entry: LocalEntry, shelf: _Shelf) -> None:
        entry.in_main = entry.key in shelf.young or entry.key in shelf.old
        if entry.in_main:
            shelf.young.pop(entry.key, None)
            shelf.old.pop(entry.key, None)
            self._main.append(entry)
        else:
            self._small.append(entry)
            self._small_bytes += entry.size
            self._small_entries += 1
        shelf.entries[entry.key] = entry
        self._bring_near(entry)
        self.bytes += entry.size
        self.count += 1
        self._counts[entry.partition] = self._counts.get(entry.partition, 0) + 1

    # -- out

    def void(self, key: str, position: int) -> None:
        """An event at `position` speaks against what was true before it."""
        with self.lock:
            entry = self._shelf(key).entries.get(key)
            if entry is not None and entry.position < position:
                self._drop(entry)

    def drop(self, key: str) -> None:
        """Whatever stands there must not be served any more."""
        with self.lock:
            entry = self._shelf(key).entries.get(key)
            if entry is not None:
                self._drop(entry)

    def expel(self, key: str, now_ns: int) -> None:
        """The same, and nothing that was true before now may be served in its place (P4)."""
        with self.lock:
            entry = self._shelf(key).entries.get(key)
            if entry is not None:
                self._drop(entry)
            self.floors.lift(key, now_ns)

    def drop_partition(self, partition: int) -> None:
        """Drop all that belongs to a partition: its log was not followed to its end."""
        with self.lock:
            if self._counts.get(partition, 0) == self.count:
                self._drop_all()
                return
            for shelf in self._shelves:
                for entry in [entry for entry in shelf.entries.values() if entry.partition == partition]:
                    self._drop(entry)

    def _drop_all(self) -> None:
        """Drop all, at once whatever their number: what they take is freed by and by."""
        if not self.count:
            return
        self.floors.lift_all(self._instant())
        for shelf in self._shelves:
            self._gone.append(shelf.entries)
            shelf.entries = {}
        self._gone += [self._small, self._main]
        self._small, self._main = _Queue(), _Queue()
        self.entries.clear()
        self.bytes = self.count = self._small_bytes = self._small_entries = 0
        self._counts.clear()

    def lift(self, key: str, now_ns: int, *, answered: bool = True) -> None:
        """An answer for `key` was given out that did not come from this tier (P4). `answered` False: an old one."""
        with self.lock:
            if answered:
                self.answers.lift(key, now_ns)
            entry = self._shelf(key).entries.get(key)
            if entry is None:
                self.floors.lift(key, now_ns)
            elif entry.floor_ns < now_ns:
                entry.floor_ns = now_ns

    def sweep(self, now_ns: int) -> None:
        """Look at a few entries and drop those whose time is over; all get their turn."""
        with self.lock:
            self.floors.prune(now_ns)
            self.answers.prune(now_ns)
            for _ in range(_SWEPT_AT_ONCE):
                if not self._to_sweep:
                    self._swept = (self._swept + 1) & self._mask
                    shelf = self._shelves[self._swept]
                    shelf.trim()
                    self._to_sweep = list(shelf.entries)
                    if not self._to_sweep:
                        break
                key = self._to_sweep.pop()
                entry = self._shelf(key).entries.get(key)
                if entry is not None and entry.expires_ns <= now_ns:
                    self._drop(entry)
            self._compact(_SWEPT_AT_ONCE)
            self._free()

    def _free(self) -> None:
        """Free a part of what was dropped at once."""
        for _ in range(_SWEPT_AT_ONCE * 8):
            if not self._gone:
                return
            heap = self._gone[-1]
            if heap:
                entry = heap.popitem()[1] if isinstance(heap, dict) else heap.popleft()
                entry.alive = False
                entry.value = None
            else:
                self._gone.pop()

    def _drop(self, entry: LocalEntry) -> None:
        """Remove an entry. It may have been given out until now, so now is its key's floor."""
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())
        if entry.reads:  # a key in use that is written often would else start anew each time
            self._shelf(entry.key).remember(entry.key)
        self._compact(_COMPACTED_AT_ONCE)

    def _remove(self, entry: LocalEntry) -> None:
        del self._shelf(entry.key).entries[entry.key]
        self.entries.pop(entry.key, None)
        self.count -= 1
        self._counts[entry.partition] -= 1
        entry.alive = False  # first: a reader without the lock that finds no value looks whether this is why
        entry.value = None
        self.bytes -= entry.size
        if not entry.in_main:
            self._small_bytes -= entry.size
            self._small_entries -= 1

    def _compact(self, steps: int) -> None:
        """Take some places of entries that are gone out of the queues, while those are the most. What stays goes to the end:
        so after a round, all stand in their order again.
        """
        for _ in range(steps):
            if self.queued < _COMPACT_FROM or self.queued < 2 * self.count:
                return
            queue = self._small if len(self._small) - self._small_entries > self.queued // 4 else self._main
            entry = queue.popleft()
            if entry.alive:
                queue.append(entry)

    # -- eviction

    def _make_room(self) -> None:
        steps = 0
        while self.bytes > self._bytes_most or self.count > self._entries_most:
            steps += 1
            small_is_full = (
                self._small_bytes * _SMALL_SHARE > self._bytes_most
                or self._small_entries * _SMALL_SHARE > self._entries_most
            )
            # Where all that is looked at was read, somebody has to leave all the same.
            patient = steps < _KEPT_AT_ONCE
            if self._small_entries and (small_is_full or self._small_entries == self.count):
                self._leave_small(patient=patient)
            else:
                self._leave_main(patient=patient)

    def _leave_small(self, *, patient: bool) -> None:
        entry = self._small.popleft()
        if not entry.alive:
            return
        if entry.reads >= _READS_TO_STAY and patient:
            self._small_bytes -= entry.size
            self._small_entries -= 1
            entry.in_main, entry.reads = True, 0
            self._main.append(entry)
            return
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())
        self._shelf(entry.key).remember(entry.key)

    def _leave_main(self, *, patient: bool) -> None:
        entry = self._main.popleft()
        if not entry.alive:
            return
        if entry.reads and patient:
            entry.reads -= 1
            self._main.append(entry)
            return
        self._remove(entry)
        self.floors.lift(entry.key, self._instant())


def _shelves_for(entries: int) -> int:
    """Return how many shelves so many entries need: a power of two."""
    return 1 << max(0, min(entries // _SHELF_ENTRIES, _SHELVES_MOST)).bit_length()


def count_read(entry: LocalEntry) -> None:
    """Note a hit; a read lost to another thread does no harm."""
    if entry.reads < READS_COUNTED:
        entry.reads += 1
