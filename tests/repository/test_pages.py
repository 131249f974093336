"""Promises about the pages: what they say is true, what they link to is there, what they print runs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from selaras._stores.redis.errors import RIGHTS_PAGE

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "tests").glob("*.md"),
    ]
)


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def test_the_derived_pages_say_what_the_code_says() -> None:
    assert _derive().outdated() == [], "run `make fix`"


def _derive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive", ROOT / "docs" / "derive.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["derive"] = module
    spec.loader.exec_module(module)
    return module


def test_the_architecture_names_every_package() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = [str(path.parent.relative_to(ROOT / "src" / "selaras")) for path in (ROOT / "src").rglob("__init__.py")]

    missing = [package for package in packages if package != "." and f"`{package}`" not in page]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)

    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]

    assert broken == []


def test_an_error_names_a_page_that_is_there() -> None:
    page, _, part = RIGHTS_PAGE.partition("#")

    assert f"## {part.title()}\n" in (ROOT / page).read_text(encoding="utf-8")


def test_the_page_on_testing_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```python") > 5
    for name, text in blocks:
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n\n")

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert f"{page.count('test_') - page.count('# test_')} passed" in ran.stdout, ran.stdout


def test_the_makefile_explains_its_verbs() -> None:
    said = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert all(f"make {verb}" in said for verb in ("demo", "test", "check", "fix", "bench", "help"))


def test_nothing_is_left_to_do_later() -> None:
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))

    unfinished = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _tracked()
        if path.suffix in {".py", ".md", ".sql", ".toml", ".sh"} or path.parent.name == ".ci"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]

    assert unfinished == []


def test_no_path_of_somebodys_machine_is_committed() -> None:
    homes = re.compile(
        "|".join(("/ho" + r"me/\w", "/ro" + r"ot/", "/Us" + r"ers/\w", "/wo" + r"rk/(?:main|shared|\.)"))
    )

    named = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in _tracked()
        if path.suffix not in {".gz", ".db"}
        for found in [homes.search(path.read_text(encoding="utf-8", errors="replace"))]
        if found
    ]

    assert named == []


def test_requirements_name_no_place_to_get_them_from() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        assert text.count("--hash=sha256:") > text.count("==")
