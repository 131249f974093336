"""Waits for a job's end, and answers in bounded time whatever became of it (BR-041)."""

from __future__ import annotations

import asyncio
import logging
from shlex import quote
from typing import Any, Final

from selaras._app.jobs.lines import held_here
from selaras._app.jobs.stuck import stuck_on
from selaras._app.process.current import CURRENT
from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._app.process.relaying import relay
from selaras._cache.session import Session, session_here
from selaras._contracts.partition import Partition
from selaras._core.codec import CorruptBytes, codec_of
from selaras._core.errors import (
    JobCancelled,
    JobFailed,
    ParentFailed,
    ResultExpired,
    SelarasError,
    StoreMismatch,
    StoreRefused,
    StoreUnavailable,
    UnknownJob,
    WouldDeadlock,
)
from selaras._core.jobs.failure import Failure, kept_reason
from selaras._core.jobs.job import JobRecord, Refusal
from selaras._core.jobs.states import JobState
from selaras._core.routing import partition_of
from selaras._core.texts import one_line

_log = logging.getLogger("selaras")

_POLL_LEAST_S: Final = 0.001
_POLL_MOST_S: Final = 0.1
_GROWTH: Final = 1.5
_LONELY_S: Final = 1.5
"""Waiting so long for a job that nobody takes: look whether anybody could, and say so before two seconds are over."""
_LOOK_UP_S: Final = 0.2
"""How often whoever waits for a blocked job looks whether what it waits for goes on."""
_AWAY_NS: Final = 5_000_000_000
"""How long a store may not answer whoever waits for a job."""
_ARRIVES_S: Final = 5.0
"""How long a job that was placed by another partition's settle may still be on its way."""


def refuse_deadlock(held: Session | None, id: str) -> None:
    """Raise WouldDeadlock if the caller is in the very scope whose success the job waits for."""
    current = CURRENT.get()
    if current is not None and current().id == id:
        raise WouldDeadlock(f"job {id} waits for itself")
    session = session_here()
    if held is None or session is None:
        return
    if any(one is held for one in session.chain()):
        raise WouldDeadlock(
            f"job {id} is released when this job or scope succeeds, so waiting for it here never ends: "
            f"enqueue it with .options(now=True), or return first"
        )


async def wait_for_result(program: Program, id: str, home: int, timeout_us: int | None, *, known: bool) -> Any:
    """Return a job's result, or raise what became of it. See `Job.result`."""
    waited = False
    seen: list[JobRecord] = []
    try:
        async with asyncio.timeout(None if timeout_us is None else timeout_us / 1_000_000):
            process = program.process()
            await process.open()
            record = await _ended(program, process, id, home, seen, known=known)
            waited = True
    except TimeoutError:
        if waited:
            raise
        said = await _stands(program, seen[-1]) if seen else "it goes on"
        raise TimeoutError(f"job {id} had not ended after {(timeout_us or 0) / 1_000_000:g} s; {said}") from None
    return _result_of(program, record)


async def _ended(
    program: Program, process: Process, id: str, home: int, seen: list[JobRecord], *, known: bool
) -> JobRecord:
    """Return the record of a job that has ended, heard with the log up to its end. `seen`: as it was last seen."""
    began_ns = process.clock.instant_ns()
    lonely_looked = False
    looked_up_s = 0.0
    pause_s = _POLL_LEAST_S
    paused_s = 0.0
    with process.ends.watch(id) as watch:
        # Subscribed first, then looked: an end in between is never missed.
        while True:
            record = await _look_patiently(process, id, home)
            waited_s = (process.clock.instant_ns() - began_ns) / 1e9
            if record is None:
                if known and home < 0:
                    known = False
                _missing(process, id, known=known, waited_s=waited_s)
            else:
                known = True
                seen[:] = (record,)
                if record.state in _OVER:
                    return record
                if record.line and held_here(record.line):
                    raise WouldDeadlock(
                        f"job {id} waits for the line {record.line!r}, which is held here: let it go, then wait"
                    )
                if record.state is JobState.BLOCKED and waited_s >= looked_up_s:
                    looked_up_s = waited_s + _LOOK_UP_S
                    failed = await stuck_behind(process, record)
                    if failed:
                        raise await _parent_failed(process, record, failed)
                if program.while_waiting is not None:
                    program.while_waiting(record, paused_s)
                if waited_s >= _LONELY_S and not lonely_looked:
                    lonely_looked = True
                    await _tell_if_lonely(program, process, record)
            await watch.wait(pause_s)
            paused_s += pause_s
            pause_s = min(pause_s * _GROWTH, max(_POLL_MOST_S, len(process.ends) * _POLL_LEAST_S / 10))


