"""`selaras worker --reload`: the sources of the app, watched."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.edges.shell import Line, Shell
from tests.edges.test_cli_worker import ended, until, worker

from selaras.cli.reload import folders

ECHO = """
from pathlib import Path

from selaras import Selaras

app = Selaras()


@app.task
def told() -> None:
    Path("told").write_text("{}")
"""


@pytest.fixture
def reloading(shell: Shell) -> subprocess.Popen[str]:
    """A worker on a program that tells which text of it runs."""
    shell.write("shop.py", ECHO.format("first"))
    return worker(shell, "--reload", "--grace", "5")


def tells(shell: Shell, text: str) -> None:
    """Jobs run, sooner or later, by this text of the program."""
    file = shell.directory / "told"

    def is_told() -> bool:
        shell.enqueue("told.call()")
        return file.exists() and file.read_text() == text

    until(is_told)


def test_a_changed_source_file_is_what_the_next_job_runs(shell: Shell, reloading: subprocess.Popen[str]) -> None:
    tells(shell, "first")
    shell.write("shop.py", ECHO.format("second"))
    tells(shell, "second")

    reloading.send_signal(signal.SIGTERM)
    code, _, err = ended(reloading)

    assert code == 0
    assert err.count("shop.py changed: restarting") == 1


def test_a_source_file_that_does_not_import_is_waited_for(shell: Shell, reloading: subprocess.Popen[str]) -> None:
    tells(shell, "first")
    shell.write("shop.py", "from pathlib import Path; Path('broken').touch(); half_a_name")
    until((shell.directory / "broken").exists)
    shell.write("shop.py", ECHO.format("mended"))
    tells(shell, "mended")

    reloading.send_signal(signal.SIGTERM)
    code, _, err = ended(reloading)

    assert code == 0
    assert "half_a_name" in err


def test_without_watchfiles_it_says_what_to_install(line: Line) -> None:
    with patch.dict(sys.modules, {"watchfiles": None}):
        done = line("worker", "shop:app", "--reload")

    assert done.exit_code == 2
    assert "pip install 'selaras[reload]'" in done.stderr


def test_it_does_not_go_with_burst(line: Line) -> None:
    done = line("worker", "shop:app", "--reload", "--burst")

    assert done.exit_code == 2
    assert "leave one of them out" in done.stderr


def test_what_is_watched_is_the_program_with_all_folders_of_its_packages_and_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("watched/__init__.py", "watched/inner/deep/new.py", "watched/.hidden/no.py", "beside/no.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "watched", __import__("watched"))

    found = folders()

    ours = [folder.relative_to(tmp_path) for folder in found if folder.is_relative_to(tmp_path)]
    assert [str(folder) for folder in ours] == ["watched", "watched/inner/deep"]
    assert not [folder for folder in found if "site-packages" in folder.parts]
