"""Version floors: what a datastore that answers late must at least know of (P13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PerKey = tuple[tuple[str, int], ...]
"""A number for each of some keys."""


@dataclass(frozen=True, slots=True)
class VersionFloors:
    """VersionFloors that a settle or an invalidation sets, in whichever partitions.

    Attributes:
        versions: per key, the version that must be seen. `closes`: per key, for how many microseconds its fills
            stay refused, since the write named no version.
    """

    versions: PerKey
    closes: PerKey

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys they are for."""
        return tuple(key for key, _ in (*self.versions, *self.closes))

    def of(self, keys: Callable[[str], bool]) -> tuple[PerKey, PerKey]:
        """Return versions and closes of some keys."""
        if not self.versions and not self.closes:
            return (), ()
        return tuple(one for one in self.versions if keys(one[0])), tuple(one for one in self.closes if keys(one[0]))


def is_below(version: int | None, floor: int | None) -> bool:
    """Say whether a value is too old: there is a floor, and it names no version or an older one."""
    return floor is not None and (version is None or version < floor)
