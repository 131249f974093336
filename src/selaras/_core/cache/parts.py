"""Arguments as the text of a cache key: no two calls share a text unless Python calls their arguments equal.

A parameter whose annotation fixes the type is written bare (`product:42`); everywhere else a value says its type,
so that 1, True and "1" stay apart. Equal values are one text however they are spelled: Decimal("1.10") and
Decimal("1.1"), one instant in two time zones, sets and dicts in any order.
"""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from selaras._core.tagged import Hidden

TEXT_MOST: Final = 400
"""Longer parts end in a digest; keys stay short whatever the arguments."""

_DIGEST_BYTES: Final = 20


def plain_text(value: str) -> str:
    """Write any text so that only letters, digits, `_.-~` and `%` stand in it."""
    if value.isascii() and value.isalnum():
        return value
    return quote(value, safe="", errors="surrogatepass")


def shortened(text: str) -> str:
    """Return a text of bounded length; two different texts stay different (by a 160-bit BLAKE2b digest)."""
    if len(text) <= TEXT_MOST:
        return text
    # `!` stands in no other place, so a digest is never mistaken for a text that was short enough.
    return f"{text[:80]}!{_digest(text)}"


def _digest(text: str) -> str:
    from hashlib import blake2b  # few keys need it, and every program imports this

    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def is_shortened(text: str) -> bool:
    """Say whether `shortened` cut a text: then what it stands for may be of any size."""
    return "!" in text


def bare_writer(kind: type) -> Callable[[Any], str] | None:
    """Return what writes values of exactly this type where the annotation tells the type."""
    return _BARE.get(kind)


def written(value: Any) -> str:
    """Write plain data with its types."""
    kind = type(value)
    if kind is str:
        return "'" + plain_text(value)
    if kind is int:
        return str(value)
    if value is None:
        return "none"
    if kind is float:
        text = _float(value)
        return text if "." in text or "e" in text or "n" in text else f"{text}.0"
    if kind in (list, tuple):
        return ("(" if kind is list else "t(") + ",".join(map(written, value)) + ")"
    if kind is dict:
        return "{" + ",".join(sorted(f"{written(key)}={written(item)}" for key, item in value.items())) + "}"
    if kind in (set, frozenset):
        return ("s(" if kind is set else "f(") + ",".join(sorted(map(written, value))) + ")"
    if kind is Hidden:
        # A secret in a key would be shown wherever keys are.
        return "#" + _digest(written(value.data))
    if kind is bool:
        return _bool(value)
    return f"{kind.__name__}({_BARE[kind](value)})"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    return repr(value) if value else "0.0"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        return plain_text(str(value))
    if not value:
        return "0"
    sign, digits, exponent = value.as_tuple()
    # By hand: `normalize` rounds to the precision of the thread's own context.
    text = "".join(map(str, digits))
    stripped = text.rstrip("0")
    assert isinstance(exponent, int)
    return f"{'-' if sign else ''}{stripped}e{exponent + len(text) - len(stripped)}"


def _moment(value: datetime | time) -> str:
    if isinstance(value, datetime) and value.utcoffset() is not None:
        try:
            return plain_text(value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z")
        except OverflowError:
            pass  # within a day of the calendar's end: its own zone will do
    return plain_text(f"{value.isoformat()}{'f' if value.fold else ''}")


_BARE: Final[dict[type, Callable[[Any], str]]] = {
    int: str,
    str: plain_text,
    bool: _bool,
    float: _float,
    bytes: bytes.hex,
    bytearray: bytearray.hex,
    UUID: str,
    date: date.isoformat,
    datetime: _moment,
    time: _moment,
    timedelta: lambda value: f"{value // timedelta(microseconds=1)}us",
    Decimal: _decimal,
    type(None): lambda value: "none",
}
