"""What commands print can be read by any parser, and cannot move a terminal."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st

from selaras.cli.output import many_lines, one_line, plain, print_json, print_table, rough_text, short, styled


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=refuse)


class Colour(Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: float


@dataclass
class Pair:
    left: object
    right: object


def test_nan_and_infinities_become_text_since_json_has_no_word_for_them() -> None:
    assert plain({"loss": math.nan, "x": math.inf, "y": [-math.inf]}) == {
        "loss": "NaN",
        "x": "Infinity",
        "y": ["-Infinity"],
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, None),
        (True, True),
        (2**53 - 1, 2**53 - 1),
        (2**53, "9007199254740992"),
        (-(2**80), "-1208925819614629174706176"),
        (b"text", "text"),
        (b"\xff\x00", {"base64": "/wA="}),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        (Point(math.nan), {"x": "NaN"}),
        (Pair(1, (2, 3)), {"left": 1, "right": [2, 3]}),
        ({1: "a", (1, 2): "b", None: "c"}, {"1": "a", "[1, 2]": "b", "null": "c"}),
        ([[], {}, ()], [[], {}, []]),
    ],
)
def test_values_are_said_as_json_can_say_them(value: object, said: object) -> None:
    assert plain(value) == said


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(anything)
def test_whatever_is_printed_is_strict_json(value: object) -> None:
    text = json.dumps(plain(value), allow_nan=False)

    assert strict(text) == plain(value)


def test_a_lone_surrogate_is_printed_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"id": "\udcff", "name": "é"})

    assert strict(capsys.readouterr().out) == {"id": "\udcff", "name": "é"}


@given(st.text())
def test_one_line_is_one_line_without_control_characters(text: str) -> None:
    assert one_line(text).isprintable()


def test_text_of_users_cannot_colour_or_move_a_terminal() -> None:
    assert one_line("\x1b[31mred\x1b[0m\r\n") == "\\x1b[31mred\\x1b[0m\\r\\n"
    assert many_lines("a\n\tb\x1b[2J") == "a\n    b\\x1b[2J"


def test_short_says_that_it_cut() -> None:
    assert short("abcdef", 4) == "abc…"
    assert short("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "0s"),
        (1_500, "1ms"),
        (999_999, "999ms"),
        (1_000_000, "1s"),
        (90_000_000, "1m"),
        (90_000_000_000, "1d"),
        (-5, "0s"),
    ],
)
def test_lengths_of_time_are_said_roughly(us: int, said: str) -> None:
    assert rough_text(us) == said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    names = ("ID", "STATE", "TASK", "QUEUE", "NOTE")
    print_table(names, [("0a1b2c3d4e5f", "failed", "send_letters", "letters", "a" * 30)] * 2, empty="")
    return terminal.getvalue()


def test_a_narrow_terminal_loses_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    narrow, wide = drawn(monkeypatch, 40), drawn(monkeypatch, 80)

    assert narrow.splitlines()[:4] == ["ID     0a1b2c3d4e5f", "STATE  failed", "TASK   send_letters", "QUEUE  letters"]
    assert wide.splitlines()[0].split() == ["ID", "STATE", "TASK", "QUEUE", "NOTE"]


def test_without_colour_a_terminal_gets_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in drawn(monkeypatch, 80) + styled("x", bold=True)

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in drawn(monkeypatch, 80) + styled("x", bold=True)
