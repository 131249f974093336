"""Fills: tokens, floors, tags and what a reader finds (P11-P13)."""

from __future__ import annotations

import pytest
from tests.clock import SECOND
from tests.conformance.world import K2, K3, LOAD, A, K, World, job, put

from selaras._contracts.limits import FLOOR_US
from selaras._contracts.partition import Fill, ReadRequest
from selaras._core.cache.entry import Busy, Hit, Miss, Standing
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START


async def test_a_miss_grants_a_token_and_its_fill_is_a_hit_for_everybody(world: World) -> None:
    token = await world.miss(K)

    filled = await world.fill(token, put(K, b"v0", tags=("t",), version=2, expires_in_us=60 * SECOND))

    look = await world.look(K)
    assert filled
    assert isinstance(look, Hit)
    assert (look.entry.value, look.entry.checksum) == (b"v0", put(K, b"v0").checksum)
    assert (look.entry.tags, look.entry.version, look.entry.expires_in_us) == (("t",), 2, 60 * SECOND)


async def test_a_reply_to_a_fill_names_where_the_value_lies(world: World) -> None:
    tokens = [await world.miss(K), await world.miss(K2)]

    reply = await world.home.fill([Fill(put(K), tokens[0]), Fill(put(K2), 1)], START)

    look = await world.look(K)
    assert isinstance(look, Hit)
    assert reply.stored == ((look.entry.position, look.entry.stamp), None)
    assert look.entry.position == reply.news.tail.position


async def test_an_empty_value_is_a_value(world: World) -> None:
    await world.cache(K, b"")

    assert await world.value(K) == b""


async def test_a_second_reader_waits_for_the_first_one_s_load(world: World) -> None:
    token = await world.miss(K)
    world.clock.advance(SECOND)

    assert await world.look(K) == Busy(LOAD - SECOND, holder=token)


async def test_a_reader_that_wants_no_token_gets_none(world: World) -> None:
    assert await world.look(K, lease_us=0) == Busy(0)
    assert isinstance(await world.look(K), Miss)


async def test_a_value_expires(world: World) -> None:
    await world.cache(K, expires_in_us=SECOND)
    world.clock.advance(SECOND - 1)
    just = await world.look(K)
    world.clock.advance(1)

    assert isinstance(just, Hit)
    assert just.entry.expires_in_us == 1
    assert isinstance(await world.look(K), Miss)


async def test_expired_values_and_tokens_are_freed(world: World) -> None:
    await world.cache(K, expires_in_us=SECOND)
    await world.miss(K2, lease_us=SECOND)

    await world.pass_time(SECOND)

    stats = await world.home.cache_stats()
    assert (stats.entries, stats.bytes, stats.tokens) == (0, 0, 0)


async def test_one_request_looks_at_many_keys_in_order(world: World) -> None:
    await world.cache(K)

    reply = await world.home.read([ReadRequest(K), ReadRequest(K2, "", LOAD), ReadRequest(K)], START)

    assert [type(look) for look in reply.looks] == [Hit, Miss, Hit]


async def test_corrupt_bytes_are_dropped_by_whoever_saw_them_but_not_what_replaced_them(world: World) -> None:
    await world.cache(K, b"corrupt")
    seen = await world.look(K)
    assert isinstance(seen, Hit)

    token = (await world.look(K, distrust=seen.entry.stamp)).token  # type: ignore[union-attr]
    await world.fill(token, put(K, b"sound"))
    again = await world.look(K, distrust=seen.entry.stamp)

    assert isinstance(again, Hit)
    assert again.entry.value == b"sound"


# -- P11: tokens


async def test_p11_a_load_begun_before_an_invalidation_is_never_stored_after_it(world: World) -> None:
    token = await world.miss(K)  # R loads v0; then v1 is committed
    await world.invalidate(K)

    assert not await world.fill(token, put(K, b"v0"))
    assert await world.value(K) is None


async def test_p11_a_token_is_never_used_again_after_an_invalidation(world: World) -> None:
    first = await world.miss(K)  # R loads v0
    await world.invalidate(K)  # drops the key and all that was known of it
    second = await world.miss(K)  # R2

    assert second > first
    assert not await world.fill(first, put(K, b"v0"))
    assert await world.fill(second, put(K, b"v1"))


