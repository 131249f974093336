"""Tests of a program: arguments are checked as the task's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import selaras.blocking
from selaras import Selaras
from selaras.testing import Harness, JobError, SeenJob, VirtualClock, harness

app = Selaras("memory://")
plain = selaras.blocking.Selaras("memory://")


class Mailer:
    pass


class FakeMailer(Mailer):
    pass


@app.resource
async def mailer() -> AsyncIterator[Mailer]:
    yield Mailer()


@plain.resource
def pool() -> Iterator[int]:
    yield 1


@app.task
async def reprice(id: int, factor: float = 1.0) -> float:
    return id * factor


@plain.task
def greet(name: str) -> str:
    return name


async def use() -> None:
    async with harness(app, partitions=4, seed=7) as t:
        assert_type(t, Harness)
        t.override(mailer, FakeMailer())
        assert_type(t.assert_enqueued(reprice, 42, factor=2), SeenJob)
        t.assert_not_enqueued(reprice, 42)
        assert_type(await t.run(allow_errors=True), list[SeenJob])
        assert_type(await t.advance("5m"), list[SeenJob])
        assert_type(t.jobs(reprice, state="failed"), list[SeenJob])
        assert_type(t.errors, list[JobError])
        assert_type(t.clock, VirtualClock)


def use_plain() -> None:
    with harness(plain) as t:
        t.override(pool, 2)
        t.assert_enqueued(greet, "Ada")
        assert_type(t.sync.run(), list[SeenJob])
        assert_type(t.sync.advance(60), list[SeenJob])
