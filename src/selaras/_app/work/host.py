"""The program as a worker sees it. See `Host`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from msgspec.structs import replace

from selaras._app.declared.specs import NO_PLACES, TaskSpec
from selaras._app.jobs.meta import NO_META, Meta, decode_meta
from selaras._app.jobs.placing import Placed, needs_names, reserve, retire
from selaras._app.process.elsewhere import has_effects_elsewhere, tell_elsewhere
from selaras._app.process.once import own
from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._app.process.relaying import relay
from selaras._app.values.tags import doubt_tag, name_of_tag
from selaras._app.work.running import AttemptRun
from selaras._cache.family import Slot
from selaras._cache.lineage import Lineage, Watch
from selaras._cache.session import Session, SessionKind
from selaras._contracts.host import Mode, Run, Stop
from selaras._contracts.limits import UNROUTABLE_US
from selaras._contracts.partition import Instance, Owner, Waiting
from selaras._core.cache.lineage import What
from selaras._core.cache.opening import OPENING, Opening, opened_by
from selaras._core.codec import CorruptBytes
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import Claim, JobRecord, NewJob, Settled, Settlement
from selaras._core.jobs.lifecycle import FINAL
from selaras._core.jobs.outcome import End, Failed, Misfit, Raised, Unreadable, settlement_of
from selaras._core.jobs.retry import Policy
from selaras._core.positions import Cursor, News, Scope
from selaras._core.routing import home_of, partition_of
from selaras._core.signature import Arguments, Unbindable

_log = logging.getLogger("selaras")

_STRAYS_TOLD: Final = 3
"""Reasons why jobs of a task cannot run here that are told; what does not fit may differ from job to job."""

_STRAY_LEAST_US: Final = 1_000_000
_STRAY_MOST_US: Final = 60_000_000
"""A job that this program cannot run rests as long as it has been resting, within these bounds: so it doubles."""


class AppHost:
    """Binds claims to tasks, and tells the cache what the worker hears."""

    def __init__(self, program: Program, process: Process) -> None:
        program.registry.complete()
        self._program = program
        self._process = process
        self._cache = process.cache
        self._tasks = dict(program.registry.tasks)
        for spec in self._tasks.values():
            for plan in spec.opens:
                if plan.scope is Scope.TAG:
                    doubt_tag(program, plan.name)
        self._instance = ""
        self._sent_ns = [0] * process.partitions
        self._progress: list[dict[tuple[str, int], bytes]] = [{} for _ in range(process.partitions)]
        self._strays: dict[str, set[str]] = {}  # task → why its jobs cannot run here, as was told
        self._begun: set[str] = set()  # keys begun to be brought ahead, as long as who will read them is in sight
        self._replaces: dict[str, Placed] = {}  # twins to be cancelled once the children that replace them are there
        self.tasks: Mapping[str, Mode] = {name: spec.mode for name, spec in self._tasks.items()}
        in_processes = Mode.PROCESS in self.tasks.values()
        self.servant: tuple[str, ...] = (
            ("selaras._app.servant:make_servant", program.reference()) if in_processes else ()
        )

    # -- news

    def since(self, partition: int) -> Cursor:
        """See `Host`."""
        return self._process.since(partition)

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """See `Host`."""
        self._sent_ns[partition] = sent_ns
        self._cache.heard(partition, news, sent_ns)

    def enrolled(self, instance: Instance) -> None:
        """See `Host`."""
        self._instance = instance.id

    # -- before a body

    def function_of(self, task: str) -> Callable[..., Any]:
        """Return the bare function of a task it knows."""
        return self._tasks[task].function

    def prepare(
        self,
        claim: Claim,
        partition: int,
        received_ns: int,
        *,
        instance: str | None = None,
        asked_ns: int | None = None,
    ) -> AttemptRun | Settlement:
        """See `Host`. `instance`, `asked_ns`: the owner of the claim and when it asked for it, if it is another process's."""
        spec = self._tasks.get(claim.task)
        if spec is None:
            return self._misfit(claim, f"this worker knows no task {claim.task!r}")
        try:
            meta = decode_meta(claim.meta) if claim.meta else NO_META
            arguments = _decode(spec, claim, meta)
        except Unbindable as error:
            return self._misfit(claim, f"the arguments do not fit task {claim.task!r} as this worker knows it: {error}")
        except _StepMismatch as error:
            end = Failed(Failure("TypeError", str(error)), final=True)
            return settlement_of(claim, end, spec.policy, self._process.entropy)
        except ValueError as error:
            return settlement_of(claim, Unreadable(str(error)), spec.policy, self._process.entropy)
        except Exception as error:  # noqa: BLE001 - types of the program's own are made here, and may raise anything
            return settlement_of(claim, Raised(error), spec.policy, self._process.entropy)
        try:
            return self._run_of(spec, claim, partition, received_ns, arguments, meta, instance, asked_ns)
        except Exception as error:  # noqa: BLE001 - keys are made of the program's own values
            return settlement_of(claim, Raised(error), spec.policy, self._process.entropy)

    def _run_of(
        self,
        spec: TaskSpec,
        claim: Claim,
        partition: int,
        received_ns: int,
        arguments: Arguments,
        meta: Meta,
        instance: str | None,
        asked_ns: int | None,
    ) -> AttemptRun:
        session = Session(
            SessionKind.JOB,
            received_ns,
            partition,
            claim.position,
            self._instance if instance is None else instance,
            Owner(partition, claim.job, claim.fence),
            asked_ns=self._sent_ns[partition] if asked_ns is None else asked_ns,
        )
        lineage = self._cache.lineage
        if lineage is not None and (claim.writes or received_ns >= lineage.full_until_ns):
            self._begin_lineage(lineage, claim, session)
        places = NO_PLACES
        if spec.reads_first or claim.writes or claim.serves:
            places = spec.places(arguments, self._process.partitions)
            if claim.writes or claim.serves:
                _own(session, claim, places.written)
                session.late = self._cache.closing(session.opens) if session.opens else {}
                self._cache.warming.writes(session)
        policy = spec.policy if meta is NO_META else _policy(spec.policy, meta)
        return AttemptRun(
            self._program,
            self._process,
            spec,
            claim,
            partition,
            arguments,
            policy,
            spec.mode,
            policy.timeout_us,
            session,
            places.reads,
            places.warms,
            meta.headers,
            self._report,
        )

    def _begin_lineage(self, lineage: Lineage, claim: Claim, session: Session) -> None:
        lineage.watch(session)
        session.task = claim.task
        for key in claim.writes:
            lineage.note(What.PLANTED, key, job=claim.job, task=claim.task, position=claim.position)

    def end_lineage(self, run: AttemptRun) -> None:
        """Its body has ended: what it read is noted, if it was watched."""
        watcher, lineage = run.session.watcher, self._cache.lineage
        if isinstance(watcher, Watch) and lineage is not None:
            lineage.ended(watcher, run.claim.job, run.claim.task)

    def must_wait(self, runs: Sequence[Run]) -> bool:
        """See `Host`."""
        holds = self._cache.warming.holds
        return any(_is_ours(run) and (run.claim.elsewhere or (run.warms and not holds(run.warms))) for run in runs)

    async def ready_for(self, runs: Sequence[Run]) -> None:
        """See `Host`."""
        ours = [run for run in runs if _is_ours(run)]
        for run in ours:
            if run.claim.elsewhere:
                await self._plant_elsewhere(run)
        # What runs in a child process is read there.
        reading = [run for run in ours if run.warms and run.stopping is None and run.mode is not Mode.PROCESS]
        slots = {slot.key: slot for run in reading for slot in run.warms}
        if slots:
            await self._cache.warming.warm(list(slots.values()), [run.session for run in reading])

    def ahead(self, waiting: Sequence[Waiting], most: int) -> None:
        """See `Host`."""
        slots = {slot.key: slot for slot in self._read_by(waiting)}
        new = [slot for key, slot in slots.items() if key not in self._begun]
        begun = self._cache.warming.ahead(new, most)
        # Each once while it is in sight: what fails, or cannot be kept here, is left to the attempt.
        self._begun = {key for key in self._begun if key in slots} | begun

    def _read_by(self, waiting: Sequence[Waiting]) -> Iterator[Slot]:
        """Tell what waiting jobs will read, but for what they write, or those before them."""
        written = set[str]()
        opened = set[Opening]()
        for one in waiting:
            written.update(one.writes, one.serves)
            opened |= {what for key in one.writes if key[:1] == OPENING and (what := opened_by(key)) is not None}
            spec = self._tasks.get(one.task)
            if spec is None or not spec.reads_first:
                continue
            try:
                arguments = _decode(spec, one, decode_meta(one.meta) if one.meta else NO_META)
                warms = spec.places(arguments, self._process.partitions).warms
            except Exception:  # noqa: BLE001, S112 - whoever claims it meets the same error, and tells
                continue
            for slot in warms:
                if slot.key not in written and not any(self._may_bear(slot, what) for what in opened):
                    yield slot

    def _may_bear(self, slot: Slot, what: Opening) -> bool:
        scope, name = what
        if scope is Scope.FAMILY:
            return slot.family.name == name
        names = self._program.registry.families[slot.family.name].tag_names
        return names is None or name_of_tag(name) in names

    async def _plant_elsewhere(self, run: AttemptRun) -> None:
        by_partition: dict[int, list[str]] = {}
        for key in run.claim.elsewhere:
            by_partition.setdefault(partition_of(key, self._process.partitions), []).append(key)
        owner = run.session.owner
        assert owner is not None, "an attempt owns its intents"
        for index, keys in by_partition.items():
            sent_ns = self._process.clock.instant_ns()
            planted = await self._process.store.partitions[index].plant(
                run.session.instance, owner, keys, self.since(index)
            )
            self._process.heard(index, planted.news, sent_ns)
            if planted.refusal is not None:
                run.stopping = Stop.LOST  # a later attempt stands there already

    # -- after a body

    def has_effects_elsewhere(self, settlement: Settlement, partition: int) -> bool:
        """See `Host`."""
        if settlement.children and any(needs_names(self._process, child) for child in settlement.children):
            return True
        return has_effects_elsewhere(self._process, settlement, partition)

    async def before_settle(self, settlement: Settlement, partition: int) -> Settlement:
        """See `Host`."""
        if settlement.children:
            children = [child for child in settlement.children if await self._may_come(child)]
            settlement = replace(settlement, children=tuple(children))
        await tell_elsewhere(self._process, settlement, partition)
        return settlement

    async def _may_come(self, child: NewJob) -> bool:
        """Take the names of a child; one that has a twin already is not enqueued (P22)."""
        if not needs_names(self._process, child):
            return True
        names = await reserve(self._process, child, home_of(child, self._process.partitions))
        if names.replaces is not None:
            self._replaces[child.id] = names.replaces
        return names.twin is None

    def settled(self, run: Run | None, settlement: Settlement, settled: Settled, partition: int) -> None:
        """See `Host`."""
        if run is not None and _is_ours(run) and run.session.watcher is not None:
            self.end_lineage(run)
        if run is not None and _is_ours(run) and (run.session.own or run.session.serves):
            self._cache.settles.heard(run.session, settled, partition=partition, sent_ns=self._sent_ns[partition])
        for child in settled.children:
            twin = self._replaces.pop(child.id, None) if self._replaces else None
            if twin is not None and child.refusal is None:
                own(retire(self._process, twin, child.id))
            if child.refusal is not None:
                _log.error("job %s, enqueued by job %s, was refused: %s", child.id, settled.job, child.refusal.value)
        if settled.state in FINAL:
            self._process.ends.ended(settled.job)

    def progress(self, partition: int) -> tuple[tuple[str, int, bytes], ...]:
        """See `Host`."""
        reported = self._progress[partition]
        if not reported:
            return ()
        self._progress[partition] = {}
        return tuple((job, fence, data) for (job, fence), data in reported.items())

    async def relay(self) -> bool:
        """See `Host`."""
        return await relay(self._process.store)

    # -- inside

    def _report(self, run: AttemptRun, data: bytes) -> None:
        self._progress[run.partition][run.claim.job, run.claim.fence] = data

    def _misfit(self, claim: Claim, reason: str) -> Settlement:
        """Give a job back that this program cannot run; after an hour of that it is a dead letter (BR-090)."""
        strayed_us = self._process.clock.wall_us() - claim.strayed_us if claim.strayed_us else 0
        delay_us = min(max(strayed_us, _STRAY_LEAST_US), _STRAY_MOST_US)
        end: End = Misfit(reason)
        told = self._strays.setdefault(claim.task, set())
        if reason not in told and len(told) < _STRAYS_TOLD:
            told.add(reason)
            _log.warning(
                "task %r: jobs that this worker cannot run are given back, job %s the first: %s",
                claim.task,
                claim.job,
                reason,
            )
        if strayed_us >= UNROUTABLE_US:
            end = Failed(Failure("Unroutable", f"unroutable: {reason}"), final=True)
            _log.error("job %s of task %r is unroutable: %s", claim.job, claim.task, reason)
        return settlement_of(claim, end, Policy(stray_delay_us=delay_us), self._process.entropy)


