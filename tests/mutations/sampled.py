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

from tests.mutations.planted import PLACE, SOURCE, Place, places_of

ROOT: Final = Path(__file__).parents[2]
PATIENCE_S: Final = 300
"""Longer than any group of tests takes on a busy machine: what has not ended by then hangs."""

_NO_TESTS: Final = 5

_CORE: Final = ["tests/app", "tests/cache", "tests/conformance", "-k", "memory-1"]
_VALUES: Final = ["tests/core/test_codec.py"]
_CONFORMANCE: Final = ["tests/conformance"]
_FREEST: Final = [
    f"tests/conformance/test_{name}.py" for name in ("fills", "intents", "log", "openings", "settle", "partitions")
]
_REDIS: Final = [
    f"tests/redis/test_{name}.py" for name in ("wire", "wire_link", "topology", "store", "cells", "arranging")
]
_EAR: Final = ["tests/redis/test_store_ear.py"]
_RIGHTS: Final = ["tests/redis/test_rights.py", "tests/redis/test_doctor.py"]
_APP: Final = [f"tests/redis/test_{name}.py" for name in ("redis_scripts", "whole_app", "replicated")]
_VERBS: Final = [
    ["tests/redis/test_redis_agrees.py", *_FREEST, "-k", "agree or redis-1"],
    _REDIS,
    [*_CONFORMANCE, "-k", "redis-1"],
    ["tests/conformance/test_partitions.py", "-k", "redis-4"],
    _APP,
]

CONCERNED: Final[dict[str, list[list[str]]]] = {
    "selaras._core.cache.consistency": [["tests/core/test_consistency.py"], _CORE],
    "selaras._core.cache.freshness": [["tests/cache/test_freshness.py"], _CORE],
    "selaras._core.cache.hosted": [["tests/core/test_hosted.py"], ["tests/cache/test_host.py"]],
    "selaras._core.cache.key": [["tests/core/test_keys.py"], _CORE],
    "selaras._core.cache.lifetimes": [["tests/cache/test_lifetimes.py"], _CORE],
    "selaras._core.cache.lineage": [["tests/cache/test_lineage.py"], ["tests/edges"]],
    "selaras._core.cache.packing": [["tests/core/test_packing.py"], _CORE],
    "selaras._core.cache.parts": [["tests/core/test_keys.py"], _CORE],
    "selaras._core.codec": [_VALUES, ["tests/fuzz/test_parsers.py"], _CORE],
    "selaras._core.durations": [["tests/core/test_durations.py"], _CORE],
    "selaras._core.hints": [_VALUES, ["tests/core/test_signature.py"], _CORE],
    "selaras._core.jobs.lifecycle": [["tests/core/test_lifecycle.py"], _CORE],
    "selaras._core.jobs.retry": [["tests/core/test_retry.py"], _CORE],
    "selaras._core.proportions": [["tests/core/test_proportions.py"], _CORE],
    "selaras._core.routing": [["tests/core/test_routing.py"], _CORE],
    "selaras._core.shapes": [_VALUES, ["tests/core/test_signature.py"], _CORE],
    "selaras._core.signature": [["tests/core/test_signature.py"], _CORE],
    "selaras._core.tagged": [_VALUES, ["tests/core/test_signature.py"], _CORE],
    "selaras._core.annotations": [_VALUES, ["tests/core/test_signature.py"], _CORE],
    "selaras._core": [_CORE, ["tests/worker", "tests/edges"]],
    "selaras._cache.follower": [["tests/cache/test_follower.py", "tests/cache/test_rules.py"], ["tests/cache"]],
    "selaras._stores.memory": [
        [*_FREEST, "-k", "memory-1"],
        [*_CONFORMANCE, "-k", "memory"],
        ["tests/app", "-k", "memory"],
    ],
    "selaras._stores.sqlite": [
        ["tests/sqlite/test_sqlite_agrees.py", "tests/sqlite/test_sqlite_short.py"],
        [*_CONFORMANCE, "-k", "sqlite-1"],
        ["tests/sqlite"],
        ["tests/conformance/test_partitions.py", "tests/app", "-k", "sqlite-4"],
    ],
    "selaras._stores.redis.lua": [
        ["tests/redis/test_redis_agrees.py", *_FREEST, "-k", "agree or redis-1"],
        [*_CONFORMANCE, "-k", "redis-1"],
        ["tests/redis/test_redis_scripts.py", "tests/redis/test_rows.py", "tests/redis/test_arranging.py"],
        ["tests/conformance/test_partitions.py", "-k", "redis-4"],
        ["tests/fuzz/test_overwritten_rows.py", "tests/redis/test_whole_app.py"],
    ],
    "selaras._stores.redis.checkup": [["tests/redis/test_doctor.py", "tests/redis/test_rights.py"]],
    "selaras._stores.redis.address": [["tests/redis/test_topology.py", "tests/fuzz/test_parsers.py"], _REDIS],
    "selaras._stores.redis.bell": [_EAR, _APP],
    "selaras._stores.redis.caller": [["tests/redis/test_cells.py"], *_VERBS],
    "selaras._stores.redis.cells": [["tests/redis/test_cells.py"], *_VERBS],
    "selaras._stores.redis.convoy": [["tests/redis/test_replicated.py"], _REDIS],
    "selaras._stores.redis.dialling": [["tests/redis/test_topology.py", "tests/redis/test_wire.py"], _REDIS, _RIGHTS],
    "selaras._stores.redis.ear": [_EAR, _APP],
    "selaras._stores.redis.errors": [["tests/redis/test_errors.py"], _REDIS, _RIGHTS],
    "selaras._stores.redis.gathered": [["tests/redis/test_cells.py"], *_VERBS],
    "selaras._stores.redis.lines": [_REDIS, _EAR, _APP],
    "selaras._stores.redis.node": [_REDIS, _EAR, _RIGHTS, _APP],
    "selaras._stores.redis.context": [_REDIS, _EAR, _APP],
    "selaras._stores.redis.link": [_REDIS, _EAR, _APP],
    "selaras._stores.redis.pulse": [["tests/redis/test_store.py"], _APP, *_VERBS],
    "selaras._stores.redis.rights": [_RIGHTS],
    "selaras._stores.redis.store": [["tests/redis/test_store.py"], _APP, *_VERBS],
    "selaras._stores.redis.topology": [["tests/redis/test_topology.py"], _REDIS, _EAR],
    "selaras._stores.redis.wire": [["tests/redis/test_wire.py"], _REDIS, _EAR, _APP],
    "selaras._stores.redis": _VERBS,
}
"""By the beginning of a module's name, the longest counts: the tests that concern it, the fastest first. A mutant that one
group lets live is tried on the next."""

