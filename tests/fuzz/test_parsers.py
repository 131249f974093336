"""Whatever is read, it is a value or an error of the kind that its caller expects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from tests.fuzz.targets import BYTES, ORIGIN, TEXTS, body, fuzzed, text_of

from selaras import ConfigurationError
from selaras._app.opening import address_of
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
