"""Plain data as bytes that say themselves what they are: no type is needed to read them, and nothing is lost.

*Plain data* is what Python writes down without any class of a user's: None, bool, int, str, float, bytes, list,
tuple, dict, set, frozenset, datetime, date, time, timedelta, Decimal, UUID, bytearray, of exactly these types. What
msgpack has no word for travels as an extension. Records and enums become plain data first (`shapes`).
"""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.msgpack import Ext

DEPTH_MOST: Final = 64
"""Containers within containers. Deeper data is nearly always a mistake, and Python's own recursion has an end."""

MASK: Final = "•••"


class Hidden:
    """The plain data of a secret: its text shows nothing."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data

    def __repr__(self) -> str:
        return MASK


_PATH_MOST: Final = 120


class Refused(Exception):
    """A value that would not come back; the path grows while it passes outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def under(self, step: str) -> Refused:
        """Note that the value stood at `step` of the one around it."""
        path = step + self.path
        # Of what is nested a hundred deep, or holds itself, the beginning and the end are enough to find it.
        self.path = path if len(path) <= _PATH_MOST else f"{path[: _PATH_MOST // 2]}…{path[-_PATH_MOST // 4 :]}"
        return self


class Unreadable(ValueError):
    """Bytes or data that do not have the expected form."""


class Tag(IntEnum):
    """Extension codes; they stand in stored bytes, so a number is never used again for something else."""

    INTEGER = 1  # beyond 64 bits
    TEXT = 2  # with lone surrogates
    TUPLE = 3
    SET = 4
    FROZENSET = 5
    DICT = 6  # with keys that msgpack's maps do not take
    DATETIME = 7
    DATE = 8
    TIME = 9
    TIMEDELTA = 10
    DECIMAL = 11
    UUID = 12
    HIDDEN = 13
    BYTEARRAY = 14


NATIVE: Final = frozenset({type(None), bool, int, str, float, bytes})
"""Types of which msgpack keeps every value (beyond two exceptions, which its encoder raises on)."""

PLAIN_LEAVES: Final = NATIVE | {datetime, date, time, timedelta, Decimal, UUID, bytearray}

_KEYS: Final = frozenset({str, int})
_ENCODER: Final = msgspec.msgpack.Encoder()
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1


def is_native(value: Any, depth: int = 0) -> bool:
    """Say whether msgpack alone keeps `value` (64-bit integers and surrogates apart)."""
    kind = type(value)
    if kind in NATIVE:
        return True
    if depth == DEPTH_MOST:
        return False
    if kind is list:
        return NATIVE.issuperset(map(type, value)) or all(is_native(item, depth + 1) for item in value)
    if kind is dict:
        return _KEYS.issuperset(map(type, value)) and (
            NATIVE.issuperset(map(type, value.values())) or all(is_native(item, depth + 1) for item in value.values())
        )
    return False


def check(value: Any, depth: int = 0) -> None:
    """Raise Refused unless `value` is plain data."""
    kind = type(value)
    if kind in PLAIN_LEAVES:
        if kind is time or kind is datetime:
            _check_zone(value)
        return
    if depth == DEPTH_MOST:
        raise Refused(f"lies deeper than {DEPTH_MOST} containers, or holds itself")
    if kind is dict:
        for key, item in value.items():
            try:
                check(key, depth + 1)
            except Refused as refused:
                raise Refused(f"the key {_short(key)} {refused.reason}") from None
            try:
                check(item, depth + 1)
            except Refused as refused:
                raise refused.under(f"[{_short(key)}]") from None
    elif kind in _CONTAINERS:
        for index, item in enumerate(value):
            try:
                check(item, depth + 1)
            except Refused as refused:
                raise refused.under(f"[{index}]" if kind is list or kind is tuple else "{…}") from None
    elif kind is not Hidden:
        raise Refused(
            f"is {_article(kind)}, which would not come back as one: annotate it with a type that says what it is "
            "(a Struct, dataclass, NamedTuple, TypedDict, Enum or pydantic model), or give plain data"
        )


_CONTAINERS: Final = frozenset({list, tuple, set, frozenset})


def encode(data: Any) -> bytes:
    """Return plain data as bytes; equal sets give equal bytes whatever their order."""
    if is_native(data):
        try:
            return _ENCODER.encode(data)
        except (OverflowError, UnicodeEncodeError):
            pass
    return _ENCODER.encode(_marked(data))


def decode(data: bytes | memoryview) -> Any:
    """Return the plain data of bytes. Raises Unreadable, nothing else."""
    try:
        return _DECODER.decode(data)
    except Unreadable:
        raise
    except (ValueError, TypeError, OverflowError, ArithmeticError, RecursionError, LookupError) as error:
        raise Unreadable(f"undecodable bytes: {error}") from error


