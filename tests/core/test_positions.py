"""Positions, cursors and news."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from selaras._core.positions import START, Cursor, Event, News, Scope

cursors = st.builds(Cursor, st.integers(0, 2**62), st.integers(0, 2**63 - 1))


def test_the_start_lies_before_every_event() -> None:
    assert Cursor(0, 0) == START
    assert Cursor(1, 0) > START


@given(cursors, cursors)
def test_cursors_are_ordered_by_position(one: Cursor, other: Cursor) -> None:
    if one.position != other.position:
        assert (one < other) == (one.position < other.position)


@given(cursors, cursors)
def test_cursors_of_one_position_are_the_same_only_if_their_events_are(one: Cursor, other: Cursor) -> None:
    assert (one == other) == ((one.position, one.event_id) == (other.position, other.event_id))


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        START.position = 1  # type: ignore[misc]


def test_news_survive_the_wire() -> None:
    news = News(Cursor(7, 2**63 - 1), (Event(6, Scope.TAG, "t"), Event(7, Scope.KEY, "k\n\0é")), epoch=3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(news), type=News) == news
