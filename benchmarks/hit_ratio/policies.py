"""What decides which key leaves: each reads a key, and says whether it had it."""

from __future__ import annotations

import importlib
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol

from selaras._cache.floors import Floors
from selaras._cache.local import NEVER, LocalEntry, LocalTier, count_read


class Policy(Protocol):
    """A cache of keys alone."""

    def read(self, key: str) -> bool:
        """Return whether the key was there; from now on it is, if the policy wants it."""
        ...


class Selaras:
    """The local tier as it is: S3-FIFO, in bounded steps."""

    def __init__(self, entries: int) -> None:
        self._numbers = itertools.count(1)
        self._tier = LocalTier(
            bytes_most=1 << 40, entries_most=entries, floors=Floors(10**9), instant=self._numbers.__next__
        )

    def read(self, key: str) -> bool:
        """See `Policy`."""
        entry = self._tier.find(key)
        if entry is not None:
            count_read(entry)
            return True
        self._tier.store(
            LocalEntry(
                key,
                b"",
                partition=0,
                family="f",
                tags=(),
                position=0,
                stamp=0,
                sent_ns=0,
                expires_ns=NEVER,
                size=1,
            )
        )
        return False


class Lru:
    """The least recently read leaves."""

    def __init__(self, entries: int) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._most = entries

    def read(self, key: str) -> bool:
        """See `Policy`."""
        if key in self._keys:
            self._keys.move_to_end(key)
            return True
        self._keys[key] = None
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return False


class _Node:
    __slots__ = ("key", "newer", "older", "visited")

    def __init__(self, key: str) -> None:
        self.key = key
        self.visited = False
        self.newer: _Node | None = None
        self.older: _Node | None = None


class Sieve:
    """A hand goes from the oldest to the newest and takes the first that was not read since it last came by.

    Source: Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is simpler than LRU", NSDI 2024.
    """

    def __init__(self, entries: int) -> None:
        self._nodes: dict[str, _Node] = {}
        self._most = entries
        self._newest: _Node | None = None
        self._oldest: _Node | None = None
        self._hand: _Node | None = None

    def read(self, key: str) -> bool:
        """See `Policy`."""
        node = self._nodes.get(key)
        if node is not None:
            node.visited = True
            return True
        if len(self._nodes) >= self._most:
            self._evict()
        node = self._nodes[key] = _Node(key)
        node.older = self._newest
        if self._newest is not None:
            self._newest.newer = node
        self._newest = node
        self._oldest = self._oldest or node
        return False

    def _evict(self) -> None:
        node = self._hand or self._oldest
        assert node is not None
        while node.visited:
            node.visited = False
            node = node.newer or self._oldest
            assert node is not None
        self._hand = node.newer
        if node.older is None:
            self._oldest = node.newer
        else:
            node.older.newer = node.newer
        if node.newer is None:
            self._newest = node.older
        else:
            node.newer.older = node.older
        del self._nodes[node.key]


class Theine:
    """W-TinyLFU as the library theine has it: `pip install theine`."""

    def __init__(self, entries: int) -> None:
        library: Any = importlib.import_module("theine")
        self._cache: Any = library.Cache(entries)

    def read(self, key: str) -> bool:
        """See `Policy`."""
        found: bool = self._cache.get(key)[1]
        if not found:
            self._cache.set(key, None)
        return found


POLICIES: Final[dict[str, Callable[[int], Policy]]] = {
    "Selaras": Selaras,
    "LRU": Lru,
    "SIEVE": Sieve,
    "W-TinyLFU (theine)": Theine,
}
