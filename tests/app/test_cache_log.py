"""What the cache meets and an operator must know is said in the log, and said once."""

from __future__ import annotations

import logging

import pytest

from selaras import Selaras
from selaras._app.process.audits import CacheLog
from selaras._core.cache.events import Corrupt, SharedTierBack, SharedTierLost


class Unknown:
    """No codec knows it."""


async def test_a_value_that_cannot_be_stored_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Selaras("memory://")

    @app.cached
    async def thing(id: int) -> object:
        return Unknown()

    async with app:
        for id in (1, 1, 2):
            assert isinstance(await thing(id), Unknown)

    (said,) = [record for record in caplog.records if "cannot be stored" in record.message]
    assert said.levelno == logging.WARNING
    assert "thing" in said.message


async def test_a_function_for_tags_that_forgets_to_return_any_is_told(caplog: pytest.LogCaptureFixture) -> None:
    app = Selaras("memory://")

    def none_for_most(value: int) -> tuple[str, ...]:
        return None  # type: ignore[return-value]  # as programs without types do

    @app.cached(tags=none_for_most)
    async def thing(id: int) -> int:
        return id

    async with app:
        assert await thing(1) == 1

    assert "tags= returned None: return tags, or () where there are none" in caplog.text


def test_damaged_entries_are_told_aloud_once_a_family(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "selaras")
    log = CacheLog()

    for family, key in (("price", "price:1"), ("price", "price:2"), ("stock", "stock:1")):
        log.heard(Corrupt(family=family, key=key, stamp=1))

    said = [(record.levelno, record.message.partition(":")[0]) for record in caplog.records]
    assert said == [(logging.WARNING, "price"), (logging.DEBUG, "price"), (logging.WARNING, "stock")]


def test_a_tier_that_is_lost_is_told_and_that_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    log = CacheLog()

    log.heard(SharedTierLost(partition=3, error="no route"))
    log.heard(SharedTierBack(partition=3))

    assert [record.message for record in caplog.records] == [
        "the shared tier of partition 3 does not answer (no route): reads go to the datastore",
        "the shared tier of partition 3 answers again",
    ]
