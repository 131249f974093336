"""Measures each peer in interleaved rounds, and prints one table."""

from __future__ import annotations

import os
import platform
import random
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import click
from rich.console import Console

from benchmarks.peers.environment import CACHE, Environment, Unusable
from benchmarks.peers.measures import ROWS, Stage, Subject
from benchmarks.peers.peer import Peer, peers
from benchmarks.peers.processes import end_all
from benchmarks.peers.servers import far_from, postgres_server, redis_server, trip_ms
from benchmarks.peers.table import Conditions, Measured, Results

_MEMORY: Final = Path("/dev/shm")  # a file system in memory

T = TypeVar("T")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--quick", is_flag=True, help="One round of a fifth of the jobs: for a first look.")
@click.option("--rows", help=f"Only these, separated by commas: {', '.join(ROWS)}; 'lookup' is all of its kind.")
@click.option("--rounds", type=click.IntRange(1), help="So many, the peers in another order each.  [default: 3]")
@click.option("--newest", is_flag=True, help="Make the environments anew, with today's newest versions.")
@click.option("--json", "out", type=click.Path(dir_okay=False, path_type=Path), help="Where the results go as JSON.")
@click.option(
    "--lock", type=click.Path(dir_okay=False, path_type=Path), help="Hold a lock on this file while measuring."
)
def bench(
    names: tuple[str, ...],
    quick: bool,
    rows: str | None,
    rounds: int | None,
    newest: bool,
    out: Path | None,
    lock: Path | None,
) -> None:
    """Measure the peers NAMES, or all; print one table, and keep everything as JSON."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    chosen, wanted = _chosen(names), _rows(rows)
    errors = Console(stderr=True)
    out = out or CACHE / "results.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(chosen, wanted, rounds or (1 if quick else 3), 0.2 if quick else 1.0, out, errors)
    interrupted = False
    try:
        run.measure(lock, newest=newest)
    except KeyboardInterrupt:
        interrupted = True
        errors.print("interrupted: what there is")
    finally:
        end_all()
    run.keep()
    if not run.results.measured:
        raise SystemExit(1)
    console = Console(width=None if sys.stdout.isatty() else 240)
    run.results.show(run.conditions, console)
    errors.print(f"all numbers: {out}")
    if interrupted:
        raise SystemExit(130)


class Run:
    """One run: what it measures, and what it has found."""

    def __init__(
        self, chosen: Sequence[Peer], rows: Sequence[str], rounds: int, scale: float, out: Path, errors: Console
    ) -> None:
        self.results = Results(chosen)
        self._peers, self._rows, self._rounds, self._scale, self._out = chosen, rows, rounds, scale, out
        self._errors = errors
        self._servers: dict[str, str] = {}
        self._versions: dict[str, dict[str, str]] = {}
        self._trip_ms = 0.0

    @property
    def conditions(self) -> Conditions:
        """Under which circumstances it measures."""
        return Conditions(
            command=shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
            at=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=_machine(),
            servers=self._servers,
            versions=self._versions,
            rounds=self._rounds,
            scale=self._scale,
            trip_ms=self._trip_ms,
        )

    def measure(self, lock: Path | None, *, newest: bool) -> None:
        """Set everything up, measure, and take it down."""
        environments = self._set_up(newest=newest)
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory
            folder = stack.enter_context(temporary(prefix="selaras-peers-", dir=_MEMORY if _MEMORY.is_dir() else None))
            disk = stack.enter_context(temporary(prefix="selaras-peers-", ignore_cleanup_errors=True))
            redis = self._start(stack, "Redis", redis_server())
            postgres = None
            if any(peer.store == "postgresql" for peer in self._peers):
                postgres = self._start(stack, "PostgreSQL", postgres_server())
            for name, server in (("Redis", redis), ("PostgreSQL", postgres)):
                if server:
                    self._servers[name] = server.version
            if redis and "far" in self._rows:
                with far_from(redis.port) as port:
                    self._trip_ms = trip_ms(port)
            stage = Stage(
                redis=redis, postgres=postgres, scale=self._scale, folder=Path(folder), disk=Path(disk), lock=lock
            )
            subjects = {peer: Subject(peer, environment, stage) for peer, environment in environments.items()}
            for number in range(1, self._rounds + 1):
                self._round(number, subjects, stage)

    def _set_up(self, *, newest: bool) -> dict[Peer, Environment]:
        environments = {}
        for peer in self._peers:
            try:
                with self._errors.status(f"setting up {peer.name}"):
                    environments[peer] = Environment(peer, renew=newest)
            except Unusable as reason:
                self._add(Measured(peer.name, "environment", 0, unusable=str(reason)))
            else:
                self._versions[peer.name] = environments[peer].versions
        return environments

    def _start(self, stack: ExitStack, name: str, server: AbstractContextManager[T]) -> T | None:
        try:
            return stack.enter_context(server)
        except Unusable as reason:
            self._errors.print(f"{name}: {reason}")
            self._servers[name] = f"missing ({reason})"
            return None

    def _round(self, number: int, subjects: dict[Peer, Subject], stage: Stage) -> None:
        for row in self._rows:
            order = list(subjects)
            random.Random(f"{number} {row}").shuffle(order)
            for peer in order:
                try:
                    with stage.alone():
                        numbers = subjects[peer].measure(row, number)
                except Unusable as reason:
                    self._add(Measured(peer.name, row, number, unusable=str(reason)))
                except Exception as error:  # noqa: BLE001 - whatever a peer does must not end the run
                    self._add(Measured(peer.name, row, number, unusable=repr(error)))
                else:
                    if numbers:
                        self._add(Measured(peer.name, row, number, numbers))

    def _add(self, one: Measured) -> None:
        self.results.measured.append(one)
        said = one.unusable or ", ".join(f"{name} {value:,.1f}" for name, value in one.numbers.items())
        self._errors.print(
            f"{one.round}  {one.row:15} {one.peer:15} {said}", highlight=False, markup=False, soft_wrap=True
        )
        self.keep()

    def keep(self) -> None:
        """Write what there is."""
        self._out.write_bytes(self.results.json(self.conditions))


def _chosen(names: Sequence[str]) -> list[Peer]:
    known = peers()
    unknown = set(names) - {peer.name for peer in known}
    if unknown:
        raise click.UsageError(f"no adapter {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in known)}")
    return [peer for peer in known if not names or peer.name in names]


def _rows(text: str | None) -> list[str]:
    if text is None:
        return list(ROWS)
    asked = [name.strip() for name in text.split(",")]
    for name in asked:
        if not any(name in {row, row.partition(":")[0]} for row in ROWS):
            raise click.UsageError(f"no row {name}; there are {', '.join(ROWS)}, and lookup")
    return [row for row in ROWS if row in asked or row.partition(":")[0] in asked]


def _machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks.peers")
