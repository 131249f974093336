"""What is measured of a peer: each a new store, new processes, and some numbers."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.bodies import ENDED, RAN
from benchmarks.peers.environment import ROOT, Environment, Unusable
from benchmarks.peers.lookups import make_datastore
from benchmarks.peers.peer import Peer
from benchmarks.peers.processes import Group, last_line, running, until
from benchmarks.peers.servers import Postgres, Redis, far_from, postgres_binary
from benchmarks.peers.staleness import staleness

Numbers = dict[str, float]

START_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 8.0
"""A drain that takes longer is judged by what it has done."""
AFTERWARDS_SECONDS: Final = 0.3
"""For what a worker has still to tell its store when the last body has ended."""
WATCHERS: Final = 8
_LEASE_SECONDS: Final = 2.0
_SETTLE_IN_SECONDS: Final = 4.0
_CONNECTED_SECONDS: Final = 6.0
"""By then a worker of ours has all its connections: that of its lease is made for the first heartbeat."""


class Stage:
    """What all measurements share: the servers, the ledgers, the size of a round.

    Attributes:
        scale: 1, or less for a first look.
        folder: in memory; the ledgers and the rows that are looked up.
        disk: where a store that is a file lies, and logs.
        lock: held while something is measured, where others measure on this machine, too.
    """

    def __init__(
        self,
        *,
        redis: Redis | None,
        postgres: Postgres | None,
        scale: float,
        folder: Path,
        disk: Path,
        lock: Path | None,
    ) -> None:
        self.redis, self.postgres = redis, postgres
        self.scale, self.folder, self.disk, self.lock = scale, folder, disk, lock

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock."""
        with ExitStack() as stack:
            if self.lock:
                fcntl.flock(stack.enter_context(self.lock.open("ab")), fcntl.LOCK_EX)
            yield


