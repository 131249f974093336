"""Right programs pass both checkers; of wrong ones each says what one wants to hear, and nothing else.

Above each wrong line in `wrong/` stands what mypy and what pyright must say of it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RIGHT = sorted((HERE / "right").glob("*.py"))
WRONG = sorted((HERE / "wrong").glob("*.py"))

pytestmark = pytest.mark.timeout(300)

Said = dict[tuple[Path, int], list[str]]
"""What a checker says: (file, line) -> messages."""


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def by_mypy() -> Said:
    files = [str(file.relative_to(ROOT)) for file in (*RIGHT, *WRONG)]
    said: Said = {}
    for line in run("mypy", "--output=json", "--no-error-summary", "--show-error-codes", *files).splitlines():
        found: dict[str, Any] = json.loads(line)
        if found["severity"] == "error":
            said.setdefault((ROOT / found["file"], found["line"]), []).append(found["message"])
    return said


def by_pyright() -> Said:
    files = [str(file.relative_to(ROOT)) for file in (*RIGHT, *WRONG)]
    said: Said = {}
    for found in json.loads(run("pyright", "--outputjson", *files))["generalDiagnostics"]:
        if found["severity"] == "error":
            said.setdefault((Path(found["file"]), found["range"]["start"]["line"] + 1), []).append(found["message"])
    return said


CHECKERS = {"mypy": by_mypy, "pyright": by_pyright}


@pytest.fixture(scope="module", params=sorted(CHECKERS))
def checker(request: pytest.FixtureRequest) -> tuple[str, Said]:
    return request.param, CHECKERS[request.param]()


def test_right_programs_pass(checker: tuple[str, Said]) -> None:
    _, said = checker

    assert {place: messages for place, messages in said.items() if place[0].parent.name != "wrong"} == {}


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_programs_are_told_what_is_wrong(checker: tuple[str, Said], file: Path) -> None:
    name, said = checker
    expected = expectations(file, name)
    assert expected
    found = {line: " / ".join(messages) for (where, line), messages in said.items() if where == file}

    unsaid = {line: text for line, text in expected.items() if text not in squeezed(found.get(line, ""))}
    extra = {line: text for line, text in found.items() if line not in expected}

    assert (unsaid, extra) == ({}, {}), json.dumps({"found": found}, indent=1)


def expectations(file: Path, checker: str) -> dict[int, str]:
    """Read what must be said: line -> text. Of a decorated function it is the line of its `def`."""
    expected: dict[int, str] = {}
    waiting: str | None = None
    for number, line in enumerate(file.read_text().splitlines(), 1):
        comment = re.match(r"\s*# (mypy|pyright) says: (.*)", line)
        if comment:
            if comment[1] == checker:
                waiting = squeezed(comment[2])
        elif waiting is not None and line.strip():
            expected[number] = waiting
            waiting = None
    return expected


def squeezed(text: str) -> str:
    """Pyright breaks its lines and indents them with no-break spaces."""
    return " ".join(text.replace("\xa0", " ").split())


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_right_programs_can_be_imported(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"right_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module

    spec.loader.exec_module(module)

    assert module.app.registry.tasks