_FEWER_READS: Final = "what is not read ahead, or not remembered, is read when it is asked for"
_WRITES_MORE: Final = "the whole row is written instead of what has moved of it"
_ONE_MORE: Final = "what is remembered is forgotten one later"
_SAME_INSTANT: Final = "no two instants lie just so far apart"
_LONG_WAY: Final = "the batch is not let in, and goes the long way, job by job"

EXPLAINED: Final[dict[str, str]] = {
    "selaras._cache.follower:heard: news.tail.position > self.applied.position -> news.tail.position >= "
    "self.applied.position": "`_apply` passes over events up to what was applied: of an equal tail, over all of them",
    "selaras._stores.redis.node:_ask_aside: await rest(PROBE_S / 8) -> pass": "a sound connection is given up, and made anew, "
    "when what was written before the answer to the other one arrives after it",
    "selaras._stores.redis.gathered:_begin: self._gathered.under_way.add(task) -> pass": "a loop that is at work has its tasks, too",
    "selaras._stores.redis.lines:demoted: self.common.topology.doubt(node.endpoint) -> pass": "whoever connects there next finds "
    "that it is not the master, and doubts it",
    "selaras._stores.redis.lines:finish: self.loop.time() < until -> self.loop.time() <= until": _SAME_INSTANT,
    "selaras._stores.redis.lua.rows:promote: due:flush() -> nothing": "what this script has put there is not due yet, and "
    "what it has dropped is passed over",
    "selaras._stores.redis.lua.turn:set_of: and #REQ[5] > 0 then -> >=": "of no queues it waits in none",
    "selaras._stores.redis.packing:_head_of: len(self._heads) >= PROFILES_MOST -> len(self._heads) > PROFILES_MOST": _ONE_MORE,
    "selaras._stores.redis.wire:send_for: within_s < self._least_s -> within_s <= self._least_s": "the same is put in its place",
    "selaras._stores.redis.wire:_tick: silent_s >= self._silence_s -> silent_s > self._silence_s": _SAME_INSTANT,
    "selaras._stores.redis.wire:_tick: silent_s >= self._quiet_s -> silent_s > self._quiet_s": _SAME_INSTANT,
    "selaras._stores.sqlite.cells:_OWNED_BY: = ? AND job = -> OR": "a home gives a fence once, and they are compared",
    "selaras._stores.sqlite.cells:_intents_of: (owned := self._owned_on.pop(job, None)) is not None -> "
    "(owned := self._owned_on.pop(job, None)) is None": _FEWER_READS,
    "selaras._stores.sqlite.cells:clear: cell.entry is None -> cell.entry is not None": _FEWER_READS,
    "selaras._stores.sqlite.lines:next_heads: (line := self._lines.get(name)) is not None -> "
    "(line := self._lines.get(name)) is None": _FEWER_READS,
    "selaras._stores.sqlite.lines:read_ahead: line.next is None -> line.next is not None": _FEWER_READS,
    "selaras._stores.sqlite.log:lose: WHERE position > ? AND -> >=": "with the epoch nothing is left that the mark of the last "
    "event could void",
    "selaras._stores.sqlite.log:news: 0 < behind <= NEWS_MOST -> 0 <= behind <= NEWS_MOST": "no event of the tail's position "
    "has another id than the tail",
    "selaras._stores.sqlite.log:trim: self.flush() -> pass": "what this step has appended is younger than all that is trimmed",
    "selaras._stores.sqlite.rows:_facts_of: row.input is not None -> row.input is None": "who was given an input was given "
    "positions with it, and they are kept together",
    "selaras._stores.sqlite.short:_succeed: execute('RELEASE plain') -> pass": "the commit releases it",
    "selaras._stores.sqlite.short:admit: later.append((first, new.id, STATES[state], new.priority, place, ready_us, now, "
    "due_us, OTHER if expires_us else PLAIN, expires_us, new.result_ttl_us, queue, new.task, new.payload, new.meta, "
    "rows.more_of(new))) -> pass": _LONG_WAY,
    "selaras._stores.sqlite.short:lined: self._cells.read_ahead(dict.fromkeys(keys)) -> pass": _FEWER_READS,
    "selaras._stores.sqlite.table:_write: row.is_altered = False -> pass": _WRITES_MORE,
}
"""Mutants that no test can kill, as they are printed, and why."""