class Subject:
    """A peer on the stage."""

    def __init__(self, peer: Peer, environment: Environment, stage: Stage) -> None:
        self._peer, self._environment, self._stage = peer, environment, stage
        self._ledger, self._reads = stage.folder / "ran", stage.folder / "saw"
        self._datastore = stage.folder / "rows.db"
        self._round = 0

    def measure(self, row: str, number: int) -> Numbers:
        """Measure one row's numbers, in round `number`; {} where the peer has no such thing.

        Raises:
            Unusable: why the peer can't be measured.
        """
        self._round = number
        name, _, cache = row.partition(":")
        if name == "far" and self._peer.store == "sqlite":
            return {}
        self._reset()
        try:
            return self._lookup(cache) if name == "lookup" else _MEASURES[name](self)
        except subprocess.TimeoutExpired as error:
            raise Unusable(f"took longer than {error.timeout:.0f} s") from error

    # -- rows

    def enqueue_one(self) -> Numbers:
        """One by one, each awaited."""
        return self._produce("noop", min(10_000, self._jobs()), "one")

    def enqueue_tasks(self) -> Numbers:
        """From 100 tasks at once."""
        return self._produce("noop", min(20_000, self._jobs()), "tasks")

    def enqueue_batch(self) -> Numbers:
        """A thousand at a time, if the peer has batches; and what a waiting job takes in Redis."""
        redis, jobs = self._stage.redis, self._jobs()
        before = redis.used_bytes() if redis else 0
        numbers = self._produce("noop", jobs, "batch")
        if not numbers:
            self._produce("noop", jobs, "fill")
        if redis and self._peer.store == "redis":
            numbers["waiting_bytes"] = (redis.used_bytes() - before) / jobs
        return numbers

    def drain(self, workers: int = 1, *, load: str = "noop", port: int = 0) -> Numbers:
        """Run jobs that wait already, with new workers: from the first body to the last."""
        count = self._jobs()
        if load == "io":
            count = min(count, 5_000)
        self._produce(load, count, "fill")
        return self._drained(load, count, workers, port=port)

    def far(self) -> Numbers:
        """The same with the store 2 ms away."""
        server = self._stage.postgres if self._peer.store == "postgresql" else self._stage.redis
        assert server
        with far_from(server.port) as port:
            return self.drain(port=port)

    def wait(self) -> Numbers:
        """An idle worker: what it asks of its store, and how soon it begins a job."""
        with running([self._worker("noop", 0)]) as (worker,):
            self._produce("noop", 1, "one")
            self._first(worker, 1)
            time.sleep(_CONNECTED_SECONDS)
            seconds = 2 + 8 * self._stage.scale
            idle: Numbers = {}
            if self._stage.redis and self._peer.store == "redis":
                before = self._stage.redis.counted()["trips"]
                time.sleep(seconds)
                trips = self._stage.redis.counted()["trips"] - before
                idle = {"idle_trips": max(0.0, trips - 3) / seconds}  # three are the counting's own
            return {**idle, **self._side("wait", str(max(50, int(300 * self._stage.scale))), str(self._round))}

    def zombie(self) -> Numbers:
        """A job that blocks its worker for four leases, beside an idle worker: how often it runs, and ends."""
        lease = self._peer.lease or _LEASE_SECONDS
        block = max(4 * _LEASE_SECONDS, lease + 3 * _LEASE_SECONDS)
        self._zombie = {"PEERS_LEASE": str(self._peer.lease or 0), "PEERS_BLOCK": str(block)}
        try:
            with running([self._worker("zombie", number) for number in range(2)]) as workers:
                time.sleep(_SETTLE_IN_SECONDS)
                self._side("produce", "zombie", "1", "one", load="zombie")
                self._first(workers[0], 1)
                time.sleep(2 * block + lease + _LEASE_SECONDS)
                refused = sum(worker.said().count("was refused, its lease had been lost") for worker in workers)
        finally:
            self._zombie = {}
        noted = [number for _, number, _ in RAN.iter_unpack(self._ledger.read_bytes())]
        ends = sum(1 for number in noted if number >= ENDED)
        runs = len(noted) - ends
        return {"lease": self._peer.lease, "runs": runs, "ends": ends - refused}

    def heard(self) -> Numbers:
        """How soon eight processes know that a value is void, and beside it the same made by hand. Ours only: the others
        have no cache.
        """
        if not self._peer.ours:
            return {}
        numbers: Numbers = {}
        for how in ("selaras", "bare") if self._peer.store == "redis" else ("selaras",):
            self._reset()
            (self._stage.folder / "version").write_bytes(bytes(8))
            count = str(max(30, int(200 * self._stage.scale)))
            watchers = [
                self._group("benchmarks.peers.heard", how, "watch", number=number) for number in range(WATCHERS)
            ]
            with running(watchers):
                for watcher in watchers:
                    self._first(watcher, 2 * WATCHERS)
                numbers |= self._said("benchmarks.peers.heard", how, "tell", count, str(WATCHERS))
        return numbers

    def _lookup(self, cache: str) -> Numbers:
        if not self._peer.waits or (cache == "selaras") > self._peer.ours:
            return {}
        if self._peer.ours and cache not in {"selaras", "none"}:
            return {}
        self._cache = cache
        make_datastore(self._datastore)
        count = min(30_000, 3 * self._jobs())
        self._produce("lookup", count, "fill")
        return {**self._drained("lookup", count, workers=2), **staleness(self._reads)}

    # -- how

    _cache = "none"
    _zombie: Mapping[str, str] = {}

    def _jobs(self) -> int:
        return max(200, int(self._peer.jobs * self._stage.scale))

    def _reset(self) -> None:
        stage = self._stage
        if stage.redis:
            stage.redis.empty()
        self._ledger.write_bytes(b"")
        self._reads.write_bytes(b"")
        match self._peer.store:
            case "redis" if not stage.redis:
                raise Unusable("there is no Redis")
            case "postgresql":
                if not stage.postgres:
                    raise Unusable("there is no PostgreSQL")
                stage.postgres.empty(postgres_binary("psql"))
                self._side("install")
            case "sqlite":
                for file in stage.disk.glob("jobs.db*"):
                    file.unlink()
            case _:
                pass

    def _variables(self, load: str, number: int, port: int) -> Mapping[str, str]:
        redis, postgres = self._stage.redis, self._stage.postgres
        urls = {
            "redis": redis.url(port) if redis else "",
            "postgresql": postgres.url(port) if postgres else "",
            "sqlite": f"sqlite:///{self._stage.disk / 'jobs.db'}",
        }
        ours = {
            "PYTHONPATH": str(ROOT),
            "PEERS_URL": urls[self._peer.store],
            "PEERS_LOAD": load,
            "PEERS_WAITS": str(int(self._peer.waits)),
            "PEERS_WORKER": str(number),
            "PEERS_LEDGER": str(self._ledger),
            "PEERS_SEED": str(self._round),
            "PEERS_CACHE": self._cache,
            "PEERS_CACHE_URL": redis.url(database=1) if redis else "",
            "PEERS_DATASTORE": str(self._datastore),
            "PEERS_READS": str(self._reads),
            "PEERS_VERSION": str(self._stage.folder / "version"),
            **self._zombie,
        }
        # Bytecode is kept: a worker that compiles its packages at every start is nobody's worker.
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | ours

    def _group(self, module: str, *arguments: str, load: str = "", number: int = 0, port: int = 0) -> Group:
        log = self._stage.disk / f"{self._peer.name}-{number}.log"
        log.write_bytes(b"")
        command = [self._environment.python, "-m", module, *arguments]
        return Group(command, log, environment=self._variables(load, number, port))

    def _worker(self, load: str, number: int, port: int = 0) -> Group:
        return self._group("benchmarks.peers.side", self._peer.name, "work", load, load=load, number=number, port=port)

    def _side(self, *arguments: str, load: str = "") -> Numbers:
        return self._said("benchmarks.peers.side", self._peer.name, *arguments, load=load)

    def _said(self, module: str, *arguments: str, load: str = "") -> Numbers:
        command = [self._environment.python, "-m", module, *arguments]
        done = subprocess.run(
            command,
            env=self._variables(load, 0, 0),
            cwd=self._stage.disk,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise Unusable(last_line(done.stderr))
        numbers: Numbers = json.loads(done.stdout.splitlines()[-1])
        return numbers

    def _produce(self, load: str, count: int, how: str) -> Numbers:
        numbers = self._side("produce", load, str(count), how, load=load)
        return numbers if "per_second" in numbers else {}

    def _done(self) -> int:
        return self._ledger.stat().st_size // RAN.size

    def _first(self, worker: Group, jobs: int) -> None:
        if not until(lambda: self._done() >= jobs or worker.ended, seconds=START_SECONDS):
            raise Unusable(f"no job ran within {START_SECONDS:.0f} s. {worker.last_words()}")
        if worker.ended:
            raise Unusable(f"its worker ended: {worker.last_words()}")

    def _drained(self, load: str, count: int, workers: int, *, port: int = 0) -> Numbers:
        redis = self._stage.redis
        before = redis.counted() if redis else {}
        with running([self._worker(load, number, port) for number in range(workers)]) as groups:
            self._first(groups[0], 1)
            cpu, first = sum(group.cpu_seconds() for group in groups), self._done()
            until(lambda: self._done() >= count or any(group.ended for group in groups), seconds=DRAIN_SECONDS)
            cpu, done = sum(group.cpu_seconds() for group in groups) - cpu, self._done()
            time.sleep(AFTERWARDS_SECONDS)
            memory = sum(group.memory_mb() for group in groups) / workers
            after, counted = redis.counted() if redis else {}, self._done()
            for group in groups:
                if group.ended:
                    raise Unusable(f"its worker ended: {group.last_words()}")
        numbers = {"worker_cpu_us": cpu / max(1, done - first) * 1e6, "memory_mb": memory}
        if redis and (self._peer.store == "redis" or load == "lookup"):
            numbers |= {name: (value - before[name]) / counted for name, value in after.items()}
        return {**numbers, **self._rate(count, workers, finished=done >= count)}

    def _rate(self, count: int, workers: int, *, finished: bool) -> Numbers:
        whole = self._ledger.read_bytes()
        records = sorted(RAN.iter_unpack(whole[: len(whole) // RAN.size * RAN.size]))
        first: dict[int, int] = {}
        for at, _, worker in records:
            first.setdefault(worker, at)
        if len(first) < workers:
            raise Unusable(f"only {len(first)} of {workers} workers got a job")
        began, ended = max(first.values()), records[-1][0]
        ran = sum(1 for at, _, _ in records if at > began)
        if ended == began:
            raise Unusable(f"{len(records)} jobs ran, which is too few to tell")
        different = len({number for _, number, _ in records})
        return {
            "per_second": ran / (ended - began) * 1e9,
            "seconds": (ended - began) / 1e9,
            "twice": len(records) - different,
            "missing": count - different if finished else 0,
        }


_MEASURES: Final[dict[str, Callable[[Subject], Numbers]]] = {
    "enqueue": Subject.enqueue_one,
    "tasks": Subject.enqueue_tasks,
    "batch": Subject.enqueue_batch,
    "drain": Subject.drain,
    "two": lambda subject: subject.drain(2),
    "far": Subject.far,
    "io": lambda subject: subject.drain(load="io"),
    "wait": Subject.wait,
    "heard": Subject.heard,
    "zombie": Subject.zombie,
}

LOOKUPS: Final = ("none", "dict", "redis", "cashews", "tracked", "selaras")
ROWS: Final = (*_MEASURES, *[f"lookup:{cache}" for cache in LOOKUPS])
