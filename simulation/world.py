"""One world: processes, a store, a datastore and fate, from the first job to an end at which nothing may be left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec import Struct

from selaras import StoreUnavailable, UnknownJob
from selaras._app.process.process import Process
from selaras._cache.cache import Cache
from selaras._contracts.partition import CacheStats, JobFilter
from selaras._core.cache.events import CacheEvent, StaleRead
from selaras._core.cache.opening import open_name
from selaras._core.errors import LeaseLost
from selaras._core.events import SettleRefused, Trouble, WorkerEvent
from selaras._core.jobs.job import Attempt, Fate as JobFate, JobRecord
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.states import JobState
from selaras._core.positions import START, Cursor, Grown, News, Pushed, Scope
from selaras._core.routing import partition_of
from selaras._stores.memory import log as memory_log
from selaras._stores.memory.store import MemoryStore
from selaras._stores.sqlite import inspection, log as sqlite_log
from selaras._stores.sqlite.store import SqliteStore
from selaras._worker.exits import Exit
from simulation import actors
from simulation.loop import Step
from simulation.machine import Bells, SimulatedClock, chance_of, simulated_machine
from simulation.network import Fate, Linked, at_once
from simulation.plan import Fault, Plan
from simulation.program import declare
from simulation.promises import Broken
from simulation.shelf import OWNER, ShelfLink, SimulatedShelf
from simulation.stage import Actor, Stage
from simulation.truth import Datastore

ACTIVE_MOST_S: Final = 60.0
"""Faults stop after so long, however slowly jobs are enqueued."""

SETTLING_S: Final = 120.0
"""Within so long after faults have stopped everything accepted has ended: leases and graces, retries, and long lines."""

CALM_S: Final = 20.0
"""So long more nothing is asked for: whoever stood still goes on by then, and whatever was on its way has arrived."""

QUIET_S: Final = 55.0
"""After so long again nothing is left of anybody: intents stand half a minute, and are asked after as late."""

_LOOK_EVERY_S: Final = 1.0
_ASK_EVERY_NS: Final = 500_000_000
_LOG_TRIMMED: Final = 12
_NO_FLOOR: Final = "the store does not answer"
"""Why a read went to a late datastore without knowing how new it must be: nothing is promised of it then."""
_RECENT: Final = 4
_OPEN: Final = [state for state in JobState if state not in FINAL]
_LISTED_MOST: Final = 100_000
_REPLICA_LAG_S: Final = 0.3
_REFUSED: Final = (StoreUnavailable, LeaseLost)


class Result(Struct, frozen=True, kw_only=True):
    """What became of a world."""

    plan: Plan
    broken: str
    what: str
    jobs: int
    claims: int
    settles: int
    reads: int
    audits: int
    virtual_s: float
    steps: int
    faults: dict[str, int]
    digest: str
    trace: list[str]


class _Glass:
    def __init__(self, partitions: Any, *, sqlite: bool) -> None:
        self._partitions = partitions
        self._sqlite = sqlite

    def holds(self, job: str, fence: int) -> bool:
        fates = (at_once(one.fates([Attempt(job, fence)]))[0] for one in self._partitions)
        return any(fate is JobFate.RUNNING for fate in fates)

    def covers(self, key: str, job: str, fence: int) -> bool:
        home = partition_of(key, len(self._partitions))
        family, _, number = key.partition(":")
        names = [key, open_name(Scope.FAMILY, family, home)]
        if family == "item":
            names.append(open_name(Scope.TAG, f"shelf:{number}", home))
        intents = [one for name in names for one in at_once(self._partitions[home].intents(name))]
        return any(one.job == job and one.fence == fence for one in intents)

    def records(self, states: Sequence[JobState] = ()) -> dict[str, JobRecord]:
        which = JobFilter(states=tuple(states), limit=_LISTED_MOST)
        pages = [
            one._inspector.snapshot(lambda con: inspection.jobs(con, which))
            if self._sqlite
            else at_once(one.jobs(which))
            for one in self._partitions
        ]
        return {record.id: record for page in pages for record in page.jobs}

    def stats(self) -> list[CacheStats]:
        return [
            one._inspector.snapshot(lambda con, one=one: inspection.cache_stats(con, one._file))
            if self._sqlite
            else at_once(one.cache_stats())
            for one in self._partitions
        ]

    def instances(self) -> list[str]:
        return [instance.id for one in self._partitions for instance in at_once(one.instances())]

    def outboxes(self) -> int:
        return sum(len(at_once(one.outbox(10)).effects) for one in self._partitions)


class _SharedMemory(MemoryStore):
    """A memory store as a server: its bells are the world's."""

    def __init__(self, clock: SimulatedClock, partitions: int, entropy: Random, bells: Bells) -> None:
        self._world_bells = bells
        super().__init__(clock, partitions=partitions, entropy=entropy)

    def _ring(self, partition: int, address: str) -> None:
        self._world_bells.ring(partition, address)


