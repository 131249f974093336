"""A shop of one file, and command lines over its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edges.shell import SHOP, Line, Shell


@pytest.fixture
def url() -> str:
    """Where the shop's store is; "": where the app puts it by itself."""
    return ""


@pytest.fixture
def shell(folder: Path, url: str) -> Iterator[Shell]:
    it = Shell(folder, url)
    it.write("shop.py", SHOP)
    yield it
    it.close()


@pytest.fixture
def line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Line:
    for name in [name for name in os.environ if name.startswith("SELARAS_")]:
        monkeypatch.delenv(name)
    # A command may set it, for the processes it starts; this makes it fall back afterwards.
    monkeypatch.setenv("SELARAS_URL", "")
    monkeypatch.chdir(shell.directory)
    monkeypatch.syspath_prepend(str(shell.directory))
    return Line(shell)
