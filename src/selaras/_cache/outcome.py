"""What a read came to, before anybody has taken it."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from selaras._cache.family import Family
from selaras._core.cache.entry import Entry

_NOTHING: Final = object()


class Alone(Exception):
    """The answer cannot be shared: load for yourself. Never leaves the cache."""


class Outcome:
    """What a read came to, for all who share it.

    Attributes:
        data: the value's bytes; None: it cannot be encoded.
        tier, position, known_ns: for `Reading`; `known_ns`: when it was known to be true.
    """

    __slots__ = ("_shared", "_value", "data", "known_ns", "position", "tier", "why")

    def __init__(
        self, value: Any, data: bytes | None, *, shared: bool, tier: str, position: int | None, known_ns: int, why: str
    ) -> None:
        self._value = value
        self._shared = shared and data is not None
        self.data = data
        self.tier = tier
        self.position = position
        self.known_ns = known_ns
        self.why = why

    def take(self, family: Family) -> Any:
        """Return the value: the same object for all if it may be shared, else one for each reader.

        Raises:
            Alone: it can be neither shared nor copied, and somebody else has it.
        """
        value = self._value
        if self._shared:
            return value
        self._value = _NOTHING
        if value is not _NOTHING:
            return value
        if self.data is None:
            raise Alone
        return family.codec.decode(self.data)


class Known(Struct, frozen=True):
    """The entry of a key that is loaded anew, and when the request was sent that brought it."""

    entry: Entry
    sent_ns: int


class Stale(Struct, frozen=True):
    """A value past its ttl, by so much, that nothing speaks against."""

    outcome: Outcome
    late_us: int
    tags: tuple[str, ...] = ()
