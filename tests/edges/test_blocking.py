"""The face without an event loop: the same promises, from any thread, after a fork, beside any number of loops."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import selaras
from selaras import blocking
from selaras.blocking import Fail, JobFailed, Read, SelarasError, WouldDeadlock, current_job


@dataclass(frozen=True)
class Product:
    id: int
    price: float


class Shop:
    """A small program: a datastore in a dict, a family over it, tasks that write it."""

    def __init__(self, url: str) -> None:
        self.app = app = blocking.Selaras(url)
        self.prices: dict[int, float] = {}
        self.loads: list[int] = []

        @app.cached(ttl=300)
        def product(id: int) -> Product:
            self.loads.append(id)
            return Product(id, self.prices.get(id, 10.0))

        @app.task(writes=product, retries=0)
        def reprice(id: int, factor: float, *, p: Product = Read(product)) -> float:
            self.prices[id] = p.price * factor
            # In the body: never the value from before its own write.
            assert product(id).price == self.prices[id]
            return self.prices[id]

        @app.task(retries=0)
        def echo(value: int) -> int:
            return value

        @app.task(retries=0)
        def give_up(why: str) -> None:
            raise Fail(why)

        @app.task(retries=0)
        def parent(id: str, *, fail: bool) -> str:
            child = echo.options(id=id).enqueue(7)
            with pytest.raises(WouldDeadlock):
                child.result(timeout=1)
            if fail:
                raise Fail("after it had enqueued")
            return f"{current_job().task}, attempt {current_job().attempt}"

        self.product, self.reprice, self.echo, self.give_up, self.parent = product, reprice, echo, give_up, parent

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run a worker in a thread until everything is done."""
        thread = threading.Thread(target=lambda: self.app.worker(burst=True, heartbeat=1).run())
        thread.start()
        try:
            yield
        finally:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(params=["sqlite", "memory"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")
    with shop.app:
        yield shop


# -- the same face


def test_a_first_program_reads_enqueues_waits_and_reads_again(shop: Shop) -> None:
    assert shop.product(1).price == 10.0
    job = shop.reprice.enqueue(1, 2)

    with shop.work():
        assert job.result(timeout=10) == 20.0

    assert shop.product(1) == Product(1, 20.0)
    assert job.info().state == "succeeded"
    assert shop.product.key(1).read().tier == "local"


def test_every_object_has_its_twin_and_goes_there_and_back(shop: Shop) -> None:
    app, product, reprice = shop.app, shop.product, shop.reprice
    pairs: list[tuple[Any, type, type]] = [
        (app, blocking.Selaras, selaras.Selaras),
        (product, blocking.Cached, selaras.Cached),
        (product.key(1), blocking.Key, selaras.Key),
        (product.key(1).writing(), blocking.Writing, selaras.Writing),
        (reprice, blocking.Task, selaras.Task),
        (reprice.options(priority=1), blocking.Prepared, selaras.Prepared),
        (reprice.call(1, 1.0), blocking.Call, selaras.Call),
        (reprice.job("x"), blocking.Job, selaras.Job),
        (app.tag("a", 1), blocking.Tag, selaras.Tag),
        (app.lock("x"), blocking.Lock, selaras.Lock),
    ]
    twin: Any
    for twin, here, there in pairs:
        aio = twin.aio
        assert (type(twin), type(aio), type(aio.sync)) == (here, there, here)
        assert aio.sync.aio is aio


def test_names_of_both_faces_are_the_same() -> None:
    loop_face = {name for name in vars(selaras) if name[0].isupper() or name in {"adaptive", "current_job"}}

    assert loop_face - set(blocking.__all__) <= {"Mapping"}
    assert set(blocking.__all__) - loop_face == {"Worker"}
    assert all(getattr(blocking, name) for name in blocking.__all__)


INSIDE = {
    "Resource": {"for_threads"},
    "Selaras": {"lifespan", "origin", "process", "program"},
    "Cached": {"at_hand"},
    "Key": {"slot"},
    "Task": {"follow"},
    "Prepared": {"follow"},
    "Call": {"arguments", "before", "options", "payload", "program", "spec"},
    "Job": {"held", "home", "program"},
}
"""What an object for coroutines has beside its public face, or (`lifespan`) for coroutines alone."""


@pytest.mark.parametrize(
    "name", ["Selaras", "Cached", "Key", "Writing", "Task", "Prepared", "Call", "Job", "Tag", "Lock", "Resource"]
)
def test_twins_can_do_the_same(name: str) -> None:
    for_loops = {one for one in dir(getattr(selaras, name)) if not one.startswith("_")}
    here = {one for one in dir(getattr(blocking, name)) if not one.startswith("_")}

    assert for_loops - here - {"sync"} == INSIDE.get(name, set())


def test_keys_tags_many_and_chains(shop: Shop) -> None:
    app, product, echo = shop.app, shop.product, shop.echo
    key = product.key(5)
    assert (key, hash(key)) == (product.key(5), hash(product.key(5)))
    assert key != product.key(6)
    assert [p.id for p in app.read_many(product.key(n) for n in range(4))] == [0, 1, 2, 3]
    shop.prices[5] = 11.0
    key.warm()
    assert key.get() == key.get(fresh="strict") == Product(5, 11.0)
    shop.prices[5] = 12.0
    key.invalidate()
    assert product(5).price == 12.0
    shop.prices[5] = 13.0
    product.invalidate_all()
    app.tag("category", 7).invalidate()
    assert product(5).price == 13.0
    assert "product:5" in key.explain()

    chain = echo.call(3).then(echo)
    jobs = app.enqueue_many([chain, echo.call(4), echo.options(id="mine", after=[]).call(5)])
    with shop.work():
        assert [job.result(timeout=10) for job in jobs] == [3, 4, 5]
    assert app.job("mine").result() == 5
    assert not echo.options(id="mine").enqueue(5).created


def test_a_batch_loader_is_a_plain_function(shop: Shop) -> None:
    asked: list[list[Any]] = []

    @shop.product.batch
    def load(ids: list[Any]) -> list[Product]:
        asked.append(ids)
        return [Product(id, 1.5) for id in ids]

    assert [p.price for p in shop.app.read_many(shop.product.key(n) for n in (1, 2))] == [1.5, 1.5]
    assert [sorted(ids) for ids in asked] == [[1, 2]]
    assert shop.loads == []


def test_what_a_body_raises_is_raised(shop: Shop) -> None:
    job = shop.give_up.enqueue("no such product")
    with shop.work(), pytest.raises(JobFailed, match="no such product"):
        job.result(timeout=10)
    with pytest.raises(Fail, match="here"):
        shop.give_up("here")
    with pytest.raises(TypeError, match="missing a required argument"):
        shop.give_up.enqueue()  # type: ignore[call-arg]


def test_a_task_called_directly_runs_within_its_own_intent(shop: Shop) -> None:
    assert shop.product(2).price == 10.0
    assert shop.reprice(2, 3.0) == 30.0
    assert shop.product(2).price == 30.0


def test_jobs_of_a_body_wait_for_its_success(shop: Shop) -> None:
    good, bad = shop.parent.enqueue("good", fail=False), shop.parent.enqueue("bad", fail=True)

    with shop.work():
        assert good.result(timeout=10) == "parent, attempt 1"
        with pytest.raises(JobFailed, match="after it had enqueued"):
            bad.result(timeout=10)

    assert shop.app.job("good").result(timeout=10) == 7
    with pytest.raises(blocking.UnknownJob):
        shop.app.job("bad").info()


# -- scopes


def test_a_scope_holds_for_the_thread_that_entered_it(shop: Shop) -> None:
    product, echo = shop.product, shop.echo
    assert product(3).price == 10.0
    with product.key(3).writing():
        shop.prices[3] = 11.0
        held = echo.options(id="in-scope").enqueue(1)
        assert product(3).price == 11.0
        with pytest.raises(WouldDeadlock):
            held.result(timeout=1)
        assert held.info().state == "blocked"
    assert product(3).price == 11.0
    with shop.work():
        assert held.result(timeout=10) == 1
    dropped: list[blocking.Job[int]] = []
    with pytest.raises(ZeroDivisionError):
        _fail_in_scope(shop, dropped)
    with pytest.raises((blocking.UnknownJob, blocking.JobCancelled)):
        dropped[0].result(timeout=1)


def _fail_in_scope(shop: Shop, dropped: list[blocking.Job[int]]) -> None:
    with shop.product.key(3).writing():
        dropped.append(shop.echo.enqueue(2))
        raise ZeroDivisionError


def test_a_lock_is_held_let_go_and_re_entered(shop: Shop) -> None:
    order: list[str] = []
    with shop.app.lock("mail:7") as lock:
        assert lock.fence > 0
        with shop.app.lock("mail:7") as again:
            assert again.fence == lock.fence
        thread = threading.Thread(target=lambda: _take(shop.app, "mail:7", order))
        thread.start()
        with pytest.raises(TimeoutError, match="mail:7"):
            in_thread(lambda: shop.app.lock("mail:7", timeout=0.05).__enter__())
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def _take(app: blocking.Selaras, line: str, order: list[str]) -> None:
    with app.lock(line, timeout=10):
        order.append("second")


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=20)


# -- resources


def test_a_resource_is_one_for_all_threads_and_closed_with_the_app(tmp_path: Path) -> None:
    app = blocking.Selaras(f"sqlite:///{tmp_path / 'jobs.db'}")
    events: list[str] = []

    @app.resource
    def db() -> Iterator[object]:
        events.append("open")
        yield object()
        events.append("close")

    with app:
        assert in_thread(db) is db()
        with db.override(lambda: "fake"):
            assert db() is in_thread(db)
    assert events == ["open", "close"]


# -- loops


async def test_a_blocking_call_on_a_running_loop_says_what_to_do_instead(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    for call in (
        lambda: shop.echo.enqueue(1),
        lambda: shop.product(1),
        lambda: shop.app.job("x").info(),
        lambda: shop.app.lock("x").__enter__(),
        lambda: shop.app.worker(burst=True).run(),
        shop.app.__enter__,
    ):
        with pytest.raises(SelarasError, match=r"`\.aio` twin"):
            call()
    assert (await asyncio.to_thread(shop.product, 1)).price == 10.0
    assert (await shop.product.aio(1)).price == 10.0
    await asyncio.to_thread(shop.app.close)
    await shop.app.aio.close()


def test_br_096_one_app_serves_loop_after_loop_and_several_at_once(shop: Shop) -> None:
    echo, product = shop.echo.aio, shop.product.aio

    async def enqueue(value: int) -> str:
        return (await echo.enqueue(value)).id

    async def read(id: int) -> float:
        return (await product(id)).price

    ids = [asyncio.run(enqueue(n)) for n in range(3)]
    with ThreadPoolExecutor(8) as pool:
        ids += pool.map(lambda n: asyncio.run(enqueue(n)), range(3, 11))
        ids += pool.map(lambda n: shop.echo.enqueue(n).id, range(11, 19))
        prices = [
            *pool.map(lambda _: asyncio.run(read(9)), range(4)),
            *pool.map(lambda _: shop.product(9).price, range(4)),
        ]
    with shop.work():
        results = [shop.app.job(id).result(timeout=20) for id in ids]

    assert results == list(range(19))
    assert prices == [10.0] * 8


def test_br_096_a_blocking_call_inside_a_job_of_a_worker_on_another_loop(shop: Shop) -> None:
    outer: Any = shop.app.task(name="outer", retries=0)(
        lambda n: [shop.echo.options(now=True).enqueue(n).id, shop.product(n).price]
    )
    job = outer.enqueue(4)

    with shop.work():
        id, price = job.result(timeout=10)

    assert price == 10.0
    assert shop.app.job(id).result(timeout=10) == 4


def test_threads_call_at_the_same_time_and_share_one_load(shop: Shop) -> None:
    gate = threading.Barrier(16)

    def read(n: int) -> Product:
        gate.wait(10)
        return shop.product(n % 4)

    with ThreadPoolExecutor(16) as pool:
        values = list(pool.map(read, range(16)))

    assert [value.id for value in values] == [n % 4 for n in range(16)]
    assert sorted(shop.loads) == [0, 1, 2, 3]


def test_loaders_that_read_other_values_never_wait_for_a_free_thread(shop: Shop) -> None:
    @shop.app.cached(ttl=60)
    def shelf(id: int) -> float:
        time.sleep(0.01)
        return shop.product(id).price

    assert shop.app.read_many([shelf.key(n) for n in range(80)]) == [10.0] * 80


def test_a_body_that_exits_does_not_stop_other_calls(shop: Shop) -> None:
    @shop.app.task(retries=0)
    async def leave(code: int) -> None:
        raise SystemExit(code)

    for _ in range(2):
        with pytest.raises(SystemExit):
            leave(3)
        assert shop.product(1).price == 10.0


# -- processes


def _child(shop: Shop, number: int, answers: Any) -> None:
    wrong = 0
    jobs: list[tuple[str, int]] = []
    for turn in range(40):
        id = number * 1_000 + turn
        wrong += shop.product(id) != Product(id, 10.0)
        jobs.append((shop.echo.enqueue(id).id, id))
    answers.put((number, wrong, jobs))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_br_095_children_of_a_fork_share_nothing_with_the_parent(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    fork = multiprocessing.get_context("fork")
    with shop.app:
        assert shop.product(1).price == 10.0
        with shop.product.key(2).writing():  # a heart beats in the parent, and none of its threads is in a child
            mine = [(shop.echo.options(now=True).enqueue(n).id, n) for n in range(3)]
            answers = fork.SimpleQueue()
            children = [fork.Process(target=_child, args=(shop, number, answers)) for number in range(1, 9)]
            for child in children:
                child.start()
            for turn in range(40):
                assert shop.product(turn) == Product(turn, 10.0)
            told = [answers.get() for _ in children]
        for child in children:
            child.join(20)
        with shop.work():
            for number, wrong, jobs in told:
                assert (number, wrong) == (number, 0)
                mine += jobs
            assert [shop.app.job(id).result(timeout=30) for id, _ in mine] == [value for _, value in mine]

    assert [child.exitcode for child in children] == [0] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["scope", "lock"])
def test_a_child_that_leaves_what_its_parent_entered_ends_nothing(tmp_path: Path, what: str) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    with shop.app:
        entered = shop.product.key(1).writing() if what == "scope" else shop.app.lock("line")
        with entered:
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                if what == "lock":
                    with pytest.raises(TimeoutError):
                        ThreadPoolExecutor().submit(shop.app.lock("line", timeout=0.2).__enter__).result()
        if not child:
            os._exit(7)


SCRIPT = """
    from selaras.blocking import Selaras
    app = Selaras("sqlite:///{file}")

    @app.task
    def echo(value: int) -> int:
        return value

    @app.cached(ttl=60)
    def double(value: int) -> int:
        return value * 2

    if __name__ == "__main__":
        {body}
"""


def script(tmp_path: Path, body: str) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(SCRIPT).format(file=tmp_path / "jobs.db", body=body))
    # What nobody closed is the program's affair; everything else it may be told of is ours.
    return [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::ResourceWarning", str(file)]


def test_a_script_that_closes_nothing_ends_at_once_and_silently(tmp_path: Path) -> None:
    body = "print(double(2), echo.enqueue(1).created, double.key(3).get())"

    done = subprocess.run(script(tmp_path, body), capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout, done.stderr, done.returncode) == ("4 True 6\n", "", 0)


def test_an_interrupted_wait_ends_and_leaves_its_place_in_line(tmp_path: Path) -> None:
    body = "print('ready', flush=True); app.lock('x').__enter__()"
    holder = blocking.Selaras(f"sqlite:///{tmp_path / 'jobs.db'}")
    with holder, holder.lock("x"):
        waiter = subprocess.Popen(script(tmp_path, body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "ready\n"
        time.sleep(0.5)
        waiter.send_signal(signal.SIGINT)
        _, errors = waiter.communicate(timeout=20)

    assert "KeyboardInterrupt" in errors
    assert waiter.returncode in (1, 130, -signal.SIGINT)
    with holder, holder.lock("x", timeout=1):
        pass
