"""A memcached for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.memcached.servers import MemcachedServer


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest) -> Iterator[MemcachedServer]:
    with MemcachedServer(tcp=request.param == "tcp") as server:
        yield server


@pytest.fixture
def memcached() -> Iterator[MemcachedServer]:
    """One on a socket file."""
    with MemcachedServer() as server:
        yield server
