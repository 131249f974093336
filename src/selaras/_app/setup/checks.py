"""Refuses what an option cannot be, in words: which option, which value, and what to give instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from selaras._core.errors import ConfigurationError

PRIORITY_MOST: Final = 2**31 - 1
"""Far more ranks than anybody tells apart, and any store can sort by it."""
_COUNT_MOST: Final = 2**31 - 1


def known(said: Mapping[str, object], options: type, *, where: str) -> None:
    """Refuse an option that `options`, a TypedDict, does not have, as a call with a wrong keyword would.

    Raises:
        TypeError: naming the nearest there is.
    """
    names = options.__annotations__
    for name in said:
        if name not in names:
            from difflib import get_close_matches

            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}"
            raise TypeError(f"{where} has no option {name!r}; {hint}")


def count(value: object, *, option: str, least: int = 0) -> int:
    """Return a whole number from `least`."""
    return _whole(value, option, least, _COUNT_MOST, f"a whole number from {least} to {_COUNT_MOST:,}")


def rank(value: object, *, option: str) -> int:
    """Return a priority."""
    return _whole(value, option, -PRIORITY_MOST, PRIORITY_MOST, f"a whole number, {PRIORITY_MOST:,} at most")


def _whole(value: object, option: str, least: int, most: int, wanted: str) -> int:
    # True is an int to Python, and here always a slip.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(f"{option}={value!r}: give {wanted}")
    return value


def word(value: object, words: Iterable[str], *, option: str) -> str:
    """Return one of the words there are."""
    known = [str(one) for one in words]  # of enums, what people write
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{option}={value!r}: give {' or '.join(map(repr, known))}")
    return value


def is_text(value: object) -> bool:
    """Say whether it is a text that can be stored: not one with lone surrogates, of a file's name or broken input."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def yes_or_no(value: object, *, option: str) -> bool:
    """Return True or False; nothing that only counts as one."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{option}={value!r}: give True or False")
    return value
