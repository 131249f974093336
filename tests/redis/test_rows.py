"""What stands in the rows and indexes of the Redis store: what is counted, what is left, and what somebody else wrote there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pytest
from tests.clock import SECOND, VirtualClock
from tests.conformance.world import K2, K3, LEASE, A, B, K, Worker, World, after, job, put
from tests.stores import ForgetfulPartition, clear_servers, make_store

from selaras._contracts.limits import INTENT_GRACE_US, REAP_GRACE_US
from selaras._core.cache.entry import Miss, Standing
from selaras._core.cache.opening import open_names
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Claim, Edge
from selaras._core.jobs.states import JobState
from selaras._core.positions import Scope
from selaras._stores.redis import records, scripts
from selaras._stores.redis.records import EXPIRED_PER_TURN, TAKEN_AT_ONCE
from selaras._stores.redis.store import RedisStore

_ENTRY_HEAD: Final = 44
"""Stamp, position, end, size, the value's id: what of an entry is no MessagePack."""


@asynccontextmanager
async def on_server(kind: str, folder: Path) -> AsyncIterator[tuple[World, ForgetfulPartition]]:
    """Open a store of this kind, with its first partition."""
    clock = VirtualClock()
    store = make_store(kind, folder, clock, Random(1))
    await store.open()
    try:
        home = store.partitions[0]
        assert isinstance(home, ForgetfulPartition)
        yield World(store, clock), home
    finally:
        await store.close()
        clear_servers()


async def _lose_workers(world: World) -> None:
    """Let every lease run out and be looked at once: from the next round on attempts are taken back."""
    world.clock.advance(LEASE + SECOND)
    await world.tend()
    world.clock.advance(REAP_GRACE_US + LEASE)