class Node(Actor):
    """A simulated process: what becomes of it."""

    def __init__(self, world: World, role: str, number: int, generation: int) -> None:
        super().__init__(world, f"{role}-{number}" + (f".{generation}" if generation else ""))
        self.world = world
        self.role = role
        self.number = number
        self.generation = generation
        self.clock = SimulatedClock(world.loop)
        self.hints: list[Grown] = []
        self.cursor: Callable[[int], Cursor] = lambda _: START
        self.worker: Any = None
        self.cache: Cache | None = None
        self._crash, self._pause = self.rate("crash"), self.rate("pause")
        self._draw = self.chance.random
        self.fate = Fate(self.plan, self.chance, world.loop, self.lane, self.promises, self._at_call)
        self.fate.healed = world.healed
        self.program = declare(self)

    def start(self) -> None:
        """Begin to run."""
        self.trace.add("start", self.name)
        self.lane.begin(self._main())

    async def _main(self) -> None:
        world = self.world
        store = Linked(
            world.store_for(self),
            self.fate,
            world.loop,
            world.bells,
            self.promises,
            far=self.plan.store == "memory",
            is_up=world.is_up,
            hints=self.hints.append,
        )
        program = self.program.app.program
        program.registry.complete()
        process = Process(
            store,
            self.clock,
            chance_of(self.plan.seed, self.name, "entropy"),
            program.settings,
            program.registry,
            ShelfLink(world.shelf, world.loop, chance_of(self.plan.seed, self.name, "shelf"), self.strikes)
            if self.plan.shelf
            else None,
            OWNER,
        )
        self.cache = process.cache
        hear_audits(process.cache, self._audited)
        self.cursor = process.cache.cursor
        with program.processes.standing_in(process):
            await self._open(process)
            if self.role == "worker":
                if self.number < self.plan.readers:
                    self.lane.begin(actors.read(self))
                self.worker = self.program.app.worker(name=self.name, observer=self)
                code = await self.worker.run()
                self._left(code)
            elif self.role == "producer":
                await actors.produce(self, world.share(self))
            else:
                await {"reader": actors.read, "writer": actors.write, "locker": actors.lock}[self.role](self)
            await self.program.app.close()
        self.ended = True
        self.trace.add("end", self.name)
        self.lane.kill()

    async def _open(self, process: Process) -> None:
        while True:
            try:
                await process.open()
                return
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    def _left(self, code: Exit) -> None:
        self.trace.add("exit", self.name, code.name)
        if not self.leaving:
            self.promises.breaks("no trouble", f"{self.name} ended by itself: {code.name}")

    # -- an observer of its worker

    wants_attempts = False

    def heard(self, event: WorkerEvent) -> None:
        """See `Observer`."""
        if isinstance(event, Trouble):
            self.promises.breaks("no trouble", f"{self.name}: {event.where}: {event.error}")
        elif isinstance(event, SettleRefused):
            self.trace.add("refused", self.name, event.job, event.fence)

    def _audited(self, event: CacheEvent) -> None:
        if isinstance(event, StaleRead):
            self.promises.found_stale(self.name, event.found)

    # -- fate

    def strikes(self, fault: Fault) -> bool:
        """Say whether a fault that comes at its rate happens now."""
        rate = self.rate(fault)
        happens = bool(rate) and self._draw() < rate
        if happens:
            self.promises.happened(fault, self.lane)
        return happens

    def _at_call(self) -> None:
        dice = self._draw()
        if dice < self._crash:
            self.world.loop.outside_later(self._draw() * 0.001, self.crash)
        elif dice < self._crash + self._pause:
            self.world.loop.outside_later(self._draw() * 0.001, self.pause)

    def crash(self) -> None:
        """End between two steps, as by SIGKILL; another one takes the place."""
        if self.lane.dead or self.world.healed:
            return
        self.promises.happened("crash", self.lane)
        self.lane.kill()
        self.ended = True
        self.world.loop.outside_later(0.2 + self._draw() * 3, self.world.replace, self)

    def pause(self) -> None:
        """Stand still, as by SIGSTOP."""
        if self.lane.dead or self.world.healed:
            return
        self.promises.happened("pause", self.lane)
        self.freeze(self._draw() ** 2 * 5 * self.plan.lease_s, threads=True)

    def hint(self, partition: int, position: int, news: Callable[[Cursor], News] | None = None) -> None:
        """Be told of a log's growth. `news`: with what came after all that is applied here."""
        since = self.cursor(partition)
        events = news(since) if news is not None else News(since)
        pushed = Pushed(since, events) if events.events else None
        for told in self.hints:
            self.lane.main.push(
                Step(told, (partition, position, lambda: pushed), self.lane.context.copy(), self.lane.main)
            )

    def leave(self) -> None:
        """Be told to end in order, as by SIGTERM."""
        if self.worker is not None and not self.leaving and not self.lane.dead:
            self.leaving = True
            self.trace.add("sigterm", self.name)
            self.lane.main.push(Step(self.worker.stop, (), self.lane.context.copy(), self.lane.main))


