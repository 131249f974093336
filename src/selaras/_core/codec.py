"""Values as bytes: what is accepted comes back equal and of the same type; all else is refused at the call."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from selaras._core.errors import ConfigurationError, NotEncodable

T = TypeVar("T")

PAYLOAD_MOST: Final = 1_048_576
DEPTH_MOST: Final = 64


class SecretMark:
    """Marks an annotation whose values are never shown."""


Secret: TypeAlias = Annotated[T, SecretMark()]
"""`Secret[str]`: encoded like `str`, and never shown in logs, traces, dashboards or command lines."""


class CorruptBytes(ValueError):
    """Bytes that no value of the expected type was encoded to."""


class Codec:
    """Values of one annotation as bytes and back.

    Attributes:
        shared: values are immutable to the depth: one object may be handed to many.
    """

    __slots__ = ("_decoder", "annotation", "shared")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.shared = annotation in (int, str, float, bool, bytes)
        try:
            self._decoder = msgspec.msgpack.Decoder(annotation)
        except TypeError as error:
            raise ConfigurationError(str(error)) from error

    def encode(self, value: Any, *, path: str = "value", most: int = PAYLOAD_MOST) -> bytes:
        try:
            return b"\x01" + msgspec.msgpack.encode(value)
        except (TypeError, OverflowError, UnicodeEncodeError) as error:
            raise NotEncodable(f"{path}: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data[1:])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptBytes(str(error)) from error


@lru_cache(maxsize=4096)
def codec_of(annotation: Any) -> Codec:
    """Return the codec of an annotation, one for each."""
    return Codec(annotation)


def checksum(data: bytes) -> int:
    """Return the XXH3-64 of `data` without its top bit: SQLite's integers are signed."""
    return xxh3_64_intdigest(data) & 0x7FFF_FFFF_FFFF_FFFF
