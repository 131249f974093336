"""What a person sees: a live screen in a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from msgspec import Struct
from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from selaras.demo.answer import Totals
from selaras.demo.flights import Plane
from selaras.demo.gauges import Reads

_BARS: Final = " ▁▂▃▄▅▆▇█"
_TIERS: Final = (("local", "green"), ("claim", "blue"), ("shared", "cyan"), ("loaded", "yellow"))
_LINE_EVERY_S: Final = 2.0
_WIDTH: Final = 80
_NARROW: Final = 60
"""Below it panels and wide tables would cut numbers, into others."""


class Moment(Struct, frozen=True, kw_only=True):
    """How things stand at one moment. `waiting`: jobs by state, those that are not done."""

    seconds: float
    done: int
    total: int
    waiting: dict[str, int]
    reads: Reads
    invalidations: int
    workers: int
    kills: int


class Outcome(Struct, frozen=True, kw_only=True):
    """How it came out."""

    right: Totals
    found: Totals
    differences: list[tuple[Plane, Plane]]
    stale_reads: int
    failed: int
    kills: int
    seconds: float
    reads: Reads
    invalidations: int

    @property
    def jobs_per_second(self) -> float:
        """Flights a second, from the first enqueue to the last settle."""
        return self.right.flights / self.seconds

    @property
    def all_right(self) -> bool:
        """Whether every plane is right and no read was stale."""
        return not self.differences and not self.stale_reads and not self.failed


class Screen(Protocol):
    """Where progress goes."""

    def show(self, moment: Moment) -> None:
        """Show how things stand; called several times a second."""
        ...


class Silent:
    """Shows nothing: somebody wants JSON."""

    def show(self, moment: Moment) -> None:
        """Show nothing."""


class Lines:
    """A line now and then: the output is a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: Moment | None = None

    def show(self, moment: Moment) -> None:
        """Print a line, if the last one is old or this is the end."""
        last = self._last
        # The first one waits, too: of the first instant there is nothing to tell.
        if moment.done < moment.total and moment.seconds - (last.seconds if last else 0.0) < _LINE_EVERY_S:
            return
        self._last = moment
        rate = _rate(last, moment) if last else moment.done / moment.seconds if moment.seconds else 0.0
        shares = "  ".join(f"{tier} {share:.0%}" for tier, share in moment.reads.ratios().items())
        killed = f"  killed {moment.kills}" if moment.kills else ""
        self._console.print(
            f"{moment.done:>7,} of {moment.total:,} flights  {rate:>6,.0f}/s  reads: {shares}  "
            f"in queue {sum(moment.waiting.values()):,}  invalidations {moment.invalidations:,}{killed}",
            highlight=False,
            soft_wrap=True,
        )


class Panels:
    """A screen that is drawn anew several times a second."""

    def __init__(self, live: Live, title: str) -> None:
        self._live = live
        self._title = title
        self._moments: deque[Moment] = deque(maxlen=37)

    def show(self, moment: Moment) -> None:
        """Draw it."""
        self._moments.append(moment)
        self._live.update(self._draw(moment))

    def _draw(self, moment: Moment) -> RenderableType:
        rates = [_rate(before, after) for before, after in zip(self._moments, list(self._moments)[1:], strict=False)]
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right", min_width=13)
        grid.add_column()
        grid.add_row("flights", self._progress(moment))
        grid.add_row(
            "jobs a second", Text.assemble((f"{_smoothed(rates):>7,.0f}  ", "bold"), (_sparks(rates), "green"))
        )
        grid.add_row("in the queue", _queue(moment))
        grid.add_row("reads from", _tiers(moment.reads))
        grid.add_row("invalidations", f"{moment.invalidations:>7,}")
        workers = f"{moment.workers:>7}"
        grid.add_row("workers", f"{workers}   [red]killed {moment.kills}[/]" if moment.kills else workers)
        return Panel(Padding(grid, (1, 1)), title=self._title, title_align="left", box=box.ROUNDED, width=_WIDTH)

    def _progress(self, moment: Moment) -> RenderableType:
        row = Table.grid(padding=(0, 2))
        row.add_row(
            ProgressBar(total=moment.total, completed=moment.done, width=32, complete_style="green"),
            Text.assemble((f"{moment.done:,}", "bold"), f" of {moment.total:,}"),
        )
        return row