async def test_p11_a_token_fills_once(world: World) -> None:
    token = await world.miss(K)
    await world.fill(token, put(K, b"v1"))

    assert not await world.fill(token, put(K, b"v0"))
    assert await world.value(K) == b"v1"


async def test_p11_a_token_fills_its_own_key_only(world: World) -> None:
    token = await world.miss(K)
    await world.miss(K2)

    assert not await world.fill(token, put(K2))


async def test_p11_a_token_that_ran_out_fills_nothing_even_before_another_is_granted(world: World) -> None:
    token = await world.miss(K)
    world.clock.advance(LOAD)

    assert not await world.fill(token, put(K))
    assert isinstance(await world.look(K), Miss)


async def test_p11_the_holder_renews_its_token(world: World) -> None:
    token = await world.miss(K)
    world.clock.advance(LOAD - 1)
    await world.home.extend_fills([(K, token), (K2, token)], LOAD)
    world.clock.advance(LOAD - 1)

    assert await world.look(K) == Busy(1, holder=token)
    assert await world.fill(token, put(K))


async def test_p11_a_token_that_ran_out_or_was_voided_cannot_be_renewed(world: World) -> None:
    ran_out, voided = await world.miss(K), await world.miss(K2)
    world.clock.advance(LOAD)
    await world.invalidate(K2)
    await world.home.extend_fills([(K, ran_out), (K2, voided)], LOAD)

    assert not await world.fill(ran_out, put(K))
    assert not await world.fill(voided, put(K2))


async def test_p11_only_its_holder_can_renew_or_give_back_a_token(world: World) -> None:
    token = await world.miss(K)
    await world.home.extend_fills([(K, token + 1)], 9 * LOAD)
    await world.home.abandon_fills([(K, token + 1)])

    assert await world.look(K) == Busy(LOAD, holder=token)


async def test_a_load_that_failed_gives_its_token_back_and_the_next_reader_need_not_wait(world: World) -> None:
    token = await world.miss(K)
    await world.home.abandon_fills([(K, token)])

    assert await world.miss(K) > token
    assert not await world.fill(token, put(K))


# -- P12: tags and families


@pytest.mark.parametrize(
    ("names", "dropped"), [({"tags": ("t",)}, True), ({"families": ("f",)}, True), ({"tags": ("u",)}, False)]
)
async def test_p12_a_tag_or_family_voids_what_bears_it(world: World, names: dict[str, object], dropped: bool) -> None:
    await world.cache(K, tags=("s", "t"), family="f")
    await world.invalidate(**names)

    assert (await world.value(K) is None) is dropped


@pytest.mark.parametrize("names", [{"tags": ("t",)}, {"families": ("f",)}])
async def test_p12_a_fill_is_refused_if_its_tag_or_family_was_voided_after_the_token_was_granted(
    world: World, names: dict[str, object]
) -> None:
    token = await world.miss(K)  # the tags are known only after the load
    await world.invalidate(**names)

    assert not await world.fill(token, put(K, b"v0", tags=("t",), family="f"))
    assert await world.value(K) is None


async def test_p12_a_tag_voided_before_the_token_was_granted_refuses_nothing(world: World) -> None:
    await world.invalidate(tags=("t",))
    token = await world.miss(K)

    assert await world.fill(token, put(K, tags=("t",)))
    assert await world.value(K) == b"v1"


async def test_p12_a_tag_and_a_family_of_one_name_are_two_things(world: World) -> None:
    await world.cache(K, tags=("x",), family="y")
    await world.invalidate(tags=("y",), families=("x",))

    assert await world.value(K) == b"v0"


async def test_t4_a_value_stored_after_its_tag_was_voided_still_bears_the_tag(world: World) -> None:
    await world.invalidate(tags=("t",))
    await world.cache(K, tags=("t",))
    await world.invalidate(tags=("t",))

    assert await world.value(K) is None


async def test_br052_an_entry_tells_its_tags_so_that_a_reader_with_newer_ones_can_reload_it(world: World) -> None:
    await world.cache(K, b"old", tags=("a",))  # then a deploy gives the family tag b as well
    look = await world.look(K)
    assert isinstance(look, Hit)
    assert look.entry.tags == ("a",)

    reload = await world.look(K, distrust=look.entry.stamp)
    assert isinstance(reload, Miss)
    await world.fill(reload.token, put(K, b"new", tags=("a", "b")))
    await world.invalidate(tags=("b",))

    assert await world.value(K) is None


