"""Counts stale reads: naive cache-aside first, then Selaras, on one store and under one load."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import click
import msgspec
from msgspec import Struct

from benchmarks.peers.environment import ROOT, Unusable
from benchmarks.peers.processes import Group, end_all
from benchmarks.peers.servers import redis_server
from benchmarks.races.ground import Ground, Tally
from benchmarks.races.load import Plan
from benchmarks.races.naive import OnServer, make_shared
from benchmarks.races.shelf import MEGABYTES, hurt_memcached
from benchmarks.races.table import print_table
from selaras._core.proportions import at_most

NAIVE_SHARE: Final = 4
"""The naive half has one in so many seconds: it takes no more to see it fail."""

END_SECONDS: Final = 30.0
_MEMORY: Final = Path("/dev/shm")  # a file system in memory


class Count(Struct, frozen=True):
    """What one half came to."""

    reads: int
    stale: int
    loads: int
    writes: int
    jobs: int
    hosted: int
    seconds: float
    told: tuple[str, ...]

    @property
    def bound(self) -> float:
        """The share of stale reads that is still compatible with what was counted."""
        return at_most(self.stale, self.reads)


class Failed(Exception):
    """A process of the run has failed; the message is its last word."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(1), default=40.0, show_default=True, help="For both halves together.")
@click.option(
    "--reads", type=click.IntRange(1), help="Go on until Selaras has answered so many, however long it takes."
)
@click.option("--seed", type=int, help="Of a run that is to be repeated; its waits are drawn alike.")
@click.option(
    "--url", default="", help="The store: redis://HOST, or 'redis' for a server of its own. [default: SQLite]"
)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=300, show_default=True)
@click.option("--readers", type=click.IntRange(1), default=20, show_default=True, help="In each process.")
@click.option("--writers", type=click.IntRange(2), default=3, show_default=True, help="In each process.")
@click.option("--table", is_flag=True, help="Instead: force each race on each cache, and print who survives what.")
@click.option(
    "--host-tier",
    "host_tier",
    is_flag=True,
    help="With a memcached between, which is killed, stopped, emptied and filled up all the time.",
)
@click.option("--pause", default=0.02, show_default=True, help="Seconds between two writes of one writer.")
def races(
    seconds: float,
    reads: int | None,
    seed: int | None,
    url: str,
    processes: int,
    rows: int,
    readers: int,
    writers: int,
    pause: float,
    table: bool,
    host_tier: bool,
) -> None:
    """Count stale reads of naive cache-aside, then of Selaras. Exits with 1 if one of Selaras' was stale.

    A read is stale if its writer had been told that the write is done before the read began (of a job's reads: before
    the job was enqueued), and yet it returned an older version.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if table:
        raise SystemExit(0 if print_table("python -m benchmarks.races --table") else 1)
    seed = secrets.randbits(32) if seed is None else seed
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(_folder()))
            shown, url = _store(url, folder, stack)
            shelf = stack.enter_context(hurt_memcached(folder, Random(seed))) if host_tier else None
            click.echo(
                f"seed {seed}; {processes} processes with {readers} readers and {writers} writers each, {rows} rows"
            )
            click.echo(f"store {shown}; bounds: 95 %, one-sided, Clopper-Pearson (with 0 seen: the rule of three, 3/n)")
            make_shared(url)
            counts: dict[str, Count] = {}
            for kind in ("naive", "selaras"):
                plan = Plan(
                    kind=kind,
                    url=url,
                    prefix=f"races-{kind}-{seed}",
                    ground=str(folder / f"{kind}.ground"),
                    seed=seed,
                    processes=processes,
                    rows=rows,
                    readers=readers,
                    writers=writers,
                    pause_s=pause,
                    host_tier="" if shelf is None else shelf.url,
                )
                share = seconds / NAIVE_SHARE if kind == "naive" else seconds - seconds / NAIVE_SHARE
                counts[kind] = _run(plan, folder, share, reads if kind == "selaras" else None)
                if not url.startswith("sqlite:"):
                    asyncio.run(_clear(url, plan.prefix))
                _tell(kind, counts[kind])
            if shelf is not None:
                done = ", ".join(f"{count} times {what}" for what, count in sorted(shelf.done.items()))
                click.echo(f"memcached of {MEGABYTES} MiB: {done}; {counts['selaras'].hosted:,} reads answered from it")
    except (Failed, Unusable) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        end_all()
    if not counts["naive"].stale:
        click.echo("naive cache-aside was never stale: a run as short as this shows nothing")
    ours = counts["selaras"]
    click.echo(f"selaras: reads {ours.reads:,}, stale {ours.stale}, 95 % bound {ours.bound:.2g} of reads")
    raise SystemExit(1 if ours.stale or not counts["naive"].stale else 0)


def _store(url: str, folder: Path, stack: ExitStack) -> tuple[str, str]:
    """Return the store's URL for people, and for the processes."""
    if not url:
        return "SQLite, one file", f"sqlite:///{folder}/selaras.db"
    if url != "redis":
        return url.rpartition("@")[2], url
    server = stack.enter_context(redis_server())
    return f"Redis {server.version}, one server", server.url()


