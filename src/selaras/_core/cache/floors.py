"""Version floors and closed keys: what a datastore that answers late must at least know of (P13), and what may change
after it was voided (P18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def closing(keys: Iterable[str], grace_us: int) -> PerKey:
    """Close keys that an attempt may still write and that no intent of it guards, as those of a family that is served
    on are: a value that was loaded before that late write must not be kept (P18).
    """
    return tuple((key, grace_us) for key in keys)


def is_below(version: int | None, floor: int | None) -> bool:
    """Say whether a value is too old: there is a floor, and it names no version or an older one."""
    return floor is not None and (version is None or version < floor)
