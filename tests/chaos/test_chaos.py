"""The short form of `make chaos`, from seeds."""

from __future__ import annotations

from pathlib import Path
from shutil import which

import pytest
from chaos.page import page
from chaos.run import Chaos, Plan
from tests.redis.binaries import binary


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("ground", "seconds", "host"), [("sqlite", 10, which("memcached") is not None), ("redis", 14, False)]
)
def test_a_fleet_that_is_hurt_keeps_every_promise(ground: str, seconds: float, host: bool, tmp_path: Path) -> None:
    if ground != "sqlite":
        binary()
    plan = Plan(ground=ground, seed=4711, seconds=seconds, host=host, gap_s=1.0)

    outcome = Chaos(plan, tmp_path, print).run()

    assert outcome.all_right, page(outcome)
    assert outcome.verdict.reads > 50
    assert outcome.verdict.settled > 50
    assert sum(outcome.faults.values()) >= 5
    assert host == any(kind.startswith("host-") for kind in outcome.faults)
