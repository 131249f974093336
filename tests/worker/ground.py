"""A worker on a store, with the clock of the machine and short leases, and what a test may do to both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.worker.host import PlainHost, Task

from selaras._contracts.host import Mode
from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest, Instance, TurnReply, TurnRequest
from selaras._core.events import WorkerEvent
from selaras._core.jobs.job import Attempt, JobRecord, NewJob
from selaras._core.jobs.states import JobState
from selaras._core.positions import START, Grown
from selaras._stores.memory import MemoryStore
from selaras._worker.exits import Exit
from selaras._worker.system import SystemClock
from selaras._worker.worker import Worker

PATIENCE = 5.0
"""Seconds a test waits for what should happen in milliseconds."""


class Diary:
    """An observer that keeps everything."""

    wants_attempts = True

    def __init__(self) -> None:
        self.events: list[WorkerEvent] = []

    def heard(self, event: WorkerEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]


Turning = Callable[[TurnRequest], Awaitable[TurnReply]]


class Tampered:
    """A partition between the worker and the real one; `turning` may be replaced. `enrolling` stands before enrolments."""

    def __init__(self, partition: Any) -> None:
        self._partition = partition
        self.index: int = partition.index
        self.turns: list[TurnRequest] = []
        self.turning: Callable[[TurnRequest, Turning], Awaitable[TurnReply]] | None = None
        self.enrolling: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)

    async def turn(self, request: TurnRequest) -> TurnReply:
        self.turns.append(request)
        if self.turning:
            return await self.turning(request, self._partition.turn)
        reply: TurnReply = await self._partition.turn(request)
        return reply

    async def enroll(self, instance: Instance) -> None:
        if self.enrolling:
            self.enrolling()
        await self._partition.enroll(instance)


class TamperedStore:
    """A memory store whose verbs a test may disturb.

    `beating` stands before each heartbeat; `lost` is added to what its reply calls lost.
    """

    url = "memory://tampered"

    def __init__(self, clock: SystemClock, partitions: int = 1) -> None:
        self.real = MemoryStore(clock, partitions=partitions, entropy=Random(1))
        self.partitions: list[Tampered] = [Tampered(partition) for partition in self.real.partitions]
        self.beats: list[HeartbeatRequest] = []
        self.beating: Callable[[HeartbeatRequest], None] | None = None
        self.lost: tuple[Attempt, ...] = ()

    @property
    def returns(self) -> bool:
        return self.real.returns

    async def open(self) -> None:
        await self.real.open()

    async def close(self) -> None:
        await self.real.close()

    def bell(self) -> Any:
        return self.real.bell()

    def listen(self, told: Grown) -> None:
        self.real.listen(told)

    def pulse(self) -> Any:
        return _TamperedPulse(self)


class _TamperedPulse:
    def __init__(self, store: TamperedStore) -> None:
        self._store = store
        self._pulse = store.real.pulse()

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        self._store.beats.append(request)
        if self._store.beating:
            self._store.beating(request)
        reply: HeartbeatReply = self._pulse.beat(partition, request)
        return replace(reply, lost=reply.lost + self._store.lost)

    def close(self) -> None:
        self._pulse.close()


class Ground:
    """One worker and its store."""

    def __init__(
        self, tasks: dict[str, Task], *, partitions: int = 1, servant: tuple[str, ...] = (), **options: Any
    ) -> None:
        self.clock = SystemClock()
        self.store = TamperedStore(self.clock, partitions)
        self.partition = self.store.partitions[0]
        self.host = PlainHost(tasks, servant=servant)
        self.diary = Diary()
        self.options: dict[str, Any] = {
            "lease_us": 600_000,
            "heartbeat_us": 150_000,
            "grace_us": 2_000_000,
            "patience_us": 300_000,
            "observer": self.diary,
            **options,
        }
        self.seed = 0
        self.worker = self.make_worker()
        self.running: asyncio.Task[Exit] | None = None

    def make_worker(self) -> Worker:
        self.seed += 1
        return Worker(self.store, self.host, self.clock, Random(self.seed), **self.options)

    def start(self) -> None:
        self.running = asyncio.get_running_loop().create_task(self.worker.run())

    async def stop(self) -> Exit:
        assert self.running
        self.worker.stop()
        return await self.running

    async def enqueue(self, task: str, *ids: str, **fields: Any) -> None:
        jobs = [NewJob(id=id, task=task, **fields) for id in ids]
        await self.partition.enqueue(jobs, START)

    async def job(self, id: str) -> JobRecord:
        record, _ = await self.partition.job(id, START)
        assert record is not None
        found: JobRecord = record
        return found

    async def state(self, id: str) -> JobState:
        return (await self.job(id)).state

    async def until(self, said: Callable[[], Awaitable[bool] | bool], seconds: float = PATIENCE) -> None:
        """Wait until it is so; look often, for the tests' sake."""
        async with asyncio.timeout(seconds):
            while True:
                answer = said()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.002)

    async def until_state(self, id: str, state: JobState, seconds: float = PATIENCE) -> None:
        async def is_so() -> bool:
            return await self.state(id) is state

        await self.until(is_so, seconds)


@asynccontextmanager
async def working(tasks: dict[str, Task], **options: Any) -> AsyncIterator[Ground]:
    """A worker that works while the block runs."""
    ground = Ground(tasks, **options)
    ground.start()
    try:
        yield ground
    finally:
        ground.worker.halt()
        if ground.running:
            await asyncio.wait((ground.running,))


THREAD, PROCESS = Mode.THREAD, Mode.PROCESS
