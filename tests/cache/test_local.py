"""The local tier: its bounds hold, scans leave it useful, and newer is never replaced by older."""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict, deque
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from selaras._cache import local as local_module
from selaras._cache.floors import Floors
from selaras._cache.local import NEVER, LocalEntry, LocalTier, count_read

LAG_NS = 1_000_000_000


class Tier:
    """A local tier with a clock that counts its questions."""

    def __init__(self, *, entries: int = 100, bytes_most: int = 1 << 30) -> None:
        self.floors = Floors(LAG_NS)
        self.numbers = itertools.count(1)
        self.local = LocalTier(
            bytes_most=bytes_most, entries_most=entries, floors=self.floors, instant=lambda: next(self.numbers)
        )

    def store(
        self,
        key: str,
        value: object = b"",
        *,
        position: int = 0,
        stamp: int = 0,
        size: int = 1,
        expires_ns: int = NEVER,
    ) -> bool:
        return self.local.store(
            LocalEntry(
                key,
                value,
                partition=0,
                family="f",
                tags=(),
                position=position,
                stamp=stamp,
                sent_ns=0,
                expires_ns=expires_ns,
                size=size,
            )
        )

    def hit(self, key: str) -> bool:
        entry = self.local.find(key)
        if entry is None:
            return False
        count_read(entry)
        return True

    def read(self, key: str) -> bool:
        """Read through; returns whether it was there."""
        if self.hit(key):
            return True
        self.store(key)
        return False


class Lru:
    """What it is compared with."""

    def __init__(self, entries: int) -> None:
        self._entries: OrderedDict[str, None] = OrderedDict()
        self._most = entries

    def read(self, key: str) -> bool:
        if key in self._entries:
            self._entries.move_to_end(key)
            return True
        self._entries[key] = None
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return False


def ratio(cache: Tier | Lru, trace: list[str]) -> float:
    return sum(cache.read(key) for key in trace) / len(trace)


def hot_set_with_scans(chance: Random) -> list[str]:
    """A hot set, zipf-like, and now and then somebody reads everything once."""
    trace: list[str] = []
    weights = [1 / rank for rank in range(1, 301)]
    hot = [f"hot:{n}" for n in range(300)]
    scanned = 0
    for _ in range(40):
        trace += chance.choices(hot, weights, k=500)
        trace += [f"scan:{scanned + n}" for n in range(300)]
        scanned += 300
    return trace


def test_scans_leave_it_useful_where_lru_forgets() -> None:
    trace = hot_set_with_scans(Random(1))

    ours, lru = ratio(Tier(entries=100), trace), ratio(Lru(100), trace)

    assert ours > lru + 0.02, (ours, lru)


def test_a_plain_zipf_trace_is_served_at_least_as_well_as_by_lru() -> None:
    chance = Random(2)
    weights = [1 / rank for rank in range(1, 2001)]
    trace = [f"{n}" for n in chance.choices(range(2000), weights, k=30_000)]

    ours, lru = ratio(Tier(entries=200), trace), ratio(Lru(200), trace)

    assert ours > lru, (ours, lru)


def test_a_hot_set_that_moves_is_followed() -> None:
    chance = Random(3)
    trace = [f"{phase}:{chance.randrange(80)}" for phase in range(20) for _ in range(1500)]

    ours, lru = ratio(Tier(entries=100), trace), ratio(Lru(100), trace)

    assert ours > lru - 0.08, (ours, lru)  # the price: what was hot must first be read past


def test_a_key_that_is_written_often_comes_back_to_the_main_queue() -> None:
    tier = Tier(entries=20)
    for position in range(1, 30):
        tier.store("hot", position=position)
        tier.hit("hot")
        tier.local.void("hot", position + 1)
        tier.store("hot", position=position + 1)
        for scanned in range(30):
            tier.store(f"{position}:{scanned}")
        assert position < 2 or tier.hit("hot"), position


