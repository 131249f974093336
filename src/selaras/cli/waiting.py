"""Says what a job waits for, so that nobody has to guess why nothing happens."""

from __future__ import annotations

import shlex

from selaras._app.jobs.stuck import stuck_on
from selaras._app.operating.survey import Found, find_job, line_holder, queue_stats
from selaras._contracts.store import Store
from selaras._core.jobs.job import JobRecord, Parent
from selaras._core.jobs.states import JobEvent, JobState
from selaras.cli.output import one_line, rough_text
from selaras.cli.target import Target


async def waits_for(target: Target, found: Found) -> list[str]:
    """Return what the job waits for, one sentence each; nothing, if it runs or has ended."""
    store, job, now_us = target.store, found.job, target.now_us
    match job.state:
        case JobState.BLOCKED:
            parents = [await _parent(store, parent, job) for parent in job.parents] or ["the scope that made it"]
            return [*parents, *await _further_up(store, job)]
        case JobState.SCHEDULED if job.due_us > now_us:
            return [*_stray(target, job), f"its time, in {rough_text(job.due_us - now_us)}"]
        case JobState.HELD:
            return [await _line(found)]
        case JobState.READY | JobState.SCHEDULED:
            return await _worker(target, job)
        case _:
            return []


async def _parent(store: Store, parent: Parent, job: JobRecord) -> str:
    known = await find_job(store, parent.job)
    state = known.job.state.value if known else "not known any more"
    then = "; retry it, or cancel this one" if parent.job == job.stuck_on else ""
    return f"job {parent.job} ({parent.edge.value}): {state}{then}"


async def _further_up(store: Store, job: JobRecord) -> list[str]:
    async def look(id: str) -> JobRecord | None:
        found = await find_job(store, id)
        return found.job if found else None

    failed = "" if job.stuck_on else await stuck_on(job, look)
    return [f"so job {failed}, which failed; retry it, or cancel this one"] if failed else []


async def _line(found: Found) -> str:
    holder = await line_holder(found.partition, found.job.line)
    who = f", held by job {holder.id} ({holder.task})" if holder else ""
    return f"its turn in line {one_line(found.job.line)}{who}"


def stray_reason(target: Target, job: JobRecord) -> str:
    """Say why no worker can run a job that waits to run, as far as is known; empty: nothing is in its way."""
    if job.state not in (JobState.READY, JobState.SCHEDULED):
        return ""
    if job.strayed_us:
        back = next((ended.reason for ended in reversed(job.history) if ended.event is JobEvent.GIVE_BACK), "")
        return job.reason or back or f"none has known task {job.task!r}"
    if target.reference and job.task not in target.app.registry.tasks:
        return f"{target.reference} has no task {job.task!r}"
    return ""


def _stray(target: Target, job: JobRecord) -> list[str]:
    reason = stray_reason(target, job)
    since = f" (for {rough_text(target.now_us - job.strayed_us)})" if job.strayed_us else ""
    return [f"a worker that can run it: {reason}{since}"] if reason else []


async def _worker(target: Target, job: JobRecord) -> list[str]:
    stray = _stray(target, job)
    if stray:
        return stray
    queue = next((queue for queue in await queue_stats(target.store) if queue.name == job.queue), None)
    if queue is None or not queue.workers:
        return [f"a worker: none serves queue {job.queue!r}; start one: {target.start_line(job.queue)}"]
    if queue.paused:
        return [f"queue {job.queue!r} to be resumed: selaras queues resume {shlex.quote(job.queue)}"]
    return ["a free worker"]
