"""A worker process for the crash tests: `python -m tests.crash.program FOLDER [NAME=VALUE...]`.

Its tasks write what they do as lines of FOLDER/log, each in one write: so a test sees it whatever happens next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.worker.host import PlainHost, PlainRun, Task

from selaras._app.setup.opening import address_of, open_store as make_store
from selaras._app.setup.origin import Origin
from selaras._contracts.host import Mode
from selaras._contracts.store import Store
from selaras._core.events import WorkerEvent
from selaras._worker.fleet import follow_fleet
from selaras._worker.loops import run
from selaras._worker.system import system_clock, system_entropy
from selaras._worker.worker import Worker


def write(folder: Path, line: str) -> None:
    fd = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def tasks(folder: Path) -> dict[str, Task]:
    def note(word: str, run: PlainRun) -> None:
        write(folder, f"{word} {run.claim.job} {os.getpid()} {run.claim.number} {run.claim.fence}")

    def seconds(run: PlainRun) -> float:
        return float(run.claim.payload or b"0")

    async def sleep(run: PlainRun) -> None:
        note("start", run)
        try:
            await asyncio.sleep(seconds(run))
        except asyncio.CancelledError:
            note("cancelled", run)
            raise
        note("end", run)

    async def block(run: PlainRun) -> None:
        note("start", run)
        time.sleep(seconds(run))
        note("end", run)

    def thread(run: PlainRun) -> None:
        note("start", run)
        time.sleep(seconds(run))
        note("end", run)

    return {
        "sleep": Task(sleep),
        "block": Task(block, timeout=0.3),
        "thread": Task(thread, Mode.THREAD),
        "process": Task(None, Mode.PROCESS),
    }


class Log:
    """An observer that writes what happens beside what the bodies do."""

    wants_attempts = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def heard(self, event: WorkerEvent) -> None:
        name = type(event).__name__
        if name != "Turned":
            write(self._folder, f"{name} - {os.getpid()} {event}")


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Store]:
    """Open the store that FOLDER/url names, else a file there."""
    named = folder / "url"
    url = named.read_text() if named.exists() else f"sqlite:///{folder}/selaras.db"
    address = address_of(url, "", Origin("__main__", ""))
    store = make_store(address, 1, system_clock(), system_entropy())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def main(folder: Path, options: dict[str, Any]) -> int:
    host = PlainHost(tasks(folder), servant=("tests.worker.servant:make_servant", str(folder)))
    async with open_store(folder) as store:
        worker = Worker(
            store,
            host,
            system_clock(),
            system_entropy(),
            observer=Log(folder),
            owns_process=True,
            **{
                "lease_us": 500_000,
                "heartbeat_us": 150_000,
                "grace_us": 5_000_000,
                "patience_us": 300_000,
                **options,
            },
        )
        follow_fleet(worker.stop)
        return await worker.run()


if __name__ == "__main__":
    logging.raiseExceptions = False
    pairs = (argument.split("=", 1) for argument in sys.argv[2:])
    raise SystemExit(run(main(Path(sys.argv[1]), {name: int(value) for name, value in pairs})))