class World(Stage):
    """One world, from its plan. `run` it once."""

    def __init__(self, plan: Plan, folder: Path, *, kept: int) -> None:
        super().__init__(plan, self._on_error, kept=kept)
        self.chance = chance_of(plan.seed, "fate")
        self.bells = Bells(self.loop, self._rings)
        self.shelf = SimulatedShelf()
        self.clock = SimulatedClock(self.loop)
        self.nodes: dict[tuple[str, int], Node] = {}
        self._all_nodes: list[Node] = []
        self._down_until_ns = 0
        self._path = folder / "store.db"
        self._memory: _SharedMemory | None = None

    # -- making

    def _furnish(self) -> None:
        plan = self.plan
        if plan.store == "memory":
            entropy = chance_of(plan.seed, "store")
            self._memory = _SharedMemory(self.clock, plan.partitions, entropy, self.bells)
            self._partitions: Any = self._memory.partitions
        else:
            store = SqliteStore(
                self._path, self.clock, partitions=plan.partitions, entropy=chance_of(plan.seed, "store")
            )
            for partition in store.partitions:
                partition.prepare()
            self._partitions = store.partitions
        self.glass = self._glass = _Glass(self._partitions, sqlite=plan.store == "sqlite")
        self.truth = Datastore(
            self.loop, chance_of(plan.seed, "datastore"), self._glass.covers, fenced=plan.fenced, lag_s=_REPLICA_LAG_S
        )
        self.promises.truth = self.truth
        for role, count in (
            ("worker", plan.workers),
            ("producer", plan.producers),
            ("reader", plan.readers),
            ("writer", plan.writers),
            ("locker", plan.lockers),
        ):
            for number in range(count):
                self._start(role, number, 0)

    def store_for(self, node: Node) -> Any:
        """Return the store as this process opens it."""
        if self._memory is not None:
            return self._memory
        entropy = chance_of(self.plan.seed, node.name, "store")
        return SqliteStore(self._path, node.clock, partitions=self.plan.partitions, entropy=entropy)

    def _start(self, role: str, number: int, generation: int) -> None:
        node = self.nodes[role, number] = Node(self, role, number, generation)
        self._all_nodes.append(node)
        node.start()

    def audits(self) -> int:
        """Count the audits that came to a judgement, in whatever process."""
        ledgers = [node.cache.audits for node in self._all_nodes if node.cache is not None]
        return sum(audits.judged for ledger in ledgers for audits in ledger.rows.values())

    def replace(self, node: Node) -> None:
        """Start another process in the place of one that ended."""
        if self.nodes[node.role, node.number] is node and node.ended:
            if node.role == "producer":
                self.produced()
            elif not self.closing or node.role == "worker":
                self._start(node.role, node.number, node.generation + 1)

    # -- what processes ask

    def share(self, node: Node) -> int:
        """Return how many jobs a producer makes."""
        return self.plan.jobs // self.plan.producers + (node.number < self.plan.jobs % self.plan.producers)

    def is_up(self) -> bool:
        """Say whether the store answers."""
        return self.loop.now_ns >= self._down_until_ns

    # -- fate

    def _rings(self) -> tuple[float, ...]:
        draw = self.chance.random
        if not self.healed and draw() < self.plan.rate("bells"):
            self.promises.faults["bells"] += 1
            return ((), (draw() * 2,), (0.0, draw()))[int(draw() * 3)]
        return (0.000_1,)

    def _begin_fate(self) -> None:
        plan = self.plan
        acts: dict[Fault, Callable[[], None]] = {
            "outage": self._outage,
            "evict": self._evict,
            "forget": self._forget,
            "wall": self._jump,
            "deploy": self._deploy,
            "cut": self._cut,
        }
        for fault, act in acts.items():
            rate = plan.rate(fault)
            if fault == "cut":
                rate *= 200
            if rate:
                self._again(rate, fault, act)
        if plan.rate("hints"):
            self._again(20 * plan.rate("hints"), "hints", self._hint)

    def _again(self, rate: float, fault: str, act: Callable[[], None]) -> None:
        def happen() -> None:
            if not self.healed:
                self.promises.happened(fault, None)
                act()
                self._again(rate, fault, act)

        self.loop.outside_later(self.chance.expovariate(rate), happen)

    def _outage(self) -> None:
        self._down_until_ns = self.loop.now_ns + round(self.chance.random() ** 2 * 4e9)

    def _evict(self) -> None:
        if self._memory is not None:
            entries = self.chance.choice(self._memory.partitions)._cells.entries
            if entries:
                del entries[self.chance.choice(list(entries))]

    def _forget(self) -> None:
        self.chance.choice(self._partitions).lose_memory(events=self.chance.choice([0, 1, 3, 20]))

    def _jump(self) -> None:
        node = self.chance.choice(list(self.nodes.values()))
        node.clock.offset_us = round(self.chance.uniform(-3.6e9, 3.6e9))
        if self.chance.random() < 0.2:  # the store's own time follows a wall forwards only (L8)
            self.clock.offset_us += round(self.chance.random() * 5e6)

    def _deploy(self) -> None:
        node = self.nodes["worker", self.chance.randrange(self.plan.workers)]
        node.leave()
        self.loop.outside_later(0.1, self._replace_when_gone, node)

    def _replace_when_gone(self, node: Node) -> None:
        if self.nodes[node.role, node.number] is not node:
            return
        if node.ended:
            self.replace(node)
        elif node.leaving:
            self.loop.outside_later(0.1, self._replace_when_gone, node)

    def _cut(self) -> None:
        node = self.chance.choice(list(self.nodes.values()))
        node.fate.cut_until_ns = self.loop.now_ns + round(self.chance.random() ** 2 * 4 * self.plan.lease_s * 1e9)

    def _hint(self) -> None:
        partition = self.chance.choice(self._partitions)
        node = self.chance.choice(list(self.nodes.values()))
        tail = partition.tail_now().position
        position = self.chance.choice([-1, tail, max(0, tail - 1), tail + 1])
        pushes = self.plan.store == "memory" and position == tail
        node.hint(partition.index, position, (lambda since: at_once(partition.events_since(since))) if pushes else None)

    def _heal(self) -> None:
        self.healed = True
        self.truth.healed = True
        self._down_until_ns = 0
        self.trace.add("heal", "")
        for node in self.nodes.values():
            node.fate.healed = True
            node.fate.cut_until_ns = 0
            if node.ended and node.role == "worker":
                self.loop.outside_later(0.0, self.replace, node)

    # -- the run

    def run(self) -> None:
        """Run to the end, or to the first promise that is broken."""
        self._furnish()
        self._begin_fate()
        self.loop.outside_later(_LOOK_EVERY_S, self._look)
        self._until(lambda: self.producing <= 0, ACTIVE_MOST_S)
        self._until(lambda: False, self.chance.random() * 3)
        self._heal()
        settled = self._until(self._all_ended, SETTLING_S)
        if not self._over and not settled:
            self.promises.breaks("ends", self._say_unended())
        self.closing = True
        self._until(lambda: False, CALM_S)
        self._until(lambda: not self._left(), QUIET_S)
        self._part()
        self._until(self._all_gone, 40)
        if not self._over:
            self._look_at_what_is_left()

    @property
    def _over(self) -> bool:
        return self.promises.broken is not None

    def _until(self, over: Callable[[], bool], seconds: float) -> bool:
        """Run until it is over, looking now and then, at most so long."""
        end_ns = self.loop.now_ns + round(seconds * 1e9)
        while not self._over and not over() and self.loop.now_ns < end_ns:
            until_ns = min(end_ns, self.loop.now_ns + _ASK_EVERY_NS)
            self.loop.run_until(until_ns)
        return over()

    def _look(self) -> None:
        self.promises.look(self._glass.records())
        if not self.closing:
            self.loop.outside_later(_LOOK_EVERY_S, self._look)

    def _all_ended(self) -> bool:
        return not unended(self._glass.records(_OPEN)) and not self._glass.outboxes()

    def _say_unended(self) -> str:
        waiting = unended(self._glass.records(_OPEN))
        told = ", ".join(f"{self.trace.name(one.id)} is {one.state.value} in line {one.line!r}" for one in waiting[:5])
        return f"{len(waiting)} jobs had not ended {SETTLING_S:g} s after the last fault: {told or 'effects wait'}"

    def _part(self) -> None:
        for node in self.nodes.values():
            node.leave()

    def _all_gone(self) -> bool:
        return all(node.ended for node in self.nodes.values())

    def _left(self) -> str:
        """Say what stays behind in the store; "" for nothing."""
        for index, stats in enumerate(self._glass.stats()):
            if stats.intents or stats.tokens:
                return f"{stats.intents} intents and {stats.tokens} tokens in partition {index}"
        if self._memory is not None:
            for partition in self._memory.partitions:
                rows = [row for row in partition._jobs.open.values() if row.state is not JobState.BLOCKED]
                if rows:
                    return f"{len(rows)} scopes, locks or jobs: {rows[0].new}"
        return ""

    def _look_at_what_is_left(self) -> None:
        staying = sorted(node.name for node in self.nodes.values() if not node.ended)
        if staying:
            self.promises.breaks("ends", f"{', '.join(staying)} did not end")
        instances = self._glass.instances()
        if instances:
            self.promises.breaks("nothing left", f"{len(instances)} owners of leases: {instances}")
        if left := self._left():
            self.promises.breaks("nothing left", left)
        self.promises.look(self._glass.records())

    def _on_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, _REFUSED):
            return
        message = str(context.get("message"))
        if "never retrieved" in message and isinstance(error, (Broken, UnknownJob)):
            return
        self.promises.breaks("no trouble", f"{message.partition(' at 0x')[0]}: {type(error).__name__}: {error}")


