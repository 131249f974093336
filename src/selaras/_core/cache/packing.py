"""Large values, smaller: what the shared tier keeps of a value's bytes.

The first byte says whether they are packed, as it says the form of all bytes (see `codec`): `PACKED`, the length of
what was packed in eight bytes, then zlib's stream. Anything else is the value's bytes as they are. A checksum is of
the value's own bytes, packed or not, so that processes with different settings agree on what is the same value.
"""

from __future__ import annotations

import zlib
from typing import Final

from selaras._core.codec import CorruptBytes, OtherShape

PACKED: Final = b"\x04"

_LENGTH_BYTES: Final = 8
_HEAD: Final = 1 + _LENGTH_BYTES
_LEVEL: Final = 1
"""Rows of mixed fields come to a third of their size at 100 MB/s; zlib's default saves a sixth of that at 50 MB/s."""

_WORTH: Final = 8
"""Packed bytes must save one part in so many: what is packed already (images, archives) is kept as it is."""


class LargerThanKept(OtherShape):
    """Bytes of a value larger than this process keeps: of one with another `max_value`. They are well, and not for us."""


def packed(data: bytes, threshold: int) -> bytes:
    """Return bytes to keep: packed if there are `threshold` of them at least (0: never) and that saves something."""
    if not threshold or len(data) < threshold:
        return data
    small = zlib.compress(data, _LEVEL)
    if _HEAD + len(small) > len(data) - len(data) // _WORTH:
        return data
    return PACKED + len(data).to_bytes(_LENGTH_BYTES, "big") + small


def unpacked(data: bytes, most: int) -> bytes:
    """Return what `packed` took.

    Args:
        most: bytes that a value may have; 0: no bound. Nothing larger is ever made in memory.

    Raises:
        LargerThanKept: it says itself that it is larger.
        CorruptBytes: it is not what `packed` made, or hides more than it says.
    """
    if data[:1] != PACKED:
        return data
    size = int.from_bytes(data[1:_HEAD], "big")
    if most and size > most:
        raise LargerThanKept(f"packed bytes of a value of {size:,} bytes, and max_value is {most:,}")
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data[_HEAD:], size + 1)
    except (zlib.error, OverflowError, MemoryError) as error:
        raise CorruptBytes(f"packed bytes that cannot be unpacked: {error}") from error
    if len(found) != size or not reader.eof or reader.unused_data:
        raise CorruptBytes(f"packed bytes of {size:,} bytes that unpack to others")
    return found
