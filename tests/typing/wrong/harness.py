"""Mistakes in tests of a program."""

from __future__ import annotations

from collections.abc import AsyncIterator

from selaras import Selaras
from selaras.testing import harness

app = Selaras("memory://")


@app.resource
async def mailer() -> AsyncIterator[str]:
    yield "mailer"


@app.task
async def reprice(id: int, factor: float = 1.0) -> float:
    return id * factor


async def use() -> None:
    async with harness(app) as t:
        # mypy says: Argument 2 to "assert_enqueued" of "Harness" has incompatible type "str"; expected "int"
        # pyright says: "Literal['42']" is not assignable to "int"
        t.assert_enqueued(reprice, "42")

        # mypy says: Missing positional argument "id" in call to "assert_enqueued" of "Harness"
        # pyright says: Argument missing for parameter "id"
        t.assert_enqueued(reprice)

        # mypy says: Cannot infer value of type parameter "T" of "override" of "Harness"
        # pyright says: "Literal[3]" is not assignable to "str"
        t.override(mailer, 3)
