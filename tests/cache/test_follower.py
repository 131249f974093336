"""Following a log: replies in any order, of any log."""

from __future__ import annotations

import itertools
from random import Random

from hypothesis import given, settings, strategies as st

from selaras._cache import follower as follower_module
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.local import NEVER, LocalEntry, LocalTier
from selaras._core.positions import START, Cursor, Event, News, Scope
from selaras._stores.memory.log import Log


def follow() -> tuple[Follower, LocalTier]:
    numbers = itertools.count(1)
    local = LocalTier(bytes_most=1 << 20, entries_most=1_000, floors=Floors(10**9), instant=lambda: next(numbers))
    return Follower(0, local, lambda: next(numbers)), local


def keep(local: LocalTier, key: str, position: int, tags: tuple[str, ...] = (), family: str = "f") -> LocalEntry:
    entry = LocalEntry(
        key, b"", partition=0, family=family, tags=tags, position=position, stamp=0, sent_ns=0, expires_ns=NEVER, size=1
    )
    local.store(entry)
    return entry


def test_a_newcomer_begins_at_the_tail() -> None:
    follower, _ = follow()

    assert follower.heard(News(Cursor(7, 1), reset=True), 5)

    assert (follower.applied, follower.confirmed_ns) == (Cursor(7, 1), 5)
    assert not follower.untouched("k", 6, "f", ())
    assert follower.untouched("k", 7, "f", ())


def test_an_older_reply_that_comes_late_changes_nothing_but_confirms_no_less() -> None:
    follower, local = follow()
    follower.heard(News(Cursor(1, 1), reset=True), 1)
    follower.heard(News(Cursor(3, 3), (Event(2, Scope.KEY, "a"), Event(3, Scope.KEY, "b"))), 10)
    keep(local, "a", 3)

    follower.heard(News(Cursor(2, 2), (Event(2, Scope.KEY, "a"),)), 7)

    assert (follower.applied.position, follower.confirmed_ns) == (3, 10)
    assert "a" in local.entries


def test_a_reply_of_an_older_epoch_is_not_heard() -> None:
    follower, local = follow()
    follower.heard(News(Cursor(9, 9), reset=True), 1)
    keep(local, "k", 9)
    assert follower.heard(News(Cursor(4, 4), reset=True, epoch=1), 2)
    assert "k" not in local.entries

    assert not follower.heard(News(Cursor(12, 12), (Event(12, Scope.KEY, "x"),)), 3)

    assert follower.applied == Cursor(4, 4)


def test_a_log_that_is_shorter_than_what_was_applied_is_another_log() -> None:
    follower, local = follow()
    follower.heard(News(Cursor(9, 9), reset=True), -5)
    keep(local, "k", 9)

    assert follower.heard(News(Cursor(2, 2), reset=True), -3)
    late = follower.heard(News(Cursor(11, 11), (Event(11, Scope.KEY, "x"),)), -4)  # sent to the old one

    assert not late
    assert "k" not in local.entries
    assert follower.applied == Cursor(2, 2)
    assert not follower.trusts(-4)


def test_tag_and_family_events_are_judged_by_position() -> None:
    follower, local = follow()
    follower.heard(News(Cursor(1, 1), reset=True), 1)
    tagged, plain = keep(local, "tagged", 1, ("t",)), keep(local, "plain", 1)
    follower.heard(News(Cursor(2, 2), (Event(2, Scope.TAG, "t"),)), 2)
    later = keep(local, "later", 2, ("t",))

    assert [follower.vouches(entry) for entry in (tagged, plain, later)] == [False, True, True]
    assert plain.vetted >= follower.bulk

    follower.heard(News(Cursor(3, 3), (Event(3, Scope.FAMILY, "f"),)), 3)
    assert [follower.vouches(entry) for entry in (plain, later)] == [False, False]