def unended(records: Mapping[str, JobRecord]) -> list[JobRecord]:
    """Return those that have yet to end: not those that wait for one that failed, nor those that wait for such a one."""
    waiting = [one for one in records.values() if one.state not in FINAL]
    stuck = {one.id for one in waiting if one.state is JobState.BLOCKED and one.stuck_on}
    while True:
        more = {
            one.id
            for one in waiting
            if one.id not in stuck
            and one.state is JobState.BLOCKED
            and any(parent.job in stuck for parent in one.parents)
        }
        if not more:
            return [one for one in waiting if one.id not in stuck]
        stuck |= more


def hear_audits(cache: Cache, told: Callable[[CacheEvent], None]) -> None:
    """Let what audits find be told here, too."""
    auditor: Any = cache._auditor
    tell = auditor._tell

    def both(event: CacheEvent) -> None:
        told(event)
        tell(event)

    auditor._tell = both


def run(plan: Plan, *, kept: int = 400) -> Result:
    """Run one world."""
    with tempfile.TemporaryDirectory(prefix="simulation-") as folder:
        world = World(plan, Path(folder), kept=kept)
        with simulated_machine(world.bells), _small_log(plan), _silence():
            began_ns = world.loop.now_ns
            try:
                world.run()
            finally:
                virtual_s = (world.loop.now_ns - began_ns) / 1e9
                result = _result_of(world, virtual_s)
                world.loop.shut()
    return result


