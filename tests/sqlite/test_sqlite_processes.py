"""The SQLite store between processes, threads, loops and forks: who waits, who is woken, what is one commit."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from selaras._contracts.partition import HeartbeatRequest, Instance, Invalidation, JobFilter, ReadRequest, TurnRequest
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Attempt, Claim, Fate, NewJob, Put, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.positions import START
from selaras._stores.sqlite.bell import LOOK_EVERY_S, Ringer
from selaras._stores.sqlite.file import CommitSign
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import SystemClock

SCRIPT = """
import asyncio, sys
from selaras._contracts.partition import Instance, TurnRequest
from selaras._core.jobs.job import NewJob
from selaras._core.positions import START
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import SystemClock

async def main(path, who, count):
    store = SqliteStore(path, SystemClock())
    await store.open()
    for n in range(count):
        await store.partitions[0].enqueue([NewJob(id=f"{who}-{n}", task="work")], START)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def other_process(path: Path, who: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(path), who, str(count)])


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder / "s.db", SystemClock(), entropy=Random())
    await store.open()
    yield store
    await store.close()


async def ids(store: SqliteStore) -> set[str]:
    return {job.id for job in (await store.partitions[0].jobs(JobFilter(limit=100_000))).jobs}


def commits(store: SqliteStore) -> int:
    """Count the commits of any process, by the counter in the header of the WAL index."""
    store.partitions[0].tail_now()
    sign = CommitSign(store.path).read()
    if not sign:
        pytest.skip("this system does not show where SQLite maps its index")
    return int.from_bytes(sign[8:12], sys.byteorder)


# -- group commit


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_what_is_asked_together_is_committed_together(folder: Path, synchronous: str) -> None:
    store = SqliteStore(folder / "s.db", SystemClock(), synchronous=synchronous)  # type: ignore[arg-type]
    await store.open()
    partition = store.partitions[0]
    await partition.enqueue([NewJob(id="first", task="work")], START)
    before = commits(store)

    replies = await asyncio.gather(*[partition.enqueue([NewJob(id=f"{n}", task="work")], START) for n in range(200)])

    assert [reply.admissions[0].id for reply in replies] == [f"{n}" for n in range(200)]
    assert commits(store) - before <= 5
    await store.close()


async def test_a_verb_that_fails_does_not_take_its_neighbours_with_it(store: SqliteStore) -> None:
    partition = store.partitions[0]
    wrong = NewJob(id="wrong", task="work", payload={"not": "bytes"})  # type: ignore[arg-type]

    good, bad, more = await asyncio.gather(
        partition.enqueue([NewJob(id="good", task="work")], START),
        partition.enqueue([wrong], START),
        partition.enqueue([NewJob(id="more", task="work")], START),
        return_exceptions=True,
    )

    assert isinstance(bad, Exception)
    assert not isinstance(good, BaseException)
    assert not isinstance(more, BaseException)
    assert await ids(store) == {"good", "more"}


