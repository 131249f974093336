"""Each rule of the host tier is taken out, and the test that is named for it must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.cache import test_host as tests
from tests.cache.shelf import OWNER, FakeShelf
from tests.cache.world import World

from selaras._cache import host as host_module
from selaras._cache.follower import Follower
from selaras._cache.host import HostTier
from selaras._core.cache.hosted import Hosted, hosted_of

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutation:
    """A rule, how it is taken out, and the test that must miss it."""

    rule: str
    take_out: Callable[[Patch], None]
    missed_by: Callable[[World, FakeShelf], Awaitable[None]]


def logs_are_not_told_apart(patch: Patch) -> None:
    patch.setattr(HostTier, "_is_of_this_log", lambda self, hosted, follower: True)


def epochs_are_not_compared(patch: Patch) -> None:
    patch.setattr(
        HostTier,
        "_is_of_this_log",
        lambda self, hosted, follower: hosted.event_id and hosted.event_id == follower.id_at(hosted.position),
    )


def events_do_not_speak_against_it(patch: Patch) -> None:
    patch.setattr(Follower, "untouched", lambda self, key, position, family, tags: True)


def it_is_believed_without_a_proof(patch: Patch) -> None:
    patch.setattr(HostTier, "_proves", lambda self, slot, need: True)


def it_is_judged_before_it_is_asked(patch: Patch) -> None:
    sound = HostTier._may_serve

    def may_serve(self: HostTier, slot: object, need: object) -> bool:
        patch.setattr(Follower, "untouched", lambda self, key, position, family, tags: True)
        return sound(self, slot, need)  # type: ignore[arg-type] # as they came

    patch.setattr(HostTier, "_may_serve", may_serve)


def damage_is_not_seen(patch: Patch) -> None:
    def read(data: bytes) -> Hosted | None:
        try:
            return msgspec.msgpack.decode(data[9:], type=Hosted)
        except msgspec.DecodeError:
            return None

    patch.setattr(host_module, "hosted_of", read)


def whatever_stands_there_is_written_over(patch: Patch) -> None:
    patch.setattr(HostTier, "_note_seen", lambda self, key, seen: None)


def values_outlive_their_ttl(patch: Patch) -> None:
    read = hosted_of

    def immortal(data: bytes) -> Hosted | None:
        hosted = read(data)
        return None if hosted is None else msgspec.structs.replace(hosted, until_ns=0)

    patch.setattr(host_module, "hosted_of", immortal)


async def flipped_at_the_end(world: World, shelf: FakeShelf) -> None:
    await tests.test_flipped_bytes_are_a_miss_and_are_written_anew(world, shelf, -1)


async def with_the_world_alone(test: Callable[[World], Awaitable[None]], world: World, shelf: FakeShelf) -> None:
    del shelf
    await test(world)


def alone(test: Callable[[World], Awaitable[None]]) -> Callable[[World, FakeShelf], Awaitable[None]]:
    return lambda world, shelf: with_the_world_alone(test, world, shelf)


OTHER_LOGS = tests.test_another_epoch_or_another_log_with_the_same_numbers_is_not_believed

MUTATIONS = (
    Mutation("P20 a position is of a log", logs_are_not_told_apart, OTHER_LOGS),
    Mutation("P20 and of an epoch", epochs_are_not_compared, OTHER_LOGS),
    Mutation("P6 events", events_do_not_speak_against_it, tests.test_an_older_entry_that_is_written_late_is_not_served),
    Mutation(
        "P6 events heard meanwhile",
        it_is_judged_before_it_is_asked,
        tests.test_what_was_heard_while_the_shelf_was_asked_counts,
    ),
    Mutation(
        "P2 a proof",
        it_is_believed_without_a_proof,
        alone(tests.test_a_process_cut_off_serves_it_for_max_lag_and_no_longer),
    ),
    Mutation("a checksum", damage_is_not_seen, flipped_at_the_end),
    Mutation(
        "P4 nothing newer is written over",
        whatever_stands_there_is_written_over,
        tests.test_what_was_seen_there_is_replaced_and_nothing_else,
    ),
    Mutation("its ttl", values_outlive_their_ttl, alone(tests.test_its_ttl_ends_when_the_shared_tiers_does)),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
async def test_a_rule_that_is_taken_out_is_missed(mutation: Mutation, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "1").mkdir()
    shelf = FakeShelf()
    async with World("memory-1", tmp_path, shelf=shelf, owner=OWNER) as world:
        await mutation.missed_by(world, shelf)  # it passes while the rule stands
    failed = False
    with monkeypatch.context() as patch:
        mutation.take_out(patch)
        shelf = FakeShelf()
        async with World("memory-1", tmp_path / "1", shelf=shelf, owner=OWNER) as world:
            try:
                async with asyncio.timeout(5):
                    await mutation.missed_by(world, shelf)
            except (AssertionError, TimeoutError):
                failed = True
    assert failed, f"{mutation.rule}: nobody noticed"
