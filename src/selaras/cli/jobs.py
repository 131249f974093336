"""`selaras jobs`: look at jobs, and move them by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from selaras._app.operating.survey import (
    cancel_job,
    every_job,
    find_job,
    list_jobs,
    purge_jobs,
    queue_stats,
    revive_job,
)
from selaras._contracts.partition import JobFilter
from selaras._core.cache.opening import shown_keys
from selaras._core.jobs.job import JobRecord, Refusal
from selaras._core.jobs.states import JobState
from selaras.cli.exits import Misused, Told
from selaras.cli.listing import ListByDefault, nearest
from selaras.cli.output import (
    ago_text,
    counted,
    instant_json,
    instant_text,
    many_lines,
    one_line,
    print_facts,
    print_json,
    print_table,
    rough_text,
    short,
    value_text,
)
from selaras.cli.payloads import arguments_of, error_of, error_text, progress_of, result_of
from selaras.cli.target import Target, json_option, on_store
from selaras.cli.waiting import stray_reason, waits_for

_STATES: Final = [state.value for state in JobState]
_PURGED: Final = [state.value for state in JobState if state is not JobState.RUNNING]
_WHY_WIDTH: Final = 60
_LIST_MOST: Final = 10_000

_state = click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only jobs in this state; may be repeated."
)
_queue = click.option("-q", "--queue", default="", metavar="NAME", help="Only jobs of this queue.")


@click.group(cls=ListByDefault)
def jobs() -> None:
    """List, show, retry, cancel and purge jobs. Without a command: list."""


@jobs.command("list")
@_state
@_queue
@click.option("-t", "--task", default="", metavar="NAME", help="Only jobs of this task.")
@click.option(
    "-n",
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, _LIST_MOST),
    envvar="SELARAS_LIMIT",
    show_envvar=True,
    help="The newest so many.",
)
@click.option("--ids", "only_ids", is_flag=True, help="Print ids only, one a line: for xargs.")
@json_option
@on_store
async def list_(
    target: Target, states: Sequence[str], queue: str, task: str, limit: int, only_ids: bool, as_json: bool
) -> None:
    """List jobs, the newest first."""
    which = JobFilter(states=tuple(map(JobState, states)), queue=queue, task=task, limit=limit)
    listing = await list_jobs(target.store, which)
    if as_json:
        print_json([_summary(job) for job in listing.jobs])
    elif only_ids:
        for job in listing.jobs:
            click.echo(job.id)
    else:
        rows = [_row(target, job) for job in listing.jobs]
        print_table(("ID", "STATE", "TASK", "QUEUE", "AGE", "ATTEMPT", "NOTE"), rows, empty="no such jobs")
    if not listing.jobs:
        await _doubt(target, queue, task)
    if listing.more:
        more = "--limit shows more" if limit < _LIST_MOST else "--state, -q and -t show others"
        click.echo(f"the newest {limit} are shown; {more}", err=True)


async def _doubt(target: Target, queue: str, task: str) -> None:
    """Nothing was found: say so if a name is none."""
    queues = {stats.name for stats in await queue_stats(target.store)}
    queues |= {spec.queue for spec in target.app.registry.tasks.values()}
    if queue and queue not in queues:
        click.echo(f"there is no queue {queue!r}; {nearest(queue, queues, 'queue')}", err=True)
    tasks = target.app.registry.tasks
    if task and target.reference and task not in tasks:
        click.echo(f"the app has no task {task!r}; {nearest(task, tasks, 'task')}", err=True)


@jobs.command("show")
@click.argument("id")
@json_option
@on_store
async def show(target: Target, id: str, as_json: bool) -> None:
    """Show one job: arguments, what it waits for, its attempts, its result or error."""
    found = await find_job(target.store, id)
    if found is None:
        raise _unknown(target, id)
    job = found.job
    waits = await waits_for(target, found)
    if as_json:
        print_json(_details(job, waits))
        return
    print_facts(_facts(job, waits))
    _print_history(job)
    failure = error_of(job)
    if failure and failure.traceback:
        click.echo(f"\n{many_lines(failure.traceback.rstrip())}")


@jobs.command("retry")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--failed", "all_failed", is_flag=True, help="All failed jobs instead of named ones.")
@_queue
@click.option("-t", "--task", default="", metavar="NAME", help="With --failed: only jobs of this task.")
@json_option
@on_store
async def retry(target: Target, ids: Sequence[str], all_failed: bool, queue: str, task: str, as_json: bool) -> None:
    """Retry failed jobs: a fresh budget of attempts, their history kept."""
    if ids and all_failed:
        raise Misused("--failed means all failed jobs, and ids were given, too: say one of both")
    if not ids and not all_failed:
        raise Misused("say which: ids of failed jobs, or --failed for all of them")
    if ids and (queue or task):
        raise Misused("--queue and --task go with --failed, not with ids")
    if all_failed:
        which = JobFilter(states=(JobState.FAILED,), queue=queue, task=task)
        # First all ids, then the retries: a listing must not move under its own feet.
        ids = [found.job.id async for found in every_job(target.store, which)]
    done = [await _retry(target, id) for id in ids]
    _report(done, as_json=as_json, nothing="no failed jobs")
    if not done:
        await _doubt(target, queue, task)


@jobs.command("cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--reason", default="cancelled by hand", show_default=True, help="Kept with the job, told to waiters.")
@json_option
@on_store
async def cancel(target: Target, ids: Sequence[str], reason: str, as_json: bool) -> None:
    """Cancel jobs. One that waits never starts; one that runs is asked to end."""
    done = [await _cancel(target, id, reason) for id in ids]
    _report(done, as_json=as_json, nothing="")


@jobs.command("purge")
@click.option(
    "--state",
    "states",
    multiple=True,
    required=True,
    type=click.Choice(_PURGED),
    help="Delete jobs in this state; may be repeated.",
)
@_queue
@click.option("-y", "--yes", is_flag=True, envvar="SELARAS_YES", show_envvar=True, help="Don't ask.")
@json_option
@on_store
async def purge(target: Target, states: Sequence[str], queue: str, yes: bool, as_json: bool) -> None:
    """Delete jobs for good. Their unique keys are free again; jobs that wait for them are cancelled."""
    agreed = yes or await _is_agreed(target, states, queue)
    count = await purge_jobs(target.store, tuple(map(JobState, states)), queue) if agreed else 0
    if as_json:
        print_json({"purged": count})
    else:
        click.echo(f"{counted(count, 'job')} deleted")
    if not count:
        await _doubt(target, queue, "")


async def _is_agreed(target: Target, states: Sequence[str], queue: str) -> bool:
    """Ask; end here if the answer is no. Returns False if there is nothing to ask about."""
    counts = [stats.counts for stats in await queue_stats(target.store) if queue in ("", stats.name)]
    total = sum(count.get(state, 0) for count in counts for state in states)
    if not total:
        return False
    if not sys.stdin.isatty():
        raise Misused("purge deletes for good: say --yes where nobody can be asked")
    where = f"in queue {queue!r}" if queue else "in all queues"
    click.confirm(
        f"Delete {counted(total, 'job')} ({', '.join(states)}) {where} of {target.store.url}?", abort=True, err=True
    )
    return True


async def _retry(target: Target, id: str) -> dict[str, Any]:
    admission = await revive_job(target.store, id)
    if admission.refusal is None:
        return {"id": id, "done": True, "state": admission.state.value, "said": f"retried, now {admission.state.value}"}
    if admission.refusal is Refusal.UNKNOWN_JOB:
        return {"id": id, "done": False, "state": None, "said": "no such job"}
    state = admission.state.value
    return {"id": id, "done": False, "state": state, "said": f"not retried: it is {state}, not failed"}


async def _cancel(target: Target, id: str, reason: str) -> dict[str, Any]:
    cancelled = await cancel_job(target.store, id, reason)
    if cancelled.state is None:
        return {"id": id, "done": False, "state": None, "said": "no such job"}
    state = cancelled.state.value
    if cancelled.state is JobState.RUNNING:
        said = "asked to end" if cancelled.did else "was asked to end before"
    else:
        said = "cancelled" if cancelled.did else f"not cancelled: it is {state}"
    return {"id": id, "done": cancelled.did, "state": state, "said": said}


def _report(done: Sequence[dict[str, Any]], *, as_json: bool, nothing: str) -> None:
    """Print one line a job; the exit code is 1 if any of them was not done."""
    if as_json:
        print_json(done)
    elif not done:
        click.echo(nothing)
    else:
        for one in done:
            click.echo(f"{one_line(one['id'])}: {one['said']}")
    if not all(one["done"] for one in done):
        raise SystemExit(Told.exit_code)


def _unknown(target: Target, id: str) -> Told:
    return Told(
        f"no job {id!r} in {target.store.url}: it was never enqueued there, was purged, its retention is over, or the store has lost it"
    )


# -- words


def _row(target: Target, job: JobRecord) -> tuple[str, ...]:
    return (
        job.id,
        job.state.value,
        job.task,
        job.queue,
        ago_text(job.created_us, target.now_us),
        _attempt_text(job),
        short(_note(target, job), _WHY_WIDTH),
    )


def _attempt_text(job: JobRecord) -> str:
    return f"{job.attempt} (lost {job.lost})" if job.lost else str(job.attempt)


def _note(target: Target, job: JobRecord) -> str:
    failure, now_us = error_of(job), target.now_us
    stray = stray_reason(target, job)
    if stray:
        return f"cannot run: {stray}"
    match job.state:
        case JobState.SCHEDULED:
            due = f"due in {rough_text(job.due_us - now_us)}" if job.due_us > now_us else "due"
            return f"{due}, after {error_text(failure)}" if failure else due
        case JobState.RUNNING:
            asked = ", asked to end" if job.cancel_requested else ""
            return f"for {rough_text(now_us - job.started_us)}{asked}"
        case JobState.HELD:
            return f"line {job.line}"
        case JobState.BLOCKED:
            return job.reason or "after " + ", ".join(parent.job for parent in job.parents)
        case _:
            return error_text(failure) if failure else job.reason


def _summary(job: JobRecord) -> dict[str, Any]:
    failure = error_of(job)
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": job.state.value,
        "priority": job.priority,
        "attempt": job.attempt,
        "lost": job.lost,
        "created": instant_json(job.created_us),
        "due": instant_json(job.due_us),
        "started": instant_json(job.started_us),
        "ended": instant_json(job.ended_us),
        "line": job.line or None,
        "reason": job.reason or None,
        "error": {"type": failure.type, "message": failure.message} if failure else None,
        "arguments": arguments_of(job),
    }


def _details(job: JobRecord, waits: Sequence[str]) -> dict[str, Any]:
    failure = error_of(job)
    return {
        **_summary(job),
        "error": failure,
        "result": result_of(job),
        "progress": progress_of(job),
        "waits_for": list(waits),
        "fence": job.fence,
        "instance": job.instance or None,
        "unique": job.unique or None,
        "writes": shown_keys(job.writes),
        "parents": [{"id": parent.job, "edge": parent.edge.value} for parent in job.parents],
        "cancel_requested": job.cancel_requested,
        "kept_until": instant_json(job.keep_until_us),
        "history": [
            {
                "attempt": ended.number,
                "fence": ended.fence,
                "ended": ended.event.value,
                "at": instant_json(ended.at_us),
                "reason": ended.reason or None,
            }
            for ended in job.history
        ],
    }


def _facts(job: JobRecord, waits: Sequence[str]) -> list[tuple[str, str]]:
    failure = error_of(job)
    error = error_text(failure) if failure else ""
    progress = progress_of(job)
    facts = [
        ("id", job.id),
        ("task", job.task),
        ("state", f"{job.state.value}, asked to end" if job.cancel_requested else job.state.value),
        ("queue", job.queue),
        ("priority", str(job.priority) if job.priority else ""),
        ("line", job.line),
        ("unique", job.unique),
        ("writes", ", ".join(shown_keys(job.writes))),
        ("attempt", _attempt_text(job)),
        ("enqueued", instant_text(job.created_us)),
        ("due", instant_text(job.due_us) if job.state is JobState.SCHEDULED else ""),
        ("started", instant_text(job.started_us)),
        ("ended", instant_text(job.ended_us)),
        ("kept until", instant_text(job.keep_until_us) if job.ended_us else ""),
        ("instance", f"{job.instance} (fence {job.fence})" if job.instance else ""),
        *(("waits for", reason) for reason in waits),
        ("reason", job.reason if job.reason != error else ""),
        ("progress", "" if progress is None else value_text(progress)),
        ("error", error),
        ("result", value_text(result_of(job)) if job.result is not None else ""),
    ]
    return [*facts, *(("argument", f"{name} = {value_text(value)}") for name, value in arguments_of(job).items())]


def _print_history(job: JobRecord) -> None:
    if not job.history:
        return
    click.echo("\nattempts")
    for ended in job.history:
        reason = f": {short(ended.reason, 200)}" if ended.reason else ""
        click.echo(f"  {ended.number}  {instant_text(ended.at_us)}  {ended.event.value}{reason}")