async def test_a_cancelled_caller_does_not_break_the_batch(store: SqliteStore) -> None:
    partition = store.partitions[0]
    tasks = [asyncio.ensure_future(partition.enqueue([NewJob(id=f"{n}", task="work")], START)) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()

    replies = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(replies[1], asyncio.CancelledError)
    assert {"0", "2"} <= await ids(store)


# -- loops, threads, processes, forks


def test_one_store_serves_several_loops_one_after_the_other(folder: Path) -> None:
    store = SqliteStore(folder / "s.db", SystemClock())

    async def once(id: str) -> set[str]:
        await store.partitions[0].enqueue([NewJob(id=id, task="work")], START)
        return await ids(store)

    assert asyncio.run(once("a")) == {"a"}
    assert asyncio.run(once("b")) == {"a", "b"}
    asyncio.run(store.close())


def test_one_store_serves_loops_in_several_threads(folder: Path) -> None:
    store = SqliteStore(folder / "s.db", SystemClock())

    async def many(who: str) -> None:
        for n in range(50):
            await store.partitions[0].enqueue([NewJob(id=f"{who}-{n}", task="work")], START)
            await store.partitions[0].read([ReadRequest("k")], START)

    threads = [threading.Thread(target=lambda who=who: asyncio.run(many(who))) for who in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(asyncio.run(ids(store))) == 150
    asyncio.run(store.close())


async def test_two_processes_that_write_at_once_both_go_on(folder: Path, store: SqliteStore) -> None:
    others = [other_process(store.path, who, 200) for who in ("left", "right")]
    longest = 0.0
    while any(other.poll() is None for other in others):
        began = time.perf_counter()
        await store.partitions[0].invalidate(Invalidation(("k",)), START)
        longest = max(longest, time.perf_counter() - began)
        await asyncio.sleep(0.001)

    assert [other.wait() for other in others] == [0, 0]
    assert len(await ids(store)) == 400
    assert longest < 2


async def test_processes_that_create_the_same_file_at_once_agree(folder: Path) -> None:
    path = folder / "new.db"
    others = [other_process(path, f"p{n}", 3) for n in range(4)]

    assert [await asyncio.to_thread(other.wait) for other in others] == [0] * 4

    store = SqliteStore(path, SystemClock())
    assert len(await ids(store)) == 12
    assert (await store.partitions[0].events_since(START)).epoch == 0
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_may_use_the_store_on_both_sides(folder: Path) -> None:
    store = SqliteStore(folder / "s.db", SystemClock())
    pulse = store.pulse()

    async def some(who: str) -> None:
        partition = store.partitions[0]
        await partition.enroll(Instance(id=who, lease_us=10**7))
        for n in range(20):
            await partition.enqueue([NewJob(id=f"{who}-{n}", task="work")], START)
            assert partition.tail_now() is not None
        await partition.tend(10)
        pulse.beat(0, HeartbeatRequest(instance=who, last_turn=0))

    asyncio.run(some("before"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio.run(some("child"))
            asyncio.run(store.close())
            status = 0
        finally:
            os._exit(status)
    asyncio.run(some("parent"))
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(some("after"))

    assert len(asyncio.run(ids(store))) == 80
    pulse.close()
    asyncio.run(store.close())


async def test_the_write_ahead_log_does_not_grow_for_ever(folder: Path, store: SqliteStore) -> None:
    wal = Path(f"{store.path}-wal")
    for n in range(60):
        await store.partitions[0].enqueue([NewJob(id=f"{n}-{m}", task="work") for m in range(1_000)], START)
        await asyncio.sleep(0.002)

    assert wal.stat().st_size < 20 * 1024 * 1024


FULL = """
import asyncio, resource, sys
from selaras._contracts.partition import JobFilter
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import NewJob
from selaras._core.positions import START
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.system import SystemClock

async def main(path):
    store = SqliteStore(path, SystemClock())
    await store.open()
    partition = store.partitions[0]
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, most))
    accepted = 0
    try:
        while True:
            await partition.enqueue([NewJob(id=f"{accepted}", task="work", payload=bytes(100_000))], START)
            accepted += 1
    except StoreUnavailable as error:
        assert "s.db" in str(error), error
    assert len((await partition.jobs(JobFilter(limit=1_000))).jobs) == accepted
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (await partition.enqueue([NewJob(id="after", task="work")], START)).admissions[0].created
    assert (await partition.events_since(START)).epoch == 0
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
async def test_a_disk_that_is_full_is_said_and_nothing_accepted_is_lost(folder: Path) -> None:
    script = [sys.executable, "-c", FULL, str(folder / "s.db")]

    assert await asyncio.to_thread(subprocess.call, script) == 0


async def test_a_log_that_has_filled_the_disk_is_copied_and_begins_anew(tmp_path: Path) -> None:
    """It grew until nothing could be written, and since nothing was written nobody copied it."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "selaras-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        store = SqliteStore(tmp_path / "s.db", SystemClock())
        await store.open()
        failed = 0
        for number in range(1_000):  # more than the log has room for, and all of it one row
            try:
                await store.partitions[0].enroll(Instance(id="w", lease_us=10**8 + number, queues=("default",)))
            except StoreUnavailable as error:
                failed += "the disk is full" in str(error)
                await asyncio.sleep(0.05)
        await store.close()
        assert 0 < failed < 20
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


# -- bells


async def test_a_bell_wakes_an_idle_worker_of_another_process_at_once(folder: Path, store: SqliteStore) -> None:
    partition = store.partitions[0]
    bell = store.bell()
    await partition.enroll(Instance(id="w", lease_us=10**8, queues=("default",), bell=bell.address))
    turn = TurnRequest(
        instance="w", number=1, since=START, queues=("default",), tasks=frozenset({"work"}), limit=1, idle=True
    )
    await partition.turn(turn)
    other = other_process(store.path, "them", 1)

    assert await bell.wait(20)

    seen = time.perf_counter()
    assert await ids(store) == {"them-0"}
    assert other.wait() == 0
    assert time.perf_counter() - seen < 5
    bell.close()


async def test_a_waiter_notices_new_work_although_the_ring_was_lost(folder: Path, store: SqliteStore) -> None:
    bell = store.bell()
    other = other_process(store.path, "them", 1)  # nobody is idle, so nobody is rung

    assert await bell.wait(20)

    assert other.wait() == 0
    bell.close()


@pytest.mark.parametrize(
    ("said", "where"), [(b"\x00\x02", {2}), (b"\x01", {0, 1, 2}), (b"\x00\x03", {0, 1, 2}), (b"", {0, 1, 2})]
)
async def test_a_datagram_names_the_partition_or_what_it_says_is_not_known(said: bytes, where: set[int]) -> None:
    """An earlier version named none, and a store of more partitions may once have had this port."""
    bell = Ringer().make(lambda partition: partition, 3)
    host, port = bell.address.split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(said, (host, int(port)))

    assert await bell.wait(5) == where
    assert not await bell.wait(0.01)
    bell.close()


async def test_rings_of_other_processes_add_up_until_somebody_waits() -> None:
    bell, other = Ringer().make(lambda partition: partition, 3), Ringer()
    for partition in (1, 2, 1):
        other.ring(partition, bell.address)

    assert await bell.wait(5) == {1, 2}
    other.close()
    bell.close()


async def test_a_waiter_looks_at_every_partition_and_says_which_has_news() -> None:
    news = [0, 0, 0]
    bell = Ringer().make(news.__getitem__, 3)
    news[1] += 1

    assert await bell.wait(5) == {1}
    assert not await bell.wait(LOOK_EVERY_S * 1.5)
    bell.close()


async def test_several_tasks_wait_for_one_bell(store: SqliteStore) -> None:
    bell = store.bell()
    waits = [asyncio.ensure_future(bell.wait(5)) for _ in range(3)]
    await asyncio.sleep(0.01)

    bell.ring()

    assert await asyncio.gather(*waits) == [frozenset({0})] * 3
    assert not await bell.wait(0.01)
    bell.close()


# -- repeated turns


async def test_a_repeated_turn_returns_the_same_outcomes_and_claims(folder: Path) -> None:
    first, second = SqliteStore(folder / "s.db", SystemClock()), SqliteStore(folder / "s.db", SystemClock())
    partition = first.partitions[0]
    await partition.enroll(Instance(id="w", lease_us=10**8, queues=("default",)))
    lined = [NewJob(id=f"lined-{n}", task="work", line=f"l{n}", writes=(f"k{n}",)) for n in range(3)]
    await partition.enqueue([*[NewJob(id=f"plain-{n}", task="work", payload=b"p") for n in range(5)], *lined], START)
    turn = TurnRequest(instance="w", number=1, since=START, queues=("default",), tasks=frozenset({"work"}), limit=10)

    reply = await partition.turn(turn)
    again = await second.partitions[0].turn(turn)

    assert len(reply.claims) == 8
    assert again.claims == reply.claims
    assert again.settled == reply.settled
    assert set(await partition.fates([Attempt(one.job, one.fence) for one in again.claims])) == {Fate.RUNNING}
    await first.close()
    await second.close()


# -- what one process remembers, and another changes


async def turned(store: SqliteStore, number: int, *ended: Settlement, limit: int) -> tuple[Claim, ...]:
    """Take a turn of this process's worker."""
    request = TurnRequest(
        instance="me",
        number=number,
        acked=number - 1,
        since=START,
        settlements=ended,
        queues=("default",),
        tasks=frozenset({"work"}),
        limit=limit,
    )
    return (await store.partitions[0].turn(request)).claims


async def test_p9_a_key_that_another_process_voids_under_an_intent_is_not_stored_by_its_settle(
    store: SqliteStore,
) -> None:
    partition = store.partitions[0]
    await partition.enroll(Instance(id="me", lease_us=10**9, queues=("default",)))
    await partition.enqueue([NewJob(id="a", task="work", writes=("k",))], START)
    (claim,) = await turned(store, 1, limit=1)
    other = SqliteStore(store.path, SystemClock())
    await other.partitions[0].invalidate(Invalidation(("k",)), START)
    await other.close()

    put = Settlement(claim.job, claim.fence, JobEvent.SUCCEED, puts=(Put("k", b"v", 1),), writes=("k",))
    (settled,) = (await partition.settle("me", [put], START)).settled

    assert settled.state is JobState.SUCCEEDED
    assert settled.stored == ()


async def test_p21_lines_go_on_with_whoever_waits_when_another_process_has_cancelled_the_next(
    store: SqliteStore,
) -> None:
    partition = store.partitions[0]
    await partition.enroll(Instance(id="me", lease_us=10**9, queues=("default",)))
    await partition.enqueue(
        [NewJob(id=f"{at}{line}", task="work", line=line) for at in range(4) for line in "ab"], START
    )
    claims: tuple[Claim, ...] = ()
    for number in (1, 2):  # the second knows who comes next
        ended = [Settlement(claim.job, claim.fence, JobEvent.SUCCEED) for claim in claims]
        claims = await turned(store, number, *ended, limit=2)
    other = SqliteStore(store.path, SystemClock())
    for id in ("2a", "2b"):
        await other.partitions[0].cancel(id, "by hand")
    await other.close()

    await turned(store, 3, *[Settlement(claim.job, claim.fence, JobEvent.SUCCEED) for claim in claims], limit=0)

    states = {one.id: one.state for one in (await partition.jobs(JobFilter())).jobs}
    assert states["2a"] == states["2b"] == JobState.CANCELLED
    assert states["3a"] == states["3b"] == JobState.READY