# -- P13: a datastore that answers late


async def test_p13_a_fill_below_the_floor_is_refused_and_the_reader_knows_the_floor(world: World) -> None:
    await world.invalidate(K, versions=((K, 5),))
    look = await world.look(K)
    assert isinstance(look, Miss)

    old = await world.fill(look.token, put(K, b"v4", version=4))
    waiting = await world.miss(K)
    new = await world.fill(waiting, put(K, b"v5", version=5))

    assert look.floor == 5
    assert (old, new) == (False, True)
    assert await world.value(K) == b"v5"


async def test_p13_a_value_without_a_version_is_below_any_floor(world: World) -> None:
    await world.invalidate(K, versions=((K, 0),))

    assert not await world.fill(await world.miss(K), put(K, version=None))


async def test_p13_a_floor_only_rises(world: World) -> None:
    await world.invalidate(versions=((K, 5), (K, 3)))
    await world.invalidate(versions=((K, 4),))

    look = await world.look(K)

    assert isinstance(look, Miss)
    assert look.floor == 5


async def test_p13_a_settle_sets_a_floor(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    await worker.run(versions=((K, 7),))

    look = await world.look(K)

    assert isinstance(look, Miss)
    assert look.floor == 7


async def test_p13_a_floor_ends_a_day_after_it_was_last_raised(world: World) -> None:
    await world.cache(K, version=4)
    await world.invalidate(versions=((K, 5), (K2, 1)))
    await world.pass_time(FLOOR_US // 2)
    await world.invalidate(versions=((K, 5),))
    await world.pass_time(FLOOR_US - SECOND)

    look = await world.look(K, lease_us=0)
    other = await world.look(K2, lease_us=0)
    await world.pass_time(2 * SECOND)
    later = await world.look(K)

    assert (look, other) == (Busy(0, 5), Busy(0))
    assert isinstance(later, Miss)  # and what lay below it, and was not served, is not served now
    assert later.floor is None
    assert await world.fill(later.token, put(K, b"older", version=3))


async def test_p13_floors_end_however_few_a_round_looks_at(world: World) -> None:
    await world.invalidate(versions=((K, 5), (K2, 6)))
    await world.invalidate(versions=((K3, 7),))
    world.clock.advance(FLOOR_US + 1)
    for _ in range(4):
        await world.tend(limit=1)

    looks = [await world.look(key) for key in (K, K2, K3)]

    assert [look.floor for look in looks if isinstance(look, Miss)] == [None] * 3


async def test_p13_an_entry_below_the_floor_is_not_served(world: World) -> None:
    await world.cache(K, version=4)
    await world.invalidate(versions=((K, 5),))

    look = await world.look(K)

    assert isinstance(look, Miss)
    assert look.floor == 5


async def test_p13_a_write_without_a_version_stops_fills_for_a_while(world: World) -> None:
    worker = await world.worker()
    early = await world.miss(K)
    await world.enqueue(job(A, serves=(K,)))
    await worker.run(closes=((K, SECOND),))

    closed = await world.look(K)
    refused = await world.fill(early, put(K))
    world.clock.advance(SECOND)

    assert closed == Standing()
    assert not refused
    assert await world.fill(await world.miss(K), put(K))


async def test_p13_a_refused_settle_stops_fills_as_well_for_its_write_may_arrive_late(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()
    await worker.end(claim)

    await worker.end(claim, JobEvent.SUCCEED, writes=(K,), closes=((K, SECOND),))

    assert await world.look(K) == Standing()


# -- races


async def test_f1_f3_a_late_fill_of_an_old_value_or_of_an_absence_is_refused(world: World) -> None:
    tokens = {key: await world.miss(key) for key in (K, K2)}  # A reads v1, and "absent"
    await world.invalidate(K, K2)  # W commits and deletes

    late = [await world.fill(tokens[K], put(K, b"v1")), await world.fill(tokens[K2], put(K2, b"null"))]

    assert late == [False, False]
    assert [await world.value(key) for key in (K, K2)] == [None, None]


async def test_f6_f7_a_snapshot_or_replica_older_than_the_floor_fills_nothing(world: World) -> None:
    worker = await world.worker()
    await world.enqueue(job(A, writes=(K,)))
    await worker.run(versions=((K, 2),))  # W commits version 2

    token = await world.miss(K)  # A asks a lagging replica after the settle

    assert not await world.fill(token, put(K, b"old", version=1))


async def test_f9_a_value_and_its_version_are_one_and_an_invalidation_drops_whatever_is_there(world: World) -> None:
    await world.cache(K, b"old value under the new version", version=2)
    await world.invalidate(K, versions=((K, 2),))

    assert await world.value(K) is None


async def test_q2_a_reader_between_a_claim_and_its_settle_stores_nothing(world: World) -> None:
    worker = await world.worker()
    early = await world.miss(K)
    await world.enqueue(job(A, writes=(K,)))
    claim = await worker.claim()

    during = await world.look(K)
    late = await world.fill(early, put(K, b"v0"))
    await worker.end(claim)

    assert during == Standing()
    assert not late
    assert await world.value(K) is None


async def test_what_is_noted_with_a_value_comes_back_with_it(world: World) -> None:
    token = await world.miss(K)
    await world.fill(token, put(K, b"v0", note=b"\x00\xffnote"))

    look = await world.look(K)

    assert isinstance(look, Hit)
    assert look.entry.note == b"\x00\xffnote"


async def test_of_those_who_renew_an_entry_one_gets_the_token_and_all_get_the_entry(world: World) -> None:
    await world.cache(K, b"v0")
    seen = await world.hit(K)

    first, second = (await world.look(K, renews=seen.stamp), await world.look(K, renews=seen.stamp))

    assert isinstance(first, Hit)
    assert isinstance(second, Hit)
    assert (first.entry, second.entry) == (seen, seen)
    assert first.token
    assert (second.token, second.wait_us, second.holder) == (0, LOAD, first.token)
    assert await world.fill(first.token, put(K, b"v1"))
    assert await world.value(K) == b"v1"


async def test_an_entry_that_has_been_renewed_already_is_not_renewed_again(world: World) -> None:
    await world.cache(K, b"v0")
    seen = await world.hit(K)
    token = await world.renew(K, seen.stamp)
    assert await world.fill(token, put(K, b"v1"))

    look = await world.look(K, renews=seen.stamp)

    assert isinstance(look, Hit)
    assert (look.entry.value, look.token, look.wait_us) == (b"v1", 0, 0)


async def test_who_asks_for_no_token_renews_nothing(world: World) -> None:
    await world.cache(K, b"v0")
    seen = await world.hit(K)

    look = await world.look(K, lease_us=0, renews=seen.stamp)

    assert look == Hit(seen)


async def test_a_renewal_that_runs_out_or_is_given_back_leaves_the_entry_to_the_next_one(world: World) -> None:
    await world.cache(K, b"v0")
    seen = await world.hit(K)
    lapsed = await world.renew(K, seen.stamp)
    world.clock.advance(LOAD)
    given_back = await world.renew(K, seen.stamp)
    await world.home.abandon_fills([(K, given_back)])

    last = await world.renew(K, seen.stamp)

    assert len({lapsed, given_back, last}) == 3
    assert await world.value(K) == b"v0"
    assert not await world.fill(lapsed, put(K, b"late"))


@pytest.mark.parametrize("how", ["key", "tag", "family", "claim"])
async def test_an_event_voids_the_token_of_a_renewal_with_its_entry(world: World, how: str) -> None:
    await world.cache(K, b"v0", tags=("t",), family="product")
    token = await world.renew(K, (await world.hit(K)).stamp)
    match how:
        case "key":
            await world.invalidate(K)
        case "tag":
            await world.invalidate(tags=("t",))
        case "family":
            await world.invalidate(families=("product",))
        case _:
            w = await world.worker()
            await world.enqueue_one(A, writes=(K,))
            await w.claim()

    assert not await world.fill(token, put(K, b"v0", tags=("t",), family="product"))
    assert await world.value(K) is None


async def test_an_entry_renewed_below_the_floor_is_refused(world: World) -> None:
    await world.cache(K, b"v1", version=1)
    token = await world.renew(K, (await world.hit(K)).stamp)
    await world.invalidate(versions=((K, 2),))

    assert not await world.fill(token, put(K, b"v1", version=1))
