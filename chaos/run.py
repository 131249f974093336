"""One run: a fleet on a store, things that go wrong as a seed says, the drain, and the judgement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from msgspec import Struct
from tests.memcached.servers import MemcachedServer

from chaos.fleet import ROOT, Fleet, clocks_jump
from chaos.grounds import GROUNDS, Act, Ground, Ill
from chaos.history import Fault, History, Settled, now, read_notes
from chaos.judge import Verdict, Violation, judge
from chaos.ledger import Ledger
from selaras.demo.answer import differences, right_answer
from selaras.demo.flights import Flight, read_flights, read_models
from selaras.demo.ledger import Ledger as Airline, prepare

WORKERS: Final = 3
CLIENTS: Final = 2
LEASE_S: Final = 2.0
FLIGHTS_A_SECOND: Final = 20
_SETTINGS: Final = {
    "SELARAS_LEASE": f"{LEASE_S:g}s",
    "SELARAS_HEARTBEAT": "500ms",
    "SELARAS_MAX_LOST": "100000",
    "SELARAS_BACKOFF": "100ms",
    "SELARAS_BACKOFF_MOST": "1s",
    "SELARAS_GRACE": "5s",
    "SELARAS_CONCURRENCY": "30",
}
_DRAIN_S: Final = 60.0
"""So long may no job end while some have yet to: that is ten leases and more. `_DRAIN_MOST_S`: however many end."""

_DRAIN_MOST_S: Final = 900.0
_START_S: Final = 30.0
_BETWEEN_STORE_S: Final = 1.0

WORKER: Final = "chaos.worker"
CLIENT: Final = "chaos.client"
HOST: Final = "memcached"


class Plan(Struct, frozen=True, kw_only=True):
    """What was asked for. `host`: the processes share a host tier. `gap_s`: the mean time between two faults of processes,
    and between two of the store.
    """

    ground: str
    seed: int
    seconds: float
    lossy: bool = False
    host: bool = False
    gap_s: float = 1.5
    only: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that repeats it."""
        options = " --lossy" * self.lossy + " --host" * self.host + "".join(f" --only {kind}" for kind in self.only)
        return f"python -m chaos {self.ground} --seed {self.seed} --seconds {self.seconds:g}{options}"


class Outcome(Struct, kw_only=True):
    """What came of it. `recovery_s`: the longest time from the end of a fault to the next end of a job."""

    plan: Plan
    verdict: Verdict
    faults: dict[str, int]
    processes: int
    flights: int
    recovery_s: float
    drained_s: float
    troubles: list[str]
    left_out: list[str]
    folder: str

    @property
    def all_right(self) -> bool:
        """Whether no promise was broken, and nothing ended that should not have."""
        return not self.verdict.violations and not self.troubles


