"""A shelf: a place for bytes that all processes of a machine share, and on which nothing relies.

It may be empty, full, slow, restarted or gone at any time, lose what it holds, and keep what it should have lost. What is
taken from it is judged by its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from msgspec import Struct


class ShelfDown(Exception):
    """It did not answer, or not in time. Never leaves the cache."""


class Found(Struct, frozen=True):
    """What stands under a name. `seen`: what tells it from whatever else will stand there."""

    data: bytes
    seen: int


Told: TypeAlias = Callable[[Found | ShelfDown | None], None]
"""Who hears what stands under a name; None: nothing."""


class Shelf(Protocol):
    """Both verbs are called on a running loop and wait for nothing: what is said in one turn of it goes in one trip."""

    @property
    def url(self) -> str:
        """Where it is, for people."""
        ...

    def ask(self, name: bytes, told: Told) -> None:
        """Tell what stands under a name, once, later on the same loop, within a bound of a few milliseconds."""
        ...

    def put(self, name: bytes, data: bytes, ttl_s: int, *, over: int | None = None) -> None:
        """Put something there, if that is possible now; nobody hears whether it was.

        Args:
            ttl_s: after which it may be forgotten. 0: no end.
            over: only in the place of what was `seen` there so; 0: only where nothing stands. None: in any case.
        """
        ...

    async def close(self) -> None:
        """Free what it holds on every loop."""
        ...
