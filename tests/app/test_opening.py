"""From a URL and settings to a store: what is allowed, and how mistakes are told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from selaras import ConfigurationError, Selaras, StoreMismatch
from selaras._app.setup.opening import address_of, mask
from selaras._app.setup.origin import Origin
from selaras._app.setup.settings import OPTIONS, settings_from


def test_paths_are_relative_to_the_program(tmp_path: Path) -> None:
    origin = Origin("shop", str(tmp_path / "shop.py"))

    assert address_of(None, "", origin, {}).path == str(tmp_path / "selaras.db")
    assert address_of("sqlite:///jobs.db", "", origin, {}).path == str(tmp_path / "jobs.db")
    assert address_of("sqlite:////var/jobs.db", "", origin, {}).path == "/var/jobs.db"
    assert address_of("sqlite:///jobs.db", "shop", origin, {}).path == str(tmp_path / "jobs-shop.db")


def test_the_environment_names_the_store_unless_the_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    origin = Origin("shop", "/elsewhere/shop.py")
    env = {"SELARAS_URL": "sqlite:///here.db"}

    # Whoever writes a path in a shell means the folder they are in.
    assert address_of(None, "", origin, env).path == str(tmp_path / "here.db")
    assert address_of("memory://", "", origin, env).kind == "memory"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgres://u:secret@h/db", "no store 'postgres'"),
        ("jobs.db", "no URL"),
        ("sqlite://jobs.db", "sqlite:///jobs.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:///jobs.db?journal=wal", "unknown option 'journal'"),
        ("sqlite:///jobs.db?partitions=0", "partitions"),
        ("memory://?synchronous=full", "unknown option"),
        ("redis://:secret@localhost:6379/0?journal=wal", "unknown option 'journal'"),
        ("redis+sentinel://:secret@localhost", "name the sentinels' service"),
    ],
)
def test_a_url_that_says_nothing_is_explained(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as error:
        Selaras(url)
    assert "secret" not in str(error.value)


def test_passwords_are_masked() -> None:
    assert mask("redis://u:p@ss@h:1/0?password=x&db=1") == "redis://u:***@h:1/0?password=***&db=1"


def test_every_setting_has_a_variable_and_a_reason() -> None:
    settings = settings_from({"retries": 5}, {"SELARAS_TIMEOUT": "90s", "SELARAS_RETRIES": "7"})

    assert (settings.retries, settings.timeout) == (5, 90_000_000)  # the program's word stands
    assert settings.origins == {"retries": "app", "timeout": "SELARAS_TIMEOUT"}
    shown = {name: (value, origin) for name, value, origin in settings.shown()}
    assert shown["timeout"] == ("1m30s", "SELARAS_TIMEOUT")
    assert shown["failed_ttl"] == ("7d", "")
    assert all(option.why for option in OPTIONS)


@pytest.mark.parametrize(
    "given",
    [
        {"retries": -1},
        {"timeout": "soon"},
        {"no_such": 1},
        {"lease": 5, "heartbeat": 5},
        {"partitions": 0},
        {"concurrency": 0},
        {"threads": 0},
        {"children": 0},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        settings_from(given, {})


def test_a_worker_without_room_is_refused_wherever_it_is_said() -> None:
    with pytest.raises(ConfigurationError, match="SELARAS_CONCURRENCY='0': give at least 1"):
        settings_from({}, {"SELARAS_CONCURRENCY": "0"})
    with pytest.raises(ConfigurationError, match="threads=0: give at least 1"):
        Selaras("memory://").worker(threads=0)


def test_an_app_opens_nothing_until_it_must(tmp_path: Path) -> None:
    Selaras(f"sqlite:///{tmp_path}/jobs.db")

    assert list(tmp_path.iterdir()) == []


def test_included_modules_are_imported_at_first_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inc_tasks.py").write_text(
        "from inc_app import app\n@app.task\nasync def included() -> int:\n    return 1\n"
    )
    (tmp_path / "inc_app.py").write_text(
        "from selaras import Selaras\napp = Selaras('memory://', include=['inc_tasks', 'inc_missing'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    app = importlib.import_module("inc_app").app
    with pytest.raises(ConfigurationError, match="inc_missing"):
        app.registry.complete()
    assert "included" in app.registry.tasks


def test_importing_brings_nothing_heavy() -> None:
    code = textwrap.dedent(
        """
        import sys
        import selaras
        heavy = [name for name in ("sqlite3", "rich", "click", "pydantic", "uvloop", "multiprocessing") if name in sys.modules]
        print(heavy)
        """
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize(
    ("namespace", "said"), [(None, "leave it out, or write namespace=''"), (7, "give letters"), ("a b", "give letters")]
)
def test_a_namespace_that_is_none_is_refused_with_what_to_write(namespace: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Selaras("memory://", namespace=namespace)


async def test_a_store_that_is_there_says_itself_how_many_partitions_it_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Selaras(f"{url}?partitions=4") as made:
        assert made.process().partitions == 4

    async with Selaras(url) as app:
        assert app.process().partitions == 4


async def test_a_store_of_another_number_of_partitions_than_is_said_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Selaras(url):
        pass

    with pytest.raises(StoreMismatch, match=r"partition 0 of 1.*partition 0 of 4.*\?partitions=1.*partitions="):
        await Selaras(url, partitions=4).process().open()
    async with Selaras(f"{url}?partitions=1", partitions=4):
        pass


async def test_an_app_that_was_closed_opens_again_at_the_next_need(tmp_path: Path) -> None:
    app = Selaras(f"sqlite:///{tmp_path}/jobs.db")
    rows = {1: "kettle"}

    @app.cached
    async def name(id: int) -> str:
        return rows[id]

    async with app:
        assert await name(1) == "kettle"
    rows[1] = "teapot"
    async with name.key(1).writing():
        pass
    assert await name(1) == "teapot"
    await app.close()


async def test_a_store_that_is_no_server_is_waited_for_however_slow_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Selaras(f"sqlite:///{tmp_path}/jobs.db")

    @app.cached
    async def price(id: int) -> int:
        return id

    store = app.process().store
    open_it = store.open

    async def slow() -> None:
        await asyncio.sleep(1.5)
        await open_it()

    monkeypatch.setattr(store, "open", slow)
    try:
        assert await price(1) == 1
    finally:
        await app.close()
