"""Searches seed after seed; a broken promise is shown with the command that repeats it, and made short."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, cast

from simulation.plan import Plan, plan_from, plan_of
from simulation.promises import SAID
from simulation.shrink import shrink
from simulation.world import Result, run

_TELL_EVERY_S: Final = 10.0
_SHOWN: Final = 60
_COLLECT_EVERY: Final = 10
_JOBS: Final = 400


class Tally:
    """What was simulated so far."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.began_cpu = time.process_time()
        self.worlds = self.jobs = self.claims = self.settles = self.reads = self.audits = self.steps = 0
        self.virtual_s = 0.0
        self.faults: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        """Count a world."""
        self.worlds += 1
        self.jobs += result.jobs
        self.claims += result.claims
        self.settles += result.settles
        self.reads += result.reads
        self.audits += result.audits
        self.steps += result.steps
        self.virtual_s += result.virtual_s
        self.faults.update(result.faults)

    @property
    def seconds(self) -> float:
        """How long it took so far."""
        return time.monotonic() - self.began

    def line(self, seed: int) -> str:
        """Tell it in one line."""
        faults = " ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        rate = self.jobs / max(time.process_time() - self.began_cpu, 0.001) * 3600
        return (
            f"seed {seed}: {self.worlds:,} worlds, {self.jobs:,} jobs ({rate:,.0f} an hour of one core), {self.claims:,} attempts, "
            f"{self.reads:,} reads judged, {self.audits:,} audits, {self.virtual_s / 3600:,.1f} h of virtual time; {faults or 'no faults'}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, or repeat. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one; with --seconds or --hours: begin here")
    parser.add_argument("--plan", help="run this plan, as a failure prints it")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=_JOBS, help="in each world")
    parser.add_argument("--store", choices=["memory", "sqlite", "any"], default="any")
    parser.add_argument(
        "--shelf", type=float, default=0.0, help="in each world a host tier; how often each of its faults happens"
    )
    parser.add_argument("--trace", type=int, default=_SHOWN, help="lines of the trace of a failure")
    parser.add_argument("--no-shrink", action="store_true")
    said = parser.parse_args(arguments)
    seconds = said.seconds + said.hours * 3600
    if said.plan or (said.seed is not None and not seconds):
        store = cast("Literal['memory', 'sqlite', 'any']", said.store)
        drawn = plan_of(said.seed or 0, jobs=said.jobs, store=store, shelf=said.shelf)
        plan = plan_from(said.plan) if said.plan else drawn
        return _repeat(plan, shown=said.trace)
    with _collecting_between_worlds():
        return _search(said, seconds or 60.0)


@contextmanager
def _collecting_between_worlds() -> Generator[None]:
    """Let the collector come when `_search` says so, and not after each world."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _repeat(plan: Plan, *, shown: int) -> int:
    result = run(plan, kept=max(shown, 1))
    print(plan.encoded())
    print("\n".join(result.trace[-shown:]))
    faults = " ".join(f"{kind} {count}" for kind, count in sorted(result.faults.items()))
    print(f"{result.jobs} jobs, {result.claims} attempts, {result.reads} reads, {result.virtual_s:.1f} s; {faults}")
    print(f"trace {result.digest}")
    return _verdict(result)


def _verdict(result: Result) -> int:
    if not result.broken:
        print("no promise was broken")
        return 0
    print(f"BROKEN  {result.broken}: {SAID[result.broken]}\n        {result.what}")
    return 1


def _search(said: argparse.Namespace, seconds: float) -> int:
    tally, told = Tally(), time.monotonic()
    seed = said.seed if said.seed is not None else time.time_ns() // 1_000_000 % 1_000_000_000
    print(f"searching for {seconds:g} s from seed {seed}", flush=True)
    while tally.seconds < seconds:
        result = run(plan_of(seed, jobs=said.jobs, store=said.store, shelf=said.shelf))
        tally.add(result)
        if result.broken:
            print(tally.line(seed))
            _show(result, said)
            return 1
        if time.monotonic() - told >= _TELL_EVERY_S:
            told = time.monotonic()
            print(tally.line(seed), flush=True)
        if tally.worlds % _COLLECT_EVERY == 0:
            gc.collect()
        seed += 1
    print(tally.line(seed - 1))
    print("no promise was broken")
    return 0


def _show(result: Result, said: argparse.Namespace) -> None:
    seed, shown = result.plan.seed, said.trace
    options = (f" --jobs {said.jobs}" if said.jobs != _JOBS else "") + (
        f" --store {said.store}" if said.store != "any" else ""
    )
    options += f" --shelf {said.shelf}" if said.shelf else ""
    _verdict(result)
    print(f"again:  python -m simulation --seed {seed}{options}", flush=True)
    if not said.no_shrink:
        smallest = shrink(result, said=lambda one: print(f"  shorter: {one.plan.encoded()}", flush=True))
        print("\n".join(smallest.trace[-shown:]))
        _verdict(smallest)
        print(f"again:  python -m simulation --plan '{smallest.plan.encoded()}'")


if __name__ == "__main__":
    sys.exit(main())
