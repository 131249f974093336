"""What the tests of real servers may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import which

import pytest
from tests.redis.binaries import Binary, binaries, leave_out
from tests.redis.certificates import Certificates
from tests.redis.servers import RedisServer, shared_server


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """The server that this process's tests share, empty. A test that changes its settings starts its own."""
    server = shared_server()
    server.clear()
    yield server
    server.clear()


@pytest.fixture(params=binaries(), ids=str)
def any_binary(request: pytest.FixtureRequest) -> Binary:
    """Each server on this machine in turn."""
    found: Binary = request.param
    return found


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if not which("openssl"):
        leave_out("no openssl on this machine: tests with certificates are left out")
    return Certificates(tmp_path_factory.mktemp("certificates"))
