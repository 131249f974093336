"""A program small enough to be seen through: tasks are plain functions of their run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any, TypeAlias

from selaras._contracts.host import Executors, Mode, ProcessDied, Run, Stop
from selaras._contracts.partition import Instance, Waiting
from selaras._core.errors import StoreUnavailable
from selaras._core.jobs.job import Claim, Settled, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START, Cursor, News

Body: TypeAlias = Callable[["PlainRun"], Awaitable[bytes | None] | bytes | None]


class Task:
    """A body, where it runs, and the rules it runs under."""

    def __init__(self, body: Body | None, mode: Mode = Mode.LOOP, *, timeout: float = 0, retries: int = 0) -> None:
        self.body = body
        self.mode = mode
        self.timeout_us = round(timeout * 1e6)
        self.retries = retries


class PlainRun:
    """See `Run`. `log` gets a line at each turn of events."""

    def __init__(self, host: PlainHost, task: Task, claim: Claim, partition: int) -> None:
        self.host = host
        self.task = task
        self.claim = claim
        self.partition = partition
        self.mode = task.mode
        self.timeout_us = task.timeout_us
        self.stopping: Stop | None = None

    async def execute(self, executors: Executors) -> Settlement:
        if self.host.breaking:
            raise self.host.breaking
        self.host.started.append(self.claim.job)
        result: bytes | None = None
        problem: BaseException | None = None
        try:
            result = await self._body(executors)
        except ProcessDied as error:
            return self._end(JobEvent.LOSE, reason=str(error))
        except BaseException as error:  # noqa: BLE001 - a body may raise anything
            problem = error
        if self.stopping is not None:
            return self._stopped(self.stopping)
        if problem is not None:
            return self._failed(f"{type(problem).__name__}: {problem}")
        return self._end(JobEvent.SUCCEED, result=result)

    async def _body(self, executors: Executors) -> Any:
        if self.mode is Mode.PROCESS:
            return await executors.in_process(self.claim.payload, self._report)
        assert self.task.body
        if self.mode is Mode.THREAD:
            return await executors.in_thread(partial(self.task.body, self))
        return await self.task.body(self)  # type: ignore[misc]

    def _report(self, data: bytes) -> None:
        self.host.reported.append((self.claim.job, self.claim.fence, data))

    def _stopped(self, why: Stop) -> Settlement:
        match why:
            case Stop.TIMEOUT:
                return self._failed("TimeoutError: too long", unsure=True)
            case Stop.CANCEL:
                return self._end(JobEvent.CANCEL, reason="cancelled", unsure=True)
            case Stop.SHUTDOWN | Stop.LOST:
                return self._end(JobEvent.RELEASE, reason=why.value, unsure=True)

    def _failed(self, reason: str, *, unsure: bool = False) -> Settlement:
        event = JobEvent.RETRY if self.claim.number <= self.task.retries else JobEvent.FAIL
        return self._end(event, reason=reason, unsure=unsure)

    def _end(self, event: JobEvent, **fields: Any) -> Settlement:
        return Settlement(self.claim.job, self.claim.fence, event, writes=self.claim.writes, **fields)

    def cut_off(self) -> Settlement:
        assert self.stopping
        return self._stopped(self.stopping)

    def unstarted(self) -> Settlement:
        return self._end(JobEvent.RELEASE, started=False)


class PlainHost:
    """See `Host`. What it was told is kept, for tests to look at."""

    def __init__(self, tasks: Mapping[str, Task], *, servant: tuple[str, ...] = ()) -> None:
        self._tasks = dict(tasks)
        self.tasks = {name: task.mode for name, task in tasks.items()}
        self.servant = servant
        self.started: list[str] = []
        self.ended: list[tuple[str, Settlement, Settled]] = []
        self.instances: list[Instance] = []
        self.applied: dict[int, Cursor] = {}
        self.reported: list[tuple[str, int, bytes]] = []
        self.breaking: BaseException | None = None  # what its runs raise, against their promise
        self.getting_ready: Callable[[Sequence[Run]], Awaitable[None]] | None = None
        self.elsewhere: Callable[[Settlement], Awaitable[None]] | None = None
        self.looked_ahead: list[list[str]] = []

    def since(self, partition: int) -> Cursor:
        return self.applied.get(partition, START)

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        self.applied[partition] = max(self.applied.get(partition, START), news.tail)

    def prepare(self, claim: Claim, partition: int, received_ns: int) -> Run | Settlement:
        if claim.payload == b"\xff":
            return Settlement(claim.job, claim.fence, JobEvent.FAIL, reason="corrupt")
        return PlainRun(self, self._tasks[claim.task], claim, partition)

    def must_wait(self, runs: Sequence[Run]) -> bool:
        return self.getting_ready is not None

    async def ready_for(self, runs: Sequence[Run]) -> None:
        assert self.getting_ready
        await self.getting_ready(runs)

    def ahead(self, waiting: Sequence[Waiting], most: int) -> None:
        self.looked_ahead.append([one.job for one in waiting])

    def has_effects_elsewhere(self, settlement: Settlement, partition: int) -> bool:
        return self.elsewhere is not None

    async def before_settle(self, settlement: Settlement, partition: int) -> Settlement:
        assert self.elsewhere
        await self.elsewhere(settlement)
        return settlement

    def settled(self, run: Run | None, settlement: Settlement, settled: Settled, partition: int) -> None:
        self.ended.append((settlement.job, settlement, settled))

    def progress(self, partition: int) -> tuple[tuple[str, int, bytes], ...]:
        taken, self.reported = tuple(self.reported), []
        return taken

    async def relay(self) -> bool:
        return False

    def enrolled(self, instance: Instance) -> None:
        self.instances.append(instance)


async def nothing(run: PlainRun) -> None:
    """The shortest body."""


async def for_ever(run: PlainRun) -> None:
    """A body that only ends when it is told to."""
    await asyncio.Event().wait()


def waits_for(gate: Event) -> Body:
    """A plain function that ends when the gate is opened."""

    def body(run: PlainRun) -> None:
        gate.wait()

    return body


__all__ = ["Body", "PlainHost", "PlainRun", "StoreUnavailable", "Task", "for_ever", "nothing", "waits_for"]
