"""`selaras worker`: runs jobs of an app, as one process or several."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeAlias

import click

from selaras import __version__
from selaras._app.app import Selaras
from selaras._app.operating.survey import every_job, queue_stats
from selaras._app.setup.settings import OPTIONS, Settings
from selaras._app.work.fleet import FLEET_VARIABLE, StoppedEarly, run_alone, run_fleet, run_on_loop, stopped_early
from selaras._app.work.host import fits
from selaras._app.work.working import AppWorker, WorkerOptions, in_force
from selaras._contracts.partition import JobFilter
from selaras._core.jobs.states import JobState
from selaras.cli.durations import duration
from selaras.cli.exits import Misused
from selaras.cli.intro import facts, hints, introduction
from selaras.cli.logs import show_log
from selaras.cli.output import counted, styled
from selaras.cli.reload import check_it_can_watch, watching
from selaras.cli.reports import Reporter
from selaras.cli.target import APP_VARIABLE, URL_VARIABLE, app_for

P = ParamSpec("P")

_log: Final = logging.getLogger("selaras.worker")
_SETTINGS: Final = {option.name: option for option in OPTIONS}
_LOOKED_AT_FIRST: Final = 1_000
_LOOKED_AT_LAST: Final = 100_000
"""Unfinished jobs that are looked at when a worker starts, and after a burst, for those that it cannot run."""

_NAMED_MOST: Final = 5
_WAITING: Final = {
    JobState.RUNNING: "running elsewhere, or lost with a worker and brought back once its lease has ended",
    JobState.SCHEDULED: "due later",
    JobState.BLOCKED: "blocked by jobs that have not succeeded, or by a scope",
    JobState.HELD: "behind others in a line",
}
"""What a burst leaves behind without any fault of its own, and why."""
Strays: TypeAlias = Counter[tuple[str, JobState]]
_LEVELS: Final = ("debug", "info", "warning", "error")


def _setting(*flags: str, about: str) -> Callable[[Any], Any]:
    """Make the option of a setting. Its environment variable is read where all settings are, not here: a flag goes before
    what the program says, and that before the environment.
    """
    option = _SETTINGS[flags[-1].lstrip("-").replace("-", "_")]
    default = option.show(option.read(option.default, option.name))
    return click.option(
        *flags,
        type=duration if option.kind == "time" else click.IntRange(min=1 if option.default else 0),
        metavar="TIME" if option.kind == "time" else "NUMBER",
        help=f"{about}  [env var: {option.variable}; default: {default}]",
    )


def _stops_early(command: Callable[P, None]) -> Callable[P, None]:
    """Make a signal that comes before anything runs which hears it an end in order."""

    @wraps(command)
    def hearing(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with stopped_early():
                command(*args, **kwargs)
        except StoppedEarly as early:
            click.echo(f"selaras: stopped by {early}: no job was running", err=True)

    return hearing


@click.command()
@click.argument("app", envvar=APP_VARIABLE, metavar="APP")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    envvar="SELARAS_QUEUES",
    show_envvar=True,
    metavar="NAME",
    help="Serve this queue; may be repeated. By default all that the app's tasks use.",
)
@_setting("-c", "--concurrency", about="Async jobs at once.")
@_setting("--threads", about="Plain-function jobs at once.")
@click.option(
    "--processes",
    "fleet",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    envvar="SELARAS_PROCESSES",
    show_envvar=True,
    help="So many worker processes side by side; one that dies is replaced.",
)
@_setting("--warm-ahead", about="Waiting jobs looked at while there is no room, to load what they will read.")
@_setting("--grace", about="What running jobs get to finish after a stop was asked for.")
@_setting("--lease", about="A worker that gives no sign of life for so long is lost, its jobs go on elsewhere.")
@click.option(
    "--burst", is_flag=True, envvar="SELARAS_BURST", show_envvar=True, help="Stop when nothing is left to do."
)
@click.option(
    "--reload",
    "reload",
    is_flag=True,
    envvar="SELARAS_RELOAD",
    show_envvar=True,
    help="Restart when a source file of the app changes; for development. Needs selaras[reload].",
)
@click.option("--name", default="", envvar="SELARAS_NAME", show_envvar=True, help="A name for people.")
@click.option(
    "-u", "--url", envvar=URL_VARIABLE, show_envvar=True, help="The store, if the app does not name one itself."
)
@click.option(
    "--log-level",
    "level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    envvar="SELARAS_LOG_LEVEL",
    show_envvar=True,
    help="What is logged: debug tells every job.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="SELARAS_JSON",
    show_envvar=True,
    help="Log one strict JSON object a line.",
)
@_stops_early
def worker(
    app: str,
    queues: Sequence[str],
    concurrency: int | None,
    threads: int | None,
    fleet: int,
    warm_ahead: int | None,
    grace: float | None,
    lease: float | None,
    burst: bool,
    reload: bool,
    name: str,
    url: str | None,
    level: str,
    as_json: bool,
) -> None:
    """Run jobs of APP (module:attribute, importable from here; or $SELARAS_APP) until told to stop.

    Exit codes: 0 stopped in order, 1 failed, 3 the store could not be reached:
    at the start of a burst, or to hear of the end (what ran will run again),
    4 stopped hard, by a second signal.
    """
    in_fleet = FLEET_VARIABLE in os.environ
    reload = reload and not in_fleet
    if reload:
        check_it_can_watch()
        if burst:
            raise Misused("--burst stops when nothing is left to do, --reload goes on for ever: leave one of them out")
    program = app_for(app, url)
    show_log(level, as_json=as_json, one_of_many=in_fleet)
    if not program.registry.tasks:
        raise Misused(
            f"{app} declares no task, so there is nothing to run; if its tasks are in other modules, name these: "
            f"Selaras(include=['shop.tasks'])"
        )
    reporter = Reporter(every_job=level == "debug")
    chosen: WorkerOptions = {"burst": burst, "name": name, "observer": reporter, "owns_process": True}
    if queues:
        chosen["queues"] = queues
    if concurrency is not None:
        chosen["concurrency"] = concurrency
    if threads is not None:
        chosen["threads"] = threads
    if warm_ahead is not None:
        chosen["warm_ahead"] = warm_ahead
    if grace is not None:
        chosen["grace"] = grace
    if lease is not None:
        chosen["lease"] = lease
    made = program.worker(**chosen)
    if not in_fleet:
        strays = run_on_loop(_arrive(program, made))
        if strays is None:  # told to stop before the store was reached
            raise SystemExit(0)
        _introduce(program, app, in_force(program.settings, chosen), made.queues, fleet, as_json=as_json)
        _tell_strays(strays, app)
    if (fleet > 1 or reload) and not in_fleet:
        command = _command(app, chosen, level, as_json=as_json)
        code = run_fleet(command, fleet, reporter, watching if reload else None)
    else:
        code = run_alone(made)
    if burst and not in_fleet:
        strays, left = run_on_loop(_left(program, made.queues))
        _tell_strays(strays, app)
        if left:
            _log.info("nothing is left to do here; %s", ", ".join(left))
    raise SystemExit(code)


async def _arrive(program: Selaras, made: AppWorker) -> Strays | None:
    return await _strays(program, made.queues, most=_LOOKED_AT_FIRST) if await made.reach() else None


async def _left(program: Selaras, queues: Sequence[str]) -> tuple[Strays, list[str]]:
    """Return what a burst could not run, and what of its queues waits for something else, as far as the store knows."""
    async with program:
        strays = await _strays(program, queues, most=_LOOKED_AT_LAST)
        every = await queue_stats(program.process().store)
    counts = {state: sum(one.counts.get(state.value, 0) for one in every if one.name in queues) for state in _WAITING}
    for (_, state), count in strays.items():  # they are told apart
        if state in counts:
            counts[state] -= count
    return strays, [f"{counted(count, 'job')} {_WAITING[state]}" for state, count in counts.items() if count > 0]


async def _strays(program: Selaras, queues: Sequence[str], *, most: int) -> Strays:
    """Count, by task and state, the unfinished jobs that this app cannot run: of those that were given back once all are known.

    At most `most` are looked at, the newest first. The store is opened for it: a worker that cannot begin must not say that it has.
    """
    found: Strays = Counter()
    async with program:
        which = JobFilter(states=(JobState.READY, JobState.SCHEDULED))
        seen = 0
        async for one in every_job(program.process().store, which):
            job, seen = one.job, seen + 1
            if job.queue in queues:
                spec = program.registry.tasks.get(job.task)
                # Another version may have given it back: that says nothing of this one.
                if spec is None or (job.strayed_us and not fits(spec, job)):
                    found[job.task, job.state] += 1
            if seen == most:
                break
    return found


def _tell_strays(strays: Strays, reference: str) -> None:
    if not strays:
        return
    by_task: Counter[str] = Counter()
    for (task, _), count in strays.items():
        by_task[task] += count
    tasks = ", ".join(f"{count:,} of task {task!r}" for task, count in by_task.most_common(_NAMED_MOST))
    _log.warning(
        "%s that %s does not know or whose arguments do not fit: %s%s; selaras jobs says why",
        counted(strays.total(), "unfinished job"),
        reference,
        tasks,
        " and others" if len(by_task) > _NAMED_MOST else "",
    )


def _introduce(
    program: Selaras, reference: str, settings: Settings, queues: Sequence[str], fleet: int, *, as_json: bool
) -> None:
    if as_json:
        told = facts(program, settings, queues, fleet)
        _log.info("selaras %s works for %s", __version__, reference, extra={"version": __version__, **told})
    else:
        click.echo(styled(f"selaras {__version__}", bold=True), err=True)
        for line in introduction(program, reference, settings, queues, fleet):
            click.echo(f"  {line}", err=True)
    for hint in hints(program, queues):
        _log.warning("%s", hint)


def _command(app: str, chosen: WorkerOptions, level: str, *, as_json: bool) -> list[str]:
    """Return the command of one process of the fleet: this one, without the fleet."""
    said = {name: chosen.get(name) for name in ("concurrency", "threads", "warm_ahead", "grace", "lease", "name")}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in said.items() if value not in (None, "")]
    flags += [f"--queue={queue}" for queue in chosen.get("queues", ())]
    flags += ["--burst"] if chosen.get("burst") else []
    flags += ["--json"] if as_json else []
    warnings = [f"-W{option}" for option in sys.warnoptions]
    return [sys.executable, *warnings, "-m", "selaras", "worker", *flags, f"--log-level={level}", "--", app]
