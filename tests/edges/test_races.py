"""`make races`: what it counts as stale, and what it says at the end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.peers.peer import peers
from benchmarks.races.ground import Ground, Tally
from benchmarks.races.load import Load, Plan
from benchmarks.races.table import ADAPTERS

ROOT = Path(__file__).parents[2]


def a_load(folder: Path) -> Load:
    path = folder / "ground"
    Ground.make(path, rows=3, processes=2)
    plan = Plan(
        kind="naive", url="", prefix="", ground=str(path), seed=1, processes=2, rows=3, readers=1, writers=1, pause_s=0
    )
    return Load(plan, 1)


def test_a_read_below_what_was_acknowledged_before_it_began_is_stale(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = a_load(folder)
    version = load.ground.commit(2)
    floor = load.ground.acknowledged[2]  # committed, and nobody was told yet
    load.judge(2, floor, 0, "a read")

    load.acknowledged(2, version)
    load.judge(2, load.ground.acknowledged[2], 0, "a read")
    load.judge(2, load.ground.acknowledged[2], 1, "a read")

    assert (load.tally[Tally.READS], load.tally[Tally.STALE]) == (3, 1)
    assert load.ground.total(Tally.STALE) == 1
    assert "a read of row 2 gave version 0; 1 was acknowledged before" in capsys.readouterr().out


def test_an_acknowledgement_that_comes_late_takes_nothing_back(folder: Path) -> None:
    load = a_load(folder)
    first, second = load.ground.commit(0), load.ground.commit(0)
    load.acknowledged(0, second)

    load.acknowledged(0, first)

    assert load.ground.acknowledged[0] == second


def test_a_run_ends_with_one_line_that_says_how_many_reads_were_stale() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.races", "--seconds", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )

    assert re.match(r"seed \d+; 2 processes", run.stdout), run.stderr
    last = run.stdout.splitlines()[-1]
    assert re.fullmatch(r"selaras: reads [\d,]+, stale 0, 95 % bound \S+ of reads", last), run.stdout


def test_each_cache_that_is_raced_and_each_queue_that_is_measured_has_an_adapter_that_can_be_read() -> None:
    caches, queues = peers(ADAPTERS), peers()

    assert {"aiocache", "cashews", "dogpile", "redis_py"} <= {cache.name for cache in caches}
    assert [queue.name for queue in queues if not queue.lease_is] == []
