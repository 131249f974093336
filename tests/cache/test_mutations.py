"""Each rule is taken out, and the test that is named for it must fail: a rule nobody misses is no rule, or not tested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cache import test_lifetimes as lives, test_rules as rules
from tests.cache.world import World

from selaras._cache import (
    cache as cache_module,
    flight as flight_module,
    loading as loading_module,
    proving as proving_module,
)
from selaras._cache.cache import Cache
from selaras._cache.floors import Floors
from selaras._cache.follower import Follower
from selaras._cache.loading import Loading
from selaras._cache.local import LocalEntry, LocalTier
from selaras._cache.session import Session
from selaras._cache.settles import Settles
from selaras._cache.source import Source
from selaras._cache.voiding import Voiding
from selaras._core.cache import freshness, lifetimes
from selaras._core.cache.freshness import Need
from selaras._core.errors import LeaseLost
from selaras._core.positions import Cursor, News

Patch = pytest.MonkeyPatch
Test = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Mutation:
    """A rule, how it is taken out, and the tests that must miss it."""

    rule: str
    take_out: Callable[[Patch], None]
    missed_by: tuple[Test, ...]
    partitions: int = 1


def joins_ignore_the_claim(patch: Patch) -> None:
    patch.setattr(Need, "join_ns", property(lambda need: need.since_ns))


def proofs_ignore_the_claim(patch: Patch) -> None:
    def proves(need: Need, *, confirmed_ns: int, sent_ns: int = 0, floor_ns: int = 0, **_: Any) -> bool:
        return max(confirmed_ns, sent_ns) > max(need.since_ns, floor_ns)

    patch.setattr(proving_module, "proves", proves)


def the_position_of_the_claim_is_not_used(patch: Patch) -> None:
    def proves(need: Need, *, confirmed_ns: int, sent_ns: int = 0, floor_ns: int = 0, **_: Any) -> bool:
        return max(confirmed_ns, sent_ns) > max(need.since_ns, floor_ns, need.claim_ns)

    patch.setattr(proving_module, "proves", proves)


def receipt_confirms(patch: Patch) -> None:
    heard = Follower.heard
    patch.setattr(Follower, "heard", lambda self, news, sent_ns: heard(self, news, self._instant()))


def confirmed_goes_back(patch: Patch) -> None:
    heard = Follower.heard

    def mutant(self: Follower, news: News, sent_ns: int) -> bool:
        trusted = heard(self, news, sent_ns)
        self.confirmed_ns = sent_ns
        return trusted

    patch.setattr(Follower, "heard", mutant)


def there_is_no_max_lag(patch: Patch) -> None:
    def since_of(level: Any, *, now_ns: int, max_lag_ns: int) -> int:
        return freshness.since_of(level, now_ns=now_ns, max_lag_ns=1 << 62)

    patch.setattr(proving_module, "since_of", since_of)


def settled_values_take_the_replys_tail(patch: Patch) -> None:
    learned = Settles.learned

    def mutant(self: Settles, slot: Any, data: bytes, **kwargs: Any) -> None:
        position = self._keeping._followers[slot.partition].applied.position
        learned(self, slot, data, **{**kwargs, "position": position})

    patch.setattr(Settles, "learned", mutant)


def answers_leave_no_floor(patch: Patch) -> None:
    patch.setattr(Floors, "lift", lambda self, key, now_ns: None)
    patch.setattr(LocalTier, "lift", lambda self, key, now_ns, **_: None)


def older_replaces_newer(patch: Patch) -> None:
    store = LocalTier.store

    def mutant(self: LocalTier, entry: LocalEntry) -> bool:
        held = self.find(entry.key)
        if held is not None:
            held.position = held.stamp = -1
        return store(self, entry)

    patch.setattr(LocalTier, "store", mutant)


def own_effects_are_not_applied(patch: Patch) -> None:
    patch.setattr(Cache, "_drop_keys", lambda self, keys: None)
    patch.setattr(Cache, "_event_for", lambda self, key: None)


def ends_told_bind_no_joins(patch: Patch) -> None:
    patch.setattr(Cache, "told", lambda self, keys=(): None)


def events_drop_all(patch: Patch) -> None:
    patch.setattr(LocalTier, "void", lambda self, key, position: self.drop_partition(0))


def replies_under_way_are_believed(patch: Patch) -> None:
    patch.setattr(Follower, "untouched", lambda self, key, position, family, tags: True)


def puts_void_nothing(patch: Patch) -> None:
    async def mutant(self: Voiding, *args: Any, **kwargs: Any) -> None:
        pass

    patch.setattr(Voiding, "void", mutant)


def puts_go_with_every_end(patch: Patch) -> None:
    patch.setattr(Session, "scope", lambda self: next(iter(self.chain())).parent or self)


def the_body_sees_the_pre_image(patch: Patch) -> None:
    patch.setattr(Session, "preimage_of", lambda self, key: self.preimages.get(key))


def refused_fills_are_kept(patch: Patch) -> None:
    land = Loading._land

    def mutant(self: Loading, one: Any, data: bytes | None, position: int | None) -> None:
        slot = one.permit.flight.slot
        kept = data or slot.family.codec.encode(one.value)
        tail = self._followers[slot.partition].applied.position
        self._keeping.keep(
            slot, one.value, kept, tags=(), position=tail, stamp=0, sent_ns=self._instant(), left_us=None
        )
        land(self, one, data, position)

    patch.setattr(Loading, "_land", mutant)


def tokens_are_not_renewed(patch: Patch) -> None:
    async def mutant(self: Loading, flights: Any, lease_us: int) -> None:
        pass

    patch.setattr(Loading, "renew", mutant)


def tags_are_not_judged(patch: Patch) -> None:
    patch.setattr(Follower, "_unmarked", lambda self, position, family, tags: True)


def tags_are_told_to_one_partition(patch: Patch) -> None:
    void_at = Voiding._void_at

    async def mutant(self: Voiding, index: int, names: Any) -> None:
        if index == 0:
            await void_at(self, index, names)

    patch.setattr(Voiding, "_void_at", mutant)


def owners_load_like_all(patch: Patch) -> None:
    patch.setattr(Session, "writes", lambda self, key: None)


def transactions_are_not_known(patch: Patch) -> None:
    patch.setattr(Session, "in_transaction", lambda self: False)


def floors_are_not_asked(patch: Patch) -> None:
    patch.setattr(Source, "is_late", staticmethod(lambda family, value, floor: False))


def replicas_are_not_waited_for(patch: Patch) -> None:
    effects = Session.effects

    def mutant(self: Session, *, success: bool) -> Any:
        return replace(effects(self, success=success), closes=())

    patch.setattr(Session, "effects", mutant)


def jobs_invalidate_at_once_only(patch: Patch) -> None:
    async def mutant(self: Voiding, slots: Any, session: Any, scope: Any) -> None:
        await self._void_now(tuple(slots), (), (), ())

    patch.setattr(Voiding, "_plant", mutant)


def refusals_are_not_told(patch: Patch) -> None:
    plant_at = Voiding._plant_at

    async def mutant(self: Voiding, index: int, keys: Any, scope: Any) -> None:
        with suppress(LeaseLost):
            await plant_at(self, index, keys, scope)

    patch.setattr(Voiding, "_plant_at", mutant)


def tags_are_not_remembered(patch: Patch) -> None:
    effects = Session.effects

    def mutant(self: Session, *, success: bool) -> Any:
        return replace(effects(self, success=success), tags=(), families=())

    patch.setattr(Session, "effects", mutant)


def a_lost_log_is_taken_for_the_same(patch: Patch) -> None:
    def mutant(self: Follower, news: News) -> None:
        self.epoch, self.applied = news.epoch, Cursor(news.tail.position, news.tail.event_id)

    patch.setattr(Follower, "_begin_anew", mutant)


def what_runs_may_always_be_joined(patch: Patch) -> None:
    patch.setattr(flight_module, "may_join", lambda need, *, started_ns, floor_ns=0: True)


def strict_readers_take_what_is_stale(patch: Patch) -> None:
    patch.setattr(cache_module, "_may_be_stale", lambda family, fresh: True)


def an_expired_value_is_served_as_it_was_seen(patch: Patch) -> None:
    show = flight_module.Flight.show

    def mutant(self: flight_module.Flight, stale: Any) -> None:
        patch.setattr(Loading, "seen", stale, raising=False)
        show(self, stale)

    async def last_seen(self: Loading, slot: Any) -> Any:
        return getattr(self, "seen", None)

    patch.setattr(flight_module.Flight, "show", mutant)
    patch.setattr(Loading, "stale", last_seen)


def the_end_of_a_ttl_is_not_seen(patch: Patch) -> None:
    patch.setattr(loading_module, "note_of", lambda data: lifetimes.Note())


MUTATIONS = (
    Mutation("stale levels", strict_readers_take_what_is_stale, (lives.test_who_needs_more_is_not_served_past_the_ttl,)),
    Mutation("stale proof", an_expired_value_is_served_as_it_was_seen, (lives.test_what_is_voided_during_the_load_is_not_served_when_the_load_fails,)),
    Mutation("stale end", the_end_of_a_ttl_is_not_seen, (lives.test_a_value_past_its_ttl_is_served_while_it_is_loaded_anew, lives.test_who_needs_more_is_not_served_past_the_ttl)),
    Mutation("refused early", refused_fills_are_kept, (lives.test_what_is_voided_while_it_is_loaded_ahead_is_not_stored,)),
    Mutation("P1 joins", joins_ignore_the_claim, (rules.test_p1_a_job_does_not_join_a_load_that_began_before_its_claim_was_received,)),
    Mutation("P1 elsewhere", proofs_ignore_the_claim, (rules.test_p1_elsewhere_a_read_needs_a_log_that_was_known_after_the_claim_was_received,), 4),
    Mutation("P1 at home", the_position_of_the_claim_is_not_used, (rules.test_p1_at_home_the_position_of_the_claim_is_enough,)),
    Mutation("P2 sending", receipt_confirms, (rules.test_p2_a_reply_confirms_the_instant_its_request_was_sent,)),
    Mutation("P2 never back", confirmed_goes_back, (rules.test_p2_confirmed_never_goes_back,)),
    Mutation("P2 max_lag", there_is_no_max_lag, (rules.test_p2_a_process_that_is_cut_off_stops_serving_locally_even_to_a_job,)),
    Mutation("P3", settled_values_take_the_replys_tail, (rules.test_p3_a_value_stored_by_a_settle_has_its_own_position_not_the_replys,)),
    Mutation("P4 floors", answers_leave_no_floor, (rules.test_p4_an_answer_from_the_datastore_is_not_followed_by_an_older_one_from_the_local_tier, rules.test_p4_an_evicted_answer_still_binds_what_is_joined, rules.test_p4_what_an_attempt_is_answered_from_its_own_put_binds_what_is_joined)),
    Mutation("P4 order", older_replaces_newer, (rules.test_p4_the_local_tier_does_not_replace_newer_by_older_at_one_position,)),
    Mutation("P5 own", own_effects_are_not_applied, (rules.test_p5_after_an_invalidation_returned_nothing_that_began_before_is_joined,)),
    Mutation("P5 told", ends_told_bind_no_joins, (rules.test_p5_after_a_waiter_was_told_of_an_end_nothing_that_began_before_is_joined,)),
    Mutation("P6 deletion", events_drop_all, (rules.test_p6_an_event_touches_its_own_key_only,)),
    Mutation("P6 index", replies_under_way_are_believed, (rules.test_p6_a_reply_that_was_under_way_while_an_event_was_applied_is_not_kept,)),
    Mutation("P8 outside", puts_void_nothing, (rules.test_p8_a_put_outside_of_a_scope_is_an_invalidation,)),
    Mutation("P8 nested", puts_go_with_every_end, (rules.test_p8_a_put_within_a_scope_within_the_owners_is_not_stored,)),
    Mutation("P10 body", the_body_sees_the_pre_image, (rules.test_p10_the_pre_image_answers_only_before_the_body,)),
    Mutation("P10 events", replies_under_way_are_believed, (rules.test_p10_the_pre_image_is_gone_once_an_event_of_its_key_was_heard,)),
    Mutation("P11 refused", refused_fills_are_kept, (rules.test_p11_a_value_without_an_accepted_fill_enters_no_tier, rules.test_p11_while_an_intent_stands_nothing_is_kept)),
    Mutation("P11 renewal", tokens_are_not_renewed, (rules.test_p11_the_token_of_a_long_load_is_renewed,)),
    Mutation("P12 hits", tags_are_not_judged, (rules.test_p12_tag_and_family_events_are_judged_at_the_hit,)),
    Mutation("P12 everywhere", tags_are_told_to_one_partition, (rules.test_p12_a_tag_is_told_to_every_partition_before_the_call_returns,), 4),
    Mutation("P13 owner", owners_load_like_all, (rules.test_p13_what_the_owner_of_a_key_loads_is_neither_joined_nor_stored,)),
    Mutation("P13 transaction", transactions_are_not_known, (rules.test_p13_what_is_loaded_in_an_open_transaction_is_neither_joined_nor_stored,)),
    Mutation("P13 floor", floors_are_not_asked, (rules.test_p13_a_load_below_the_version_that_is_known_is_tried_again, rules.test_p13_a_datastore_that_stays_below_is_an_error)),
    Mutation("P13 lag", replicas_are_not_waited_for, (rules.test_p13_a_settle_without_a_version_stops_fills_for_as_long_as_replicas_lag,)),
    Mutation("P14 plant", jobs_invalidate_at_once_only, (rules.test_p14_what_a_job_invalidates_stays_empty_until_its_settle,)),
    Mutation("P14 lost", refusals_are_not_told, (rules.test_p14_an_attempt_that_lost_its_lease_is_told_so,)),
    Mutation("P14 tags", tags_are_not_remembered, (rules.test_p14_tags_are_told_now_and_remembered_for_the_settle,)),
    Mutation("P20", a_lost_log_is_taken_for_the_same, (rules.check_p20,)),
    Mutation("join rule", what_runs_may_always_be_joined, (rules.test_p1_a_job_does_not_join_a_load_that_began_before_its_claim_was_received, rules.test_p4_an_evicted_answer_still_binds_what_is_joined)),
)  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
async def test_a_rule_that_is_taken_out_is_missed(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, test in enumerate(mutation.missed_by):
        async with World(f"memory-{mutation.partitions}", tmp_path) as world:
            await test(world)  # it passes while the rule stands
        with monkeypatch.context() as patch:
            mutation.take_out(patch)
            world = World(f"memory-{mutation.partitions}", tmp_path / str(number))
            await world.__aenter__()
            failed = await _fails(test, world)
        await world.__aexit__()
        assert failed, f"{mutation.rule}: {getattr(test, '__name__', test)} did not notice"


async def _fails(test: Test, world: World) -> bool:
    try:
        async with asyncio.timeout(5):
            await test(world)
    except (AssertionError, TimeoutError, pytest.fail.Exception):  # anything else is a crash of the mutant itself
        return True
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
    return False


def test_every_rule_of_the_cache_has_a_mutation() -> None:
    covered = {mutation.rule.split()[0] for mutation in MUTATIONS}

    assert {"P1", "P2", "P3", "P4", "P5", "P6", "P8", "P10", "P11", "P12", "P13", "P14", "P20"} <= covered
