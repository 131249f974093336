"""One process of a run: `python -m benchmarks.races.racer PLAN NUMBER`; the plan is a file of JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from benchmarks.races import naive, ours
from benchmarks.races.ground import Tally
from benchmarks.races.load import Load, Plan
from selaras._worker.loops import run


def main() -> None:
    """Take part until the run is over."""
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    load = Load(plan, int(sys.argv[2]))
    run(_race(load))


async def _race(load: Load) -> None:
    load.tally[Tally.READY] = 1
    await (naive if load.plan.kind == "naive" else ours).race(load)


if __name__ == "__main__":
    main()
