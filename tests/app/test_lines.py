"""Lines: one at a time, in order, for jobs and for code outside of them."""

from __future__ import annotations

import asyncio

import pytest
from tests.app.work import work, working

from selaras import ConfigurationError, JobState, Selaras, WouldDeadlock, current_job


async def test_jobs_of_one_line_run_one_at_a_time_in_order(app: Selaras) -> None:
    order: list[int] = []
    inside = 0

    @app.task(lock="mail:{customer}")
    async def send(customer: int, n: int) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        order.append(n)
        inside -= 1

    jobs = [await send.enqueue(7, n) for n in range(10)]
    await work(app)

    for job in jobs:
        await job.result(timeout=10)
    assert order == list(range(10))


async def test_the_line_of_a_task_is_the_key_it_writes(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    @app.task(writes=product)
    async def change(id: int) -> str:
        return "done"

    job = await change.enqueue(3)
    info = await job.info()

    assert info.line == "product:3"
    assert info.writes == ("product:3",)


async def test_lines_and_writes_as_they_are_declared(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    @app.cached
    async def stock(sku: str, depot: int = 1) -> int:
        return depot

    @app.task(writes=[product, stock.by(sku="name")], lock=stock.by(sku="name"))
    async def both(id: int, name: str) -> None: ...

    @app.task(writes=product, lock=None)
    async def unordered(id: int) -> None: ...

    @app.task(writes=product, exclusive=False)
    async def shared(id: int) -> None: ...

    @app.task(writes=[product, stock], lock="depot:{depot}")
    async def by_text(id: int, sku: str, depot: int) -> None: ...

    infos = [
        await (await both.enqueue(1, "a b")).info(),
        await (await unordered.enqueue(1)).info(),
        await (await shared.enqueue(1)).info(),
        await (await by_text.enqueue(1, "x", 9)).info(),
    ]

    assert infos[0].line == stock.key("a b").name
    assert set(infos[0].writes) == {product.key(1).name, stock.key("a b").name}
    assert [info.line for info in infos[1:]] == ["", "", "depot:9"]
    assert infos[2].writes == ("product:1",)
    assert set(infos[3].writes) == {"product:1", stock.key("x", 9).name}


async def test_mistakes_are_told_at_import(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    @app.cached
    async def stock(sku: str) -> int:
        return 1

    with pytest.raises(ConfigurationError, match=r"lock=product.*lock=None"):

        @app.task(writes=[product, stock])
        async def several(id: int, sku: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"product\.by\(id="):

        @app.task(writes=product)
        async def unmatched(sku: str) -> None: ...

    with pytest.raises(ConfigurationError, match="no parameter 'ident'"):

        @app.task(writes=product.by(ident="sku"))
        async def wrong_name(sku: str) -> None: ...

    with pytest.raises(ConfigurationError, match="no parameter 'skuu'"):

        @app.task(writes=product.by(id="skuu"))
        async def wrong_parameter(sku: str) -> None: ...

    with pytest.raises(ConfigurationError, match="'customer'"):

        @app.task(lock="mail:{customer}")
        async def wrong_text(id: int) -> None: ...

    with pytest.raises(ConfigurationError, match="exclusive=False"):

        @app.task(lock="mail", exclusive=False)
        async def contradiction() -> None: ...

    with pytest.raises(ConfigurationError, match="no cached family"):

        @app.task(writes="product")  # type: ignore[arg-type]
        async def text() -> None: ...


async def test_a_lock_stands_in_the_same_line_as_jobs(app: Selaras) -> None:
    @app.task(lock="mail:{customer}")
    async def send(customer: int) -> str:
        return "sent"

    async with working(app):
        async with app.lock("mail:7") as lock:
            assert lock.fence > 0
            job = await send.enqueue(7)
            await asyncio.sleep(0.2)
            assert (await job.info()).state in (JobState.HELD, JobState.READY)
        assert await job.result(timeout=10) == "sent"


async def test_a_lock_waits_for_the_job_that_holds_its_line(app: Selaras) -> None:
    @app.cached
    async def product(id: int) -> int:
        return id

    running, go = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    @app.task(writes=product)
    async def change(id: int) -> int:
        running.set()
        await go.wait()
        order.append("job")
        return current_job().fence

    job = await change.enqueue(1)
    async with working(app):
        await running.wait()
        with pytest.raises(TimeoutError, match="product:1"):
            async with app.lock(product.key(1), timeout=0.1):
                pass
        go.set()
        async with app.lock(product.key(1)) as lock:
            order.append("lock")
        assert lock.fence > await job.result(timeout=10)
    assert order == ["job", "lock"]


async def test_a_lock_that_was_given_up_frees_its_place(app: Selaras) -> None:
    async with app.lock("a"):
        waiting = asyncio.create_task(_enter(app, "a"))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(3), app.lock("a") as lock:
        assert lock.fence


async def test_locks_taken_in_two_orders_are_told_of(
    app: Selaras, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selaras._app.jobs.lines._CROSSED_NS", 50_000_000)
    both = asyncio.Barrier(2)

    async def take(first: str, second: str) -> None:
        async with app.lock(first):
            await both.wait()
            async with app.lock(second, timeout=0.3):
                pass

    ends = await asyncio.gather(take("a", "b"), take("b", "a"), return_exceptions=True)

    assert any(isinstance(one, TimeoutError) for one in ends)
    assert "the lock 'b' has been waited for" in caplog.text
    assert "while the line 'a' is held here" in caplog.text


async def _enter(app: Selaras, line: str) -> None:
    # In a context without the outer lock, as another program would be.
    from selaras._app.jobs.lines import HELD

    HELD.set(None)
    async with app.lock(line):
        pass


async def test_locks_exclude_each_other(app: Selaras) -> None:
    inside = most = 0
    fences: list[int] = []

    async def one() -> None:
        nonlocal inside, most
        async with app.lock("x") as lock:
            inside += 1
            most = max(most, inside)
            fences.append(lock.fence)
            await asyncio.sleep(0.002)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(one())

    assert most == 1
    assert fences == sorted(set(fences))


async def test_a_held_line_is_re_entrant(app: Selaras) -> None:
    async with app.lock("x") as outer:
        async with app.lock("x") as inner:
            assert inner.fence == outer.fence
        # The inner end has not let it go.
        with pytest.raises(TimeoutError):
            await _in_another_context(app)


async def _in_another_context(app: Selaras) -> None:
    from selaras._app.jobs.lines import HELD

    async def enter() -> None:
        HELD.set(None)
        async with app.lock("x", timeout=0.1):
            pass

    await asyncio.create_task(enter())


async def test_waiting_for_a_job_of_the_line_one_holds_is_told(app: Selaras) -> None:
    @app.task(lock="mail")
    async def send() -> None: ...

    async with app.lock("mail"):
        job = await send.enqueue()
        with pytest.raises(WouldDeadlock, match="mail"):
            await job.result()


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        ("x{", r"no template .*: write \{parameter\}"),
        ("x:{a.b!r:>5}", r"\{a.b\} cannot be filled in from 'a', of type int: .*no attribute 'b'"),
        ("x:{a:z9q}", r"from 'a', of type int"),
        ("x:{b!q}", r"from 'b', of type str"),
        ("x:{a:>{width}}", r"names 'width', which is no parameter"),
    ],
)
def test_a_template_that_no_argument_fills_is_refused_at_the_declaration(app: Selaras, lock: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):

        @app.task(lock=lock)
        async def one(a: int, b: str) -> None: ...


async def test_a_template_that_these_arguments_do_not_fill_names_itself(app: Selaras) -> None:
    @app.task(lock="x:{order[customer]:>5}")
    async def one(order: dict[str, str]) -> None: ...

    await one.enqueue({"customer": "ann"})
    with pytest.raises(ConfigurationError, match=r"lock='x:\{order.* cannot be filled in .*KeyError: 'customer'"):
        await one.enqueue({})
