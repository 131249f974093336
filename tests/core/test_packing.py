"""Large values as the shared tier keeps them."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, strategies as st

from selaras._core.cache.packing import PACKED, LargerThanKept, packed, unpacked
from selaras._core.codec import CorruptBytes

ROWS = b"".join(b"\x01id %d name of a product, and its price" % i for i in range(1_000))


@given(st.binary(max_size=400), st.integers(0, 400), st.integers(1, 50))
def test_packed_bytes_come_back_whatever_they_are(data: bytes, threshold: int, times: int) -> None:
    data = b"\x01" + data * times  # the first byte of a codec's bytes is never PACKED
    kept = packed(data, threshold)

    assert unpacked(kept, 0) == data
    assert len(kept) <= len(data)
    assert kept == data or threshold <= len(data) > len(kept)


def test_what_is_small_or_packed_already_is_kept_as_it_is() -> None:
    image = b"\x01" + random.Random(1).randbytes(50_000)

    assert packed(ROWS, len(ROWS) + 1) == packed(ROWS, 0) == ROWS
    assert packed(image, 1) == image
    assert packed(ROWS, len(ROWS)).startswith(PACKED)
    assert len(packed(ROWS, 1)) < len(ROWS) / 3


def test_nothing_is_unpacked_beyond_what_a_value_may_have() -> None:
    kept = packed(ROWS, 1)

    assert unpacked(kept, len(ROWS)) == ROWS
    with pytest.raises(LargerThanKept, match="max_value"):
        unpacked(kept, len(ROWS) - 1)


def test_a_bomb_that_says_it_is_small_is_not_blown_up() -> None:
    bomb = zlib.compress(bytes(1 << 26))
    claims = PACKED + (1_000).to_bytes(8, "big") + bomb

    with pytest.raises(CorruptBytes, match="unpack to others"):
        unpacked(claims, 1 << 20)


@pytest.mark.parametrize(
    "broken",
    [
        PACKED,
        PACKED + b"\0" * 8,
        PACKED + b"\xff" * 20,
        packed(ROWS, 1)[:-1],
        packed(ROWS, 1) + b"x",
        packed(ROWS, 1)[:20] + b"\0\0\0" + packed(ROWS, 1)[23:],
        PACKED + (len(ROWS) + 1).to_bytes(8, "big") + packed(ROWS, 1)[9:],
    ],
)
def test_broken_bytes_are_corrupt(broken: bytes) -> None:
    with pytest.raises(CorruptBytes):
        unpacked(broken, 0)
