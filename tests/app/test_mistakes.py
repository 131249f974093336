"""Values that an option cannot have: refused where they are written, in words that name the option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from selaras import ConfigurationError, CurrentJob, JobCancelled, Middleware, NotEncodable, Read, Selaras
from selaras.blocking import Selaras as BlockingSelaras
from selaras.testing import harness

app = Selaras("memory://")


@app.task
async def echo(x: int = 0) -> int:
    return x


@app.task
async def add(x: int, y: int) -> int:
    return x + y


@app.task
async def total(rows: list[int]) -> int:
    return sum(rows)


@app.cached
async def price(id: int) -> int:
    return id


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a priority in words": ({"priority": "high"}, r"priority='high': give a whole number"),
    "half a priority": ({"priority": 1.5}, r"priority=1.5: give a whole number"),
    "a priority of True": ({"priority": True}, r"priority=True: give a whole number"),
    "a priority beyond all stores": ({"priority": 2**80}, r"priority=\d+: give a whole number"),
    "retries as text": ({"retries": "3"}, r"retries='3': give a whole number from 0"),
    "negative retries": ({"retries": -1}, r"retries=-1: give a whole number from 0"),
    "a word for until": ({"unique": "k", "unique_until": "done"}, r"unique_until='done': give 'started' or 'finished'"),
    "a word for conflicts": ({"unique": "k", "on_conflict": "skip"}, r"on_conflict='skip': give 'keep' or 'replace'"),
    "a conflict of nothing": ({"on_conflict": "replace"}, r"on_conflict='replace' .* unique="),
    "until of nothing": ({"unique_until": "finished"}, r"unique_until='finished' .* unique="),
    "after a number": ({"after": 7}, r"after=7: give a job, its id, or a list"),
    "after a list of numbers": ({"after_finished": [7]}, r"after_finished=7: give a job, its id, or a list"),
    "after nothing": ({"after": ""}, r"job id"),
    "now in words": ({"now": "yes"}, r"now='yes': give True or False"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_option_of_an_enqueue_is_checked_at_the_call(case: str) -> None:
    options, said = OPTIONS[case]

    with pytest.raises(ConfigurationError, match=said):
        echo.options(**options)


DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "priority": ({"priority": "high"}, r"task 'declared': priority='high': give a whole number"),
    "retries": ({"retries": "3"}, r"task 'declared': retries='3': give a whole number from 0"),
    "far too many retries": ({"retries": 10**20}, r"give a whole number from 0 to 2,147,483,647"),
    "a longest back-off that is shorter": (
        {"backoff": "10m", "backoff_most": "1m"},
        r"task 'declared': backoff_most=1m is shorter than backoff=10m",
    ),
    "one shorter than the default": ({"backoff_most": "500ms"}, r"backoff_most=500ms is shorter than backoff=1s"),
    "max_lost": ({"max_lost": -1}, r"task 'declared': max_lost=-1: give a whole number from 0"),
    "ordered": ({"ordered": "no"}, r"task 'declared': ordered='no': give True or False"),
    "exclusive": ({"exclusive": 0}, r"task 'declared': exclusive=0: give True or False"),
    "writes": ({"writes": 5}, r"task 'declared': writes 5 is no cached family"),
    "reads": ({"reads": "price"}, r"task 'declared': reads 'price' is no cached family"),
    "lock": ({"lock": 42}, r"task 'declared': lock 42 is no cached family"),
}


@pytest.mark.parametrize("case", DECLARATIONS)
def test_a_declaration_is_checked_at_import(case: str) -> None:
    declaration, said = DECLARATIONS[case]

    async def declared(id: int) -> None: ...

    with pytest.raises(ConfigurationError, match=said):
        app.task(**declaration)(declared)
    assert "declared" not in app.registry.tasks


FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "loads below nothing": ({"fallback_loads": -1}, r"fallback_loads=-1: give a whole number from 1 to"),
    "no loads": ({"fallback_loads": 0}, r"fallback_loads=0: give a whole number from 1 to"),
    "a word for fresh": ({"fresh": "newest"}, r"fresh='newest': give 'strict', 'causal', or how old at most"),
    "a time there is not": ({"fresh": "5 years"}, r"fresh='5 years': units are"),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_a_family_is_checked_at_import(case: str) -> None:
    declaration, said = FAMILIES[case]

    def declared(id: int) -> int:
        return id

    with pytest.raises(ConfigurationError, match=said):
        app.cached(**declaration)(declared)


def test_how_old_a_value_may_be_is_a_duration_like_others() -> None:
    shop = Selaras("memory://")

    @shop.cached(fresh="5s")
    async def stock(id: int) -> int:
        return id

    assert stock.family.family.level == 5_000_000


def test_what_tells_no_parameters_is_neither_task_nor_cached() -> None:
    for declare in (lambda: app.cached(int), lambda: app.task(int)):
        with pytest.raises(ConfigurationError, match=r"<class 'int'> does not say which parameters it takes"):
            declare()


def test_a_read_parameter_can_take_what_the_family_returns() -> None:
    text: Any = Read(price)

    async def declared(id: int, *, p: str = text) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"task 'declared': p: str = Read\(price\): price returns int, which is never str"
    ):
        app.task(declared)

    @app.task
    async def fits(id: int, *, p: float | None = text, q: Any = text, r: Later = text) -> None: ...


def test_a_function_is_a_task_or_cached() -> None:
    blocking = BlockingSelaras("memory://")

    @blocking.cached
    def rate(id: int) -> int:
        return id

    for declare in (lambda: app.task(price), lambda: app.cached(echo), lambda: app.task(echo)):
        with pytest.raises(ConfigurationError, match=r"already, and one function is either a task or cached"):
            declare()
    with pytest.raises(ConfigurationError, match=r"'rate' is cached already"):
        blocking.task(rate)


class Later:
    """A type that cannot be stored, and need not be: nothing is known of it."""


class Tracing(Middleware):
    """Does nothing."""


APPS: dict[str, tuple[Callable[[], object], str]] = {
    "a URL of a number": (lambda: Selaras(5), r"5 is no URL of a store: give one of"),  # type: ignore[arg-type]
    "a file in memory": (lambda: Selaras("sqlite:///:memory:"), r"is a file; a store in this .* is memory://"),
    "a namespace of a number": (lambda: Selaras("memory://", namespace=5), r"namespace=5: give letters"),  # type: ignore[arg-type]
    "a namespace with a slash": (lambda: Selaras("memory://", namespace="a/b"), r"namespace='a/b': give letters"),
    "a module instead of a list": (
        lambda: Selaras("memory://", include="shop.tasks"),
        r"include='shop.tasks': give a list",
    ),
    "half a retry": (lambda: Selaras("memory://", retries=2.5), r"retries=2.5: give a whole number"),  # type: ignore[arg-type]
    "a class": (lambda: Selaras("memory://", middleware=[Tracing]), r"is a class: give an object of it, Tracing\(\)"),  # type: ignore[list-item]
    "a number": (lambda: Selaras("memory://", middleware=[5]), r"middleware=\[5\]: give an object"),  # type: ignore[list-item]
    "no list": (lambda: Selaras("memory://", middleware=Tracing()), r"middleware=.*: give a list"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", APPS)
def test_what_an_app_is_given_is_checked(case: str) -> None:
    make, said = APPS[case]

    with pytest.raises(ConfigurationError, match=said):
        make()


def test_what_an_app_can_be_given_is_taken() -> None:
    taken = Selaras("memory://", middleware=[Tracing()], namespace="a.b-c_1", include=("tests.app.work",), priority=-5)

    assert taken.settings.priority == -5


def test_what_is_no_family_line_or_step_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Read\('p'\): give a function declared with @app.cached"):
        Read("p")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"lock\(42\): give the name of a line"):
        app.lock(42)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"lock\(''\): give the name of a line"):
        app.lock("")
    with pytest.raises(ConfigurationError, match=r"then\(42\): give a task"):
        echo.call(1).then(42)  # type: ignore[arg-type]


async def test_what_is_no_call_or_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"given 1, which is no call"):
        await app.enqueue_many([1])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"<task echo>, which is no call: .* as in echo\.call\(\.\.\.\)"):
        await app.enqueue_many([echo])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"given 1, which is no key"):
        await app.read_many([1])  # type: ignore[arg-type]


def test_the_twin_for_plain_code_says_the_same() -> None:
    blocking = BlockingSelaras("memory://")

    with pytest.raises(ConfigurationError, match=r"which is no call"):
        blocking.enqueue_many([1])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"which is no key"):
        blocking.read_many([1])  # type: ignore[arg-type]


WORKERS: dict[str, tuple[dict[str, Any], str]] = {
    "an option there is not": ({"foo": 1}, r"app\.worker\(\) has no option 'foo'"),
    "a misspelt one": ({"queue": "default"}, r"did you mean 'queues'"),
    "a text of queues": ({"queues": "default"}, r"queues='default': give a list"),
    "a queue of a number": ({"queues": [1]}, r"queue is named by text"),
    "burst in words": ({"burst": "no"}, r"burst='no': give True or False"),
    "a process in words": ({"owns_process": 1}, r"owns_process=1: give True or False"),
    "a name of a number": ({"name": 5}, r"name=5: give a text"),
    "an observer that hears nothing": ({"observer": print}, r"observer=.*: give an object with a method heard"),
    "concurrency as text": ({"concurrency": "many"}, r"concurrency='many'"),
}


@pytest.mark.parametrize("case", WORKERS)
def test_an_option_of_a_worker_is_checked_at_the_call(case: str) -> None:
    options, says = WORKERS[case]
    for one in (app, BlockingSelaras("memory://")):
        with pytest.raises((ConfigurationError, TypeError), match=says):
            one.worker(**options)


PROGRESS: dict[str, tuple[tuple[Any, ...], str]] = {
    "text": (("x", 1), r"progress\(done='x'\): give a number from 0"),
    "nothing": ((None, 1), r"done=None"),
    "yes": ((True, 1), r"done=True"),
    "no number": ((float("nan"), 1), r"done=nan"),
    "without end": ((1, float("inf")), r"total=inf"),
    "below nothing": ((-1, 0), r"done=-1"),
    "beyond what can be stored": ((10**30, 1), r"done=10{30}\): give a number from 0 to 9,007,199,254,740,992"),
    "a message of a number": ((1, 2, 5), r"progress\(message=5\): give a text"),
}


@pytest.mark.parametrize("case", PROGRESS)
def test_progress_is_checked_at_the_call(case: str) -> None:
    said, says = PROGRESS[case]
    told: list[bytes] = []
    job = CurrentJob("1", "t", "q", 1, 1, None, told.append)
    with pytest.raises(ConfigurationError, match=says):
        job.progress(*said)
    assert not told


async def test_long_messages_and_reasons_are_cut() -> None:
    shop = Selaras("memory://")

    @shop.task
    async def work() -> None: ...

    told: list[bytes] = []
    CurrentJob("1", "t", "q", 1, 1, None, told.append).progress(1, 2, "m" * 300_000)
    assert len(told[0]) < 3_000
    async with harness(shop) as t:
        job = await work.enqueue()
        with pytest.raises(ConfigurationError, match="reason=5"):
            await job.cancel(5)  # type: ignore[arg-type]  # what is refused
        assert await job.cancel("r" * 300_000)
        with pytest.raises(JobCancelled) as caught:
            await job.result()
        assert 1_000 < len(str(caught.value)) < 3_000
        assert not await t.run()


def test_a_call_is_checked_when_it_is_made() -> None:
    text: Any = "5"
    for make in (echo.call, echo.options(delay=1).call, echo.sync.call, echo.sync.options(delay=1).call):
        with pytest.raises(NotEncodable, match="x"):
            make(text)
    with pytest.raises(NotEncodable, match="y"):
        echo.call(1).then(add, object())  # type: ignore[arg-type]  # what is refused


async def test_a_call_is_what_its_arguments_were_when_it_was_made() -> None:
    async with harness(app) as t:
        rows = [1]
        call = total.call(rows)
        rows.append(2)
        await call.enqueue()
        assert [job.result for job in await t.run()] == [1]
