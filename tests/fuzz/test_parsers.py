"""Whatever is read, it is a value or an error of the kind that its caller expects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.fuzz.targets import BYTES, ORIGIN, TEXTS, body, fuzzed, speak, text_of
from xxhash import xxh3_64_digest

from selaras import ConfigurationError
from selaras._app.setup.opening import address_of
from selaras._core.cache.hosted import FORM, hosted_of
from selaras._stores.memcached.line import Meta
from selaras.cli.arguments import read_arguments
from selaras.cli.exits import Misused


@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_are_read_or_refused(name: str) -> None:
    target = BYTES[name]

    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=200) | st.sampled_from([b"\x01", b"\x02", b"\x03"]).flatmap(_behind))
    def holds(data: bytes) -> None:
        fuzzed(target, data)

    holds()


@pytest.mark.parametrize("name", BYTES)
def test_good_bytes_that_were_changed_are_read_or_refused(name: str) -> None:
    target = BYTES[name]

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        good = bytearray(data.draw(st.sampled_from(target.seeds)))
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(good) - 1)) if good else 0
            match data.draw(st.sampled_from(["change", "drop", "add", "cut"])):
                case "change" if good:
                    good[at] = data.draw(st.integers(0, 255))
                case "drop" if good:
                    del good[at]
                case "add":
                    good.insert(at, data.draw(st.integers(0, 255)))
                case _:
                    del good[at:]
        fuzzed(target, bytes(good))

    holds()


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_read_or_refused(name: str) -> None:
    target = TEXTS[name]

    @settings(max_examples=300, deadline=None)
    @given(st.text(max_size=60) | st.lists(_pieces(target.seeds), max_size=8).map("".join))
    def holds(text: str) -> None:
        fuzzed(target, text)

    holds()


@pytest.mark.parametrize("name", [*BYTES, *TEXTS])
def test_the_seeds_are_read(name: str) -> None:
    target = BYTES.get(name) or TEXTS[name]

    for seed in target.seeds:
        target.read(seed)


_DEEP = b"\x91" * 50_000 + b"\xc0"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("note", 4),
        ("ledger of audits", 2),
        ("page of lineage", 1),
        ("directory of lineage", 1),
        ("meta", 0),
        ("failure", 3),
    ],
)
def test_bytes_that_are_nested_without_end_are_read_or_refused(name: str, fields: int) -> None:
    """An array of one more element than is known: that one is passed over, however deep it is."""
    target = BYTES[name]

    for seed in target.seeds:
        for data in (_DEEP, bytes([0x90 + fields + 1]) + seed[1:] + _DEEP, seed[:1] + _DEEP):
            fuzzed(target, data)


def test_an_entry_of_the_host_tier_that_is_nested_without_end_is_none() -> None:
    entry = bytes([0x90 + 10]) + BYTES["entry of the host tier"].seeds[0][10:] + _DEEP

    assert hosted_of(FORM + xxh3_64_digest(entry) + entry) is None


def test_an_argument_that_is_nested_without_end_is_text_or_refused() -> None:
    deep = "[" * 200_000

    assert read_arguments(body, {"more": Any}, [f"more={deep}"]) == ((), {"more": deep})
    with pytest.raises(Misused, match="id="):
        read_arguments(body, {"id": list[int]}, [f"id={deep}"])


def test_a_memcached_that_does_not_say_how_large_an_item_may_be_is_not_spoken_to() -> None:
    speak(Meta(), b"\xffMN\r\nVERSION 1\r\nSTAT item_size_max \r\nEND\r\n")


def test_a_url_that_python_itself_cannot_split_is_refused_in_our_words() -> None:
    with pytest.raises(ConfigurationError, match=r"'//\[' is no URL: Invalid IPv6 URL"):
        address_of("//[", "", ORIGIN)


def test_bytes_that_are_no_text_typed_in_a_shell_are_refused_with_their_parameter() -> None:
    """A shell hands over any bytes; Python makes lone surrogates of those that are no UTF-8."""
    with pytest.raises(Misused, match="id="):
        read_arguments(body, {"id": int}, [text_of(b"\xff")])


def _behind(mark: bytes) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=100).map(lambda data: mark + data)


def _pieces(seeds: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Parts of what is right, and single characters that mean something somewhere."""
    parts = sorted({seed[first : first + size] for seed in seeds for first in range(len(seed)) for size in (1, 3, 9)})
    return st.sampled_from(parts) | st.sampled_from(list(":/?#[]@&=%,-+.0 9eE\n\0\ud800{}\"'")) | st.text(max_size=3)


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db\0", "redis:/user:secret@host", "redis+cluster:/+]7::[:1000?paredis+clu4"]
)
def test_what_a_hunt_has_found_in_urls_is_refused_and_tells_no_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TEXTS["url"].read(url)

    assert "secret" not in str(refused.value)
