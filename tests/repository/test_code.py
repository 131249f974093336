"""Promises about the code that no other tool keeps."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import selaras
from selaras._core import errors
from selaras._core.jobs import lifecycle
from selaras._core.jobs.lifecycle import TRANSITIONS
from selaras._core.jobs.states import JobEvent, JobState

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "selaras"
MODULES = sorted(SOURCE.rglob("*.py"))


PUBLIC = sorted(
    name for name, thing in vars(selaras).items() if not name.startswith("_") and not inspect.ismodule(thing)
)


def test_every_public_name_says_what_it_is() -> None:
    silent = [name for name in PUBLIC if not (getattr(selaras, name).__doc__ or "").strip()]

    assert silent == []


def test_every_public_method_says_what_it_does() -> None:
    silent = [
        f"{name}.{method}"
        for name in PUBLIC
        if inspect.isclass(thing := getattr(selaras, name))
        for method, member in vars(thing).items()
        if not method.startswith("_") and inspect.isroutine(member) and not inspect.getdoc(member)
    ]

    assert silent == []


def test_every_public_name_stands_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")

    missing = [name for name in PUBLIC if f"## `{name}" not in page]

    assert missing == []


def test_the_drawn_error_tree_is_the_tree_of_classes() -> None:
    assert _drawn_tree(inspect.getdoc(errors) or "") == {
        (one.__name__, one.__bases__[0].__name__) for one in _error_classes() if one is not errors.SelarasError
    }


def _error_classes() -> list[type[Exception]]:
    return [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.SelarasError)]


def _drawn_tree(text: str) -> set[tuple[str, str]]:
    path: list[str] = []
    edges: set[tuple[str, str]] = set()
    for line in text.splitlines():
        if found := re.match(r"( {4}(?:│   |    |├── |└── )*)([A-Z]\w+)(?:\s|$)", line):
            depth, name = len(found[1]) // 4 - 1, found[2]
            path[depth:] = [name]
            if depth:
                edges.add((name, path[depth - 1]))
    return edges


def test_every_error_selaras_raises_is_in_the_tree() -> None:
    """Errors of the product live in one file. What steers, or never reaches a caller, may live elsewhere."""
    elsewhere = {
        f"{path.relative_to(SOURCE)}: {node.name}"
        for path in MODULES
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any(_last_name(base) == "SelarasError" for base in node.bases)
    }

    assert elsewhere == set()


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_the_drawn_lifecycle_is_the_table() -> None:
    drawn = _drawn_transitions(inspect.getdoc(lifecycle) or "")

    assert set(drawn) == set(TRANSITIONS)
    assert [move for move, ends in drawn.items() if not ends <= TRANSITIONS[move]] == []


def _drawn_transitions(text: str) -> dict[tuple[JobState, JobEvent], set[JobState]]:
    """Read `blocked ──unblock──> scheduled | ready`, also several in a row, also `a, b ──x, y──> ends of x, of y`."""
    moves: dict[tuple[JobState, JobEvent], set[JobState]] = {}
    for line in text.splitlines():
        if "──" not in line:
            continue
        for chain in re.split(r" {3,}", line.strip()):
            words = re.split(r"\s*──(.+?)──>\s*", chain)
            for source, events, ends in zip(words[::2], words[1::2], words[2::2], strict=False):
                _add_moves(moves, source.split(", "), events.split(", "), ends)
    return moves


def _add_moves(
    moves: dict[tuple[JobState, JobEvent], set[JobState]], sources: list[str], events: list[str], ends: str
) -> None:
    paired = ends.split(", ")
    for place, event in enumerate(events):
        after = (paired[place] if len(paired) == len(events) else ends).split(" | ")
        for source in sources:
            moves.setdefault((JobState(source), JobEvent(event)), set()).update(JobState(end) for end in after)


def test_importing_selaras_brings_only_what_it_needs() -> None:
    """A budget by modules, not by time: it says which one is too many, and is the same on every machine."""
    program = "import sys; before = set(sys.modules); import selaras; print(*sorted(set(sys.modules) - before))"
    brought = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()

    heavy = {
        "click", "concurrent.futures.process", "http", "importlib.metadata", "multiprocessing", "pydantic", "rich",
        "sqlite3", "unittest", "urllib.request", "uvloop",
    }  # fmt: skip
    assert sorted(heavy & set(brought)) == []
    assert [name for name in brought if name.startswith(("selaras.cli", "selaras.demo", "selaras.testing"))] == []
    assert len(brought) < 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_are_named_for_what_they_hold(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base", "core"}


def test_every_sql_file_is_used() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)

    unused = [path.name for path in SOURCE.rglob("*.sql") if path.stem not in code]

    assert unused == []


def test_every_module_can_be_imported() -> None:
    for path in MODULES:
        if path.name not in {"__main__.py", "child.py"}:
            importlib.import_module(".".join(("selaras", *path.relative_to(SOURCE).with_suffix("").parts)))


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12 warns of `?1` beside a sequence of values, and 3.14 refuses it; only there would a test notice."""
    numbered = [
        f"{path.relative_to(SOURCE)}: {found[0]}"
        for path in (SOURCE / "_stores" / "sqlite").glob("*.py")
        for found in [re.search(r"\?\d", path.read_text(encoding="utf-8"))]
        if found
    ]

    assert numbered == []


@pytest.mark.parametrize("package", ["simulation", "chaos", "benchmarks"])
def test_what_tries_the_product_imports_in_no_circle(package: str) -> None:
    """Of the product itself the contracts of the layers see to it. Imports for types alone count, too."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    asks = {name: _imported(path) & set(paths) - {name} for name, path in paths.items()}

    assert [*TopologicalSorter(asks).static_order()]


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{one.name}" for one in node.names)))
    return found
