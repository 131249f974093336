"""Values as bytes: what is accepted comes back equal and of the same type; all else is refused at the call.

The first byte says the form. `CARRIED`: msgpack as msgspec writes it for the annotation, the fast way, taken when a cheap
look at the value's types proves that nothing is lost. `TAGGED`: plain data that says itself what it is (`tagged`); every
codec reads both, so an annotation may change its form between two versions of a program. `SEALED`: either of them behind
an outline of the type, for bytes that only the same type may read. A fourth is none of a codec's: see `cache/packing.py`.
"""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from selaras._core import tagged
from selaras._core.annotations import SecretMark, shape_of
from selaras._core.errors import NotEncodable
from selaras._core.shapes import NO_WIRE, Shape
from selaras._core.tagged import MASK, Hidden, Refused, Unreadable

T = TypeVar("T")

PAYLOAD_MOST: Final = 1_048_576
"""Bytes of one payload, unless a setting says otherwise."""

CARRIED: Final = b"\x01"
TAGGED: Final = b"\x02"
SEALED: Final = b"\x03"
_SEAL_BYTES: Final = 4

Secret: TypeAlias = Annotated[T, SecretMark()]
"""`Secret[str]`: encoded like `str`, and never shown in logs, traces, dashboards or command lines."""

_ENCODE: Final = msgspec.msgpack.Encoder().encode
UNREADABLE: Final = (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
"""What reading bytes that nobody here wrote may raise."""


class CorruptBytes(ValueError):
    """Bytes that no value of the expected type was encoded to."""


class OtherShape(CorruptBytes):
    """Sealed bytes of a type with other fields: of another version of the program. They are well, and not for us."""


class Codec:
    """Values of one annotation as bytes and back.

    Attributes:
        shared: values are immutable to the depth: one object may be handed to many.
    """

    __slots__ = ("_carried", "_exact", "_mark", "_read", "_seal", "annotation", "shape", "shared")

    def __init__(self, annotation: Any, *, sealed: bool = False) -> None:
        """Make the codec of an annotation.

        Args:
            sealed: only a type of the same fields may read the bytes. For copies of what is kept elsewhere: a field
                that the copy lacks must not be made up from its default.

        Raises:
            ConfigurationError: naming the type and its path, if values of it cannot be stored.
        """
        self.annotation = annotation
        self.shape = shape_of(annotation)
        self.shared = self.shape.shared
        self._exact = self.shape.exact
        self._read = reader_of(self.shape)
        self._carried = self._read is not None
        self._seal = b""
        if sealed:
            outline = xxh3_64_intdigest(self.shape.outline().encode()) & 0xFFFF_FFFF
            self._seal = SEALED + outline.to_bytes(_SEAL_BYTES, "big")
        self._mark = self._seal + CARRIED

    def encode(self, value: Any, *, path: str = "value") -> bytes:
        """Return bytes that `decode` turns into an equal value of the same type.

        Raises:
            NotEncodable: naming the path of what would not come back.
        """
        try:
            carried = self._carried and self._exact(value)
            return self._mark + _ENCODE(value) if carried else self._tagged(value, path)
        except (OverflowError, UnicodeEncodeError, AttributeError):
            # Beyond 64 bits, a lone surrogate, a field that was deleted: rare enough to be found out by trying.
            return self._tagged(value, path)

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises CorruptBytes on anything that was not encoded from such a value."""
        try:
            mark = self._mark
            if self._read is not None and data.startswith(mark):
                return self._read(data[len(mark) :])
            if self._seal and not data.startswith(self._seal) and data[:1] == SEALED:
                raise OtherShape(f"the bytes of {self.shape.name} with other fields than it has here")
            return self.shape.lift(plain_of(data))
        except CorruptBytes:
            raise
        except Exception as error:  # a class of the user's own is made here, and may raise anything
            raise CorruptBytes(f"not the bytes of {self.shape.name}: {error}") from error

    def adopt(self, data: bytes) -> Any:
        """Return the value of bytes that another annotation's codec made, coerced as an argument is. Raises CorruptBytes."""
        try:
            return self.decode(data)
        except CorruptBytes as refused:
            try:
                return self.shape.lift(plain_of(data))
            except Exception:  # noqa: BLE001 - as in `decode`; the first refusal names the types
                raise refused from None

    def _tagged(self, value: Any, path: str) -> bytes:
        try:
            lowered = lowered_of(self.shape, value)
        except Refused as refused:
            raise NotEncodable(f"{path}{refused.path} {refused.reason}") from None
        return self._seal + TAGGED + tagged.encode(lowered)


def codec_of(annotation: Any, *, sealed: bool = False) -> Codec:
    """Return the codec of an annotation, one for each. `sealed`: only the same version of the type may read it."""
    try:
        return _codec_of(annotation, sealed=sealed)
    except TypeError:  # it bears a mark that cannot be hashed, as in Annotated[int, []]
        return Codec(annotation, sealed=sealed)


@lru_cache(maxsize=4096)
def _codec_of(annotation: Any, *, sealed: bool) -> Codec:
    return Codec(annotation, sealed=sealed)


def checksum(data: bytes) -> int:
    """Return the XXH3-64 of `data` without its top bit: SQLite's integers are signed."""
    return xxh3_64_intdigest(data) & 0x7FFF_FFFF_FFFF_FFFF


def peek(data: bytes) -> Any:
    """Return what can be said of encoded bytes without knowing their type, for display: secrets are masked.

    Raises:
        CorruptBytes: they are not bytes of this library.
    """
    return unmasked(plain_of(data))


def plain_of(data: bytes) -> Any:
    """Return the plain data of bytes of any form. Raises CorruptBytes."""
    if data[:1] == SEALED:
        data = data[1 + _SEAL_BYTES :]
    if data[:1] not in (CARRIED, TAGGED):
        raise CorruptBytes(f"bytes of no known form (they begin with {bytes(data[:4])!r})")
    try:
        return tagged.decode(data[1:])
    except Unreadable as error:
        raise CorruptBytes(str(error)) from error


def lowered_of(shape: Shape, value: Any) -> Any:
    """Return plain data that is certain to come back as `value`. Raises Refused."""
    try:
        lowered = shape.lower(value, 0)
        if not shape.again:
            return lowered
        again = shape.lower(shape.lift(lowered), 0)
    except Refused:
        raise
    except Exception as error:  # a class of the user's own is read and made here, and may raise anything
        raise Refused(f"would not come back: {type(error).__name__}: {error}") from error
    if tagged.encode(again) != tagged.encode(lowered):
        raise Refused("would come back changed: its class makes something else of its own fields")
    return lowered


def reader_of(shape: Shape) -> Any:
    """Return what decodes the carried form of a shape, or None if msgspec alone cannot keep its values."""
    if shape.wire is NO_WIRE:
        return None
    try:
        return msgspec.msgpack.Decoder(shape.wire).decode
    except (TypeError, NameError):
        # Two branches that msgspec cannot tell apart, or a name it cannot resolve: the tagged form carries it.
        return None


def unmasked(data: Any) -> Any:
    """Return plain data in which each secret is a mask."""
    kind = type(data)
    if kind is Hidden:
        return MASK
    if kind is dict:
        return {unmasked(key): unmasked(item) for key, item in data.items()}
    if kind in (list, tuple, set, frozenset):
        return kind(unmasked(item) for item in data)
    return data
