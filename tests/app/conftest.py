"""An app on each kind of store, in real time, with workers in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from selaras import Selaras

URLS: Final = {
    "memory-1": "memory://",
    "memory-4": "memory://?partitions=4",
    "sqlite-1": "sqlite:///{folder}/jobs.db",
    "sqlite-4": "sqlite:///{folder}/jobs.db?partitions=4",
}


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of store, as a URL."""
    return URLS[request.param].format(folder=tmp_path)


@pytest.fixture
async def app(url: str) -> AsyncIterator[Selaras]:
    """An app on each kind of store, open."""
    app = Selaras(url, backoff=0, backoff_most=0)
    async with app:
        yield app
