"""One table of medians, what Selaras must reach in it, and everything as JSON."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.peers.measures import LOOKUPS, ROWS
from benchmarks.peers.peer import Peer


class Measured(Struct, frozen=True, omit_defaults=True):
    """One measurement: its numbers, or the reason why there are none."""

    peer: str
    row: str
    round: int
    numbers: dict[str, float] = {}
    unusable: str = ""


class Conditions(Struct, frozen=True, kw_only=True):
    """Under which circumstances it was measured."""

    command: str
    at: str
    machine: str
    servers: dict[str, str]
    versions: dict[str, dict[str, str]]
    rounds: int
    scale: float
    trip_ms: float


class Column(Struct, frozen=True):
    """Some numbers of a row, side by side."""

    title: str
    row: str
    numbers: tuple[str, ...] = ("per_second",)
    digits: int = 0


_COLUMNS: Final = (
    Column("drain /s", "drain"),
    Column("2 workers /s", "two"),
    Column("2 ms away /s", "far"),
    Column("10 ms I/O /s", "io"),
    Column("enqueue /s", "enqueue"),
    Column("100 tasks /s", "tasks"),
    Column("batch /s", "batch"),
    Column("start p50, p99 ms", "wait", ("p50", "p99"), 1),
    Column("worker, Redis us/job", "drain", ("worker_cpu_us", "redis_cpu_us")),
    Column("calls, trips /job", "drain", ("calls", "trips"), 2),
    Column("worker MB", "drain", ("memory_mb",)),
    Column("waiting B/job", "batch", ("waiting_bytes",)),
    Column("idle trips/s", "wait", ("idle_trips",), 1),
    Column("zombie: lease s, runs, ends", "zombie", ("lease", "runs", "ends")),
)
_CACHES: Final = {
    "none": "no cache",
    "dict": "dict, Redis",
    "redis": "Redis",
    "cashews": "cashews",
    "tracked": "cashews, client-side",
    "selaras": "Selaras",
}


class Floor(Struct, frozen=True):
    """What Selaras on Redis must reach, and what it does. `measured` None: not measured."""

    what: str
    floor: float
    measured: float | None
    unit: str = ""
    most: bool = False
    digits: int = 0

    @property
    def good(self) -> bool | None:
        """Whether it does."""
        if self.measured is None:
            return None
        return self.measured <= self.floor if self.most else self.measured >= self.floor


class Results:
    """All that was measured so far."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.measured: list[Measured] = []
        self._peers = peers

    def median(self, peer: str, row: str, number: str) -> float | None:
        """Return the median over the rounds; None if there is nothing."""
        found = [
            one.numbers[number]
            for one in self.measured
            if one.peer == peer and one.row == row and number in one.numbers
        ]
        return statistics.median(found) if found else None

    def json(self, conditions: Conditions) -> bytes:
        """Return conditions, medians and every measurement."""
        medians: dict[str, dict[str, dict[str, float | None]]] = defaultdict(lambda: defaultdict(dict))
        for one in self.measured:
            for number in one.numbers:
                medians[one.peer][one.row][number] = self.median(one.peer, one.row, number)
        floors = [{**msgspec.structs.asdict(floor), "good": floor.good} for floor in self.floors()]
        settings = {peer.name: peer.settings for peer in self._peers}
        said: dict[str, Any] = {
            "conditions": conditions,
            "settings": settings,
            "medians": medians,
            "floors": floors,
            "measured": self.measured,
        }
        return msgspec.json.format(msgspec.json.encode(said)) + b"\n"

    def show(self, conditions: Conditions, console: Console) -> None:
        """Print it."""
        console.print(f"`{conditions.command}`, {conditions.at}: {conditions.machine}", highlight=False)
        servers = ", ".join(f"{name} {version}" for name, version in conditions.servers.items())
        console.print(
            f"{servers}; {conditions.rounds} interleaved rounds, medians"
            + (f", {conditions.scale:g} of the jobs" if conditions.scale != 1 else "")
            + (f"; 2 ms away: a PING takes {conditions.trip_ms:.1f} ms" if conditions.trip_ms else ""),
            highlight=False,
        )
        self._show_queues(conditions, console)
        self._show_lookups(console)
        self._show_floors(console)
        for note in self._notes():
            console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)

    def _show_queues(self, conditions: Conditions, console: Console) -> None:
        columns = [column for column in _COLUMNS if any(one.row == column.row for one in self.measured)]
        if not columns:
            return
        table = Table(box=box.MARKDOWN)
        table.add_column("no-op jobs, one worker process", no_wrap=True)
        for column in columns:
            table.add_column(column.title, justify="right")
        for peer in self._peers:
            versions = " ".join(conditions.versions.get(peer.name, {}).values())
            table.add_row(f"{peer.name} {versions}", *[self._cell(peer, column) for column in columns])
        console.print(table)

    def _cell(self, peer: Peer, column: Column) -> str:
        numbers = [self.median(peer.name, column.row, number) for number in column.numbers]
        if any(number is not None for number in numbers):
            return " / ".join(_say(number, column.digits) for number in numbers)
        rows = {column.row, "environment"}
        failed = any(one.unusable and one.peer == peer.name and one.row in rows for one in self.measured)
        return "failed" if failed else "-"

    def _show_lookups(self, console: Console) -> None:
        caches = [cache for cache in LOOKUPS if any(one.row == f"lookup:{cache}" for one in self.measured)]
        if not caches:
            return
        table = Table(box=box.MARKDOWN)
        table.add_column("cached lookups, two workers: jobs/s, stale reads", no_wrap=True)
        for cache in caches:
            table.add_column(_CACHES[cache], justify="right")
        for peer in self._peers:
            cells = [self._lookup(peer, f"lookup:{cache}") for cache in caches]
            if any(cell != "-" for cell in cells):
                table.add_row(peer.name, *cells)
        console.print(table)

    def _lookup(self, peer: Peer, row: str) -> str:
        rate, stale = self.median(peer.name, row, "per_second"), self.stale(peer.name, row)
        if rate is None or stale is None:
            return self._cell(peer, Column("", row))
        reads = sum(one.numbers["reads"] for one in self.measured if one.peer == peer.name and one.row == row)
        percent = 100 * stale / max(1, reads)
        return f"{rate:,.0f}, {stale:,.0f}" + (f" ({percent:.1f} %)" if percent >= 0.05 else "")

    def stale(self, peer: str, row: str) -> float | None:
        """Return the stale reads of all rounds together."""
        found = [one.numbers["stale"] for one in self.measured if one.peer == peer and one.row == row and one.numbers]
        return sum(found) if found else None

    def _show_floors(self, console: Console) -> None:
        floors = [floor for floor in self.floors() if floor.measured is not None]
        if not floors:
            return
        table = Table(box=box.MARKDOWN)
        table.add_column("Selaras on Redis")
        for title in ("must be", "is"):
            table.add_column(title, justify="right")
        table.add_column("")
        for floor in floors:
            bound = f"{'at most ' if floor.most else ''}{_say(floor.floor, floor.digits)}{floor.unit}"
            measured = f"{_say(floor.measured, floor.digits)}{floor.unit}"
            table.add_row(floor.what, bound, measured, "✓" if floor.good else "✗")
        console.print(table)

    def floors(self) -> Iterator[Floor]:
        """Return what Selaras on Redis must reach."""

        def ours(row: str, number: str = "per_second") -> float | None:
            return self.median("selaras", row, number)

        def fastest(row: str, *, everywhere: bool = True) -> tuple[str, float] | None:
            rates = [
                (rate, peer.name)
                for peer in self._peers
                if not peer.ours and (everywhere or peer.store == "redis")
                if (rate := self.median(peer.name, row, "per_second")) is not None
            ]
            return (max(rates)[1], max(rates)[0]) if rates else None

        drain = ours("drain")
        yield Floor("drain, one worker process", 25_000, drain, " /s")
        for least, which, found in (
            (4.5, "the fastest on Redis", fastest("drain", everywhere=False)),
            (1.4, "the fastest of all", fastest("drain")),
        ):
            beside = f"beside {which}, {found[0]}" if found else f"beside {which}"
            yield Floor(f"drain, {beside}", least, drain / found[1] if drain and found else None, " times", digits=1)
        lookup = ours("lookup:selaras")
        # The fastest that a team would call cached: what goes to the datastore each time is in the table beside them.
        rivals = [one for cache in LOOKUPS if cache not in {"none", "selaras"} if (one := fastest(f"lookup:{cache}"))]
        best = max(rivals, key=lambda one: one[1]) if rivals else None
        name = f"cached lookups, beside the fastest peer with a cache{f', {best[0]}' if best else ''}"
        yield Floor(name, 4, lookup / best[1] if lookup and best else None, " times", digits=1)
        yield Floor("cached lookups: stale reads", 0, self.stale("selaras", "lookup:selaras"), most=True)
        far = ours("far")
        yield Floor("kept with Redis 2 ms away", 80, far / drain * 100 if far and drain else None, " %")
        yield Floor("enqueue, single awaits from 100 tasks", 10_000, ours("tasks"), " /s")
        yield Floor("enqueue, batches", 40_000, ours("batch"), " /s")
        yield Floor("enqueue to start, p50", 1.5, ours("wait", "p50"), " ms", most=True, digits=1)
        yield Floor("enqueue to start, p99", 5, ours("wait", "p99"), " ms", most=True, digits=1)
        heard = ours("heard", "selaras_heard_p99")
        yield Floor("invalidation seen by 8 processes, p99", 5, heard, " ms", most=True, digits=1)
        yield Floor("Redis memory per waiting job", 400, ours("batch", "waiting_bytes"), " B", most=True)
        yield Floor("idle worker, commands a second", 2, ours("wait", "idle_trips"), most=True, digits=1)

    def _heard(self, peer: str) -> Iterator[str]:
        for how, whose in (("selaras", peer), ("bare", "redis-py by hand")):
            ms = [
                _say(self.median(peer, "heard", f"{how}_{name}_{share}"), 1)
                for name in ("heard", "read")
                for share in ("p50", "p99")
            ]
            if self.median(peer, "heard", f"{how}_heard_p99") is not None:
                yield (
                    f"{whose}: 8 processes were no longer given a value after {ms[0]} / {ms[1]} ms (p50 / p99), and had "
                    f"the next after {ms[2]} / {ms[3]} ms"
                )

    def _notes(self) -> Iterator[str]:
        zombies = any(one.row == "zombie" for one in self.measured)
        for peer in self._peers:
            yield f"{peer.name}: {peer.settings}" + f" Its lease: {peer.lease_is}." * zombies
        for peer in self._peers:
            yield from self._heard(peer.name)
        said = set[tuple[str, str]]()
        for one in self.measured:
            if one.unusable and (one.peer, one.unusable) not in said:
                said.add((one.peer, one.unusable))
                yield f"{one.peer}, {one.row}: {one.unusable}"
        for peer in self._peers:
            for row in ROWS:
                for number, what in (("twice", "jobs ran twice"), ("missing", "jobs did not run")):
                    if found := self.median(peer.name, row, number):
                        yield f"{peer.name}, {row}: {found:,.0f} {what}"


def _say(number: float | None, digits: int) -> str:
    if number is None:
        return "-"
    return f"{number:,.{digits}f}" if number < 100 else f"{number:,.0f}"