def _result_of(world: World, virtual_s: float) -> Result:
    promises = world.promises
    return Result(
        plan=world.plan,
        broken=promises.broken.promise if promises.broken else "",
        what=promises.broken.what if promises.broken else "",
        jobs=len(promises.accepted),
        claims=promises.claims,
        settles=promises.settles,
        reads=promises.reads,
        audits=world.audits(),
        virtual_s=virtual_s,
        steps=world.loop.steps,
        faults=dict(Counter(promises.faults)),
        digest=world.trace.digest,
        trace=world.trace.lines(),
    )


@contextmanager
def _small_log(plan: Plan) -> Generator[None]:
    """Let logs be trimmed early, if that is one of the faults."""
    logs: tuple[Any, ...] = (memory_log, sqlite_log)
    before = [log.LOG_LENGTH for log in logs]
    if plan.rate("trim"):
        for log in logs:
            log.LOG_LENGTH = _LOG_TRIMMED
    try:
        yield
    finally:
        for log, length in zip(logs, before, strict=True):
            log.LOG_LENGTH = length


@contextmanager
def _silence() -> Generator[None]:
    """What the product logs is told by the world itself."""
    log = logging.getLogger("selaras")
    was, log.disabled = log.disabled, True
    with contextlib.suppress(AttributeError):
        pass
    try:
        yield
    finally:
        log.disabled = was
