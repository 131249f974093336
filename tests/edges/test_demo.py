"""The demo: its arithmetic, its ledger, and whole runs with real worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.redis.servers import shared_server
from tests.stores import KINDS

from selaras.demo.answer import JANUARY, differences, right_answer, total
from selaras.demo.crew import Crew
from selaras.demo.flights import Airport, Flight, Plane, Weather, read_flights
from selaras.demo.gauges import Reads, has_read
from selaras.demo.ledger import Ledger
from selaras.demo.show import Moment, Outcome, progress, show_outcome

FLIGHT = Flight("N1", 1, "JFK", "BOS", "2013-01-01T10:00:00Z", 60, 200)


def test_the_plain_pass_over_january_gives_the_known_totals() -> None:
    assert total(right_answer(read_flights(year=False)).values()) == JANUARY


def test_a_move_is_a_flight_from_another_airport_than_the_one_before() -> None:
    plane = Plane("N1").flown(FLIGHT, None, None)

    assert plane.moves == 0
    assert plane.flown(Flight("N1", 2, "JFK", "BOS", "h", 60, 200), None, None).moves == 0
    assert plane.flown(Flight("N1", 2, "EWR", "BOS", "h", 60, 200), None, None).moves == 1


def test_a_plane_that_is_missing_is_a_difference() -> None:
    right = {"N1": Plane("N1", flights=3), "N2": Plane("N2", flights=1)}

    wrong = differences(right, [Plane("N1", flights=3)])

    assert wrong == [(Plane("N2", flights=1), Plane("N2"))]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger.create(
        tmp_path / "ledger.db",
        [Plane("N1", "BOEING 737")],
        [Weather("JFK", "2013-01-01T10:00:00Z", 0.2)],
        [Airport("BOS", "Logan")],
    )
    yield made
    made.close()


async def test_the_ledger_writes_a_flight_once_however_often_its_job_runs(ledger: Ledger) -> None:
    plane = (await ledger.plane("N1")).flown(FLIGHT, await ledger.weather("JFK", FLIGHT.hour), None)

    assert await ledger.write(plane, fence=7)
    assert not await ledger.write(plane, fence=9)

    assert await ledger.plane("N1") == plane
    assert plane.rainy == 1


async def test_the_ledger_refuses_a_writer_whose_place_was_taken(ledger: Ledger) -> None:
    first = (await ledger.plane("N1")).flown(FLIGHT, None, await ledger.airport("BOS"))
    second = first.flown(Flight("N1", 2, "LGA", "BOS", "h", 70, 210), None, None)

    assert await ledger.write(first, fence=9)
    assert not await ledger.write(second, fence=8)

    assert await ledger.plane("N1") == first
    assert first.stands == "Logan"


async def test_what_is_not_known_is_none(ledger: Ledger) -> None:
    assert await ledger.weather("JFK", "another hour") is None
    assert await ledger.airport("SJU") is None


def _demo(*options: str, code: int = 0) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "selaras", "demo", "--json", *options],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
    )
    assert ended.returncode == code, ended.stderr.decode()
    said: dict[str, Any] = msgspec.json.decode(ended.stdout)
    return said


def _is_right(said: dict[str, Any]) -> bool:
    return (said["differences"], said["stale_reads"], said["failed"]) == (0, 0, 0)


def test_a_slice_comes_out_right() -> None:
    said = _demo("--flights", "1500")

    assert _is_right(said)
    assert said["flights"] == 1_500
    assert said["kills"] == 0
    assert sum(said["hit_ratio"].values()) == pytest.approx(1, abs=0.01)


@pytest.mark.timeout(120)
def test_january_comes_out_right() -> None:
    said = _demo()

    assert _is_right(said)
    assert {field: said[field] for field in JANUARY.__struct_fields__} == msgspec.structs.asdict(JANUARY)


@pytest.mark.timeout(120)
def test_workers_may_be_killed_at_any_moment() -> None:
    said = _demo("--flights", "8000", "--kill")

    assert _is_right(said)
    assert said["flights"] == 8_000
    assert said["kills"] >= 1


@pytest.mark.skipif("redis-1" not in KINDS, reason="no server is wanted, or none is there")
@pytest.mark.timeout(120)
def test_workers_may_be_killed_on_a_real_server_too() -> None:
    server = shared_server()
    server.clear()

    said = _demo("--flights", "4000", "--kill", "--url", server.url)

    server.clear()
    assert _is_right(said)
    assert said["flights"] == 4_000
    assert said["kills"] >= 1


def test_a_hand_made_cache_goes_wrong_silently() -> None:
    said = _demo("--flights", "4000", "--naive", code=1)

    assert said["failed"] == 0
    assert said["stale_reads"] > 0
    assert said["differences"] > 0


def test_without_a_terminal_progress_is_plain_lines() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "selaras", "demo", "--flights", "300", "--workers", "1"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )

    assert "300 of 300 flights" in ended.stdout
    assert " 0 of 300 flights" not in ended.stdout
    assert "stale reads" in ended.stdout
    assert "\x1b" not in ended.stdout


@pytest.mark.parametrize(
    ("url", "said"), [("memory://", "share no memory"), ("nonsense://", "there is no store 'nonsense'")]
)
def test_a_store_that_cannot_be_used_is_refused_in_words(url: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "selaras", "demo", "--flights", "10", "--url", url],
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert "Traceback" not in ended.stderr


def test_one_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "selaras", "demo", "--flights", "20000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert demo.stdout is not None
    with demo.stdout:
        assert any("of 20,000 flights" in line for line in demo.stdout)  # it is at work
        assert list(tmp_path.iterdir())
        demo.terminate()
        assert demo.wait(60) == 128 + signal.SIGTERM

    assert list(tmp_path.iterdir()) == []


def test_only_a_worker_that_is_at_work_is_killed(tmp_path: Path) -> None:
    """Else, on a slow machine, each would be killed before it had started."""
    crew = Crew("selaras.demo.airline:app", 2, os.environ, tmp_path)
    crew.start()
    try:
        assert not crew.kill_one(lambda pid: False)
        assert crew.kills == 0
        asked: list[int] = []

        def at_work(pid: int) -> bool:
            asked.append(pid)
            return len(asked) == 2

        assert crew.kill_one(at_work)
        assert crew.kills == 1
        assert not crew.kill_one(at_work)
        assert len(asked) == 4  # another has taken its place
        assert asked[1] not in asked[2:]
    finally:
        crew.stop()


def test_a_worker_is_at_work_when_it_has_read_something(tmp_path: Path) -> None:
    assert not has_read(tmp_path, 7)
    (tmp_path / "7.json").write_bytes(b'{"local":0}')
    assert not has_read(tmp_path, 7)
    (tmp_path / "7.json").write_bytes(b'{"local":0,"loaded":1}')
    assert has_read(tmp_path, 7)


@pytest.mark.parametrize("width", [30, 100])
def test_a_narrow_terminal_cuts_no_number(width: int) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    reads = Reads(local=7, loaded=3)
    with progress(console, "demo") as screen:
        screen.show(
            Moment(
                seconds=2.5,
                done=JANUARY.flights,
                total=JANUARY.flights,
                waiting={"held": 29_876},
                reads=reads,
                invalidations=12_345,
                workers=4,
                kills=2,
            )
        )
    show_outcome(
        console,
        Outcome(
            right=JANUARY,
            found=JANUARY,
            differences=[],
            stale_reads=0,
            failed=0,
            kills=0,
            seconds=2.5,
            reads=reads,
            invalidations=12_345,
        ),
        naive=False,
    )
    said: Any = console.file
    text = said.getvalue()
    for number in (JANUARY.flights, 29_876, 12_345, JANUARY.minutes, JANUARY.miles):
        assert f"{number:,}" in text