def test_an_event_removes_what_was_true_before_it_and_nothing_else() -> None:
    tier = Tier()
    tier.store("a", position=3)
    tier.store("b", position=5)

    tier.local.void("a", 4)
    tier.local.void("b", 5)

    assert (tier.hit("a"), tier.hit("b")) == (False, True)


def test_newer_is_never_replaced_by_older() -> None:
    tier = Tier()
    for position, stamp in itertools.permutations([(1, 5), (2, 3), (2, 7), (3, 1)], 2):
        tier.local.drop("k")
        tier.store("k", position, position=position[0], stamp=position[1])
        tier.store("k", stamp, position=stamp[0], stamp=stamp[1])

        assert tier.local.entries["k"].value == max(position, stamp)


def test_whoever_leaves_leaves_a_floor() -> None:
    tier = Tier(entries=2)
    tier.store("a")
    tier.local.drop("a")
    assert tier.floors.of("a") > 0

    floor = tier.floors.of("a")
    tier.store("a")
    assert tier.floors.of("a") == 0
    assert tier.local.entries["a"].floor_ns == floor

    for n in range(5):
        tier.store(f"{n}")
    assert tier.floors.of("a") > floor


def test_what_is_over_goes_without_being_read_again() -> None:
    tier = Tier(entries=10_000)
    for n in range(5_000):
        tier.store(f"{n}", expires_ns=1_000 + n)

    for _ in range(60):
        tier.local.sweep(now_ns=10 * LAG_NS)

    assert (len(tier.local), tier.local.bytes) == (0, 0)
    assert len(tier.floors) <= 128 * 1
    assert tier.local.ghosts <= 64
    assert tier.local.queued <= 256


def test_a_value_larger_than_a_good_share_of_the_room_is_not_kept() -> None:
    tier = Tier(bytes_most=1_000)
    tier.store("small", size=100)

    assert not tier.store("large", size=200)
    assert tier.hit("small")


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "hit", "void", "drop", "sweep", "partition"]),
        st.integers(0, 30),
        st.integers(1, 12),
        st.integers(0, 40),
    ),
    max_size=300,
)


