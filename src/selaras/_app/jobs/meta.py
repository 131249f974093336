"""What travels with a job beside its arguments: opaque to the store, and most jobs have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from selaras._core.codec import UNREADABLE


class Meta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one job differs from its task, and the headers that middleware gave it.

    Attributes:
        follows: its first argument is the value of the step before it (`then`).
    """

    retries: int | None = None
    timeout_us: int | None = None
    follows: bool = False
    headers: Mapping[str, str] = {}


NO_META: Final = Meta()
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Meta)


def encode_meta(meta: Meta) -> bytes:
    """Return its bytes; none for one that says nothing."""
    return b"" if meta == NO_META else _ENCODER.encode(meta)


def decode_meta(data: bytes) -> Meta:
    """Return what was encoded. Raises ValueError for bytes that are none."""
    if not data:
        return NO_META
    try:
        return _DECODER.decode(data)
    except UNREADABLE as error:
        raise ValueError(str(error)) from error