def _is_ours(run: Run) -> TypeGuard[AttemptRun]:
    return isinstance(run, AttemptRun)


def _decode(spec: TaskSpec, claim: Claim | Waiting, meta: Meta) -> Arguments:
    if not meta.follows:
        return spec.signature.decode(claim.payload)
    rest = spec.rest.decode(claim.payload)
    if claim.input is None:
        raise CorruptBytes("the value of the step before is missing")
    try:
        value = spec.first.adopt(claim.input)
    except CorruptBytes as error:
        raise _StepMismatch(
            f"the value of the step before does not fit {spec.signature.parameters[0]!r}, the first parameter of task "
            f"{spec.name!r}: {error.__cause__ or error}"
        ) from error
    return spec.signature.with_first(value, rest)


def fits(spec: TaskSpec, job: JobRecord) -> bool:
    """Say whether a job's arguments fit a task; of one whose bytes or values are bad its own attempt will tell."""
    try:
        meta = decode_meta(job.meta) if job.meta else NO_META
        (spec.rest if meta.follows else spec.signature).decode(job.payload)
    except Unbindable:
        return False
    except Exception:  # noqa: BLE001 - types of the program's own are made here, and may raise anything
        return True
    return True


class _StepMismatch(Exception):
    """The value of the step before is nothing that the first parameter takes."""


def _own(session: Session, claim: Claim, written: Mapping[str, Slot]) -> None:
    """Tell the session what its attempt writes. The claim's word counts: this program may key it differently by now."""
    for key in claim.writes:
        session.own[key] = written.get(key)
        if key[:1] == OPENING:
            session.opens |= {what for what in (opened_by(key),) if what is not None}
    for key in claim.serves:
        session.serves[key] = written.get(key)
    if claim.preimages:
        session.preimages.update(claim.preimages)


def _policy(policy: Policy, meta: Meta) -> Policy:
    if meta.retries is not None:
        policy = replace(policy, retries=meta.retries)
    if meta.timeout_us is not None:
        policy = replace(policy, timeout_us=meta.timeout_us)
    return policy
