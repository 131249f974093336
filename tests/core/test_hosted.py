"""Entries of the host tier: what was written comes back, and nothing else is taken for one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from selaras._app.setup.opening import Address, shelf_owner
from selaras._core.cache.hosted import Hosted, host_name, hosted_bytes, hosted_of
from selaras._worker.system import clock_origin

numbers = st.integers(0, 2**63 - 1)
entries = st.builds(
    Hosted,
    key=st.text(),
    epoch=numbers,
    position=numbers,
    event_id=numbers,
    stamp=st.integers(0, 2**64 - 1),
    until_ns=numbers,
    tags=st.lists(st.text(), max_size=3).map(tuple),
    note=st.binary(max_size=20),
    value=st.binary(max_size=200),
)


@given(entries)
def test_what_was_written_comes_back(entry: Hosted) -> None:
    assert hosted_of(hosted_bytes(entry)) == entry


@given(entries, st.data())
def test_a_flipped_bit_anywhere_is_noticed(entry: Hosted, data: st.DataObject) -> None:
    whole = bytearray(hosted_bytes(entry))
    place = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[place // 8] ^= 1 << place % 8

    assert hosted_of(bytes(whole)) is None


@given(entries, st.data())
def test_what_was_cut_off_or_continued_is_noticed(entry: Hosted, data: st.DataObject) -> None:
    whole = hosted_bytes(entry)

    assert hosted_of(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None
    assert hosted_of(whole + data.draw(st.binary(min_size=1, max_size=9))) is None


@given(st.binary(max_size=300))
def test_bytes_that_nobody_wrote_are_no_entry(data: bytes) -> None:
    assert hosted_of(data) is None


@given(st.binary(max_size=40), st.text(max_size=400), st.binary(max_size=40), st.text(max_size=400))
def test_names_are_legal_and_of_one_owner_and_key(owner: bytes, key: str, other: bytes, other_key: str) -> None:
    name = host_name(owner + b"\0", key)

    assert len(name) <= 250
    assert name.isascii()
    assert not set(name) & set(b" \r\n\t\0")
    same = (owner + b"\0" + key.encode()) == (other + b"\0" + other_key.encode())
    assert (name == host_name(other + b"\0", other_key)) == same


def test_stores_and_clocks_that_differ_have_names_of_their_own() -> None:
    one = Address("sqlite", "/data/one.db", {}, "sqlite:////data/one.db")
    other = Address("sqlite", "/data/one-shop.db", {}, "sqlite:////data/one-shop.db")

    assert shelf_owner(one) != shelf_owner(other)
    assert shelf_owner(one) == shelf_owner(one)
    assert clock_origin().encode() in shelf_owner(one)
