"""Two programs on one store whose tasks have the same names."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.app.work import work, working

from selaras import Selaras
from selaras._app.setup.origin import Origin


def program(url: str, module: str, namespace: str = "") -> Selaras:
    """An app as `module` would make it, with a task that others have, too."""
    app = Selaras(url, namespace=namespace)
    app.program.origin = Origin(module, "")

    @app.task
    async def echo(x: int) -> int:
        return x

    return app


@pytest.mark.parametrize("who", ["a producer", "a worker"])
async def test_a_task_of_two_programs_is_told(tmp_path: Path, who: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, other = program(url, "appa"), program(url, "appb")

    with caplog.at_level(logging.WARNING, "selaras"):
        async with one, other, working(one, name="mailer"):
            while not await one.process().store.partitions[0].instances():
                await asyncio.sleep(0.01)
            for _ in range(2):
                if who == "a worker":
                    await work(other)
                else:
                    await other.enqueue_many([])

    said = [message for message in caplog.messages if "namespace" in message]
    assert set(said) == {
        "task 'echo' of appb:app and of appa:app share one store and namespace, so each would run the other's jobs: "
        "give one app a namespace='...' or a store of its own"
    }


async def test_the_same_program_and_other_namespaces_are_no_neighbours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, same, apart = program(url, "appa"), program(url, "appa"), program(url, "appb", "b")

    with caplog.at_level(logging.WARNING, "selaras"):
        async with one, same, apart, working(one):
            await same.enqueue_many([])
            await apart.enqueue_many([])

    assert [message for message in caplog.messages if "namespace" in message] == []


async def test_a_tag_that_nobody_bears_is_doubted_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Selaras("memory://")

    @app.cached(tags="category:{id}")
    async def product(id: int) -> int:
        return id

    with caplog.at_level(logging.WARNING, "selaras"):
        for tag in ("category", "categories", "categories"):
            await app.tag(tag, 7).invalidate()

    assert caplog.messages == [
        "no family of this program says tags='categories', so its values are not voided by that tag; tags there are: category"
    ]


async def test_a_tag_that_some_value_may_bear_is_not_doubted(caplog: pytest.LogCaptureFixture) -> None:
    app, only_jobs = Selaras("memory://"), Selaras("memory://")

    @app.cached(tags=lambda value: [f"colour:{value}"])
    async def product(id: int) -> int:
        return id

    with caplog.at_level(logging.WARNING, "selaras"):
        await app.tag("anything").invalidate()
        await only_jobs.tag("anything").invalidate()

    assert caplog.messages == []
