"""Mutates what decides, one place at a time, and asks the tests that concern it: `python -m tests.mutations.sampled`.

    python -m tests.mutations.sampled --each 6 --seed 1     so many places of each module, drawn from the seed
    python -m tests.mutations.sampled freshness --each 99   all of the modules whose name contains it

No file is changed: the module is compiled with the mutation when it is imported (`planted.py`). A mutant is *killed* when a
test fails, or does not end; one that lives is printed, and either a test is missing or `EXPLAINED` says why none can be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Final

from tests.mutations.planted import PLACE, Place, places_of, source_of

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 150

_STORES: Final = [
    f"tests/conformance/test_{name}.py" for name in ("fills", "intents", "log", "openings", "settle", "partitions")
]

CONCERNED: Final[dict[str, list[str]]] = {
    "selaras._core.cache.freshness": ["tests/cache/test_freshness.py"],
    "selaras._core.cache.consistency": ["tests/core/test_consistency.py"],
    "selaras._core.cache.key": ["tests/core/test_keys.py"],
    "selaras._core.durations": ["tests/core/test_durations.py"],
    "selaras._core.jobs.retry": ["tests/core/test_retry.py"],
    "selaras._core.routing": ["tests/core/test_routing.py"],
    "selaras._cache.follower": ["tests/cache/test_follower.py", "tests/cache/test_rules.py"],
    "selaras._stores.memory.cells": [*_STORES, "-k", "memory-1"],
    "selaras._stores.memory.log": [*_STORES, "-k", "memory-1"],
    "selaras._stores.sqlite.cells": [*_STORES, "-k", "sqlite-1"],
}
"""The modules, and the fastest tests that concern each."""

EXPLAINED: Final[dict[str, str]] = {}
"""Mutants that no test can kill, as they are printed, and why."""


def is_killed(module: str, place: Place) -> bool:
    """Say whether a test fails when this one place is mutated."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n",
        "0",
        "-p",
        "tests.mutations.planted",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), PLACE: f"{module}:{place.number}"}
    try:
        done = subprocess.run(
            [*command, *CONCERNED[module]],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in {0, 1}:
        tail = done.stdout.decode()[-600:]
        if "selaras" not in tail + done.stderr.decode()[-2000:]:
            raise SystemExit(tail)
    return done.returncode != 0


def main() -> int:
    """Print a line a survivor, and the score. 1 if one is not explained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="modules whose name contains one of these")
    parser.add_argument("--each", type=int, default=6, help="places of each module")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    tried = killed = unexplained = 0
    for module in CONCERNED:
        if said.names and not any(name in module for name in said.names):
            continue
        places = places_of(source_of(module))
        drawn = Random(f"{said.seed}/{module}").sample(places, min(said.each, len(places)))
        here = 0
        for place in drawn:
            if is_killed(module, place):
                here += 1
            else:
                name = f"{module}:{place}"
                unexplained += name not in EXPLAINED
                print(f"  lives: {name}  {EXPLAINED.get(name, '')}", flush=True)
        tried, killed = tried + len(drawn), killed + here
        print(f"{module}: {here} of {len(drawn)} killed, of {len(places)} places", flush=True)
    print(f"{killed} of {tried} killed")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
