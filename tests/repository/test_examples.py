"""What the README prints is what lies in `examples/`, and what lies there runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.redis.servers import shared_server
from tests.stores import KINDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_every_program_in_the_readme_lies_in_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    there = "\n".join(path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py"))

    elsewhere = [block for block in blocks if re.sub(r"\A# \w+\.py\n", "", block).strip() not in there]

    assert blocks
    assert elsewhere == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in EXAMPLES.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", [kind for kind in ("sqlite-1", "sqlite-4", "redis-1") if kind in KINDS])
def test_the_first_program_sees_the_new_price_both_times(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, partitions = kind.partition("-")
    monkeypatch.setenv("SELARAS_PARTITIONS", partitions)
    if store == "redis":
        monkeypatch.setenv("SELARAS_URL", shared_server().url_for(query=f"prefix={folder.name}"))
    worker = subprocess.Popen(
        [sys.executable, "-m", "selaras", "worker", "first:app"], cwd=folder, stderr=subprocess.PIPE
    )
    try:
        said = subprocess.run(
            [sys.executable, "first.py"], cwd=folder, check=True, capture_output=True, text=True, timeout=30
        ).stdout
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=30)

    assert said.splitlines() == ["before:       10.0", "the job says: 12.5", "after:        12.5"]
    assert worker.returncode == 0


def test_the_first_program_says_that_no_worker_is_there(folder: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-u", "first.py"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stderr is not None
        said = program.stderr.readline()
    finally:
        program.kill()
        program.communicate()

    assert "default" in said
    assert str(folder / "selaras.db") in said
    assert "selaras worker first:app" in said


def test_a_script_that_only_caches_is_right_after_its_write_and_shares_what_it_loaded(folder: Path) -> None:
    said = [
        subprocess.run(
            [sys.executable, "prices.py"], cwd=folder, check=True, capture_output=True, text=True, timeout=30
        ).stdout.splitlines()
        for _ in range(2)
    ]

    old, new = "{'kettle': 10.0, 'teapot': 20.0}", "{'kettle': 12.0, 'teapot': 20.0}"
    assert said[0] == ["(reads prices.csv)", old, "(reads prices.csv)", new]
    assert said[1] == [new, "(reads prices.csv)", new]


def test_the_face_and_its_test_run(folder: Path) -> None:
    (folder / "test_all.py").write_text(
        "import asyncio\nimport stock\nfrom selaras.testing import harness\n\n\n"
        "async def test_main():\n"
        "    async with harness(stock.app) as t:\n"
        "        main = asyncio.create_task(stock.main())\n"
        "        while not main.done():\n"
        "            await asyncio.sleep(0.01)\n"
        "            await t.run()\n"
        "        await main\n",
        encoding="utf-8",
    )

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "."],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "2 passed" in ended.stdout, ended.stdout
