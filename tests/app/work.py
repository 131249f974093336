"""Workers in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Unpack

from selaras import Selaras
from selaras._app.work.working import WorkerOptions


async def work(app: Selaras, **options: Unpack[WorkerOptions]) -> None:
    """Run a worker until nothing is left to do."""
    options.setdefault("burst", True)
    await app.worker(**options).run()


@asynccontextmanager
async def working(app: Selaras, **options: Unpack[WorkerOptions]) -> AsyncGenerator[None]:
    """Keep a worker running while this is entered."""
    options.setdefault("grace", 0.2)
    worker = app.worker(**options)
    running = asyncio.get_running_loop().create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
