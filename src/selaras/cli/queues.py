"""`selaras queues`: what waits where, and who works on it; pause and resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from selaras._app.operating.survey import list_jobs, pause_queue, queue_stats
from selaras._contracts.partition import JobFilter, QueueStats
from selaras._core.jobs.states import JobState
from selaras.cli.exits import Told
from selaras.cli.listing import ListByDefault, nearest
from selaras.cli.output import ago_text, counted, instant_json, one_line, print_json, print_table
from selaras.cli.target import Target, json_option, on_store
from selaras.cli.waiting import stray_reason

_SHOWN: Final = (
    JobState.READY,
    JobState.RUNNING,
    JobState.HELD,
    JobState.SCHEDULED,
    JobState.BLOCKED,
    JobState.FAILED,
    JobState.SUCCEEDED,
)
_UNFINISHED: Final = (JobState.READY, JobState.HELD, JobState.SCHEDULED, JobState.BLOCKED, JobState.RUNNING)

_LOOKED_AT: Final = 100
"""Jobs of a queue without workers, the newest, that are asked whether any worker could run them."""


@click.group(cls=ListByDefault)
def queues() -> None:
    """Show queues; pause and resume them. Without a command: list."""


@queues.command("list")
@json_option
@on_store
async def list_(target: Target, as_json: bool) -> None:
    """List every queue that has jobs, workers or a pause."""
    stats = await queue_stats(target.store)
    if as_json:
        print_json([_record(queue) for queue in stats])
        return
    columns = ("QUEUE", *(state.value.upper() for state in _SHOWN), "WORKERS", "OLDEST", "NOTE")
    print_table(columns, [_row(queue, target.now_us) for queue in stats], empty=f"no queues in {target.store.url}")
    for queue in stats:
        hint = await _hint(target, queue)
        if hint:
            click.echo(f"{one_line(queue.name)}: {hint}", err=True)


@queues.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@json_option
@on_store
async def pause(target: Target, names: Sequence[str], as_json: bool) -> None:
    """Stop claims from queues. What runs goes on; what is enqueued waits."""
    await _pause(target, names, paused=True, as_json=as_json)


@queues.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@json_option
@on_store
async def resume(target: Target, names: Sequence[str], as_json: bool) -> None:
    """Let claims from paused queues go on. Exits with 1 if one is no queue of the store."""
    await _pause(target, names, paused=False, as_json=as_json)


async def _pause(target: Target, names: Sequence[str], *, paused: bool, as_json: bool) -> None:
    known = {queue.name: queue for queue in await queue_stats(target.store)}
    said = "paused" if paused else "resumed"
    done: list[dict[str, Any]] = []
    for name in names:
        if name not in known and not paused:
            done.append({"queue": name, "paused": False, "changed": False, "known": False})
            continue
        was = name in known and known[name].paused
        await pause_queue(target.store, name, paused=paused)
        done.append({"queue": name, "paused": paused, "changed": was is not paused, "known": name in known})
    if as_json:
        print_json(done)
    else:
        _say(done, list(known), said=said, paused=paused)
    if not paused and not all(one["known"] for one in done):
        raise SystemExit(Told.exit_code)


def _say(done: Sequence[dict[str, Any]], known: Sequence[str], *, said: str, paused: bool) -> None:
    for one in done:
        if not one["known"] and not paused:
            click.echo(f"{one_line(one['queue'])}: no such queue; {nearest(one['queue'], known, 'queue')}", err=True)
            continue
        click.echo(
            f"{one_line(one['queue'])}: {said if one['changed'] else f'was {said} already' if paused else 'was not paused'}"
        )
        if not one["known"] and paused:
            click.echo(f"{one_line(one['queue'])}: has no jobs and no workers yet; is the name right?", err=True)


def _row(queue: QueueStats, now_us: int) -> tuple[str, ...]:
    return (
        queue.name,
        *(str(queue.counts.get(state.value, 0)) for state in _SHOWN),
        str(queue.workers),
        ago_text(queue.oldest_ready_us, now_us),
        ", ".join(_notes(queue)),
    )


def _notes(queue: QueueStats) -> list[str]:
    notes = ["paused"] if queue.paused else []
    if queue.apart:
        notes.append(f"{queue.apart} laid aside: of tasks that a worker does not know, or has no room for")
    return notes


async def _hint(target: Target, queue: QueueStats) -> str:
    waiting = sum(queue.counts.get(state.value, 0) for state in _UNFINISHED)
    if not queue.workers and waiting:
        newest = (await list_jobs(target.store, JobFilter(queue=queue.name, states=_UNFINISHED, limit=_LOOKED_AT))).jobs
        reasons = {stray_reason(target, job) for job in newest}
        if newest and "" not in reasons:
            # A worker of this program is no help: it would give them back again.
            return f"{counted(waiting, 'unfinished job')} that no worker could run: {one_line('; '.join(sorted(reasons)[:3]))}"
        return f"{counted(waiting, 'unfinished job')} and no worker; start one: {target.start_line(queue.name)}"
    return ""


def _record(queue: QueueStats) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "paused": queue.paused,
        "workers": queue.workers,
        "oldest_ready": instant_json(queue.oldest_ready_us),
        "apart": queue.apart,
        "counts": {state.value: queue.counts.get(state.value, 0) for state in JobState},
    }
