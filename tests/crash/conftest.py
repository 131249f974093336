"""Real processes on a real file, and on a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.program import open_store
from tests.redis.servers import shared_server
from tests.stores import KINDS

from selaras._core.jobs.job import JobRecord, NewJob
from selaras._core.positions import START
from selaras._worker.loops import run
from selaras._worker.signals import ECHO_NS

PATIENCE = 15.0
ROOT = Path(__file__).parents[2]


class Line:
    """One line of the log: what happened, to which job, in which process."""

    def __init__(self, text: str) -> None:
        self.word, self.job, pid, *self.rest = text.split(" ")
        self.pid = int(pid)
        self.text = text


class Scene:
    """A folder with a store, the processes a test started there, and what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    # -- processes

    def start(self, module: str = "tests.crash.program", *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(self.folder), *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def worker(self, **options: int) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is enrolled."""
        process = self.start("tests.crash.program", *(f"{name}={value}" for name, value in options.items()))
        self.until(lambda: any(line.word == "WorkerStarted" and line.pid == process.pid for line in self.log()))
        return process

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
        for line in self.log():  # children of fleets
            if line.word == "ChildStarted":
                pid = int(line.text.rpartition("pid=")[2].rstrip(")"))
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    # -- jobs

    def enqueue(self, task: str, *ids: str, payload: str = "", **fields: int) -> None:
        async def put() -> None:
            async with open_store(self.folder) as store:
                jobs = [NewJob(id=id, task=task, payload=payload.encode(), **fields) for id in ids]  # type: ignore[arg-type]
                await store.partitions[0].enqueue(jobs, START)

        run(put())

    def job(self, id: str) -> JobRecord:
        async def look() -> JobRecord:
            async with open_store(self.folder) as store:
                record, _ = await store.partitions[0].job(id, START)
                assert record
                return record

        return run(look())

    # -- the log

    def log(self) -> list[Line]:
        path = self.folder / "log"
        return [Line(text) for text in path.read_text().splitlines()] if path.exists() else []

    def lines(self, word: str, job: str = "") -> list[Line]:
        return [line for line in self.log() if line.word == word and job in ("", line.job)]

    def pass_an_echo(self) -> None:
        """Wait until the same signal is a second one."""
        time.sleep(2 * ECHO_NS / 1e9)

    def until(self, said: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not said():
            assert time.monotonic() < end, "\n".join(line.text for line in self.log())
            time.sleep(0.01)


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """One on a file, unless the test asks for another store."""
    scene = Scene(tmp_path)
    if getattr(request, "param", "") == "redis-1":
        (tmp_path / "url").write_text(shared_server().url_for(query=f"prefix={tmp_path.name}"))
    yield scene
    scene.end()


on_each_store = pytest.mark.parametrize(
    "scene", [kind for kind in ("sqlite-1", "redis-1") if kind in KINDS], indirect=True
)
"""For what depends on the store."""
