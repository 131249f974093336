"""`selaras demo`: prepares, runs, watches, compares."""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console

from selaras import ConfigurationError, Selaras
from selaras._app.operating.survey import cache_stats, queue_stats
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobState
from selaras.demo.answer import JANUARY, YEAR, differences, right_answer, total
from selaras.demo.crew import Crew, CrewFailed
from selaras.demo.flights import Flight, read_flights, read_models
from selaras.demo.gauges import has_read, read_all
from selaras.demo.ledger import prepare
from selaras.demo.show import Moment, Outcome, Screen, Silent, progress, show_outcome

_BATCH: Final = 1_000
_LOOK_EVERY_S: Final = 0.1
_LOOK_SHARE: Final = 0.05
"""Counting 300,000 jobs takes the store a while: looking may take so much of one core, and not more..."""
_LOOK_MOST_S: Final = 2.0
"""...but a person wants to see something move."""
_KILL_EVERY_S: Final = 1.0

# A killed worker's jobs wait for the end of its lease. The default of 15 s suits a fleet; a demo is in a hurry.
_HURRIED: Final = {"SELARAS_LEASE": "2s", "SELARAS_HEARTBEAT": "500ms"}
# By default a job that is lost with its worker three times is set aside, since it probably kills them.
_FORGIVING: Final = {"SELARAS_MAX_LOST": "1000"}


class Plan(Struct, frozen=True, kw_only=True):
    """What was asked for. `flights`: how many at most, from the first on; 0: all."""

    year: bool = False
    workers: int = 2
    naive: bool = False
    kill: bool = False
    url: str = ""
    flights: int = 0

    @property
    def module(self) -> str:
        """Where the app is."""
        return "selaras.demo.naive" if self.naive else "selaras.demo.airline"

    @property
    def title(self) -> str:
        """What is going on, in a line."""
        how = "a hand-made cache" if self.naive else "Selaras"
        killing = ", one killed every second" if self.kill else ""
        return f"{how}: every flight of {'2013' if self.year else 'January 2013'}, {self.workers} workers{killing}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--year", is_flag=True, help="All 327,346 flights of 2013 instead of January's 26,398.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Worker processes.")
@click.option("--naive", is_flag=True, help="The same jobs with a hand-made cache: what that costs.")
@click.option("--kill", is_flag=True, help="Kill a worker with SIGKILL every second. The answer stays right.")
@click.option("--url", default="", help="Another store than a new SQLite file.")
@click.option("--flights", type=click.IntRange(1), default=None, help="Only the first so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def demo(year: bool, workers: int, naive: bool, kill: bool, url: str, flights: int | None, as_json: bool) -> None:
    """Run every flight that left New York in January 2013 as a job, and check every plane.

    Each flight stands in the line of its plane, reads the plane's record, the hour's weather and the airport through
    the cache, and writes the record to a SQLite database. One plain pass over the same rows says what is right.

    Exits with 1 if any plane is wrong, as with --naive. With --kill it takes several times as long: each kill costs a lease.
    """
    if url.startswith("memory:"):
        raise ConfigurationError("--url memory://: the workers are processes of their own, and share no memory")
    plan = Plan(year=year, workers=workers, naive=naive, kill=kill, url=url, flights=flights or 0)
    screen = Console(color_system=None if os.environ.get("NO_COLOR") else "auto")
    with tempfile.TemporaryDirectory(prefix="selaras-demo-") as directory:
        try:
            outcome = asyncio.run(_run(plan, Path(directory), None if as_json else screen))
        except CrewFailed as error:
            raise click.ClickException(str(error)) from error
        except asyncio.CancelledError:
            raise SystemExit(128 + signal.SIGTERM) from None
    if as_json:
        click.echo(msgspec.json.encode(_object(outcome)))
    else:
        show_outcome(screen, outcome, naive=naive)
    if not outcome.all_right:
        raise SystemExit(1)


async def _run(plan: Plan, directory: Path, screen: Console | None) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # nothing is left behind
    flights = read_flights(year=plan.year)[: plan.flights or None]
    books = prepare(directory / "ledger.db", flights, read_models())
    (directory / "gauges").mkdir()
    os.environ.update(_surroundings(plan, directory))
    module = importlib.import_module(plan.module)

    async with module.app as app:
        crew = Crew(f"{plan.module}:app", plan.workers, os.environ, directory)
        watch = Watch(app, crew, len(flights), directory / "gauges", kill=plan.kill)
        crew.start()
        try:
            if screen is None:
                await _work(module, flights, watch, Silent())
            else:
                with progress(screen, plan.title) as shown:
                    await _work(module, flights, watch, shown)
        finally:
            crew.stop()

    right = right_answer(flights)
    with closing(books):
        found, stale_reads = books.flown_planes(), books.stale_reads()
    if not plan.flights:  # the plain pass, too, is held to what is known
        assert total(right.values()) == (YEAR if plan.year else JANUARY)
    return Outcome(
        right=total(right.values()),
        found=total(found),
        differences=differences(right, found),
        stale_reads=stale_reads,
        failed=watch.failed,
        kills=crew.kills,
        seconds=watch.seconds,
        reads=read_all(directory / "gauges"),
        invalidations=watch.invalidations,
    )


def _surroundings(plan: Plan, directory: Path) -> dict[str, str]:
    """What this process and its workers must know: where the store, the ledger and the gauges are."""
    return {
        "SELARAS_URL": plan.url or f"sqlite:///{directory}/selaras.db",
        "SELARAS_DEMO_NAMESPACE": f"demo-{secrets.token_hex(4)}",
        "SELARAS_DEMO_LEDGER": str(directory / "ledger.db"),
        "SELARAS_DEMO_GAUGES": str(directory / "gauges"),
        **(_HURRIED | _FORGIVING if plan.kill else {}),
    }


async def _work(module: Any, flights: Sequence[Flight], watch: Watch, shown: Screen) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.until_done(shown))
        for start in range(0, len(flights), _BATCH):
            await module.app.enqueue_many(module.job_of(flight) for flight in flights[start : start + _BATCH])


