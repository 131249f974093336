"""Runs every row several times and prints one table: floor, measured, verdict."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Final

import click
import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

RUNS: Final = 3


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        floor: the least (or, if `most`, the most) that will do; None: it is shown, and nothing is asked of it.
        measure: returns one run's number.
        runs: the median of so many is shown.
    """

    name: str
    what: str
    floor: float | None
    measure: Callable[[], float]
    unit: str = "/s"
    most: bool = False
    runs: int = RUNS

    def good(self, value: float) -> bool:
        """Whether a number will do."""
        if self.floor is None:
            return True
        return value <= self.floor if self.most else value >= self.floor


def run_once(name: str, count: int) -> dict[str, float]:
    """Measure in a new process, on a new store."""
    with tempfile.TemporaryDirectory(prefix="selaras-bench-") as directory:
        environment = {**os.environ, "SELARAS_URL": f"sqlite:///{directory}/bench.db"}
        command = [sys.executable, "-m", "benchmarks.measured", name, str(count)]
        said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(said, type=dict[str, float])


def import_ms() -> float:
    """Import the package in a new interpreter, from compiled files."""
    program = "import time; began = time.perf_counter(); import selaras; print(time.perf_counter() - began)"
    # Where bytecode is not written, each run would compile all of it once more; an installer has done so.
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, env=compiled).stdout
    return float(said) * 1_000


class Bench:
    """The rows. Numbers that several rows need are measured once."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._known: dict[str, list[dict[str, float]]] = {}

    def _count(self, count: int) -> int:
        return max(100, int(count * self._scale))

    def _each(self, name: str, count: int, field: str) -> Callable[[], float]:
        return lambda: run_once(name, count)[field]

    def _median(self, name: str, count: int, field: str, runs: int) -> float:
        known = self._known.setdefault(f"{name} {count}", [])
        while len(known) < runs:
            known.append(run_once(name, count))
        return statistics.median(numbers[field] for numbers in known)

    def rows(self) -> Iterator[Row]:
        """Return them, in the order in which they are measured."""
        small, great = self._count(50_000), self._count(1_000_000)

        def drained(name: str) -> float:
            return self._median(name, small, "per_second", RUNS)

        yield Row(
            name="drain",
            what="no-op jobs drained by one worker process",
            floor=25_000,
            measure=lambda: drained("drain_nothing"),
            runs=1,
        )
        yield Row(
            name="reads",
            what="the same with one Read each, and one in ten writing",
            floor=17_500,
            measure=lambda: drained("drain_reads"),
            runs=1,
        )
        yield Row(
            name="share",
            what="that as a share of the no-op jobs",
            floor=None,
            unit="%",
            measure=lambda: drained("drain_reads") / drained("drain_nothing") * 100,
            runs=1,
        )
        yield Row(
            name="enqueue",
            what="enqueue, one by one, awaited",
            floor=5_000,
            measure=self._each("enqueue_single", self._count(20_000), "per_second"),
        )
        yield Row(
            name="batch",
            what="enqueue, a thousand at a time",
            floor=60_000,
            measure=self._each("enqueue_batched", self._count(100_000), "per_second"),
        )
        yield Row(
            name="hit",
            what="local hit through `await product(42)`",
            floor=3,
            unit="us",
            most=True,
            measure=self._each("hit", self._count(500_000), "us"),
        )
        yield Row(
            name="strict",
            what="strict read, served from the local tier",
            floor=25,
            unit="us",
            most=True,
            measure=self._each("strict", self._count(100_000), "us"),
        )
        latencies = 200
        yield Row(
            name="p50",
            what="enqueue to start, idle worker in another process, p50",
            floor=3,
            unit="ms",
            most=True,
            measure=lambda: self._median("latency", latencies, "p50", RUNS),
            runs=1,
        )
        yield Row(
            name="p99",
            what="the same, p99",
            floor=10,
            unit="ms",
            most=True,
            measure=lambda: self._median("latency", latencies, "p99", RUNS),
            runs=1,
        )
        yield Row(
            name="idle",
            what="an idle worker's share of a core",
            floor=1,
            unit="%",
            most=True,
            measure=self._each("idle", 10, "percent"),
            runs=1,
        )
        yield Row(
            name="backlog",
            what=f"a backlog of {great:,}: its rate beside one of 10,000",
            floor=90,
            unit="%",
            measure=lambda: (
                self._median("drain_nothing", great, "per_second", 1)
                / self._median("drain_nothing", 10_000, "per_second", RUNS)
                * 100
            ),
            runs=1,
        )
        yield Row(
            name="memory",
            what=f"a worker's memory over {great:,} jobs: growth since the first fifth",
            floor=8,
            unit="MiB",
            most=True,
            measure=lambda: (
                self._median("drain_nothing", great, "rss_end", 1)
                - self._median("drain_nothing", great, "rss_early", 1)
            ),
            runs=1,
        )
        yield Row(name="import", what="import selaras", floor=150, unit="ms", most=True, measure=import_ms, runs=11)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("only", nargs=-1)
@click.option("--quick", is_flag=True, help="A tenth of the jobs: for a first look.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead.")
def bench(only: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Measure all rows, or those named ONLY, and print one table. Exits with 1 if one is below its floor."""
    console = Console()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("row", style="dim")
    table.add_column("what")
    table.add_column("floor", justify="right")
    table.add_column("measured", justify="right", style="bold")
    table.add_column("")
    below = 0
    for row in Bench(0.1 if quick else 1.0).rows():
        if only and row.name not in only:
            continue
        with nullcontext() if as_json else console.status(row.what):
            value = statistics.median(row.measure() for _ in range(row.runs))
        below += not row.good(value)
        if as_json:
            said = {"row": row.name, "floor": row.floor, "measured": value, "unit": row.unit, "good": row.good(value)}
            click.echo(msgspec.json.encode(said))
        floor = "" if row.floor is None else _say(row, row.floor)
        table.add_row(row.name, row.what, floor, _say(row, value), _verdict(row.good(value)) if floor else "")
    if not as_json:
        console.print(table)
    raise SystemExit(1 if below else 0)


def _say(row: Row, value: float) -> str:
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}".rstrip("0").rstrip(".")
    return f"{number} {row.unit}" if row.unit[0] != "/" else f"{number}{row.unit}"


def _verdict(good: bool) -> str:
    return "[green]✓[/]" if good else "[red]✗[/]"


if __name__ == "__main__":
    bench(prog_name="python -m benchmarks")
