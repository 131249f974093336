"""`python -m chaos [sqlite|redis|sentinel|cluster ...]`: hurts a fleet for a while, and says what came of it."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.redis.binaries import binaries

from chaos.grounds import GROUNDS
from chaos.page import page
from chaos.run import Chaos, Plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on each ground in turn. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("grounds", nargs="*", metavar="GROUND", help=f"of {', '.join(GROUNDS)}; by default all")
    parser.add_argument("--minutes", type=float, default=0.0, help="on each ground")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000 % 1_000_000_000)
    parser.add_argument("--lossy", action="store_true", help="faults, too, that may lose what the store had answered")
    parser.add_argument("--host", action="store_true", help="with a memcached beside the processes, which is hurt, too")
    parser.add_argument(
        "--only", action="append", default=[], metavar="KIND", help="only this kind of fault; repeatable"
    )
    parser.add_argument("--keep", action="store_true", help="keep the histories though all is right")
    said = parser.parse_args(arguments)
    if unknown := [name for name in said.grounds if name not in GROUNDS]:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(GROUNDS)}")
    failed = False
    for name in said.grounds or GROUNDS:
        if name != "sqlite" and not binaries():
            print(f"{name}: left out, no Redis or Valkey server on this machine")
            continue
        seconds = said.seconds + said.minutes * 60 or 60.0
        plan = Plan(
            ground=name, seed=said.seed, seconds=seconds, lossy=said.lossy, host=said.host, only=tuple(said.only)
        )
        folder = Path(tempfile.mkdtemp(prefix=f"selaras-chaos-{name}-{plan.seed}-"))
        print(f"chaos on {name} for {seconds:g} s, seed {plan.seed}", flush=True)
        outcome = Chaos(plan, folder, lambda line: print(f"  {line}", flush=True)).run()
        print(page(outcome), flush=True)
        failed |= not outcome.all_right
        if outcome.all_right and not said.keep:
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