async def _holding_too_many(world: World) -> tuple[Worker, tuple[Claim, ...]]:
    """Return a worker that holds more attempts than are taken from it at once."""
    await world.enqueue(*(job(f"job-{number}") for number in range(3 * TAKEN_AT_ONCE // 2)))
    worker = await world.worker()
    return worker, await worker.claims(limit=2 * TAKEN_AT_ONCE)


async def test_a_job_that_is_cancelled_while_its_parent_elsewhere_runs_is_not_asked_after_any_more(
    tmp_path: Path,
) -> None:
    async with on_server("redis-4", tmp_path) as (world, home):
        await world.enqueue(job(A, parents=after("another", home=1)), job(B, parents=after("another", home=1)))
        before = [member[8:] for member in home.members("far")]

        await home.cancel(A, "no longer wanted")

        assert before == [A, B]
        assert [member[8:] for member in home.members("far")] == [B]


async def test_a_running_job_that_is_written_over_counts_as_failed_and_runs_no_more(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A), job(B))
        await worker.claims(limit=2)

        home.overwrite("jobs", A)
        await home.cancel(A, "whoever meets it first")

        (queue,) = await home.queues()
        assert queue.counts == {"running": 1, "failed": 1}


@pytest.mark.parametrize(
    "tail", [[7, None, "product"], [7, None, "product", [1]], [7, None, 1, []], [7, "1", "product", []]]
)
async def test_an_entry_whose_tags_family_or_version_were_written_over_is_a_miss(
    tmp_path: Path, tail: list[object]
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        await world.cache(K, family="product")

        home.overwrite("entries", K, lambda row: row[:_ENTRY_HEAD] + msgspec.msgpack.encode(tail))
        await world.invalidate(tags=("another",))  # from now on its tags and its family are looked at

        assert await world.miss(K)


async def test_what_should_fall_and_does_not_stand_is_forgotten(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        home.stand("falls", f"0:{len(A)}:{A}{K}")

        await world.tend()

        assert home.members("falls") == []


async def test_a_ready_job_that_is_written_over_counts_as_failed_and_not_as_ready(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A), job(B))

        home.overwrite("jobs", A, lambda _: b"\x93" * 70)
        claims = await worker.claims()
        await _mended(world)

        (queue,) = await home.queues()
        assert [claim.job for claim in claims] == [B]
        assert queue.counts == {"running": 1, "failed": 1}


async def test_a_scheduled_job_that_was_written_over_and_looked_at_fails_once(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A, delay_us=SECOND))

        home.overwrite("jobs", A)
        assert await world.state(A) == "failed"
        world.clock.advance(2 * SECOND)
        assert await worker.claims() == ()
        await _mended(world)

        (queue,) = await home.queues()
        assert queue.counts == {"failed": 1}


async def _mended(world: World) -> None:
    while (await world.tend()).again:
        pass


@pytest.mark.parametrize("how", ["a mark", "all marks", "another type", "-3", "0.5", "-inf"])
async def test_when_marks_are_damaged_no_value_is_served_that_they_may_have_voided(tmp_path: Path, how: str) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.cache(K, tags=("t",))
        await world.cache("another")
        await world.enqueue(job(A))
        await world.invalidate(tags=("t",))
        assert await world.miss(K)

        home.damage_marks(how)
        await world.tend()

        assert await world.value(K) is None
        assert await world.value("another") is None  # nobody knows any more what was voided
        assert home.said("damaged").endswith("marks")
        await world.invalidate(tags=("t",))
        assert [claim.job for claim in await worker.claims()] == [A]


@pytest.mark.parametrize("position", ["-3", "0.5", "-inf", "inf"])
async def test_a_mark_whose_position_was_written_over_voids_what_bears_its_tag_at_once(
    tmp_path: Path, position: str
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        await world.cache(K, tags=("t",))
        await world.invalidate(tags=("t",))
        await world.invalidate("another")

        home.damage_marks(position)

        assert await world.value(K) is None


async def test_when_marks_are_lost_a_tag_that_somebody_writes_stays_open(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        (name,) = open_names(Scope.TAG, "t", 1)
        await world.enqueue(job(A, writes=(name,)))
        claim = await worker.claim()

        home.damage_marks("all marks")
        await world.tend()
        token = await world.miss(K)
        is_stored = await world.fill(token, put(K, tags=("t",)))
        await worker.end(claim)

        assert not is_stored


KEYS: Final = sorted({key for verb in scripts.verbs() for key in scripts.script(verb).keys})


@pytest.mark.parametrize("lost", [False, True], ids=["retyped", "lost"])
async def test_when_version_floors_are_lost_nothing_is_stored_until_the_latest_datastore_must_have_caught_up(
    tmp_path: Path, lost: bool
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        await world.cache(K2)
        await world.invalidate(versions=((K, 7),))
        home.retype("floors", lost=lost)
        _greet_anew(world)

        assert not await world.fill(await world.miss(K), put(K, b"v6"))
        assert await world.value(K2) is not None
        await world.pass_time(INTENT_GRACE_US)

        assert await world.fill(await world.miss(K), put(K, b"v7"))
        _greet_anew(world)
        assert await world.fill(await world.miss("another"), put("another", b"v1"))


@pytest.mark.parametrize("lost", [False, True], ids=["retyped", "lost"])
@pytest.mark.parametrize("key", KEYS)
async def test_a_key_that_somebody_has_written_over_is_mended_by_whoever_meets_it(
    tmp_path: Path, key: str, lost: bool
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.cache(K, tags=("t",))
        await world.enqueue(job("in-vain"), job("writes", writes=(K2,)), job("waits", line="l"), job("too", line="l"))
        first = await worker.claims(limit=2)
        await worker.end(first[0])

        home.retype(key, lost=lost)
        if lost:
            _greet_anew(world)
        await world.enqueue(job(A), job(B, parents=after(A)), job("later", delay_us=SECOND))
        await _mended(world)
        worker = await world.worker()
        await world.invalidate(K3, tags=("t",))
        ran = set[str]()
        for _ in range(6):
            world.clock.advance(2 * SECOND)
            worker.beat()  # what was claimed where a turn broke off
            for claim in await worker.claims():
                ran.add(claim.job)
                await worker.end(claim)
        _greet_anew(world)
        await world.tend()

        assert await world.value(K) is None
        if key == "floors":  # nothing is stored for so long
            await world.pass_time(INTENT_GRACE_US)
        token = await world.miss(K)
        assert await world.fill(token, put(K, b"v2"))
        assert await world.value(K) == b"v2"
        assert {A, B, "later"} <= ran
        assert home.said("damaged") != "None"


def _greet_anew(world: World) -> None:
    assert isinstance(world.store, RedisStore)
    world.store.link.lines().forget(0)


@pytest.mark.parametrize("key", ["intents", "owners", "falls"])
async def test_while_a_writer_runs_nothing_is_stored_whichever_list_of_intents_is_written_over(
    tmp_path: Path, key: str
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.cache(K)
        await world.enqueue(job(A, writes=(K,)))
        claim = await worker.claim()

        home.retype(key)
        await _mended(world)
        during = await world.look(K)
        await worker.end(claim)

        assert during == Standing()
        assert await home.intents(K) == ()
        assert await world.fill(await world.miss(K), put(K, b"v2"))


async def test_dead_values_are_freed_round_after_round_and_each_says_whether_more_are_left(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, _):
        keys = [f"k{number}" for number in range(3_000)]
        for key in keys:
            await world.cache(key, expires_in_us=SECOND)
        await world.cache(K)

        assert (await world.pass_time(2 * SECOND)).again
        rounds = 1
        while (await world.tend()).again:
            rounds += 1

        assert 1 < rounds < 10
        assert isinstance(world.store, RedisStore)
        ((left,),) = (await world.store.link.pipeline(0, [("HLEN", world.store.link.common.names.key(0, "entries"))]),)
        assert left < 10


async def test_an_intent_whose_job_is_over_and_that_nobody_took_away_falls(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A, writes=(K,)), job(B, writes=(K2,)))
        first, _ = await worker.claims(limit=2)
        put_back = home.intents_left(K)
        await worker.end(first)
        put_back()

        for _ in range(3):
            await world.tend()
        assert await world.look(K) == Standing()
        await world.pass_time(INTENT_GRACE_US)

        assert isinstance(await world.look(K), Miss)
        assert await world.look(K2) == Standing()  # its job runs


@pytest.mark.parametrize("lost", [False, True], ids=["retyped", "lost"])
async def test_when_what_became_of_jobs_is_lost_those_that_have_ended_do_not_run_again_and_others_do(
    tmp_path: Path, lost: bool
) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job("over"), job("held", line="l", writes=(K,)), job("next", line="l"), job("runs"))
        claims = {claim.job: claim for claim in await worker.claims()}
        await worker.end(claims["over"])

        home.retype("dyn", lost=lost)
        _greet_anew(world)
        await _mended(world)
        ran = []
        while again := await worker.claims():
            for claim in again:
                ran.append(claim.job)
                await worker.end(claim)

        assert sorted(ran) == ["held", "next", "runs"]
        assert await world.state("over") == "failed"


async def test_a_call_that_must_not_be_made_twice_is_not_where_it_broke_off(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A))
        await worker.claim()

        home.retype("cancels")
        with pytest.raises(StoreUnavailable, match="written over a whole key"):
            await home.cancel(A, "no longer wanted")

        assert await home.cancel(A, "no longer wanted") == (JobState.RUNNING, True)


# -- what one script does is bounded


async def test_a_turn_lets_go_of_a_bounded_number_of_jobs_that_have_expired(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        late = [job(f"late-{number}", expires_in_us=SECOND) for number in range(EXPIRED_PER_TURN + 20)]
        await world.enqueue(*late, job(A))
        world.clock.advance(2 * SECOND)

        first = await worker.turn()
        (queue,) = await home.queues()
        second = await worker.turn()

        assert (first.claims, first.more) == ((), True)
        assert queue.counts == {"expired": EXPIRED_PER_TURN, "ready": 21}
        assert [claim.job for claim in second.claims] == [A]


async def test_what_waits_for_a_job_that_expires_unclaimed_is_claimed_with_the_same_turn(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, _):
        worker = await world.worker()
        await world.enqueue(job(A, expires_in_us=SECOND), job("c", priority=-1))
        await world.enqueue(job(B, priority=9, parents=after(A, Edge.FINISHED)))
        world.clock.advance(2 * SECOND)

        claims = await worker.claims()

        assert [claim.job for claim in claims] == [B, "c"]


async def test_attempts_of_many_lost_workers_are_taken_from_them_in_steps(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, _):
        await world.enqueue(*(job(f"job-{number}") for number in range(3 * TAKEN_AT_ONCE // 2)))
        for _ in range(3):
            worker = await world.worker()
            assert len(await worker.claims(limit=TAKEN_AT_ONCE // 2)) == TAKEN_AT_ONCE // 2
        await _lose_workers(world)

        first, second, third = [await world.tend() for _ in range(3)]

        assert [(one.lost, one.again) for one in (first, second)] == [
            (TAKEN_AT_ONCE, True),
            (TAKEN_AT_ONCE // 2, False),
        ]
        assert third.lost == 0


async def test_attempts_of_one_lost_worker_are_taken_from_it_in_steps(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, _):
        worker, claims = await _holding_too_many(world)
        await _lose_workers(world)

        first = await world.tend()
        again = await (await world.worker()).claims(limit=2 * TAKEN_AT_ONCE)
        second, third = await world.tend(), await world.tend()

        assert [(one.lost, one.again) for one in (first, second)] == [
            (TAKEN_AT_ONCE, True),
            (TAKEN_AT_ONCE // 2, False),
        ]
        assert third.lost == 0
        assert {claim.job for claim in again} == {claim.job for claim in claims[:TAKEN_AT_ONCE]}
        assert not worker.beat(*claims).enrolled


async def test_attempts_of_one_dismissed_worker_are_given_back_in_steps(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker, claims = await _holding_too_many(world)
        await world.home.dismiss("nobody")  # the server has the script
        calls = home.calls("evalsha")

        await world.home.dismiss(worker.id)

        assert home.calls("evalsha") - calls == 2
        again = await (await world.worker()).claims(limit=2 * TAKEN_AT_ONCE)
        assert [(claim.job, claim.lost) for claim in again] == [(claim.job, 0) for claim in claims]
        assert not worker.beat(*claims).enrolled


async def test_a_worker_that_comes_back_in_the_middle_keeps_what_was_not_taken_from_it(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, _):
        worker, claims = await _holding_too_many(world)
        await _lose_workers(world)
        await world.tend()

        told = worker.beat(*claims)

        assert told.enrolled
        assert [one.job for one in told.lost] == [claim.job for claim in claims[:TAKEN_AT_ONCE]]
        assert (await world.tend()).lost == 0


async def test_a_line_that_was_written_over_is_given_to_nobody_until_its_holder_is_found(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A, line="l"), job(B, line="l"))
        claim = await worker.claim()

        home.overwrite("lines", "l")
        await world.enqueue(job("late", line="l"))
        first = await worker.claims()
        await _mended(world)
        second = await worker.claims()
        await worker.end(claim)

        assert (first, second) == ((), ())
        assert (await worker.claim()).job == B


@pytest.mark.parametrize("how", ["written over", "lost", "retyped"])
async def test_a_line_that_was_lost_and_whose_holder_has_ended_goes_on(tmp_path: Path, how: str) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(job(A, line="l"), job(B, line="l"))
        claim = await worker.claim()

        if how == "written over":
            home.overwrite("lines", "l")
        else:
            home.retype("lines", lost=how == "lost")
        await worker.end(claim)
        await _mended(world)
        await _mended(world)

        assert (await worker.claim()).job == B


async def test_one_line_that_was_written_over_costs_as_much_however_many_jobs_run(tmp_path: Path) -> None:
    async with on_server("redis-1", tmp_path) as (world, home):
        worker = await world.worker()
        await world.enqueue(*(job(f"job-{number}") for number in range(50)), job(A, line="l"))
        await worker.claims()

        home.overwrite("lines", "l")
        before = home.done()
        await world.enqueue(job(B, line="l"))

        assert home.done() - before < 40


async def test_of_more_intents_than_one_script_looks_through_a_damaged_one_stands_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "OWNERS_MOST", 2)
    for cached in (scripts.script, scripts.pieces, scripts.constants):
        cached.cache_clear()
    try:
        async with on_server("redis-1", tmp_path) as (world, home):
            worker = await world.worker()
            await world.enqueue(*(job(f"job-{number}", writes=(f"key-{number}",)) for number in range(4)))
            await worker.claims()

            home.overwrite("intents", "key-3")
            standing = await world.look("key-3")
            (intent,) = await home.intents("key-3")

            assert standing == Standing()
            assert (intent.job, intent.until_us - world.clock.wall_us()) == ("", 100 * INTENT_GRACE_US)
    finally:
        monkeypatch.undo()
        for cached in (scripts.script, scripts.pieces, scripts.constants):
            cached.cache_clear()
