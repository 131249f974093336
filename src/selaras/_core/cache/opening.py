"""Under which names tags and families stand among the keys that a job writes.

A write of many values at once is an intent on their tag or family. While it stands, that is *open*: nothing that bears
it is stored, and nothing stored before the claim is served. An intent stands on a key, so a tag or a family has a key of
its own in each partition, under which no value is ever stored: a control character begins it, and no family's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from selaras._core.positions import Scope

OPENING: Final = "\x1f"
"""Begins every such name."""

_FORM: Final = re.compile(r"\x1f([0-9]+):([12]):(.*)", re.DOTALL)


Opening: TypeAlias = tuple[Scope, str]
"""A tag or a family."""


def open_name(scope: Scope, name: str, partition: int) -> str:
    """Return the key under which a tag or family stands in a partition, and which lives there."""
    return f"{OPENING}{partition}:{scope.value}:{name}"


def open_names(scope: Scope, name: str, partitions: int) -> tuple[str, ...]:
    """Return one for each partition: a tag or family is open only where all of them are written."""
    return tuple([open_name(scope, name, index) for index in range(partitions)])


def names_borne(family: str, tags: Iterable[str], partition: int) -> tuple[str, ...]:
    """Return those under which stands what a value of this family with these tags bears."""
    return (
        open_name(Scope.FAMILY, family, partition),
        *[open_name(Scope.TAG, tag, partition) for tag in tags],
    )


def opened_by(key: str) -> Opening | None:
    """Return the tag or family that stands under this key; None: it is a key like others."""
    found = _FORM.fullmatch(key) if key[:1] == OPENING else None
    return None if found is None else (Scope(int(found[2])), found[3])


def home_of_opening(key: str) -> int | None:
    """Return the partition that such a name lives in; None: it is a key like others."""
    found = _FORM.fullmatch(key) if key[:1] == OPENING else None
    return None if found is None else int(found[1])


def shown_key(key: str) -> str:
    """Return a key for people."""
    opened = opened_by(key)
    return key if opened is None else f"{opened[0].name.lower()} {opened[1]}"


def shown_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return keys for people; what stands in several partitions is told once."""
    return tuple(dict.fromkeys(map(shown_key, keys)))
