"""`await task(...)`: a task run here and now, under its lock and with its intents."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from typing import Any

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.lines import Lock
from selaras._app.process.current import CURRENT, CurrentJob
from selaras._app.process.program import Program
from selaras._app.process.resources import JOB, Openings
from selaras._app.values.writing import Writing
from selaras._cache.session import session_here
from selaras._core.signature import Arguments


async def run_here(program: Program, spec: TaskSpec, arguments: Arguments) -> Any:
    """Run a task's body, and return or raise what it does."""
    process = program.process()
    partitions = process.partitions
    named = arguments.named()
    written = [plan.slot(named, partitions) for plan in (*spec.writes, *spec.serves)]
    opens = [plan.opens(named) for plan in spec.opens]
    async with AsyncExitStack() as stack:
        fence = 0
        if spec.line is not None:
            lock = await stack.enter_async_context(Lock(program, spec.line.line(named, partitions)))
            fence = lock.fence
        session = session_here()
        if (written or opens) and not (
            session
            and all(session.writes(slot.key) for slot in written)
            and all(session.has_opened(what) for what in opens)
        ):
            writing = await stack.enter_async_context(Writing(program, written, opens))
            fence = fence or writing.fence
        job = _Here()
        stack.push_async_callback(job.openings.close)
        current = CurrentJob(process.new_id(), spec.name, spec.queue, 1, fence, None, _drop)
        tokens = JOB.set(job), CURRENT.set(lambda: current)
        try:
            reads = await _read(program, spec, named)
            return await call_body(spec, arguments, reads)
        finally:
            JOB.reset(tokens[0])
            CURRENT.reset(tokens[1])


class _Here:
    """See `RunningJob`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.openings = Openings(self.loop)

    def opened(self) -> Openings:
        """See `RunningJob`."""
        return self.openings


def _drop(_progress: bytes) -> None:
    """Nobody looks at the progress of what runs here."""


async def _read(program: Program, spec: TaskSpec, named: dict[str, Any]) -> dict[str, Any]:
    if not spec.read_parameters:
        return {}
    process = program.process()
    await process.open()
    slots = [plan.slot(named, process.partitions) for _, plan in spec.read_parameters]
    values = await process.cache.get_many(slots)
    return dict(zip((name for name, _ in spec.read_parameters), values, strict=True))


async def call_body(spec: TaskSpec, arguments: Arguments, reads: dict[str, Any]) -> Any:
    """Call a body: a coroutine here, a plain function in a thread."""
    kwargs = {**arguments.kwargs, **reads} if reads else arguments.kwargs
    if inspect.iscoroutinefunction(spec.function):
        return await spec.function(*arguments.args, **kwargs)
    return await asyncio.to_thread(spec.function, *arguments.args, **kwargs)
