"""What happened, in order: a digest of all of it, and the last of it for people."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

from simulation.loop import Loop

KEPT: Final = 400


class Trace:
    """Events of one world. Ids that the product made are replaced by short names, in the order of their appearance."""

    def __init__(self, loop: Loop, *, kept: int = KEPT) -> None:
        self._loop = loop
        self._start_ns = loop.now_ns
        self._hash = hashlib.blake2b(digest_size=12)
        self._last: deque[tuple[int, str, str, tuple[object, ...]]] = deque(maxlen=kept)
        self._batch: list[tuple[object, ...]] = []
        self._names: dict[str, str] = {}
        self.count = 0

    def call(self, id: str, kind: str = "job") -> None:
        """Let an id be shown as the next of its kind."""
        if id not in self._names:
            self._names[id] = f"{kind}-{len(self._names)}"

    def name(self, id: str) -> str:
        """Return what an id is shown as."""
        return self._names.get(id, id)

    def at(self, instant_ns: int) -> str:
        """Show an instant."""
        return f"{(instant_ns - self._start_ns) / 1e9:.6f}"

    def add(self, kind: str, process: str, *said: object) -> None:
        """Something happened."""
        self.count += 1
        event = self._loop.now_ns, kind, process, said
        self._last.append(event)
        self._batch.append(event)
        if len(self._batch) >= 1_000:
            self._digest()

    def _digest(self) -> None:
        self._hash.update(repr(self._batch).encode())
        self._batch.clear()

    @property
    def digest(self) -> str:
        """A name for all that happened."""
        self._digest()
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """Tell the last of it, a line each."""
        told = []
        for at_ns, kind, process, said in self._last:
            words = " ".join(self._names.get(one, one) if isinstance(one, str) else str(one) for one in said)
            told.append(f"{self.at(at_ns):>12}  {process:<14} {kind:<8} {words}")
        return told