class Watch:
    """Looks at the store every now and then until all jobs have ended; kills a worker meanwhile, if it is to."""

    def __init__(self, app: Selaras, crew: Crew, total: int, gauges: Path, *, kill: bool) -> None:
        self.failed = 0
        self.seconds = 0.0
        self.invalidations = 0
        self._app = app
        self._crew = crew
        self._total = total
        self._gauges = gauges
        self._kill = kill

    async def until_done(self, shown: Screen) -> None:
        """Return when every job has ended.

        Raises:
            CrewFailed: a worker ended by itself.
        """
        began = last_kill = time.monotonic()
        done = 0  # when one was killed
        while True:
            looking = time.process_time()
            moment = await self._look(time.monotonic() - began)
            pause = min(max(_LOOK_EVERY_S, (time.process_time() - looking) / _LOOK_SHARE), _LOOK_MOST_S)
            shown.show(moment)
            if moment.done == self._total:
                return
            self._crew.replace_dead()
            # However slow the machine, between two kills something gets done.
            due = self._kill and time.monotonic() - last_kill >= _KILL_EVERY_S and moment.done > done
            if due and self._crew.kill_one(lambda pid: has_read(self._gauges, pid)):
                last_kill, done = time.monotonic(), moment.done
            await asyncio.sleep(min(pause, _KILL_EVERY_S) if self._kill else pause)

    async def _look(self, seconds: float) -> Moment:
        store = self._app.process().store
        counts = {JobState(state): count for queue in await queue_stats(store) for state, count in queue.counts.items()}
        self.failed = counts.get(JobState.FAILED, 0)
        self.invalidations = sum(partition.position for partition in await cache_stats(store))
        self.seconds = seconds
        return Moment(
            seconds=seconds,
            done=sum(counts.get(state, 0) for state in FINAL),
            total=self._total,
            waiting={state.value: count for state, count in counts.items() if state not in FINAL},
            reads=read_all(self._gauges),
            invalidations=self.invalidations,
            workers=self._crew.size,
            kills=self._crew.kills,
        )


def _object(outcome: Outcome) -> dict[str, Any]:
    return {
        "flights": outcome.found.flights,
        "planes": outcome.found.planes,
        "minutes": outcome.found.minutes,
        "miles": outcome.found.miles,
        "moves": outcome.found.moves,
        "differences": len(outcome.differences),
        "stale_reads": outcome.stale_reads,
        "failed": outcome.failed,
        "kills": outcome.kills,
        "seconds": round(outcome.seconds, 3),
        "jobs_per_second": round(outcome.jobs_per_second, 1),
        "hit_ratio": outcome.reads.ratios(),
        "invalidations": outcome.invalidations,
    }
