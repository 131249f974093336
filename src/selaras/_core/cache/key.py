"""Names: of tasks, families, queues and ids; and the text of a cache key."""

from __future__ import annotations

import unicodedata
from typing import Final

from selaras._core.errors import ConfigurationError

NAME_MOST: Final = 200
"""Characters of a task, family, queue or job id."""

SEPARATOR: Final = ":"
"""Stands between a family's name and the parts. Parts never hold it bare, so the last one in a key divides it."""


def key_text(family: str, parts: str) -> str:
    """Return the text of a key: `product:42`."""
    return f"{family}:{parts}"


def family_of(key: str) -> str:
    """Return the family's name in a key's text."""
    return key.rpartition(SEPARATOR)[0]


def parts_of(key: str) -> str:
    """Return the parts in a key's text."""
    return key.rpartition(SEPARATOR)[2]


def checked_name(name: str, *, what: str) -> str:
    """Return `name` if it is a legal one: any text of 1 to 200 characters, without control characters.

    `what` is the kind of thing it names, for the message: "task", "queue", "job id".

    Raises:
        ConfigurationError: saying which rule the name breaks.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - called with users' values
        raise ConfigurationError(f"a {what} is named by text, not by {name!r} ({type(name).__name__})")
    if name.isascii() and name.isprintable() and 0 < len(name) <= NAME_MOST:
        return name
    if not name:
        raise ConfigurationError(f"a {what} cannot have an empty name: give 1 to {NAME_MOST} characters")
    if len(name) > NAME_MOST:
        raise ConfigurationError(f"the {what} {name[:40]!r}… has {len(name)} characters; the most is {NAME_MOST}")
    for place, character in enumerate(name):
        # Cc: control characters; Cs: lone surrogates, which no store and no URL can carry.
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise ConfigurationError(f"the {what} {name!r} has the control character {character!r} at {place}")
    return name