def test_what_is_forgotten_is_not_trusted(monkeypatch: object) -> None:
    follower, local = follow()
    follower.heard(News(START, epoch=0), 1)
    entry = keep(local, "old", 1, ("t0",))
    for position in range(1, follower_module.INDEX_MOST + 100):
        name, scope = (f"k{position}", Scope.KEY) if position % 2 else (f"t{position}", Scope.TAG)
        follower.heard(News(Cursor(position, position), (Event(position, scope, name),)), position)
    for position in range(50_000, 50_000 + 2 * follower_module.INDEX_MOST):
        scope = Scope.KEY if position % 2 else Scope.TAG
        follower.heard(News(Cursor(position, position), (Event(position, scope, f"{position}"),)), position)

    assert follower.remembered <= 2 * follower_module.INDEX_MOST
    assert not follower.vouches(entry)
    assert not follower.untouched("never heard of", 2, "f", ())


def test_key_events_are_forgotten_by_age() -> None:
    follower, _ = follow()
    follower.heard(News(Cursor(1, 1), reset=True), 1)
    for position in range(2, 100):
        follower.heard(News(Cursor(position, position), (Event(position, Scope.KEY, f"{position}"),)), position)

    follower.sweep(follower_module.INDEX_NS + 10**9)

    assert follower.remembered == 0
    assert not follower.untouched("anything", 50, "f", ())
    assert follower.untouched("anything", 99, "f", ())


def test_beside_a_host_tier_events_are_remembered_for_longer_and_known_by_their_ids() -> None:
    follower, _ = follow()
    follower.judge_others()
    follower.heard(News(Cursor(1, 11), reset=True), 1)
    events = (Event(2, Scope.KEY, "a"), Event(4, Scope.KEY, "b"))  # of the name at 3, a later one is told
    follower.heard(News(Cursor(4, 44), events, ids=(22, 44)), 2)

    follower.sweep(follower_module.INDEX_NS + 10**9)

    assert [follower.id_at(position) for position in range(6)] == [0, 11, 22, 0, 44, 0]
    assert follower.untouched("c", 1, "f", ())
    assert not follower.untouched("b", 1, "f", ())
    follower.sweep(follower_module.HOST_INDEX_NS + 10**9)
    assert not follower.untouched("c", 1, "f", ())

    follower.heard(News(Cursor(2, 99), reset=True, epoch=1), 10**12)
    assert [follower.id_at(position) for position in range(6)] == [0, 0, 99, 0, 0, 0]


def test_the_ids_that_are_remembered_are_bounded() -> None:
    follower, _ = follow()
    follower.judge_others()
    follower.heard(News(Cursor(1, 1), reset=True), 1)
    for position in range(2, 2 * follower_module.IDS_MOST):
        follower.heard(
            News(Cursor(position, position), (Event(position, Scope.KEY, "hot"),), ids=(position,)), position
        )

    assert follower.id_at(2) == 0
    assert follower.id_at(2 * follower_module.IDS_MOST - 1) == 2 * follower_module.IDS_MOST - 1
    assert follower._ids is not None
    assert len(follower._ids) <= follower_module.IDS_MOST


@given(st.integers(0, 2**32), st.lists(st.sampled_from("wtfrdkl"), max_size=80))
@settings(max_examples=200, deadline=None)
def test_whatever_order_replies_come_in_no_entry_outlives_its_event(seed: int, steps: list[str]) -> None:
    """Against a real log: values are read, replies delayed and swapped, and what survives is true at `applied`."""
    chance = Random(seed)
    log, (follower, local) = Log(chance), follow()
    sent = itertools.count(1)
    under_way: list[tuple[News, int, str]] = []
    for step in steps:
        match step:
            case "w":
                log.append(Scope.KEY, chance.choice("abc"))
            case "t":
                log.append(Scope.TAG, "t")
            case "f":
                log.append(Scope.FAMILY, "f")
            case "r":
                under_way.append((log.news(follower.applied), next(sent), chance.choice("abc")))
            case "l" if chance.random() < 0.2:
                log.lose(chance.randrange(4))
            case _:
                if not under_way:
                    continue
                news, at, key = under_way.pop(chance.randrange(len(under_way)))
                if follower.heard(news, at) and follower.untouched(key, news.tail.position, "f", ("t",)):
                    keep(local, key, news.tail.position, ("t",))
        if follower.epoch != log.epoch:
            continue
        events = [event for event, _ in log._events if event.position <= follower.applied.position]
        for entry in local.entries.values():
            valid = follower.vouches(entry)
            against = [
                event for event in events if event.name in (entry.key, "t", "f") and event.position > entry.position
            ]
            assert not (valid and against), (entry.key, entry.position, against)
