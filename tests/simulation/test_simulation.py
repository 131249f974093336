"""Seeds that are run at each change, and whether a seed is one world: everywhere, and every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace
from simulation.__main__ import main
from simulation.plan import Plan, plan_from, plan_of
from simulation.shrink import shrink
from simulation.world import Result, run

pytestmark = pytest.mark.timeout(240)  # a few seconds on a machine that is free

BLOCKS, BLOCK = 5, 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_is_broken_on_the_memory_store(block: int) -> None:
    _run_block(range(block * BLOCK, block * BLOCK + BLOCK), "memory")


def test_no_promise_is_broken_on_sqlite() -> None:
    _run_block(range(2), "sqlite")


def _run_block(seeds: range, store: Literal["memory", "sqlite"]) -> None:
    jobs = reads = 0
    for seed in seeds:
        result = run(plan_of(seed, jobs=60, store=store))
        assert not result.broken, (seed, result.broken, result.what, result.trace[-40:])
        jobs += result.jobs
        reads += result.reads

    assert jobs > 20 * len(seeds)
    assert reads > 50 * len(seeds)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_seed_is_the_same_world_in_every_process(store: str) -> None:
    command = [sys.executable, "-m", "simulation", "--seed", "5", "--jobs", "60", "--store", store, "--trace", "5"]
    several = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )
        for hash_seed in ("1", "4711")
    ]
    told = [process.communicate(timeout=200)[0] for process in several]

    assert "\ntrace " in told[0]
    assert told[0] == told[1]


_ROOT = Path(__file__).parents[2]


def test_a_world_is_repeated_step_for_step_and_another_seed_is_another_world() -> None:
    plan = plan_of(7, jobs=40, store="memory")
    first, again = run(plan), run(plan_from(plan.encoded()))

    assert first.digest == again.digest
    assert first.steps == again.steps
    assert run(replace(plan, seed=8)).digest != first.digest


def test_faults_happen_and_are_counted() -> None:
    faults = dict.fromkeys(plan_of(0).faults, 0.0) | {
        "crash": 0.003,
        "pause": 0.003,
        "lost-reply": 0.02,
        "lost-request": 0.02,
        "slow": 0.02,
        "forget": 0.5,
        "deploy": 0.5,
        "outage": 0.3,
    }
    plan = replace(plan_of(1, jobs=120, store="memory"), faults=faults, workers=3)
    result = run(plan)

    assert not result.broken, (result.broken, result.what)
    assert set(result.faults) >= {"lost-reply", "lost-request", "slow", "forget"}
    assert result.claims > result.jobs


def test_a_failure_is_made_short() -> None:
    def breaks_with_two_workers_and_crashes(plan: Plan) -> Result:
        broken = plan.workers >= 2 and "crash" in plan.faults and plan.jobs >= 3
        return replace(run_of_nothing, plan=plan, broken="G1" if broken else "")

    run_of_nothing = Result(
        plan=plan_of(1), broken="G1", what="", jobs=0, claims=0, settles=0, reads=0, audits=0, virtual_s=0, steps=0, faults={},
        digest="", trace=[],
    )  # fmt: skip
    plan = replace(plan_of(1), workers=4, partitions=4, faults={"crash": 0.1, "slow": 0.1, "wall": 0.1})
    shortest = shrink(replace(run_of_nothing, plan=plan), run=breaks_with_two_workers_and_crashes)

    assert shortest.plan.workers == 2
    assert shortest.plan.jobs == 3
    assert set(shortest.plan.faults) == {"crash"}
    assert (shortest.plan.partitions, shortest.plan.readers, shortest.plan.keys) == (1, 0, 1)


def test_a_failure_tells_the_promise_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: object, records: object) -> None:
        del records
        self.breaks("G6", "job-0 was accepted, and is nowhere")  # type: ignore[attr-defined]

    monkeypatch.setattr("simulation.promises.Promises.look", look)

    assert main(["--seconds", "5", "--seed", "11", "--jobs", "20", "--store", "memory", "--no-shrink"]) == 1

    told = capsys.readouterr().out
    assert "BROKEN  G6: An accepted job is settled at least once" in told
    assert "again:  python -m simulation --seed 11 --jobs 20 --store memory" in told
