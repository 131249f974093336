"""The first program, as it is printed: on every store, in this process and with real worker processes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from tests.app.work import working

FIRST = Path(__file__).parents[2] / "examples" / "first.py"
WORKER = [sys.executable, "-m", "selaras", "worker", "first:app"]
SAID = ["before: 10.0", "the job says: 12.5", "after: 12.5"]


@contextmanager
def imported(program: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[ModuleType]:
    """Import the program as a worker would."""
    monkeypatch.setenv("SELARAS_URL", url)
    spec = importlib.util.spec_from_file_location("first", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        yield module
    finally:
        module.db.close()


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


async def test_in_one_process_on_every_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(shutil.copy(FIRST, tmp_path))
    with imported(program, monkeypatch, url) as first:
        async with first.app, working(first.app):
            await first.main()

    assert lines(capsys.readouterr().out) == SAID


def test_with_a_worker_process(tmp_path: Path) -> None:
    program = Path(shutil.copy(FIRST, tmp_path))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SELARAS_")}
    worker = subprocess.Popen(WORKER, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    try:
        done = subprocess.run(
            [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=40, check=False
        )
    finally:
        worker.terminate()
        _, log = worker.communicate(timeout=20)

    assert lines(done.stdout) == SAID, done.stderr + log
    assert worker.returncode == 0, log
    assert (tmp_path / "selaras.db").exists()


def test_without_a_worker_it_says_so_within_two_seconds_and_how_to_start_one(tmp_path: Path) -> None:
    program = Path(shutil.copy(FIRST, tmp_path))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SELARAS_")}
    waiting = subprocess.Popen(
        [sys.executable, str(program)], cwd=tmp_path.parent, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert waiting.stderr is not None
    began = time.monotonic()
    said = waiting.stderr.readline()
    took = time.monotonic() - began
    waiting.kill()
    waiting.communicate()

    assert "queue 'default'" in said
    assert f"sqlite:///{tmp_path}/selaras.db" in said
    assert said.rstrip().endswith("selaras worker first:app")
    assert took < 6  # 2 s, and the start of a program on a busy machine
