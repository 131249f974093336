"""Fixtures for pytest; installed with Selaras, nothing to switch on.

    selaras_app        the app under test: named by `selaras_app = "shop:app"` in pytest's configuration, or by
                       $SELARAS_APP; or override the fixture and return the app
    selaras_harness    that app on a memory store and a virtual clock: see `selaras.testing.harness`

With pytest-asyncio the harness is closed on the test's own loop. Without it, it serves tests that are plain functions
(`selaras_harness.sync`); a coroutine run by another plugin writes `async with harness(app)` itself.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # loaded with every pytest run of every project: the app's modules come when a fixture is used
    from selaras._app.app import Selaras
    from selaras.testing.harness import Harness

_OPTION = "selaras_app"
_VARIABLE = "SELARAS_APP"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the configuration's option."""
    parser.addini(_OPTION, "the Selaras app under test, as module:attribute", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the harness fixture that fits the other plugins."""
    with_asyncio = config.pluginmanager.hasplugin("asyncio")
    config.pluginmanager.register(_awaited() if with_asyncio else _Plain(), "selaras-harness")


@pytest.fixture
def selaras_app(request: pytest.FixtureRequest) -> Selaras:
    """The app under test."""
    from selaras._app.loading import load_app

    reference = request.config.getini(_OPTION) or os.environ.get(_VARIABLE)
    if not reference:
        raise pytest.UsageError(
            f'which app? Set `{_OPTION} = "shop:app"` in the configuration of pytest, or ${_VARIABLE}, or override the '
            f"fixture selaras_app and return the app"
        )
    return load_app(str(reference))


class _Plain:
    @pytest.fixture
    def selaras_harness(self, selaras_app: Selaras) -> Iterator[Harness]:
        """The app on a memory store, under a virtual clock."""
        from selaras.testing.harness import harness

        with harness(selaras_app) as t:
            yield t


def _awaited() -> object:
    import pytest_asyncio

    class Awaited:
        @pytest_asyncio.fixture
        async def selaras_harness(self, selaras_app: Selaras) -> AsyncIterator[Harness]:
            """The app on a memory store, under a virtual clock."""
            from selaras.testing.harness import harness

            async with harness(selaras_app) as t:
                yield t

    return Awaited()
