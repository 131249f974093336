"""A job as the one who enqueued it sees it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from selaras._app.jobs.info import JobInfo, info_of
from selaras._app.jobs.waiting import cancel_job, find, refuse_deadlock, retry_job, stuck_behind, wait_for_result
from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._cache.session import Session
from selaras._core.durations import Duration, duration_us

R_co = TypeVar("R_co", covariant=True)


class Job(Struct, Generic[R_co], eq=False):
    """A job in the queue.

    Attributes:
        id: its name in the store.
        task: the name of its task; "" if only the id was given.
        created: False when this call met a twin (same `id` or `unique`) and stands for that one.
        replaced: True when this call's arguments took the place of a waiting twin's (`on_conflict="replace"`).
        home: the partition it lives in; -1: not known.
    """

    program: Program
    id: str
    task: str
    created: bool
    replaced: bool = False
    home: int = -1
    _held: Session | None = None

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}>" if self.task else f"<job {self.id}>"

    @property
    def held(self) -> bool:
        """Whether it was left with the job or scope that made it, to be released when that succeeds."""
        return self._held is not None

    @property
    def sync(self) -> BlockingJob[R_co]:
        """The twin of which every call blocks."""
        return BlockingJob(self)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for its end and return what it returned. Afterwards this process reads nothing older than its effects.

        Raises:
            JobFailed: it ended failed. ParentFailed: it is blocked by a parent that did, and goes on if that is retried.
            JobCancelled: it was cancelled, or waited too long.
            ResultExpired: it succeeded, and what it returned cannot be had any more.
            UnknownJob: it was never heard of, or is not known any more: whether it ran cannot be told.
            WouldDeadlock: it waits for the very scope that asks.
            TimeoutError: after `timeout`; the job goes on.
        """
        refuse_deadlock(self._held, self.id)
        timeout_us = None if timeout is None else duration_us(timeout, name="timeout")
        value: Any = await wait_for_result(self.program, self.id, self.home, timeout_us, known=self.created)
        return cast(R_co, value)

    async def info(self) -> JobInfo:
        """Return all that is known of it now.

        Raises:
            UnknownJob: never enqueued, deleted, or its retention is over.
        """
        record = await find(self.program, self.id, self.home)
        return info_of(self.program, record, stuck_on=await stuck_behind(self.program.process(), record))

    async def cancel(self, reason: str = "cancelled by hand") -> bool:
        """Cancel it; of a running one: ask it to end. Returns False when it had ended or was asked already. `reason` is
        kept with the job; a long one is cut.

        Raises:
            UnknownJob: never enqueued, deleted, or its retention is over.
        """
        return await cancel_job(self.program, self.id, self.home, reason, held=self._held)

    async def retry(self) -> None:
        """Run a failed job again, with a fresh budget; its history is kept.

        Raises:
            UnknownJob: never enqueued, deleted, or its retention is over.
            SelarasError: it is not `failed`, or another job holds its unique key.
        """
        await retry_job(self.program, self.id, self.home)


class BlockingJob(Generic[R_co]):
    """A job in the queue; see `selaras.Job`."""

    __slots__ = ("aio",)

    def __init__(self, aio: Job[R_co]) -> None:
        self.aio = aio

    def __repr__(self) -> str:
        return repr(self.aio)

    @property
    def id(self) -> str:
        """Its name in the store."""
        return self.aio.id

    @property
    def task(self) -> str:
        """The name of its task; "" if only the id was given."""
        return self.aio.task

    @property
    def created(self) -> bool:
        """False when the call met a twin (same `id` or `unique`) and this stands for that one."""
        return self.aio.created

    @property
    def replaced(self) -> bool:
        """True when the call's arguments took the place of a waiting twin's."""
        return self.aio.replaced

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for its end and return what it returned; raises as `selaras.Job.result` does."""
        return wait_for(lambda: self.aio.result(timeout))

    def info(self) -> JobInfo:
        """Return all that is known of it now; raises UnknownJob."""
        return wait_for(self.aio.info)

    def cancel(self, reason: str = "cancelled by hand") -> bool:
        """Cancel it; of a running one: ask it to end. Returns False when it had ended or was asked already."""
        return wait_for(lambda: self.aio.cancel(reason))

    def retry(self) -> None:
        """Run a failed job again, with a fresh budget; its history is kept."""
        wait_for(self.aio.retry)