def _queue(moment: Moment) -> Text:
    said = [f"{count:,} {state}" for state, count in moment.waiting.items() if count]
    return Text.assemble((f"{sum(moment.waiting.values()):>7,}  ", "bold"), (" · ".join(said), "dim"))


def _tiers(reads: Reads) -> Text:
    ratios = reads.ratios()
    text = Text()
    for tier, color in _TIERS:
        text.append("█" * round(ratios[tier] * 10), style=color)
    text.append("  ")
    for tier, color in _TIERS:
        text.append(f" {tier} ", style=color)
        text.append(f"{ratios[tier]:.0%}")
    return text


def _rate(before: Moment, after: Moment) -> float:
    passed = after.seconds - before.seconds
    return (after.done - before.done) / passed if passed > 0 else 0.0


def _smoothed(rates: list[float]) -> float:
    recent = rates[-4:]
    return sum(recent) / len(recent) if recent else 0.0


def _sparks(rates: list[float]) -> str:
    most = max(rates, default=0.0) or 1.0
    return "".join(_BARS[round(rate / most * (len(_BARS) - 1))] for rate in rates)


@contextmanager
def progress(console: Console, title: str) -> Generator[Screen, None, None]:
    """Show progress as well as the output can."""
    if not console.is_terminal or console.width < _NARROW:
        console.print(title, highlight=False)
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=10) as live:
        yield Panels(live, title)


def show_outcome(console: Console, outcome: Outcome, *, naive: bool) -> None:
    """Print the table, and what it means in one sentence."""
    narrow = console.width < _NARROW
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0) if narrow else (0, 2))
    table.add_column("")
    if not narrow:
        table.add_column("one plain pass", justify="right")
    table.add_column("hand-made cache" if naive else "Selaras", justify="right", style="bold", no_wrap=True)
    table.add_column("")
    rows: list[tuple[str, int, int]] = []
    for field in Totals.__struct_fields__:
        right, found = getattr(outcome.right, field), getattr(outcome.found, field)
        rows.append((field, right, found))
    rows += [("differences", 0, len(outcome.differences)), ("stale reads", 0, outcome.stale_reads)]
    if outcome.failed:
        rows.append(("failed jobs", 0, outcome.failed))
    for name, right, found in rows:
        plain = () if narrow else (f"{right:,}",)
        table.add_row(name, *plain, f"{found:,}", _mark(right == found))
    console.print(table)
    for sentence in _sentences(outcome, naive=naive):
        console.print(Padding(sentence, (0, 2)), width=_WIDTH)
    console.print()


def _mark(right: bool) -> Text:
    return Text("✓", style="green") if right else Text("✗", style="red")


def _sentences(outcome: Outcome, *, naive: bool) -> Iterator[Text]:
    shares = ", ".join(f"{tier} {share:.1%}" for tier, share in outcome.reads.ratios().items())
    yield Text(f"{outcome.right.flights:,} jobs in {outcome.seconds:.1f} s: {outcome.jobs_per_second:,.0f} a second.")
    yield Text(f"Reads answered from: {shares}.")
    if outcome.kills:
        yield Text(f"Workers killed with SIGKILL: {outcome.kills}.")
    if outcome.all_right:
        yield Text("Every plane is right, and no job acted on an old record.", style="green")
        return
    for right, found in outcome.differences[:3]:
        yield Text(f"{right.tailnum} should have {_say(right)}, and has {_say(found)}.", style="red")
    if naive:
        yield Text("Nothing crashed and nothing was logged. Without --naive, every number above is right.")
        yield Text("Planes are wrong, as is to be shown, so this ends with exit code 1: `make` calls that an error.")


def _say(plane: Plane) -> str:
    return f"{plane.flights} flights, {plane.minutes:,} minutes and {plane.moves} moves"