@contextmanager
def _folder() -> Iterator[str]:
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="selaras-races-", dir=where, ignore_cleanup_errors=True) as name:
        yield name


def _run(plan: Plan, folder: Path, seconds: float, reads: int | None) -> Count:
    """Let all processes of one half race, for so long or until there are so many reads."""
    ground = Ground.make(Path(plan.ground), plan.rows, plan.processes)
    file = folder / f"{plan.kind}.json"
    file.write_bytes(msgspec.json.encode(plan))
    logs = [folder / f"{plan.kind}-{number}.log" for number in range(plan.processes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    groups = [
        Group([sys.executable, "-m", "benchmarks.races.racer", str(file), str(number)], log, environment=environment)
        for number, log in enumerate(logs)
    ]
    while ground.total(Tally.READY) < plan.processes:
        _check(groups)
        time.sleep(0.02)
    began = time.monotonic()
    while ground.total(Tally.READS) < reads if reads else time.monotonic() - began < seconds:
        _check(groups)
        time.sleep(0.05)
    took = time.monotonic() - began
    ground.end()
    until = time.monotonic() + END_SECONDS
    while not all(group.ended for group in groups) and time.monotonic() < until:
        time.sleep(0.02)
    late = [group for group in groups if not group.ended]
    for group in groups:
        group.end()
    if late:
        raise Failed(f"a process of the {plan.kind} half did not end within {END_SECONDS:g} s: {late[0].last_words()}")
    told = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    odd = [line for line in told if "Traceback" in line]
    if odd:
        raise Failed(f"a process of the {plan.kind} half failed:\n" + "\n".join(told[-20:]))
    return Count(
        ground.total(Tally.READS),
        ground.total(Tally.STALE),
        ground.total(Tally.LOADS),
        ground.total(Tally.WRITES),
        ground.total(Tally.JOBS),
        ground.total(Tally.HOSTED),
        took,
        tuple(line for line in told if line.startswith("stale:")),
    )


def _check(groups: list[Group]) -> None:
    for group in groups:
        if group.ended:
            raise Failed(f"a process has ended by itself: {group.last_words()}")


async def _clear(url: str, prefix: str) -> None:
    await (await OnServer.connect(url, prefix)).clear()


def _tell(kind: str, count: Count) -> None:
    what = "naive cache-aside" if kind == "naive" else "selaras"
    jobs = f", {count.jobs:,} jobs" if count.jobs else ""
    click.echo(
        f"{what:17}  {count.reads:>12,} reads  {count.stale:>8,} stale  at most {count.bound:.2g} of reads"
        f"  ({count.seconds:.0f} s: {count.writes:,} writes, {count.loads:,} loads{jobs})"
    )
    if kind != "naive":
        for line in count.told:
            click.echo(f"  {line}")


if __name__ == "__main__":
    races(prog_name="python -m benchmarks.races")
