"""The program inside a child process of `executor="process"`: runs one attempt at a time, and sends its settlement."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from selaras._app.loading import load_app
from selaras._app.work.host import AppHost
from selaras._app.work.running import AttemptRun, Request
from selaras._contracts.host import Mode
from selaras._core.jobs.job import Settlement


class _Here:
    """Runs bodies in this process: plain functions in a thread, since a blocking call may need the loop."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(function)

    async def in_process(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        raise AssertionError("an attempt is in its child process already")


class AppServant:
    """See `Servant`."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._executors = _Here()
        self._host: AppHost | None = None

    async def open(self) -> None:
        """See `Servant`."""
        self._app = load_app(self._reference)
        process = self._app.process()
        await process.open()
        process.enter()
        self._host = AppHost(self._app.program, process)

    async def serve(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """See `Servant`."""
        assert self._host is not None, "opened first"
        return msgspec.msgpack.encode(await self._settlement(self._host, _REQUESTS.decode(request), report))

    async def _settlement(self, host: AppHost, request: Request, report: Callable[[bytes], None]) -> Settlement:
        run = host.prepare(
            request.claim,
            request.partition,
            request.since_ns,
            asked_ns=request.asked_ns,
            instance=request.instance,
        )
        if isinstance(run, Settlement):
            return run

        def reported(run: AttemptRun, data: bytes) -> None:
            report(data)

        run.report = reported
        function = host.function_of(request.claim.task)
        run.mode = Mode.LOOP if inspect.iscoroutinefunction(function) else Mode.THREAD
        # Each attempt has a context of its own, here as in the worker.
        settlement = await asyncio.get_running_loop().create_task(run.execute(self._executors))
        host.end_lineage(run)
        return settlement

    async def close(self) -> None:
        """See `Servant`."""
        await self._app.process().leave()


_REQUESTS = msgspec.msgpack.Decoder(Request)


def make_servant(reference: str) -> AppServant:
    """Make the servant of the app that a reference such as `shop:app` names."""
    return AppServant(reference)
