"""Tags as text: equal values are one tag, whatever parameter or caller they come from.

A key's part is written by its parameter's annotation; a tag is named from two sides, of which one has none: the values
that bear it have it from a parameter, `app.tag("price", 2)` from a caller. So a tag's value is written by itself, and all
that Python calls equal are written alike: 2, 2.0, Decimal("2.00") and True's 1, one instant in two time zones.
"""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag
from typing import Any, Final
from urllib.parse import quote

from selaras._core.annotations import shape_of
from selaras._core.cache.key import checked_name
from selaras._core.cache.parts import TEXT_MOST, bare_writer, plain_text, shortened, written
from selaras._core.codec import lowered_of
from selaras._core.errors import ConfigurationError, NotEncodable
from selaras._core.tagged import DEPTH_MOST, Hidden, Refused

_DIGITS_MOST: Final = 4_300
"""Python itself writes no longer integer."""


def tag_text(name: str, value: Any = None) -> str:
    """Return a tag's text: `category:7`, of bounded length. Two names share none; nor do two values, unless they are equal
    or one is the other's text.

    Raises:
        ConfigurationError: it is no legal name.
        NotEncodable: the value is none that a key could have.
    """
    checked_name(name, what="tag")
    bare = quote(name, safe=" ")
    if value is None:
        return bare
    try:
        return f"{bare}:{shortened(plain_text(_bare(value, 0)))}"
    except Refused as refused:
        raise NotEncodable(f"the value{refused.path} of the tag {name!r} {refused.reason}") from None


def tag_texts(name: str, text: str) -> tuple[str, ...]:
    """Return the tags that may be meant where a value was written out by somebody else, in a shell or an f-string: that of
    the text, and those of what is written so, as 2.0 and True are.
    """
    readings = [text, *(read for read in map(_reading, (text,) * len(_READERS), _READERS) if read is not None)]
    return tuple(dict.fromkeys(tag_text(name, reading) for reading in readings))


def _reading(text: str, reader: Callable[[str], Any]) -> Any:
    if len(text) <= TEXT_MOST:
        with suppress(ValueError, InvalidOperation):
            return reader(text)
    return None


def _moment_of(text: str) -> datetime | None:
    # A date alone is written as it is.
    return datetime.fromisoformat(text) if ":" in text else None


_READERS: Final[tuple[Callable[[str], Any], ...]] = (
    Decimal,
    {"true": True, "True": True, "false": False, "False": False}.get,
    _moment_of,
)


def _bare(value: Any, depth: int) -> str:
    """Write a value that stands alone."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is int or kind is bool or kind is float or kind is Decimal:
        return _number(value)
    if isinstance(value, Enum):
        return _member(value, depth)
    if kind is timedelta:
        return str(value)
    if kind is not type(None) and (bare := bare_writer(kind)) is not None:
        return bare(lowered_of(shape_of(kind), value))
    return _within(value, depth)


def _within(value: Any, depth: int) -> str:
    """Write a value that stands beside others, so that none of them could be two."""
    kind = type(value)
    if depth > DEPTH_MOST:
        raise Refused(f"lies deeper than {DEPTH_MOST} containers, or holds itself")
    if value is None:
        return "none"
    if kind is str:
        return "'" + plain_text(value)
    if kind is Hidden:
        return written(value)
    if kind is dict:
        pairs = ((_within(key, depth + 1), _within(item, depth + 1)) for key, item in value.items())
        return "{" + ",".join(sorted(f"{key}={item}" for key, item in pairs)) + "}"
    if kind is list or isinstance(value, tuple):
        return ("(" if kind is list else "t(") + ",".join(_within(item, depth + 1) for item in value) + ")"
    if kind is set or kind is frozenset:
        return "s(" + ",".join(sorted(_within(item, depth + 1) for item in value)) + ")"
    if isinstance(value, Enum) or bare_writer(kind) is not None:
        return plain_text(_bare(value, depth))
    try:
        shape = shape_of(kind)
    except (ConfigurationError, NameError):
        raise Refused(
            f"is a {kind.__qualname__}, which could not stand in a key either: give plain data, an Enum, or what names it"
        ) from None
    return f"{kind.__name__}({_within(lowered_of(shape, value), depth + 1)})"


def _member(value: Enum, depth: int) -> str:
    """Write a member as what it is equal to; as its name if that is nothing else."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, Flag):
        return _bare(value.value, depth)
    return f"{type(value).__name__}.{value.name}"


def _number(value: float | Decimal) -> str:
    if isinstance(value, int):
        try:
            return int.__repr__(value) if type(value) is not bool else str(int(value))
        except ValueError:
            raise Refused(f"has more than {_DIGITS_MOST} digits") from None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else float.__repr__(value)
    if not value.is_finite():
        return str(value) if value.is_nan() else repr(float(value))
    if value.adjusted() < _DIGITS_MOST and value == value.to_integral_value():
        return str(int(value))
    near = float(value)
    return repr(near) if Decimal(near) == value else _decimal(value)


_decimal: Final[Callable[[Decimal], str]] = bare_writer(Decimal)  # type: ignore[assignment] # there is one
