"""A shop of one file, and command lines over its store."""

from __future__ import annotations

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
def line(shell: Shell) -> Line:
    return Line(shell)