@given(OPERATIONS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_its_bounds_and_its_books_hold_whatever_happens(
    operations: list[tuple[str, int, int, int]], many_shelves: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if many_shelves:
            patch.setattr(local_module, "_SHELF_ENTRIES", 2)
            patch.setattr(local_module, "_OVERHEAD", 1)
            patch.setattr(local_module, "NEAR_MOST", 3)
        tier = Tier(entries=10, bytes_most=96)
        assert len(tier.local._shelves) == (8 if many_shelves else 1)
        _work_on(tier, operations)


def _work_on(tier: Tier, operations: list[tuple[str, int, int, int]]) -> None:
    local = tier.local
    for position, (what, n, size, expires) in enumerate(operations):
        key = f"{n}"
        match what:
            case "store":
                kept = tier.store(key, size=size, position=position, expires_ns=expires)
                assert kept == (local.find(key) is not None)
            case "hit":
                tier.hit(key)
            case "void":
                local.void(key, position)
                found = local.find(key)
                assert found is None or found.position >= position
            case "drop":
                local.drop(key)
                assert local.find(key) is None
            case "sweep":
                local.sweep(now_ns=size * 3)
            case _:
                local.drop_partition(0)
                assert not local.entries
        live = [entry for shelf in local._shelves for entry in shelf.entries.values()]
        assert len(live) == len(local) == sum(local._counts.values()) <= 10
        assert all(local.find(entry.key) is entry for entry in live)
        assert all(any(entry is one for one in live) for entry in local.entries.values())
        assert local.bytes == sum(entry.size for entry in live) <= 96
        assert local._small_entries == sum(not entry.in_main for entry in live)
        assert local._small_bytes == sum(entry.size for entry in live if not entry.in_main)
        assert local.ghosts <= 2 * (10 + 64 * len(local._shelves))
        assert all(entry.alive for entry in live)


def filled(entries: int) -> Tier:
    tier = Tier(entries=entries)
    for n in range(entries):
        tier.store(f"{n}", value=b"value")
        if n % 3 == 0:
            tier.local.void(f"{n // 2}", 1)
            tier.store(f"{n // 2}", value=b"value")
    return tier


def test_the_garbage_collector_does_not_look_into_it() -> None:
    """Of a million entries it would take a third of a second, every now and then."""
    tier = filled(20_000)
    gc.collect()

    local = tier.local
    parts = [local, *local._shelves, local._small, local._main, *local._small._blocks, *local._main._blocks]
    looked_at = {id(thing): thing for part in parts for thing in gc.get_referents(part) if gc.is_tracked(thing)}
    tables = [thing for thing in looked_at.values() if isinstance(thing, (dict, list, set, tuple, deque))]
    assert sum(map(len, tables)) < 20_000 / 50
    assert not any(type(thing) is LocalEntry for thing in gc.get_objects())


def test_no_newcomer_waits_for_more_than_a_few_others_to_be_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """All were read as often as is counted: a pass over them would be three rounds of all."""
    tier = filled(5_000)
    for shelf in tier.local._shelves:
        for entry in shelf.entries.values():
            for _ in range(3):
                count_read(entry)
    looks = 0
    leave = LocalTier._leave_main

    def counted(self: LocalTier, *, patient: bool) -> None:
        nonlocal looks
        looks += 1
        leave(self, patient=patient)

    monkeypatch.setattr(LocalTier, "_leave_main", counted)
    for n in range(100):
        looks = 0
        tier.store(f"new {n}")
        assert looks <= 20
    assert len(tier.local) <= 5_000


def test_sweeps_and_drops_take_a_bounded_part_each_and_come_to_an_end() -> None:
    tier = filled(20_000)
    tier.local.drop_partition(0)
    assert len(tier.local) == tier.local.bytes == 0
    assert not tier.store("old", position=-1) or tier.hit("old")

    left = [sum(map(len, tier.local._gone))]
    while left[-1]:
        tier.local.sweep(1)
        left.append(sum(map(len, tier.local._gone)))
        assert left[-2] - left[-1] <= 1_024
    assert left[0] >= 20_000


def test_no_table_is_made_larger_than_can_be_copied_in_passing() -> None:
    tier = Tier(entries=1_000_000)

    assert 1_000_000 / len(tier.local._shelves) <= 4_096


def test_a_drop_of_all_leaves_a_floor_under_all() -> None:
    tier = filled(100)
    tier.local.drop_partition(0)
    now = next(tier.numbers)
    tier.store("5")

    entry = tier.local.find("5")
    assert entry is not None
    assert now - 1 <= entry.floor_ns <= now


def test_places_of_what_is_gone_are_bounded() -> None:
    tier = Tier(entries=1_000)
    for position in range(20_000):
        tier.store(f"{position % 5}", position=position)
        tier.local.void(f"{position % 5}", position + 1)

    assert tier.local.queued <= 512


def test_floors_are_bounded_by_one_floor_under_all_keys() -> None:
    floors = Floors(max_lag_ns=10**15, most=100)
    for instant in range(1, 1001):
        floors.lift(f"{instant}", instant)

    assert len(floors) <= 100
    assert all(floors.of(f"{instant}") >= instant for instant in range(1, 1001))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_a_floor_within_max_lag_is_never_forgotten(steps: list[tuple[int, int]]) -> None:
    floors, truth, now = Floors(max_lag_ns=20, most=8), dict[str, int](), 100
    for n, wait in steps:
        now += wait
        floors.lift(f"{n}", now)
        truth[f"{n}"] = now
        if n % 7 == 0:
            floors.prune(now)
        for key, instant in truth.items():
            assert floors.of(key) >= instant or instant < now - 20
    floors.prune(now + 100)
    assert len(floors) == 0
