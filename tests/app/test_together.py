"""Many values written at once: tasks and scopes that write a tag or a whole family."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from msgspec import Struct
from tests.app.work import work, working

from selaras import ConfigurationError, Secret, Selaras, Task
from selaras._app.operating.survey import LONG_US, long_writers
from selaras._core.jobs.job import JobKind


class Shop:
    """Prices by product, and two families over them: one bears tags of its parameters, one of its values."""

    def __init__(self, app: Selaras) -> None:
        self.prices = dict.fromkeys(range(6), 1)
        self.loads = 0

        @app.cached(ttl=None, tags="category:{category}")
        async def price(id: int, category: int) -> int:
            self.loads += 1
            return self.prices[id]

        @app.cached(ttl=None, tags=lambda value: [app.tag("worth", value)])
        async def worth(id: int) -> int:
            self.loads += 1
            return self.prices[id]

        @app.cached(ttl=None)
        async def plain(id: int) -> int:
            self.loads += 1
            return self.prices[id]

        self.price, self.worth, self.plain = price, worth, plain

    def raise_all(self) -> None:
        self.prices = {id: price + 1 for id, price in self.prices.items()}


@pytest.fixture
def shop(app: Selaras) -> Shop:
    return Shop(app)


async def test_a_task_that_writes_a_tag_is_never_hidden_by_a_cache(app: Selaras, shop: Shop) -> None:
    committed, go = asyncio.Event(), asyncio.Event()

    @app.task(writes=app.tag("category", by="category"))
    async def reprice(category: int) -> list[int]:
        before = await shop.price(1, category)
        shop.raise_all()
        committed.set()
        await go.wait()
        return [before, await shop.price(1, category)]

    old = await shop.price(1, 7), await shop.price(2, 8)
    job = await reprice.enqueue(7)
    async with working(app):
        await committed.wait()
        during = [(await shop.price.key(1, 7).read("strict")).tier for _ in range(2)], await shop.price(1, 7)
        other = (await shop.price.key(2, 8).read("strict")).tier
        go.set()
        own = await job.result(timeout=10)
        after = await shop.price(1, 7)
        kept = (await shop.price.key(1, 7).read()).tier

    assert old == (1, 1)
    assert during == (["loader", "loader"], 2)
    assert other in {"local", "shared"}  # another category is served as ever
    assert own == [1, 2]
    assert (after, kept) == (2, "local")


async def test_tags_of_values_are_known_when_they_are_loaded(app: Selaras, shop: Shop) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @app.task(writes=[app.tag("worth", 1), app.tag("worth", 2)], lock=None)
    async def reprice() -> int:
        shop.raise_all()
        running.set()
        await go.wait()
        return await shop.worth(1)

    assert await shop.worth(1) == 1
    job = await reprice.enqueue()
    async with working(app):
        await running.wait()
        during = await shop.worth.key(1).read("strict")
        go.set()
        assert await job.result(timeout=10) == 2

    assert (during.value, during.tier) == (2, "loader")
    assert await shop.worth(1) == 2


async def test_a_task_that_writes_a_whole_family(app: Selaras, shop: Shop) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    @app.task(writes=shop.plain.all())
    async def reprice() -> int:
        before = await shop.plain(3)
        shop.raise_all()
        running.set()
        await go.wait()
        return before * 10 + await shop.plain(3)

    assert await shop.plain(3) == await shop.price(3, 1) == 1
    job = await reprice.enqueue()
    async with working(app):
        await running.wait()
        during = await shop.plain.key(3).read("strict")
        other = await shop.price.key(3, 1).read("strict")
        go.set()
        assert await job.result(timeout=10) == 12

    assert (during.value, during.tier) == (2, "loader")
    assert other.tier in {"local", "shared"}
    assert (await shop.plain.key(3).read()).value == 2


async def test_a_task_writes_keys_beside_a_tag_and_stands_in_the_line_of_its_key(app: Selaras, shop: Shop) -> None:
    @app.task(writes=[shop.plain, app.tag("category")])
    async def reprice(id: int) -> None:
        shop.raise_all()
        await shop.plain.key(id).put(shop.prices[id])

    job = await reprice.enqueue(1)
    info = await job.info()
    await work(app)

    assert info is not None
    assert info.line == "plain:1"
    assert info.writes == ("plain:1", "tag category")
    assert await shop.plain(1) == 2


async def test_a_read_parameter_is_as_of_the_claim(app: Selaras, shop: Shop) -> None:
    from selaras import Read

    @app.task(writes=shop.plain.all())
    async def reprice(id: int, *, old: int = Read(shop.plain)) -> int:
        shop.raise_all()
        return old * 10 + await shop.plain(id)

    assert await shop.plain(4) == 1
    job = await reprice.enqueue(4)
    await work(app)

    assert await job.result(timeout=10) == 12
    assert await shop.plain(4) == 2


async def test_a_scope_writes_a_tag(app: Selaras, shop: Shop) -> None:
    assert await shop.price(1, 7) == 1

    async with app.tag("category", 7).writing() as scope:
        inside_before = await shop.price(1, 7)
        shop.raise_all()
        inside = await shop.price(1, 7)
        assert scope.fence > 0
    after = await shop.price.key(1, 7).read()

    assert (inside_before, inside, after.value) == (1, 2, 2)
    assert (await shop.price.key(1, 7).read()).tier == "local"


async def test_a_scope_writes_a_family_and_nobody_keeps_what_is_read_meanwhile(app: Selaras, shop: Shop) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        async with shop.plain.all().writing():
            entered.set()
            await leave.wait()
            shop.raise_all()

    writer = asyncio.get_running_loop().create_task(write())
    await entered.wait()
    tiers = [(await shop.plain.key(1).read()).tier for _ in range(3)]
    leave.set()
    await writer
    after = await shop.plain(1)

    assert tiers == ["loader"] * 3
    assert after == 2


async def test_a_scope_that_raises_closes_what_it_opened(app: Selaras, shop: Shop) -> None:
    with pytest.raises(ValueError, match="no"):
        async with shop.plain.all().writing():
            raise ValueError("no")

    await shop.plain(1)
    assert (await shop.plain.key(1).read()).tier == "local"


async def test_a_task_run_here_opens_it_too(app: Selaras, shop: Shop) -> None:
    @app.task(writes=shop.plain.all())
    async def reprice() -> int:
        await shop.plain(1)
        shop.raise_all()
        return await shop.plain(1)

    assert await shop.plain(1) == 1
    assert await reprice() == 2
    assert await shop.plain(1) == 2


async def test_the_blocking_twins_write_together(app: Selaras, shop: Shop) -> None:
    def write() -> tuple[int, int]:
        with app.tag("category", 7).sync.writing(), shop.plain.all().sync.writing():
            shop.raise_all()
        shop.plain.all().sync.invalidate()
        return shop.price.sync(1, 7), shop.plain.sync(1)

    assert await shop.price(1, 7) == await shop.plain(1) == 1
    assert await asyncio.to_thread(write) == (2, 2)


# -- mistakes


def test_a_parameter_that_the_task_lacks_is_told_at_import(app: Selaras) -> None:
    with pytest.raises(ConfigurationError, match="has no parameter 'kind', but id"):

        @app.task(writes=app.tag("category", by="kind"))
        async def reprice(id: int) -> None: ...


class Account(Struct, frozen=True):
    id: int
    token: Secret[str]


@pytest.mark.parametrize("kind", [Secret[str], Secret[str] | None, list[Secret[str]], dict[str, Secret[int]]])
def test_a_tag_or_line_that_would_show_a_secret_is_refused_at_import(app: Selaras, kind: Any) -> None:
    async def look(token: str) -> int:
        return 1

    look.__annotations__["token"] = kind

    with pytest.raises(ConfigurationError, match="'token' is Secret, and the names of tags and lines are shown"):
        app.cached(tags=["session:{token}"])(look)
    with pytest.raises(ConfigurationError, match="'token' is Secret, and the names of tags and lines are shown"):
        app.task(writes=app.tag("session", by="token"))(look)
    with pytest.raises(ConfigurationError, match="'token' is Secret, and the names of tags and lines are shown"):
        app.task(lock="session:{token}")(look)


def test_a_line_that_would_show_a_secret_of_a_record_is_refused_at_import(app: Selaras) -> None:
    @app.task(lock="account:{account.id}")
    async def greet(account: Account) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'account\.token' is Secret"):

        @app.task(lock="account:{account.token}")
        async def check(account: Account) -> None: ...


async def test_a_secret_within_a_record_is_a_digest_in_its_tag(app: Selaras) -> None:
    @app.cached(tags=["account:{account}"])
    async def limit(account: Account) -> int:
        return 1

    account = Account(7, "s3cret-token")
    await limit(account)

    assert "s3cret" not in app.tag("account", account).name
    assert "s3cret" not in repr(await limit.key(account).explain())


def test_a_value_and_a_parameter_exclude_each_other(app: Selaras) -> None:
    with pytest.raises(ConfigurationError, match="give the value, or the parameter"):
        app.tag("category", 7, by="id")  # type: ignore[call-overload]


def test_a_family_that_is_served_while_written_is_not_written_as_a_whole(app: Selaras) -> None:
    @app.cached(during_write="serve")
    async def counter(id: int) -> int:
        return id

    with pytest.raises(ConfigurationError, match="during_write='serve'"):

        @app.task(writes=counter.all())
        async def count() -> None: ...


def test_what_cannot_be_written_is_told_with_what_can(app: Selaras) -> None:
    with pytest.raises(ConfigurationError, match=r"its \.all\(\), or a tag of the app"):

        @app.task(writes="category")  # type: ignore[arg-type]
        async def reprice() -> None: ...


async def test_a_mistyped_tag_of_a_task_is_doubted_by_its_worker(
    app: Selaras, caplog: pytest.LogCaptureFixture
) -> None:
    @app.cached(tags="category:{id}")
    async def price(id: int) -> int:
        return id

    @app.task(writes=app.tag("catgory"))
    async def reprice() -> None: ...

    with caplog.at_level(logging.WARNING, "selaras"):
        await work(app)

    assert "'catgory'" in caplog.text


def test_a_task_that_writes_a_tag_by_a_parameter_needs_it_when_it_is_enqueued(app: Selaras) -> None:
    @app.task(writes=app.tag("category", by="id"))
    async def reprice(id: int) -> None: ...

    task: Task[..., None] = reprice
    assert task.spec.needed_parameters() == {"id"}


async def test_a_scope_that_writes_for_long_is_listed_like_a_job(app: Selaras, shop: Shop) -> None:
    async with app, shop.plain.key(1).writing():
        process = app.process()
        now_us = process.clock.wall_us()
        (scope,) = await long_writers(process.store, now_us + LONG_US)

        assert (scope.kind, scope.writes) == (JobKind.WRITING, ("plain:1",))
        assert f"intent     a writing() scope (on {scope.instance}) writes plain:1" in await shop.plain.key(1).explain()
        assert await long_writers(process.store, now_us) == ()


async def test_a_job_that_writes_for_long_is_warned_of_where_its_key_is_read(
    app: Selaras, shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("selaras._cache.vigil.LONG_US", 100_000)
    go = asyncio.Event()

    @app.task(writes=shop.plain)
    async def slow(id: int) -> None:
        await go.wait()

    await slow.enqueue(1)
    with caplog.at_level(logging.WARNING, "selaras"):
        async with working(app):
            while "slow, on" not in caplog.text:
                await shop.plain.key(1).get("strict")
                await asyncio.sleep(0.01)
            process = app.process()
            now_us = process.clock.wall_us()
            written_long = (
                await long_writers(process.store, now_us + LONG_US),
                await long_writers(process.store, now_us),
            )
            go.set()

    (record,) = [one for one in caplog.records if "slow, on" in one.getMessage()]
    assert record.getMessage().startswith("plain:1 is loaded from the datastore at each read: job ")
    assert [[(job.task, job.writes) for job in jobs] for jobs in written_long] == [[("slow", ("plain:1",))], []]
