"""`executor="process"`: bodies in processes that can be killed, with the same cache and the same promises."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.app.work import working
from tests.clock import VirtualClock

from selaras import JobCancelled, JobFailed, Selaras
from selaras._app.process.process import Process
from selaras._app.work.host import AppHost
from selaras._app.work.running import AttemptRun, Request
from selaras._contracts.host import ProcessDied
from selaras._core.jobs.job import Claim
from selaras._core.positions import Cursor, News
from selaras._stores.memory.store import MemoryStore

PROGRAM = """
import asyncio, os, sqlite3, time
from contextlib import closing
from pathlib import Path
from selaras import Fail, Read, Retry, Selaras, current_job

HERE = Path(__file__).parent
app = Selaras(f"sqlite:///{HERE}/jobs.db?partitions=PARTITIONS", backoff=0, backoff_most=0)

def prices():
    db = sqlite3.connect(HERE / "shop.db", isolation_level=None)
    db.execute("create table if not exists price (id integer primary key, price real)")
    return db

@app.cached
def price(id: int) -> float | None:
    with closing(prices()) as db:
        row = db.execute("select price from price where id = ?", [id]).fetchone()
    return row and row[0]

@app.task(writes=price, executor="process")
async def reprice(id: int, new: float, *, old: float | None = Read(price)) -> tuple[float | None, float, int]:
    with closing(prices()) as db:
        db.execute("insert or replace into price values (?, ?)", [id, new])
    assert await price(id) == new
    await price.key(id).put(new)
    await after.options(id=f"after-{id}-{new}").enqueue(os.getpid())
    return old, new, os.getpid()

@app.task
async def after(pid: int) -> int:
    return pid

def tell() -> None:
    for done in range(10_000):  # the latest wins: nothing is heaped up on the way
        current_job().progress(done, 10_000)
    current_job().progress(2, 3, "two thirds")

@app.task(executor="process", retries=0)
def tells() -> None:
    tell()
    while not (HERE / "seen").exists():
        time.sleep(0.01)

@app.task(executor="process", retries=0)
async def tells_on_the_loop() -> None:
    tell()
    while not (HERE / "seen").exists():
        await asyncio.sleep(0.01)

@app.task(executor="process")
def plain(x: int) -> int:
    assert current_job().attempt == 1
    return x + 1

@app.task(executor="process", retries=1)
def exits(how: str) -> None:
    if how == "exit":
        raise SystemExit(0)
    os._exit(3)

@app.task(executor="process", retries=0)
def fails() -> None:
    raise Fail("in the child")

@app.task(executor="process", retries=0, timeout=0.5)
def hangs() -> None:
    while True:
        pass

@app.task(executor="process", retries=0)
def long() -> None:
    (HERE / "started").touch()
    time.sleep(60)
"""


@pytest.fixture(params=[1, 3])
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program, importable by child processes, too."""
    name = f"in_processes_{request.param}_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(PROGRAM).replace("PARTITIONS", str(request.param)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    yield importlib.import_module(name)
    sys.modules.pop(name, None)


async def test_a_body_in_a_process_writes_reads_and_enqueues_like_any_other(program: Any) -> None:
    async with program.app:
        assert await program.price(1) is None
        async with working(program.app):
            first = await program.reprice.enqueue(1, 10.0)
            old, new, pid = await first.result(timeout=30)
            assert (old, new) == (None, 10.0)
            assert await program.price(1) == 10.0
            assert await program.app.job("after-1-10.0").result(timeout=10) == pid
            second = await program.reprice.enqueue(1, 20.0)
            assert (await second.result(timeout=30))[:2] == (10.0, 20.0)
            assert await program.price(1) == 20.0
            assert await (await program.plain.enqueue(1)).result(timeout=10) == 2


async def test_exits_and_failures_of_a_process_are_failures_of_its_job(program: Any) -> None:
    async with program.app:
        soft = await program.exits.enqueue("exit")
        hard = await program.exits.enqueue("os._exit")
        failing = await program.fails.enqueue()
        fine = await program.plain.enqueue(1)
        async with working(program.app):
            with pytest.raises(JobFailed) as failed:
                await soft.result(timeout=30)
            assert failed.value.type == "SystemExit"
            with pytest.raises(JobFailed):
                await hard.result(timeout=30)
            with pytest.raises(JobFailed, match="in the child"):
                await failing.result(timeout=30)
            assert await fine.result(timeout=30) == 2


@pytest.mark.parametrize("task", ["tells", "tells_on_the_loop"])
async def test_progress_of_a_process_is_seen_while_it_runs(program: Any, task: str) -> None:
    async with program.app, asyncio.timeout(30):
        job = await getattr(program, task).enqueue()
        async with working(program.app):
            while (progress := (await job.info()).progress) is None or progress.done != 2:
                await asyncio.sleep(0.01)
            Path(program.__file__).with_name("seen").touch()
            await job.result()

    assert (progress.total, progress.message) == (3, "two thirds")


async def test_a_process_that_hangs_is_killed(program: Any) -> None:
    async with program.app:
        hanging = await program.hangs.enqueue()
        cancelled = await program.long.enqueue()
        async with working(program.app):
            with pytest.raises(JobFailed, match="timeout"):
                await hanging.result(timeout=30)
            while not Path(program.__file__).with_name("started").exists():
                await asyncio.sleep(0.02)
            await cancelled.cancel()
            with pytest.raises(JobCancelled):
                await cancelled.result(timeout=5)


async def test_a_child_is_told_when_its_claim_was_asked_for(clock: VirtualClock) -> None:
    """What it replaced is served no more once another answer was given out since then (P4), not since it was received."""
    app = Selaras("memory://")

    @app.task(executor="process")
    async def one() -> None: ...

    here = AppHost(app.program, Process(MemoryStore(clock), clock, Random(1), app.settings, app.registry))
    there = AppHost(app.program, Process(MemoryStore(clock), clock, Random(2), app.settings, app.registry))
    here.heard(0, News(Cursor(1, 1), epoch=1), 50)
    signature = app.registry.tasks["one"].signature
    payload = signature.encode(signature.bind((), {}), most=100)
    run = here.prepare(Claim("j", 1, 1, "one", payload), 0, 70)
    assert isinstance(run, AttemptRun)
    sent: list[bytes] = []

    class Executors:
        async def in_thread(self, function: object) -> None: ...

        async def in_process(self, request: bytes, _: object) -> bytes:
            sent.append(request)
            raise ProcessDied(1)

    await run.execute(Executors())
    told = msgspec.msgpack.decode(sent[0], type=Request)
    child = there.prepare(told.claim, told.partition, told.since_ns, instance=told.instance, asked_ns=told.asked_ns)

    assert isinstance(child, AttemptRun)
    assert (child.session.asked_ns, child.session.since_ns) == (50, 70)