def groups_of(module: str) -> list[list[str]]:
    """Return the groups of tests that concern a module; none: it is not sampled."""
    fitting = [name for name in CONCERNED if module == name or module.startswith(f"{name}.")]
    return CONCERNED[max(fitting, key=len)] if fitting else []


def modules() -> list[str]:
    """Return what is sampled: every module that some tests concern and that has something to mutate."""
    names = (
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for path in sorted(SOURCE.glob("selaras/**/*"))
        if path.suffix in {".py", ".lua"}
    )
    return [name for name in names if groups_of(name) and places_of(name)]


def is_killed(module: str, place: Place, groups: int) -> bool:
    """Say whether a test of the first `groups` groups fails when this one place is mutated."""
    return any(_fails(module, place, group) for group in groups_of(module)[:groups])


def _fails(module: str, place: Place, tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "tests.mutations.planted"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{SOURCE}",
        "HYPOTHESIS_PROFILE": "mutant",
        PLACE: f"{module}:{place.number}",
    }
    try:
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode == _NO_TESTS:
        raise SystemExit(f"{module}: no test is named {tests}")
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
    parser.add_argument("--groups", type=int, default=9, help="of tests at most, the fastest first")
    said = parser.parse_args()
    tried = killed = unexplained = 0
    for module in modules():
        if said.names and not any(name in module for name in said.names):
            continue
        places = places_of(module)
        drawn = Random(f"{said.seed}/{module}").sample(places, min(said.each, len(places)))
        here = 0
        for place in drawn:
            if is_killed(module, place, said.groups):
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