async def _look_patiently(process: Process, id: str, home: int) -> JobRecord | None:
    """Look, for a while again and again where the store does not answer: whoever waits for a job waits for that, too."""
    until_ns = process.clock.instant_ns() + _AWAY_NS
    while True:
        try:
            return await _look(process, id, home)
        except StoreUnavailable as error:
            if isinstance(error, (StoreRefused, StoreMismatch)) or process.clock.instant_ns() >= until_ns:
                raise
        await process.clock.sleep(_POLL_MOST_S)


_OVER: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})


async def _look(process: Process, id: str, home: int) -> JobRecord | None:
    """Read a job where it lives, or wherever it is, and hear the log up to it (G8)."""
    if home < 0:
        return await _look_everywhere(process, id)
    record = await _look_at(process, id, home)
    if record is not None and record.state in _OVER:
        await _told(process, home)
    return record


async def _look_everywhere(process: Process, id: str) -> JobRecord | None:
    """Read a job wherever it is, and hear the log up to it (G8)."""
    first = partition_of(id, process.partitions)
    for index in (first, *(other for other in range(process.partitions) if other != first)):
        record = await _look_at(process, id, index)
        if record is not None:
            if record.state in _OVER:
                await _told(process, index)
            return record
    return None


async def stuck_behind(process: Process, record: JobRecord) -> str:
    """See `stuck_on`."""
    return await stuck_on(record, lambda id: _look_everywhere(process, id))


async def _look_at(process: Process, id: str, index: int) -> JobRecord | None:
    sent_ns = process.clock.instant_ns()
    record, news = await process.store.partitions[index].job(id, process.since(index))
    process.heard(index, news, sent_ns)
    return record


async def _told(process: Process, home: int) -> None:
    """Somebody is about to be told of an end: its effects elsewhere came before it or are on their way, so deliver
    those, and hear all logs.
    """
    if process.partitions > 1:
        await relay(process.store)
        await process.catch_up(but=home)
    process.cache.told()


def _missing(process: Process, id: str, *, known: bool, waited_s: float) -> None:
    if process.partitions > 1 and waited_s < _ARRIVES_S and known:
        return
    if known:
        raise UnknownJob(
            f"job {id} is not known any more: it ended, and its result_ttl was over before it was asked for; or it was "
            f"deleted, or the store has lost it"
        )
    raise _unknown(id)


async def _parent_failed(process: Process, record: JobRecord, failed: str) -> ParentFailed:
    parent = await _look_everywhere(process, failed)
    failure = Failure.decode(parent.error if parent else None)
    text = f"job {record.id} waits for job {failed}, which failed: {failure.message}"
    return ParentFailed(failure.type, text, failure.traceback)


def _result_of(program: Program, record: JobRecord) -> Any:
    match record.state:
        case JobState.SUCCEEDED:
            if record.result is None:
                raise ResultExpired(f"job {record.id} succeeded, and its result is no longer kept")
            spec = program.registry.find_task(record.task)
            codec = spec.result if spec else codec_of(Any)
            try:
                return codec.decode(record.result)
            except CorruptBytes as error:
                raise ResultExpired(f"job {record.id} succeeded, and its result cannot be read: {error}") from error
        case JobState.FAILED:
            failure = Failure.decode(record.error)
            if not record.error:
                raise JobFailed("WorkerLost", record.reason)
            raise JobFailed(failure.type, failure.message, failure.traceback)
        case _:
            raise JobCancelled(
                f"job {record.id} {record.state.value}: {one_line(record.reason) or 'no reason was given'}"
            )


# -- nobody is there


