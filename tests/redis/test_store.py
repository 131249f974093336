"""The store on real servers: what it makes, what it refuses, and what it notices that a server has forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.redis.proxy import Proxy
from tests.redis.servers import Cluster, RedisServer, Sentinels

from selaras import ConfigurationError, Selaras, StoreMismatch, StoreRefused, StoreUnavailable
from selaras._contracts.limits import TOLD_PER_STEP
from selaras._contracts.partition import (
    Fill,
    HeartbeatRequest,
    Instance,
    Invalidation,
    JobFilter,
    ReadRequest,
    TurnRequest,
)
from selaras._core.cache.entry import Hit, Miss
from selaras._core.codec import checksum
from selaras._core.jobs.job import Attempt, Fate, NewJob, Parent, Put, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._stores.redis.address import redis_address
from selaras._stores.redis.partition import ALONE_BYTES
from selaras._stores.redis.store import FORMAT, RedisStore


def store_at(url: str, *, partitions: int = 1) -> RedisStore:
    return RedisStore(redis_address(url), partitions=partitions)


@asynccontextmanager
async def opened(url: str, *, partitions: int = 1) -> AsyncIterator[RedisStore]:
    store = store_at(url, partitions=partitions)
    await store.open()
    yield store
    await store.close()


async def fill(store: RedisStore, key: str = "k", value: bytes = b"v") -> None:
    """Load a value."""
    partition = store.partitions[0]
    (look,) = (await partition.read([ReadRequest(key, lease_us=5_000_000)], START)).looks
    assert isinstance(look, Miss)
    (stored,) = (await partition.fill([Fill(Put(key, value, checksum(value)), look.token)], START)).stored
    assert stored


async def is_hit(store: RedisStore, key: str = "k") -> bool:
    (look,) = (await store.partitions[0].read([ReadRequest(key)], START)).looks
    return isinstance(look, Hit)


# ---------------------------------------------------------------- what it is made with


async def test_a_store_made_with_other_partitions_says_with_how_many(redis_server: RedisServer) -> None:
    async with opened(redis_server.url, partitions=3):
        with pytest.raises(StoreMismatch, match=r"made with 3 partitions, and 1 was asked for: say \?partitions=3"):
            await store_at(redis_server.url).open()
    async with opened(redis_server.url, partitions=3):
        pass
    redis_server.clear()
    async with opened(redis_server.url):
        with pytest.raises(StoreMismatch, match="made with 1 partition, and 4 were asked for"):
            await store_at(redis_server.url, partitions=4).open()


async def test_no_store_is_made_where_a_full_server_would_throw_jobs_away(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(maxmemory_policy="allkeys-lru") as server:
        with pytest.raises(StoreRefused, match=r"maxmemory-policy is allkeys-lru.*Set noeviction"):
            await store_at(server.url).open()
        assert server.call("DBSIZE") == 0

        server.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        async with opened(server.url) as store:
            await store.partitions[0].enqueue([NewJob(id="j", task="t")], START)
        assert caplog.messages == []

        # What is there goes on, and says so once.
        server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        async with opened(server.url, partitions=1) as store:
            record, _ = await store.partitions[0].job("j", START)
            assert record is not None
            assert len(caplog.messages) == 1
            await asyncio.to_thread(server.call, "CLIENT", "KILL", "TYPE", "normal")
            before = await store.partitions[0].events_since(START)
            (said,) = caplog.messages
            assert "maxmemory-policy is allkeys-lfu" in said
            # Even where it has thrown everything away: whoever runs must not stand still.
            server.call("FLUSHALL")
            after = await store.partitions[0].events_since(before.tail)
            assert after.epoch > before.epoch


async def test_a_policy_is_warned_of_once_whatever_each_connection_was_told(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        async with opened(redis_server.url) as store:
            redis_server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

            async def look() -> None:
                await store.partitions[0].events_since(START)

            for _ in range(3):
                await asyncio.to_thread(lambda: asyncio.run(look()))  # over a connection that knows the policy
                redis_server.call("FLUSHALL")
                await look()  # over one that was made before
            assert len(caplog.messages) == 1
    finally:
        redis_server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")


async def test_a_store_of_another_format_is_left_alone(redis_server: RedisServer) -> None:
    async with opened(redis_server.url):
        redis_server.call("HSET", "selaras:{selaras.0}:meta", "format", 99)
        with pytest.raises(StoreMismatch, match=rf"format 99.*reads format {FORMAT}"):
            await store_at(redis_server.url).open()


async def test_two_prefixes_are_two_stores_whatever_they_hold(redis_server: RedisServer) -> None:
    async with opened(f"{redis_server.url}?prefix=a%7Bb%7D*") as one, opened(f"{redis_server.url}?prefix=a") as other:
        await fill(one)
        assert await is_hit(one)
        assert not await is_hit(other)


def test_a_cluster_has_sixteen_partitions_unless_it_is_said() -> None:
    def count_of(url: str, **settings: int) -> int:
        return Selaras(url, **settings).process().partitions  # type: ignore[arg-type]

    assert count_of("redis+cluster://h") == 16
    assert count_of("redis+cluster://h", partitions=4) == 4
    assert count_of("redis+cluster://h", partitions=1) == 1
    assert count_of("redis+cluster://h?partitions=1", partitions=4) == 1
    assert count_of("redis://h") == 1


# ---------------------------------------------------------------- what a server forgot (P20)


async def epoch_of(store: RedisStore) -> int:
    return (await store.partitions[0].events_since(START)).epoch


async def test_a_restart_that_kept_everything_begins_a_new_epoch_all_the_same() -> None:
    with RedisServer(appendonly="yes", appendfsync="always") as server:
        async with opened(server.url) as store:
            await fill(store)
            await store.partitions[0].enqueue([NewJob(id="j", task="t")], START)
            before = await store.partitions[0].events_since(START)

            await asyncio.to_thread(server.restart)  # nobody can tell that nothing was lost

            after = await store.partitions[0].events_since(before.tail)
            assert after.epoch > before.epoch
            assert not await is_hit(store)
            record, _ = await store.partitions[0].job("j", START)
            assert record is not None


async def test_a_memory_that_is_gone_is_noticed_before_anything_else(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as store, opened(redis_server.url) as other:
        await fill(store)
        before = await other.partitions[0].invalidate(Invalidation(keys=("x",)), START)

        redis_server.call("FLUSHALL")

        assert not await is_hit(store)
        after = await other.partitions[0].events_since(before.tail)
        assert after.reset
        assert after.epoch > before.epoch
        # A newcomer, who has seen no epoch, changes nothing.
        async with opened(redis_server.url) as third:
            assert await epoch_of(third) == after.epoch


async def test_a_restored_backup_is_noticed() -> None:
    with RedisServer() as server:
        async with opened(server.url) as store:
            await fill(store, "old")
            await asyncio.to_thread(server.call, "SAVE")
            backup = (server.folder / "dump.rdb").read_bytes()
            before = await store.partitions[0].invalidate(Invalidation(keys=("old",)), START)
            await asyncio.to_thread(server.kill)
            (server.folder / "dump.rdb").write_bytes(backup)
            await asyncio.to_thread(server.start)

            assert not await is_hit(store, "old")  # it was invalidated after the backup was made
            after = await store.partitions[0].events_since(before.tail)
            assert after.reset
            assert after.epoch > before.epoch


async def test_a_failover_begins_a_new_epoch_since_the_replica_may_have_lagged() -> None:
    with Sentinels() as sentinels:
        async with opened(sentinels.url) as store:
            await fill(store)
            before = await epoch_of(store)
            master = sentinels.master
            await asyncio.to_thread(master.kill)
            await asyncio.to_thread(sentinels.until_master, master)

            assert not await is_hit(store)
            assert await epoch_of(store) > before


async def test_what_does_no_more_twice_than_once_is_sent_again_when_its_reply_is_lost(
    redis_server: RedisServer,
) -> None:
    with Proxy(redis_server.address) as proxy:
        async with opened(proxy.through(redis_server.url)) as store:
            (partition,) = store.partitions
            await partition.enqueue([NewJob(id="j", task="t")], START)
            verbs: list[Callable[[], Awaitable[object]]] = [
                lambda: partition.enroll(Instance(id="w", lease_us=15_000_000, queues=("default",))),
                lambda: partition.tend(10),
                lambda: partition.outbox(10),
                lambda: partition.reserve("name", "j", 0, ""),
                lambda: partition.pause("default", paused=True),
                partition.queues,
                partition.instances,
                partition.cache_stats,
                lambda: partition.jobs(JobFilter(limit=10)),
                lambda: partition.job("j", START),
                lambda: partition.intents("k"),
                lambda: partition.peek(["default"], frozenset({"t"}), 1),
                lambda: partition.events_since(START),
                lambda: partition.read([ReadRequest("k")], START),
                lambda: partition.dismiss("w"),
            ]
            for verb in verbs:
                accepted = proxy.accepted
                proxy.lose_reply()
                await verb()
                assert proxy.accepted > accepted


async def test_what_is_enqueued_and_settled_waits_for_a_replica_where_that_was_asked_for() -> None:
    with RedisServer() as server:
        async with opened(server.url_for(query="durability=replicated&replicated_within=2")) as store:
            partition = store.partitions[0]
            with pytest.raises(StoreUnavailable, match=r"'enqueue' was done at .*, but no replica had it"):
                await partition.enqueue([NewJob(id="j", task="t")], START)
            await fill(store)  # values need no replica

            with server.replica():
                told = await partition.enqueue([NewJob(id="j", task="t")], START)
                assert not told.admissions[0].created  # it was there


async def test_what_a_killed_process_had_begun_to_tell_is_told_by_the_next_one(redis_server: RedisServer) -> None:
    many = 2 * TOLD_PER_STEP + 1
    async with opened(redis_server.url) as store:
        partition = store.partitions[0]
        await partition.enqueue([NewJob(id="parent", task="t", delay_us=3_600_000_000)], START)
        children = [NewJob(id=f"child-{i}", task="t", parents=(Parent("parent"),)) for i in range(many)]
        await partition.enqueue(children, START)
        await partition.cancel("parent", "by hand")
        (stats,) = await partition.queues()
        assert stats.counts == {"cancelled": TOLD_PER_STEP + 1, "blocked": many - TOLD_PER_STEP}
    async with opened(redis_server.url) as store:
        partition = store.partitions[0]
        assert (await partition.tend(10)).again
        assert not (await partition.tend(10)).again
        (stats,) = await partition.queues()
        assert stats.counts == {"cancelled": many + 1}


# ---------------------------------------------------------------- heartbeats


async def test_a_heart_beats_over_its_own_connection_while_the_loop_is_blocked(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as store:
        await store.partitions[0].enroll(Instance(id="i", lease_us=15_000_000))
        first, second = store.pulse(), store.pulse()
        clients = str(redis_server.call("CLIENT", "LIST")).count("name=selaras")
        # This very loop is blocked meanwhile.
        assert first.beat(0, HeartbeatRequest(instance="i", last_turn=0)).enrolled
        assert not second.beat(0, HeartbeatRequest(instance="stranger", last_turn=0)).enrolled
        assert str(redis_server.call("CLIENT", "LIST")).count("name=selaras") == clients + 1

        first.close()
        assert second.beat(0, HeartbeatRequest(instance="i", last_turn=0)).enrolled
        second.close()
        second.close()
        assert str(redis_server.call("CLIENT", "LIST")).count("name=selaras") == clients


async def test_a_heart_of_a_store_that_was_closed_is_told_so(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as store:
        pulse = store.pulse()
    with pytest.raises(StoreUnavailable, match="closed"):
        pulse.beat(0, HeartbeatRequest(instance="i", last_turn=0))
    pulse.close()


# ---------------------------------------------------------------- in step with other processes


async def test_an_invalidation_is_seen_by_other_processes_within_milliseconds(redis_server: RedisServer) -> None:
    apps = [Selaras(redis_server.url) for _ in range(4)]
    rows = {42: 0}

    def family(app: Selaras):  # type: ignore[no-untyped-def]
        @app.cached(ttl=300)
        async def product(id: int) -> int:
            return rows[id]

        return product

    products = [family(app) for app in apps]
    took: list[float] = []
    for number in range(20):
        assert [await product(42) for product in products] == [number] * len(apps)
        assert all(app.program.process().cache.stats()["entries"] for app in apps)
        rows[42] = number + 1
        await products[0].key(42).invalidate()
        begun = time.perf_counter()
        while any(app.program.process().cache.stats()["entries"] for app in apps):
            assert time.perf_counter() - begun < 2
            await asyncio.sleep(0.0005)
        took.append(time.perf_counter() - begun)
    assert sorted(took)[len(took) // 2] < 0.1  # a bound for a busy machine; benchmarks measure it
    for app in apps:
        await app.close()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("selaras._stores.redis.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'selaras\[redis\]'"):
        Selaras("redis://localhost").program.process()


async def test_the_same_verbs_on_a_cluster() -> None:
    with Cluster(masters=3, replicas=0) as cluster:
        async with opened(cluster.url, partitions=16) as store:
            for partition in store.partitions:
                told = await partition.enqueue([NewJob(id=f"j{partition.index}", task="t")], START)
                assert told.admissions[0].created
            await fill(store)
            assert await is_hit(store)


# ---------------------------------------------------------------- replies that are lost


async def test_an_enqueue_whose_reply_is_lost_is_sent_again_and_makes_one_job(redis_server: RedisServer) -> None:
    with Proxy(redis_server.address) as proxy:
        async with opened(proxy.through(redis_server.url)) as store:
            partition = store.partitions[0]
            await partition.enqueue([NewJob(id="old", task="t")], START)
            await asyncio.sleep(0.3)

            proxy.lose_reply()
            asked = [NewJob(id=id, task="t") for id in ("new", "old", "newer")]
            admitted = (await partition.enqueue(asked, START)).admissions

            assert [(one.id, one.created) for one in admitted] == [("new", True), ("old", False), ("newer", True)]
            (stats,) = await partition.queues()
            assert sum(stats.counts.values()) == 3


async def test_enqueues_whose_shared_reply_is_lost_each_say_what_they_made(redis_server: RedisServer) -> None:
    with Proxy(redis_server.address) as proxy:
        async with opened(proxy.through(redis_server.url)) as store:
            partition = store.partitions[0]
            await asyncio.sleep(0.3)

            proxy.lose_reply()
            asked = [NewJob(id=id, task="t") for id in ("a", "b", "a")]
            told = await asyncio.gather(*(partition.enqueue([job], START) for job in asked))

            admitted = [one for each in told for one in each.admissions]
            assert [(one.id, one.created) for one in admitted] == [("a", True), ("b", True), ("a", False)]


async def test_enqueues_of_one_moment_share_a_call_and_those_of_large_jobs_do_not(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as store:
        partition = store.partitions[0]
        await partition.enqueue([NewJob(id="the script is known", task="t")], START)
        redis_server.call("CONFIG", "RESETSTAT")
        small = [NewJob(id=f"small-{i}", task="t") for i in range(50)]
        large = [NewJob(id=f"large-{i}", task="t", payload=bytes(ALONE_BYTES + 1)) for i in range(2)]

        told = await asyncio.gather(*(partition.enqueue([job], START) for job in (*small, *large)))

        assert [one.id for each in told for one in each.admissions] == [job.id for job in (*small, *large)]
        assert redis_server.calls()["evalsha"] == 1 + len(large)


async def test_an_enqueue_that_may_have_been_done_says_so_when_the_server_stays_away() -> None:
    with RedisServer() as server, Proxy(server.address) as proxy:
        async with opened(f"{proxy.through(server.url)}?socket_timeout=1") as store:
            proxy.swallow()
            asked = asyncio.create_task(store.partitions[0].enqueue([NewJob(id="j", task="t")], START))
            await asyncio.sleep(0.1)
            proxy.cut()
            with pytest.raises(StoreUnavailable, match="'enqueue' was sent before that, and may have been done"):
                await asked


async def test_a_question_whose_answer_was_lost_is_not_called_something_that_may_have_been_done() -> None:
    with RedisServer() as server, Proxy(server.address) as proxy:
        async with opened(f"{proxy.through(server.url)}?socket_timeout=1") as store:
            proxy.swallow()
            asked = asyncio.create_task(store.partitions[0].queues())
            await asyncio.sleep(0.1)
            proxy.cut()
            with pytest.raises(StoreUnavailable) as told:
                await asked
    assert "may have been done" not in str(told.value)


async def test_more_jobs_than_lua_holds_arguments_settle_in_one_call_and_tell_their_fates(
    redis_server: RedisServer,
) -> None:
    many = 8_500  # Lua's stack holds 8,000
    async with opened(redis_server.url) as store:
        partition = store.partitions[0]
        worker = Instance(id="many", lease_us=60_000_000, queues=("default",), tasks=("t",))
        await partition.enroll(worker)
        await partition.enqueue([NewJob(id=f"many-{i}", task="t") for i in range(many)], START)
        turn = TurnRequest(
            instance="many", number=1, since=START, queues=("default",), tasks=frozenset(("t",)), limit=many
        )
        claims = (await partition.turn(turn)).claims
        ends = [Settlement(claim.job, claim.fence, JobEvent.SUCCEED) for claim in claims]
        attempts = [Attempt(claim.job, claim.fence) for claim in claims]

        settled = (await partition.settle("many", ends, START)).settled

        assert [one.state for one in settled] == [JobState.SUCCEEDED] * many
        assert set(await partition.fates(attempts)) == {Fate.SETTLED}


# ---------------------------------------------------------------- what an idle worker costs


async def test_a_turn_that_claims_nothing_is_told_again_and_leaves_nothing_behind(redis_server: RedisServer) -> None:
    async with opened(redis_server.url) as store:
        partition = store.partitions[0]
        await partition.enroll(Instance(id="i", lease_us=60_000_000, queues=("default",), tasks=("t",)))

        def turn(number: int, acked: int, *ends: Settlement) -> TurnRequest:
            return TurnRequest(
                instance="i",
                number=number,
                since=START,
                acked=acked,
                settlements=ends,
                queues=("default",),
                tasks=frozenset(("t",)),
                limit=10,
                idle=True,
            )

        assert not (await partition.turn(turn(1, 0))).claims
        await partition.enqueue([NewJob(id="job", task="t")], START)
        assert not (await partition.turn(turn(1, 0))).claims  # its reply was lost
        (claim,) = (await partition.turn(turn(2, 1))).claims
        end = turn(3, 2, Settlement(claim.job, claim.fence, JobEvent.SUCCEED))
        for _ in range(2):
            (settled,) = (await partition.turn(end)).settled
            assert (settled.state, settled.refusal) == (JobState.SUCCEEDED, None)
        redis_server.call("CONFIG", "RESETSTAT")
        await partition.turn(turn(4, 3))

        calls = {name: count for name, count in redis_server.calls().items() if "config" not in name}
        assert sum(calls.values()) <= 13, calls
        for name in ("turns", "left"):  # the field that lets them exist
            assert redis_server.call("HLEN", f"selaras:{{selaras.0}}:{name}") == 1
        assert redis_server.call("ZCARD", "selaras:{selaras.0}:batches") == 1


async def test_a_full_server_is_drained_by_a_worker_that_starts_only_then() -> None:
    with RedisServer(maxmemory="20mb", maxmemory_policy="noeviction") as server:
        app = Selaras(server.url)
        ran: list[int] = []

        @app.task
        async def work(number: int) -> None:
            ran.append(number)

        async with app:
            await app.enqueue_many(work.call(number) for number in range(20))
            server.call("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(StoreUnavailable, match="memory"):
                await work.enqueue(20)

            async with asyncio.timeout(20):
                await app.worker(burst=True).run()

        assert sorted(ran) == list(range(20))
