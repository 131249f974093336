"""Every spelling of a call is one key, and no two calls share one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from tests.core.values import PLAIN, TEXT, Colour, Product

from selaras._core.cache.key import checked_name, family_of, key_text, parts_of
from selaras._core.cache.tagging import tag_text, tag_texts
from selaras._core.errors import ConfigurationError, NotEncodable
from selaras._core.signature import Signature, is_atomic


def key(function: Any, *args: Any, **kwargs: Any) -> str:
    signature = Signature.of(function)
    text = signature.key_of(args, kwargs)
    assert signature.key_of(args, kwargs) == text  # as remembered
    return text


def test_keys_read_as_people_write_them() -> None:
    def product(id: int) -> None: ...
    def price(sku: str, day: datetime, colour: Colour = Colour.RED) -> None: ...

    assert key_text("product", key(product, 42)) == "product:42"
    assert key(price, "a b/ü", datetime(2024, 1, 2, tzinfo=UTC)) == "a%20b%2F%C3%BC,2024-01-02T00%3A00%3A00Z,RED"
    assert key(lambda: None) == ""


def test_br_031_every_spelling_of_a_call_is_one_key() -> None:
    def f(a: Any, b: Any = 0) -> None: ...
    def g(a: int, /, b: int = 0, *more: int, c: int = 3, **rest: int) -> None: ...

    assert len({key(f, 1), key(f, 1, 0), key(f, 1, b=0), key(f, b=0, a=1)}) == 1
    assert key(f, 1) != key(f, 1, None)
    assert key(f, 1) != key(f, 0, 1)
    assert key(g, 1, x=1, y=2) == key(g, 1, 0, y=2, c=3, x=1)
    assert key(g, 1, 0, 5) != key(g, 1, 0, c=5)
    assert key(g, 1, 0, 5, 6) != key(g, 1, 0, 56)


def test_one_true_and_the_text_one_are_told_apart_unless_the_annotation_says_which() -> None:
    def free(x: Any) -> None: ...
    def number(x: int) -> None: ...
    def real(x: float) -> None: ...
    def text(x: str) -> None: ...

    assert (
        len({key(free, value) for value in (1, True, "1", 1.0, None, "none", "true", b"1", Decimal(1), [1], (1,))})
        == 11
    )
    assert key(number, 1) == key(number, True)
    assert key(real, 1) == key(real, 1.0)
    for function, wrong in ((number, "1"), (number, 1.0), (text, 1)):
        with pytest.raises(NotEncodable):
            key(function, wrong)


def test_equal_values_are_one_key_however_they_are_spelled() -> None:
    def f(x: Any) -> None: ...
    def d(x: Decimal) -> None: ...
    def at(x: datetime) -> None: ...

    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    for function, one, other in [
        (d, Decimal("1.10"), Decimal("1.1")),
        (d, Decimal("1E+3"), Decimal(1000)),
        (d, Decimal(0), Decimal("-0.00")),
        (at, noon, noon.astimezone(timezone(timedelta(hours=5, minutes=45)))),
        (f, {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (f, {1, 2, 3}, {3, 2, 1}),
        (f, 0.0, -0.0),
        (f, [Decimal("1.0")], [Decimal(1)]),
    ]:
        assert key(function, one) == key(function, other)
    with localcontext(prec=2):
        assert key(d, Decimal("1.2345")) != key(d, Decimal("1.2346"))
    assert key(at, noon) != key(at, noon.replace(tzinfo=None))


@given(st.lists(st.tuples(PLAIN, PLAIN), min_size=2, max_size=2))
@settings(max_examples=150, deadline=None)
def test_two_calls_share_a_key_only_if_python_calls_their_arguments_equal(pairs: list[tuple[Any, Any]]) -> None:
    one, other = pairs
    signature = Signature.of(lambda a, b: None)

    if signature.key_of(one, {}) == signature.key_of(other, {}):
        assert repr(one) == repr(other) or one == other


@given(st.lists(TEXT, max_size=3), st.lists(TEXT, max_size=3))
def test_texts_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    def f(*parts: str) -> None: ...
    def g(a: str, b: str = "", c: str = "") -> None: ...

    assert (key(f, *one) == key(f, *other)) == (one == other)
    assert (key(g, *(["x", *one][:3])) == key(g, *(["x", *other][:3]))) == ([*one, "", ""][:2] == [*other, "", ""][:2])


@given(PLAIN)
def test_a_key_holds_nothing_that_another_part_of_a_store_could_take_for_its_own(value: Any) -> None:
    def f(x: Any) -> None: ...

    text = key(f, value)

    assert text.isascii()
    assert not set(text) & set(': \n\r\t\x00/*[]"\\')
    assert len(text) <= 400
    assert parts_of(key_text("a:b", text)) == text
    assert family_of(key_text("a:b", text)) == "a:b"


def test_records_and_long_arguments_make_keys_too() -> None:
    def f(p: Product, u: UUID | None = None) -> None: ...
    def long(text: str) -> None: ...

    assert key(f, Product(1, "a", 1)) == key(f, Product(1, "a", 1.0))
    assert key(f, Product(1, "a", 1)) != key(f, Product(1, "b", 1))
    assert len(key(long, "x" * 100_000)) < 400
    assert key(long, "x" * 100_000) != key(long, "x" * 100_000 + "y")


def test_remembered_keys_are_bounded() -> None:
    signature = Signature.of(lambda x: None)

    for number in range(45_000):
        signature.key_of((number,), {})

    assert sum(map(len, signature._memos.values())) <= 20_000


# -- names


@pytest.mark.parametrize(
    "name", ["123", "a:b", "a:b:c", " ", "é", "{x}", "../x", "x" * 200, "é" * 200, "lock", "задача", "🦊", "%0a"]
)
def test_br_076_any_text_is_a_legal_name(name: str) -> None:
    assert checked_name(name, what="job id") == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty name"),
        ("x" * 201, "201 characters; the most is 200"),
        ("a\nb", r"control character '\\n' at 1"),
        ("\x00", "control character"),
        ("a\x7f", "control character"),
        ("\ud800", "control character"),
        (7, "named by text, not by 7"),
    ],
)
def test_br_076_what_is_no_legal_name_says_which_rule_it_breaks(name: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        checked_name(name, what="queue")


def test_only_raw_arguments_that_are_one_call_and_no_other_are_remembered() -> None:
    assert is_atomic((1, "a", None, b"", True, UUID(int=1)))
    for value in (1.0, Decimal(1), (1,), frozenset({1}), datetime(2024, 1, 1, tzinfo=UTC), Colour.RED):
        assert not is_atomic((value,))


class Pair(NamedTuple):
    number: int
    text: str


class Level(IntEnum):
    HIGH = 2


class Word(StrEnum):
    TWO = "2"


_EQUALS: list[list[Any]] = [
    [2, 2.0, Decimal(2), Decimal("2.00"), Level.HIGH, "2", Word.TWO],
    [1, True, 1.0],
    [0, False, 0.0, -0.0, Decimal("-0")],
    [0.5, Decimal("0.50")],
    [0.1, Decimal("0.1000000000000000055511151231257827021181583404541015625")],
    [Decimal("0.1"), Decimal("0.10")],
    [1e300, int(1e300)],
    [float("inf"), Decimal("Infinity")],
    [datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))],
    [timedelta(days=1), timedelta(hours=24)],
    [b"a", bytearray(b"a")],
    [{1, 2}, frozenset({2.0, 1})],
    [{"a": 1, "b": 2}, {"b": 2.0, "a": True}],
    [(1, "x"), (1.0, "x"), Pair(1, "x")],
    [[1, None], [True, None]],
    [Colour.RED],
    [Colour.BLUE],
    ["a b"],
    ["a,b"],
    [["a", "b"]],
    [["a,b"]],
    [{"a": None}],
]


def test_values_are_one_tag_if_and_only_if_they_are_equal() -> None:
    texts = [{tag_text("t", value) for value in equal} for equal in _EQUALS]

    assert [len(one) for one in texts] == [1] * len(_EQUALS)
    assert len(set.union(*texts)) == len(_EQUALS)
    assert texts[0] == {"t:2"}


@given(st.integers() | st.floats(allow_nan=False) | st.decimals(allow_nan=False), st.booleans())
def test_equal_numbers_are_one_tag(number: Any, exact: bool) -> None:
    other: Any = Decimal(number) if exact else float(Decimal(number))

    assert (other != number) or tag_text("t", other) == tag_text("t", number)


@pytest.mark.parametrize(
    "value", [object(), 1j, [object()], type("Text", (str,), {})("a"), pytest.param(10**5000, id="long")]
)
def test_what_cannot_stand_in_a_key_is_no_tag(value: Any) -> None:
    with pytest.raises(NotEncodable, match="the tag 't'"):
        tag_text("t", value)


def test_a_tag_that_was_written_out_is_that_of_the_text_and_of_what_is_written_so() -> None:
    assert tag_texts("t", "x y") == (tag_text("t", "x y"),)
    assert tag_texts("t", "7") == (tag_text("t", 7),)
    for value in (2.0, Decimal("1.10"), True, datetime(2026, 1, 1, 12, tzinfo=UTC), date(2026, 1, 1), UUID(int=1)):
        assert {tag_text("t", value), tag_text("t", f"{value}")} == set(tag_texts("t", f"{value}"))


def test_no_two_tags_share_a_text() -> None:
    assert tag_text("category") == "category"
    assert tag_text("category", 7) == "category:7"
    assert (
        len(
            {
                tag_text("a"),
                tag_text("a", "b"),
                tag_text("a:b"),
                tag_text("a", ""),
                tag_text("a", "b:c"),
                tag_text("a:b", "c"),
            }
        )
        == 6
    )