def _marked(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return Ext(Tag.TEXT.value, value.encode("utf-8", "surrogatepass"))
        return value
    if kind is int:
        if _INT_MIN <= value <= _INT_MAX:
            return value
        return Ext(Tag.INTEGER.value, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if kind in NATIVE:
        return value
    if kind is list:
        return [_marked(item) for item in value]
    if kind is dict:
        pairs = [(_marked(key), _marked(item)) for key, item in value.items()]
        if all(type(key) in _KEYS for key, _ in pairs):
            return dict(pairs)
        return Ext(Tag.DICT.value, _ENCODER.encode(pairs))
    tag, mark = _MARKS[kind]
    return Ext(tag.value, _ENCODER.encode(mark(value)))


def _sorted(items: Any) -> list[Any]:
    return sorted((_marked(item) for item in items), key=_ENCODER.encode)


def _offset_us(value: datetime | time) -> int | None:
    offset = value.utcoffset()
    return None if offset is None else offset // timedelta(microseconds=1)


def _check_zone(value: datetime | time) -> None:
    zone = value.tzinfo
    if zone is None or type(zone) is timezone or _zone_name(zone) is not None:
        return
    if type(value) is time or value.utcoffset() is None:
        raise Refused(f"has the time zone {_short(zone)}, which would not come back: use zoneinfo or a fixed offset")


def _zone_name(zone: tzinfo | None) -> str | None:
    if zone is None or type(zone) is timezone:
        return None
    from zoneinfo import ZoneInfo  # few programs keep such times, and every program imports this

    return zone.key if isinstance(zone, ZoneInfo) else None


def _of_datetime(value: datetime) -> list[Any]:
    bare = value.replace(tzinfo=None, fold=0)
    return [bare.isoformat(), value.fold, _offset_us(value), _zone_name(value.tzinfo)]


def _to_datetime(text: str, fold: int, offset_us: int | None, zone: str | None) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=_zone(offset_us, zone), fold=fold)


def _of_time(value: time) -> list[Any]:
    bare = value.replace(tzinfo=None, fold=0)
    return [bare.isoformat(), value.fold, _offset_us(value), _zone_name(value.tzinfo)]


def _to_time(text: str, fold: int, offset_us: int | None, zone: str | None) -> time:
    return time.fromisoformat(text).replace(tzinfo=_zone(offset_us, zone), fold=fold)


def _zone(offset_us: int | None, name: str | None) -> tzinfo | None:
    if name is not None:
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            # This machine does not know the zone: the instant is what must be right.
            if offset_us is None:
                raise Unreadable(f"unknown time zone {name!r}") from None
    if offset_us is None:
        return None
    return UTC if offset_us == 0 else timezone(timedelta(microseconds=offset_us))


_MARKS: Final[dict[type, tuple[Tag, Callable[[Any], Any]]]] = {
    tuple: (Tag.TUPLE, lambda value: [_marked(item) for item in value]),
    set: (Tag.SET, _sorted),
    frozenset: (Tag.FROZENSET, _sorted),
    datetime: (Tag.DATETIME, _of_datetime),
    date: (Tag.DATE, date.isoformat),
    time: (Tag.TIME, _of_time),
    timedelta: (Tag.TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: (Tag.DECIMAL, str),
    UUID: (Tag.UUID, lambda value: value.bytes),
    Hidden: (Tag.HIDDEN, lambda value: _marked(value.data)),
    bytearray: (Tag.BYTEARRAY, bytes),
}

_UNMARK: Final[dict[int, Callable[[Any], Any]]] = {
    Tag.TUPLE: tuple,
    Tag.SET: set,
    Tag.FROZENSET: frozenset,
    Tag.DICT: dict,
    Tag.DATETIME: lambda data: _to_datetime(*data),
    Tag.DATE: date.fromisoformat,
    Tag.TIME: lambda data: _to_time(*data),
    Tag.TIMEDELTA: lambda data: timedelta(*data),
    Tag.DECIMAL: Decimal,
    Tag.UUID: lambda data: UUID(bytes=data),
    Tag.HIDDEN: Hidden,
    Tag.BYTEARRAY: bytearray,
}


def _unmarked(code: int, data: memoryview) -> Any:
    if code == Tag.INTEGER:
        return int.from_bytes(data, "big", signed=True)
    if code == Tag.TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    unmark = _UNMARK.get(code)
    if unmark is None:
        raise Unreadable(f"unknown extension {code}")
    return unmark(_DECODER.decode(data))


_DECODER: Final = msgspec.msgpack.Decoder(ext_hook=_unmarked)


def _short(value: Any) -> str:
    text = repr(value) if type(value) in (str, int, bytes, float, bool) else f"<{type(value).__qualname__}>"
    return text if len(text) <= 60 else text[:57] + "…'"


def _article(kind: type) -> str:
    name = kind.__qualname__
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