class Chaos:
    """A run in progress."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._say = say
        self._chance = Random(f"{plan.seed} chaos")
        self._faults: list[Fault] = []
        self._heals: list[tuple[float, int, str, int, str, Ill]] = []
        self._numbers = count()
        self._store_is_ill = False
        self._troubles: list[str] = []
        self._memcached: MemcachedServer | None = None
        self._ground: Ground = GROUNDS[plan.ground](lossy=plan.lossy)
        self._flights: list[Flight] = [] if plan.lossy else read_flights(year=False)

    def run(self) -> Outcome:
        """Do all of it."""
        with closing(self._ground), ExitStack() as stack:
            url = self._ground.open()
            if self._plan.host:
                self._memcached = stack.enter_context(MemcachedServer())
            airline = prepare(self._folder / "airline.db", self._flights, read_models())
            rows = Ledger(self._folder / "rows.db")
            self._environment = self._surroundings(url)
            flights = 0 if self._plan.lossy else FLIGHTS_A_SECOND
            fleet = Fleet(self._folder, self._environment, self._chance, flights=flights)
            with closing(rows), closing(airline), closing(fleet):
                self._fleet = fleet
                for _ in range(WORKERS):
                    fleet.start(WORKER)
                for number in range(CLIENTS):
                    fleet.start(CLIENT, flies=number == 0)
                self._flier = fleet.of(CLIENT)[0]
                self._until_settling()
                self._rage()
                self._heal_all()
                fleet.end(CLIENT)
                ends, drained_s = self._drain()
                fleet.end(WORKER)
                return self._outcome(rows, airline, ends, drained_s)

    def _surroundings(self, url: str) -> dict[str, str]:
        gauges = self._folder / "gauges"
        gauges.mkdir()
        return {
            **os.environ,
            **_SETTINGS,
            "SELARAS_URL": url,
            "SELARAS_HOST_TIER": self._memcached.url if self._memcached else "",
            "SELARAS_DEMO_NAMESPACE": "airline",
            "SELARAS_DEMO_LEDGER": str(self._folder / "airline.db"),
            "CHAOS_FOLDER": str(self._folder),
            "CHAOS_SEED": str(self._plan.seed),
        }

    def _until_settling(self) -> None:
        end = time.monotonic() + _START_S
        while not any(isinstance(n, Settled) for notes in read_notes(self._folder).values() for n in notes):
            self._fleet.look()
            assert time.monotonic() < end, f"nothing is settled: {self._fleet.troubles}"
            time.sleep(0.1)

    # -- what goes wrong

    def _rage(self) -> None:
        """Do things to the processes, and one at a time to the store, until time is over."""
        acts = self._chosen(self._ground.acts())
        hurts = self._chosen(self._hurts())
        end = time.monotonic() + self._plan.seconds
        next_act = next_hurt = time.monotonic()
        told = time.monotonic()
        rest = 0.0
        while (instant := time.monotonic()) < end:
            self._fleet.look()
            while self._heals and self._heals[0][0] <= instant:
                self._heal()
            if hurts and instant >= next_hurt:
                self._hurt(self._chance.choice(sorted(hurts)), hurts)
                next_hurt = time.monotonic() + self._chance.expovariate(1 / self._plan.gap_s)
            if acts and instant >= next_act and not self._store_is_ill:
                self._act(self._chance.choice(sorted(acts)), acts)
                rest = _BETWEEN_STORE_S + self._chance.expovariate(1 / self._plan.gap_s)
                next_act = time.monotonic() + rest
            if self._store_is_ill:
                next_act = time.monotonic() + rest  # once it is whole
            if instant - told >= 10:
                told = instant
                self._say(f"{end - instant:5.0f} s left; " + _counted(self._kinds()))
            time.sleep(0.02)

    def _chosen(self, acts: Mapping[str, Callable[..., object]]) -> Mapping[str, Callable[..., object]]:
        return {kind: act for kind, act in acts.items() if not self._plan.only or kind in self._plan.only}

    def _act(self, kind: str, acts: Mapping[str, object]) -> None:
        act: Act = acts[kind]  # type: ignore[assignment]
        began = now()
        try:
            ill = act(self._chance)
        except (OSError, LookupError, AssertionError) as error:
            self._troubles.append(f"{kind} could not be done: {error!r}")
            ill = Ill()
        if ill.seconds:
            self._store_is_ill = True
            self._later(ill.seconds, kind, began, "", ill)
        else:
            self._note(kind, began, "", ill)

    def _hurts(self) -> dict[str, Callable[[], tuple[str, Ill] | None]]:
        fleet = self._fleet

        def kill() -> tuple[str, Ill] | None:
            member = fleet.any(WORKER, WORKER, CLIENT)
            if member is None or member is self._flier:
                return None
            fleet.kill(member)
            return member.name, Ill()

        def stop() -> tuple[str, Ill] | None:
            member = fleet.any(WORKER, WORKER, CLIENT)
            if member is None:
                return None
            fleet.stop(member)
            return member.name, Ill(self._chance.uniform(0.5, 3) * LEASE_S, lambda: fleet.go_on(member))

        def deploy() -> tuple[str, Ill] | None:
            member = fleet.any(WORKER)
            if member is None:
                return None
            fleet.deploy(member)
            return member.name, Ill()

        def jump() -> tuple[str, Ill] | None:
            member = fleet.any(WORKER, CLIENT)
            if member is None:
                return None
            member.set_clock(self._chance.choice([-86_400, -3_600, -5, 5, 3_600, 86_400]))
            return member.name, Ill(self._chance.uniform(1, 6), lambda: member.set_clock(0))

        hurts = {"kill": kill, "stop": stop, "deploy": deploy, **({"clock": jump} if clocks_jump() else {})}
        return hurts | (self._hurts_of(self._memcached) if self._memcached else {})

    def _hurts_of(self, memcached: MemcachedServer) -> dict[str, Callable[[], tuple[str, Ill] | None]]:
        """What befalls the host tier, one thing at a time."""

        def befalls(do: Callable[[], Ill]) -> Callable[[], tuple[str, Ill] | None]:
            return lambda: None if any(of == HOST for *_, of, _ in self._heals) else (HOST, do())

        def kill() -> Ill:
            memcached.kill()
            return Ill(self._chance.uniform(0, 3), memcached.start)

        def pause() -> Ill:
            memcached.pause()
            return Ill(self._chance.uniform(0.5, 3), memcached.resume)

        def flush() -> Ill:
            memcached.flush()
            return Ill()

        return {"host-kill": befalls(kill), "host-pause": befalls(pause), "host-flush": befalls(flush)}

    def _hurt(self, kind: str, hurts: Mapping[str, object]) -> None:
        hurt: Callable[[], tuple[str, Ill] | None] = hurts[kind]  # type: ignore[assignment]
        began = now()
        done = hurt()
        if done is None:
            return
        name, ill = done
        if ill.seconds:
            self._later(ill.seconds, kind, began, name, ill)
        else:
            self._note(kind, began, name, ill)

    def _later(self, seconds: float, kind: str, began: int, of: str, ill: Ill) -> None:
        heappush(self._heals, (time.monotonic() + seconds, next(self._numbers), kind, began, of, ill))

    def _heal(self) -> None:
        _, _, kind, began, of, ill = heappop(self._heals)
        try:
            ill.heal()
        except (OSError, LookupError, AssertionError) as error:
            self._troubles.append(f"{kind} could not be undone: {error!r}")
        if not of:
            self._store_is_ill = False
        self._note(kind, began, of, ill)

    def _heal_all(self) -> None:
        while self._heals:
            self._heal()
        self._ground.heal()

    def _note(self, kind: str, began: int, of: str, ill: Ill) -> None:
        self._faults.append(
            Fault(kind=kind, began=began, ended=now(), of=of, loses=ill.loses, moves=ill.moves, forks=ill.forks)
        )

    def _kinds(self) -> Counter[str]:
        return Counter(fault.kind for fault in self._faults)

    # -- afterwards

    def _drain(self) -> tuple[dict[str, str], float]:
        """Wait until every job has ended, in a process of its own that reads everything once more at the end."""
        began = time.monotonic()
        asked = subprocess.Popen(
            [sys.executable, "-m", "chaos.drain", str(_DRAIN_S)],
            cwd=ROOT,
            env={**self._environment, "CHAOS_NAME": "drain", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
        )
        said = b""
        with asked:
            while asked.poll() is None and not said and time.monotonic() - began < _DRAIN_MOST_S:
                self._fleet.look()
                try:
                    said, _ = asked.communicate(timeout=1)
                except subprocess.TimeoutExpired:
                    continue
            asked.kill()
        if not said:
            self._troubles.append("the drain did not come to an end")
            return {}, time.monotonic() - began
        ends: dict[str, str] = msgspec.json.decode(said, type=dict[str, str])
        return ends, time.monotonic() - began

    def _outcome(self, rows: Ledger, airline: Airline, ends: dict[str, str], drained_s: float) -> Outcome:
        history = History(
            notes=read_notes(self._folder),
            commits=rows.commits(),
            faults=sorted(self._faults, key=lambda fault: fault.began),
            died=self._fleet.died,
            ends=ends,
            lossless=not self._plan.lossy,
        )
        (self._folder / "history.json").write_bytes(msgspec.json.encode(history))
        verdict = judge(history)
        verdict.violations += self._flown(airline, ends)
        troubles = self._troubles + self._fleet.troubles
        return Outcome(
            plan=self._plan,
            verdict=verdict,
            faults=dict(self._kinds()),
            processes=len(self._fleet.members),
            flights=sum(1 for job, state in ends.items() if job.startswith("fly-") and state == "succeeded"),
            recovery_s=recovery_s(history),
            drained_s=drained_s,
            troubles=troubles,
            left_out=self._ground.left_out + ([] if clocks_jump() else ["clock: no libfaketime on this machine"]),
            folder=str(self._folder),
        )

    def _flown(self, airline: Airline, ends: dict[str, str]) -> list[Violation]:
        """Compare the planes with one plain pass over the flights that were accepted."""
        if self._plan.lossy:
            return []
        flown = {job for job in ends if job.startswith("fly-")}
        right = right_answer([each for each in self._flights if f"fly-{each.tailnum}-{each.number}" in flown])
        wrong = differences(right, airline.flown_planes())
        violations = [
            Violation("G1", f"plane {plane.tailnum} should be {plane}, and is {found}") for plane, found in wrong
        ]
        if stale := airline.stale_reads():
            violations.append(
                Violation("G1", f"{stale} flights were shown a record older than their plane's last flight")
            )
        return violations


def recovery_s(history: History) -> float:
    """Return the longest time from the end of a fault to the next end of a job."""
    ends = sorted(n.got for notes in history.notes.values() for n in notes if isinstance(n, Settled) and not n.refused)
    longest = 0
    at = 0
    for fault in sorted(history.faults, key=lambda each: each.ended):
        while at < len(ends) and ends[at] < fault.ended:
            at += 1
        if at < len(ends):
            longest = max(longest, ends[at] - fault.ended)
    return longest / 1e9


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items())) or "nothing yet"