async def _tell_if_lonely(program: Program, process: Process, record: JobRecord) -> None:
    """Say which queue has no worker, where, and what starts one; once a queue."""
    if record.state not in (JobState.READY, JobState.HELD) or not process.ends.may_tell(record.queue):
        return
    lacking = await _lacking(program, process, record)
    if lacking and process.ends.may_tell(record.queue):
        process.ends.told(record.queue)
        _log.warning("job %s waits in queue %r of %s, %s", record.id, record.queue, process.store.url, lacking)


async def _lacking(program: Program, process: Process, record: JobRecord) -> str:
    """Say that nobody can run a job, and what changes that; "" if somebody can."""
    for partition in process.store.partitions:
        if any(queue.name == record.queue and queue.paused for queue in await partition.queues()):
            return (
                f"which is paused; go on with: selaras queues resume {quote(record.queue)} --app {program.reference()}"
            )
    instances = [one for partition in process.store.partitions for one in await partition.instances()]
    serving = [one for one in instances if record.queue in one.queues]
    if any(not one.tasks or record.task in one.tasks for one in serving):
        return ""
    lacking = f"and no worker that serves it knows task {record.task!r}" if serving else "and no worker serves it"
    return f"{lacking}; start one with: {worker_command(program, record.queue, record.task)}"


async def _stands(program: Program, record: JobRecord) -> str:
    """Say how a job stood when somebody gave up waiting for it."""
    if record.state is JobState.RUNNING:
        return "it goes on"
    try:
        lacking = await _lacking(program, program.process(), record)
    except StoreUnavailable:
        lacking = ""
    where = f"it is {record.state.value} in queue {record.queue!r}"
    return f"{where}, {lacking}" if lacking else f"{where}, and goes on"


def worker_command(program: Program, queue: str, task: str) -> str:
    """Return the command line that starts a worker for a queue that knows a task, and what that needs beside."""
    spec = program.registry.tasks.get(task)
    module = program.origin.module if spec is None else spec.function.__module__
    reference, needed = program.reference(), ""
    if module not in (program.origin.module, *program.registry.include):
        # The module that made the app need not import the one with the task.
        by_task = program.origin.reference_by(module, program.app)
        reference = by_task or reference
        needed = "" if by_task else f" (and name the task's module in the app: include=[{module!r}])"
    command = f"selaras worker {reference}"
    served = queue in program.registry.queues(program.settings.queue)
    return f"{command}{'' if served else f' -q {queue}'}{needed}"


# -- by hand


async def find(program: Program, id: str, home: int) -> JobRecord:
    """Return a job's record. Raises UnknownJob."""
    process = program.process()
    await process.open()
    record = await _look(process, id, home)
    if record is None:
        raise _unknown(id)
    return record


async def cancel_job(program: Program, id: str, home: int, reason: str, *, held: Session | None) -> bool:
    """Cancel a job. See `Job.cancel`."""
    reason = kept_reason(reason)
    if held is not None and held.drop(id):
        return True
    process = program.process()
    await process.open()
    for partition in _likely(process, id, home):
        state, did = await partition.cancel(id, reason)
        if state is not None:
            await relay(process.store)
            return did
    raise _unknown(id)


async def retry_job(program: Program, id: str, home: int) -> None:
    """Revive a job. See `Job.retry`."""
    process = program.process()
    await process.open()
    for partition in _likely(process, id, home):
        admission = await partition.revive(id)
        if admission.refusal is Refusal.UNKNOWN_JOB:
            continue
        if admission.refusal is not None:
            if admission.id != id:
                raise SelarasError(f"job {id} cannot be retried while job {admission.id} holds its unique key")
            raise SelarasError(f"job {id} is {admission.state.value}, and only a failed job is retried by hand")
        await relay(process.store)
        return
    raise _unknown(id)


def _likely(process: Process, id: str, home: int) -> list[Partition]:
    first = home if home >= 0 else partition_of(id, process.partitions)
    return [process.store.partitions[first], *(p for p in process.store.partitions if p.index != first)]


def _unknown(id: str) -> UnknownJob:
    return UnknownJob(
        f"no job {id!r} is known: it was never enqueued, was deleted, its retention is over, or the store has lost it"
    )
