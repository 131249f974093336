"""Where a job goes, and how it gets there: its partition, its names elsewhere (P22), its scope."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from selaras._app.declared.specs import TaskSpec
from selaras._app.jobs.meta import Meta, decode_meta, encode_meta
from selaras._app.jobs.options import NO_OPTIONS, Options
from selaras._app.process.middleware import Message, Middleware
from selaras._app.process.process import Process, looks_generated
from selaras._app.process.program import Program
from selaras._app.process.relaying import relay
from selaras._app.setup.checks import is_text
from selaras._app.setup.settings import UNBOUNDED
from selaras._cache.session import Session, SessionKind, session_here
from selaras._contracts.partition import FreeUnique, Owner
from selaras._core.cache.key import checked_name
from selaras._core.errors import ConfigurationError, IdConflict, NotEncodable, SelarasError, StoreUnavailable
from selaras._core.jobs.job import Admission, Edge, JobRecord, NewJob, OnConflict, Parent, Refusal, UniqueUntil
from selaras._core.jobs.lifecycle import FINAL, WAITING
from selaras._core.jobs.states import JobState
from selaras._core.routing import home_of, id_entry, partition_of
from selaras._core.signature import Arguments, Signature

_log = logging.getLogger("selaras")

_RESERVED_S: Final = 30.0
"""How long a name stays reserved for a job that is not there yet: its producer may be slow, or paused."""
_LOOK_LEAST_S: Final = 0.02
_LOOK_MOST_S: Final = 0.25
_GROWTH: Final = 1.5
_RETIRE_TRIES: Final = 4

Proceed: TypeAlias = Callable[[Message], Awaitable[Admission]]


class Planned(Struct, eq=False, gc=False):
    """A job to be: its task, arguments and options, the step of the same batch that it follows, and its payload if that was
    encoded before.
    """

    spec: TaskSpec
    arguments: Arguments
    options: Options
    follows: Planned | None
    payload: bytes = b""
    parents: Sequence[Parent] = ()
    id: str = ""
    home: int = 0


class Placed(Struct, frozen=True, gc=False):
    """What became of it. `held`: the scope whose success it waits for."""

    id: str
    home: int
    state: JobState = JobState.BLOCKED
    created: bool = True
    replaced: bool = False
    held: Session | None = None
    refusal: Refusal | None = None


async def place(program: Program, planned: Sequence[Planned]) -> list[Placed]:
    """Enqueue jobs, or leave them with the scope that is open here. Returns what became of each, in order.

    Raises:
        IdConflict: naming the first; the others were enqueued.
        StoreUnavailable: nothing was enqueued in at least one partition.
    """
    process = program.process()
    if not process.opened:
        await process.open()
    session = session_here()
    scope = session.scope() if session is not None else None
    placed: list[Placed] = []
    for wave in _waves(planned):
        jobs: list[NewJob] = []
        for one in wave:
            if one.options.parents:
                one.parents = [await _parent(process, after, edge) for after, edge in one.options.parents]
            jobs.append(job_of(program, process, one))
        if program.around_enqueue:
            answers = [await _around(program, process, job, one, scope) for job, one in zip(jobs, wave, strict=True)]
        else:
            answers = await _put(process, jobs, wave, scope)
        for one, answer in zip(wave, answers, strict=True):
            if answer.refusal is not None:
                raise IdConflict(f"job {one.id!r} is there already, of another task or with other arguments")
            one.id, one.home = answer.id, answer.home
        placed += answers
    return placed


def _waves(planned: Sequence[Planned]) -> list[Sequence[Planned]]:
    """Divide a batch after a step whose twin may stand for it: what follows it must know which job that is."""
    cuts = [number for number, one in enumerate(planned) if one.follows is not None and one.follows.options.unique]
    if not cuts:
        return [planned]
    return [planned[start:end] for start, end in zip((0, *cuts), (*cuts, len(planned)), strict=True)]


# -- from a call to a job


def job_of(program: Program, process: Process, planned: Planned) -> NewJob:
    """Make the job of a planned call; its id and home are decided here."""
    spec = planned.spec
    if planned.options is NO_OPTIONS and planned.follows is None and not spec.names_places:
        planned.id = process.new_id()
        planned.home = partition_of(planned.id, process.partitions)
        # Only what differs from a job's defaults: naming all its fields would cost more than all the rest here.
        return NewJob(
            id=planned.id,
            task=spec.name,
            payload=planned.payload or payload_of(program, spec.signature, planned.arguments),
            queue=spec.queue,
            priority=spec.priority,
            expires_in_us=spec.expires_us,
            max_lost=spec.policy.max_lost,
            result_ttl_us=spec.policy.result_ttl_us,
            failed_ttl_us=spec.policy.failed_ttl_us,
        )
    return _particular_job(program, process, planned)


def payload_of(program: Program, signature: Signature, arguments: Arguments) -> bytes:
    """Encode arguments. Raises NotEncodable."""
    return signature.encode(arguments, most=program.settings.max_payload or UNBOUNDED)


def _particular_job(program: Program, process: Process, planned: Planned) -> NewJob:
    spec, options, follows = planned.spec, planned.options, planned.follows
    parents = tuple(planned.parents)
    if follows is not None:
        parents = (Parent(follows.id, Edge.VALUE, follows.home), *parents)
    writes: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    line = ""
    if spec.names_places:
        named = planned.arguments.named()
        partitions = process.partitions
        writes = tuple([plan.slot(named, partitions).key for plan in spec.writes])
        if spec.opens:
            writes += spec.opened(named, partitions)
        serves = tuple([plan.slot(named, partitions).key for plan in spec.serves])
        line = spec.line.line(named, partitions) if spec.line is not None else ""
    planned.id = options.id or process.new_id(_wanted_home(process.partitions, line, options.unique, parents))
    planned.home = partition_of(line or planned.id, process.partitions)
    signature = spec.signature if follows is None else spec.rest
    policy = spec.policy
    # In the order of the fields: a struct finds its arguments four times as fast that way.
    return NewJob(
        id=planned.id,
        task=spec.name,
        payload=planned.payload or payload_of(program, signature, planned.arguments),
        meta=_meta(options, follows=follows is not None),
        queue=spec.queue if options.queue is None else options.queue,
        priority=spec.priority if options.priority is None else options.priority,
        due_us=options.due_us,
        delay_us=options.delay_us,
        expires_in_us=spec.expires_us if options.expires_us is None else options.expires_us,
        line=line,
        ordered=policy.ordered,
        writes=writes,
        serves=serves,
        wants_preimage=spec.wants_preimage,
        unique=options.unique,
        unique_until=options.unique_until,
        on_conflict=options.on_conflict,
        parents=parents,
        max_lost=policy.max_lost,
        result_ttl_us=policy.result_ttl_us if options.result_ttl_us is None else options.result_ttl_us,
        failed_ttl_us=policy.failed_ttl_us,
    )


def _meta(options: Options, *, follows: bool) -> bytes:
    if options.retries is None and options.timeout_us is None and not follows:
        return b""
    return encode_meta(Meta(retries=options.retries, timeout_us=options.timeout_us, follows=follows))


def _wanted_home(partitions: int, line: str, unique: str, parents: Sequence[Parent]) -> int:
    """Return the partition that a new id should point to: what a job touches is best done in one step; -1: any."""
    if partitions == 1:
        return 0
    if line or unique:
        return partition_of(line or unique, partitions)
    return parents[0].home if parents else -1


async def _parent(process: Process, after: Any, edge: Edge) -> Parent:
    """Return a job that is waited for: its id, or a `Job`, and the partition that knows it."""
    name = after if isinstance(after, str) else str(after.id)
    home = -1 if isinstance(after, str) else int(after.home)
    return Parent(name, edge, home if home >= 0 else await find_home(process, name))


async def find_home(process: Process, id: str) -> int:
    """Return the partition a job lives in: mostly the one its id points to."""
    first = partition_of(id, process.partitions)
    if process.partitions == 1:
        return first
    others = [index for index in range(process.partitions) if index != first]
    for index in (first, *others):
        record, _ = await process.store.partitions[index].job(id, process.since(index))
        if record is not None:
            return index
    return first


# -- into a scope


async def _put(
    process: Process, jobs: Sequence[NewJob], planned: Sequence[Planned], scope: Session | None
) -> list[Placed]:
    """Enqueue jobs, but leave those with the scope that can wait for its success."""
    if scope is None:
        return await admit(process, jobs)
    at_once = [number for number, one in enumerate(planned) if one.options.now]
    waiting = [number for number, one in enumerate(planned) if not one.options.now]
    placed: dict[int, Placed] = {}
    placed.update(zip(at_once, await admit(process, [jobs[number] for number in at_once]), strict=True))
    held = await _hold(process, [jobs[number] for number in waiting], scope)
    placed.update(zip(waiting, held, strict=True))
    return [placed[number] for number in range(len(jobs))]


async def _hold(process: Process, jobs: Sequence[NewJob], scope: Session) -> list[Placed]:
    if scope.kind is not SessionKind.WRITING and scope.hold(jobs):
        return [Placed(job.id, home_of(job, process.partitions), held=scope) for job in jobs]
    if scope.kind is SessionKind.JOB or scope.owner is None:  # it has ended meanwhile: nobody else will enqueue them
        return await admit(process, jobs)
    placed = await admit_under(process, jobs, scope.owner)
    return [replace(one, held=scope) if one.created else one for one in placed]


async def admit_under(process: Process, jobs: Sequence[NewJob], owner: Owner) -> list[Placed]:
    """Enqueue jobs blocked by a scope: if this process dies, its commit may have happened, and they are released."""
    parent = Parent(owner.job, Edge.SCOPE, owner.home)
    return await admit(process, [replace(job, parents=(*job.parents, parent)) for job in jobs])


# -- through middleware


async def _around(program: Program, process: Process, job: NewJob, planned: Planned, scope: Session | None) -> Placed:
    placed: list[Placed] = []

    async def innermost(message: Message) -> Admission:
        changed = _as_said(job, message, program.settings.max_payload or UNBOUNDED)
        placed[:] = await _put(process, [changed], [planned], scope)
        one = placed[0]
        return Admission(one.id, one.state, created=one.created, replaced=one.replaced, refusal=one.refusal)

    proceed: Proceed = innermost
    for middleware in reversed(program.around_enqueue):
        proceed = _wrapped(middleware, proceed)
    await proceed(Message(job.id, job.task, job.queue, {}))
    if not placed:
        raise SelarasError(f"a middleware kept a job of {job.task!r} to itself: enqueue() must call proceed()")
    return placed[0]


def _wrapped(middleware: Middleware, proceed: Proceed) -> Proceed:
    return lambda message: middleware.enqueue(message, proceed)


def _as_said(job: NewJob, message: Message, most: int) -> NewJob:
    """Return the job as middleware sends it on. Whoever runs it must be able to read what middleware added.

    Raises:
        ConfigurationError: what it cannot carry.
        NotEncodable: headers of more than `most` bytes.
    """
    if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"a middleware gave proceed() {message!r}: give it the message, or a changed one")
    queue = message.queue if message.queue == job.queue else checked_name(message.queue, what="queue")
    if not isinstance(message.headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"headers={message.headers!r}: give a dict of texts")
    for name, value in message.headers.items():
        if not is_text(name) or not is_text(value):
            raise ConfigurationError(f"a header {name!r} of {value!r}: both must be text that has a UTF-8")
    if not message.headers:
        return job if queue == job.queue else replace(job, queue=queue)
    meta = encode_meta(replace(decode_meta(job.meta), headers=dict(message.headers)))
    if len(meta) > most:
        raise NotEncodable(
            f"the headers of a job of {job.task!r} are {len(meta):,} bytes encoded, more than the limit of {most:,}: let "
            "middleware send less, or raise max_payload"
        )
    return replace(job, queue=queue, meta=meta)


# -- into the queue


async def admit(process: Process, jobs: Sequence[NewJob]) -> list[Placed]:
    """Enqueue jobs at their homes, one step a partition."""
    if not jobs:
        return []
    if process.partitions == 1:
        return _placed(0, await _enqueue(process, 0, jobs))
    by_home: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        by_home.setdefault(home_of(job, process.partitions), []).append(number)
    placed: dict[int, Placed] = {}
    for home, numbers in by_home.items():
        names = {
            number: await reserve(process, jobs[number], home)
            for number in numbers
            if needs_names(process, jobs[number])
        }
        placed.update((number, one.twin) for number, one in names.items() if one.twin is not None)
        mine = [number for number in numbers if number not in placed]
        try:
            admissions = await _enqueue(
                process, home, [names[number].job if number in names else jobs[number] for number in mine]
            )
        except StoreUnavailable:
            for one in names.values():
                await _give_back(process, one)
            raise
        placed.update(zip(mine, _placed(home, admissions), strict=True))
        for number in mine:
            if number in names:
                placed[number] = await _confirmed(process, names[number], placed[number])
    return [placed[number] for number in range(len(jobs))]


async def _enqueue(process: Process, home: int, jobs: Sequence[NewJob]) -> tuple[Admission, ...]:
    if not jobs:
        return ()
    sent_ns = process.clock.instant_ns()
    reply = await process.store.partitions[home].enqueue(jobs, process.since(home))
    process.heard(home, reply.news, sent_ns)
    process.cache.told()
    if reply.outbox:
        await relay(process.store)
    return reply.admissions


def _placed(home: int, admissions: Sequence[Admission]) -> list[Placed]:
    return [Placed(one.id, home, one.state, one.created, one.replaced, refusal=one.refusal) for one in admissions]


# -- names elsewhere (P22)


class Names(Struct, frozen=True):
    """What became of a job's names.

    Attributes:
        job: the job, with what it takes over from the twin that it replaces.
        twin: another job that has a name of it, and stands for it.
        replaces: a waiting job whose unique key it took over. It is cancelled once this one is there, not before: so
            one of them is there whatever happens in between.
    """

    job: NewJob
    twin: Placed | None = None
    replaces: Placed | None = None


def needs_names(process: Process, job: NewJob) -> bool:
    """Say whether other jobs, at home elsewhere, might have a name of this one."""
    return bool(job.unique) or _is_given(process, job)


def _is_given(process: Process, job: NewJob) -> bool:
    """A generated id lives where it points to, and nobody else has it; one that was given may stand in any line."""
    points_to = partition_of(job.id, process.partitions)
    return points_to != home_of(job, process.partitions) or not looks_generated(job.id)


async def reserve(process: Process, job: NewJob, home: int, *, replacing: bool = True) -> Names:
    """Take the names of a job in the partitions that keep them (P22); again is once.

    A name is taken over from a job that has no right to it any more; from one that is not there only after half a
    minute, for it may be on its way in. What a producer finds taken over when it is back at last, `_confirmed` undoes:
    so two jobs of one name run only if the first was started in the moment between its enqueue and that second look.
    """
    partitions = process.store.partitions
    if _is_given(process, job):
        at = partition_of(job.id, process.partitions)
        if await _take(process, at, id_entry(job.id), job, home, _still_there) is not None:
            return Names(job, Placed(job.id, home, created=False, refusal=Refusal.ID_CONFLICT))
    if not job.unique:
        return Names(job)
    at = partition_of(job.unique, process.partitions)
    while True:
        found = await _take(process, at, job.unique, job, home, _still_holds(job))
        if found is None or (at == home == found.home):  # a twin in that very partition is met in the enqueue's step
            return Names(job)
        record = found.record
        twin = Placed(record.id, found.home, record.state, created=False)
        if not (replacing and job.on_conflict is OnConflict.REPLACE and record.state in WAITING):
            return Names(job, twin)
        if (await partitions[at].reserve(job.unique, job.id, home, record.id)).mine:
            return Names(_inheriting(job, record), replaces=twin)


def _inheriting(job: NewJob, twin: JobRecord) -> NewJob:
    """What the twin still waits for is waited for by the job in its place."""
    known = {(parent.job, parent.edge) for parent in job.parents}
    more = [
        replace(parent, edge=Edge.AFTER) if parent.edge is Edge.VALUE else parent
        for parent in twin.parents
        if (parent.job, parent.edge) not in known
    ]
    return replace(job, parents=(*job.parents, *more)) if more else job


async def _confirmed(process: Process, names: Names, placed: Placed) -> Placed:
    """A job was enqueued under names that it had reserved: see whether it still has them."""
    job, home = names.job, placed.home
    if placed.refusal is not None or placed.id != job.id:
        await _give_back(process, names)
        return placed
    if names.replaces is not None:
        await retire(process, names.replaces, job.id)
        placed = replace(placed, replaced=True)
    if not placed.created:
        return placed
    at = partition_of(job.unique, process.partitions) if job.unique else home
    if at == home and not _is_given(process, job):
        return placed  # the enqueue's own step held the name
    now = await reserve(process, job, home, replacing=False)
    record, _ = await process.store.partitions[home].job(job.id, process.since(home))
    waits = record is not None and record.state in WAITING
    if now.twin is not None:
        if not waits:
            return placed  # it has begun: it is too late to take it back
        await _cancel(process, Placed(job.id, home), f"its names had been given to job {now.twin.id}")
        return now.twin
    if job.unique and at != home and not (record is not None and _still_holds(job)(record, job)):
        # It began before that second look, which has taken the name once more.
        await _accept_free(process, job, at)
    return placed


async def retire(process: Process, twin: Placed, by: str) -> None:
    """Cancel the job that another one replaces, unless it has begun."""
    for number in range(_RETIRE_TRIES):
        try:
            record, _ = await process.store.partitions[twin.home].job(twin.id, process.since(twin.home))
            if record is not None and record.state in WAITING:
                await _cancel(process, twin, f"replaced by {by}")
            return
        except StoreUnavailable as error:
            if number + 1 == _RETIRE_TRIES:
                _log.warning("job %s, replaced by %s, could not be cancelled: %s", twin.id, by, error)
                return
            await process.clock.sleep(_LOOK_MOST_S * 2**number)


async def _cancel(process: Process, placed: Placed, reason: str) -> None:
    await process.store.partitions[placed.home].cancel(placed.id, reason)
    await relay(process.store)


async def _give_back(process: Process, names: Names) -> None:
    """Nothing was enqueued: let the unique key go to whoever had it. An id stays with its home: it comes back there."""
    job = names.job
    if names.twin is not None or not job.unique or not looks_generated(job.id):
        return
    at = partition_of(job.unique, process.partitions)
    try:
        if names.replaces is not None:
            await process.store.partitions[at].reserve(job.unique, names.replaces.id, names.replaces.home, job.id)
        else:
            await _accept_free(process, job, at)
    except StoreUnavailable as error:
        _log.warning("unique key %r stays reserved for %g s: %s", job.unique, _RESERVED_S, error)


async def _accept_free(process: Process, job: NewJob, at: int) -> None:
    await process.store.partitions[at].accept([FreeUnique(to=at, unique=job.unique, job=job.id)])


StillHolds: TypeAlias = Callable[[JobRecord, NewJob], bool]


class _Found(Struct, frozen=True):
    """A job that has a right to a name, and its home."""

    record: JobRecord
    home: int


async def _take(process: Process, at: int, name: str, job: NewJob, home: int, still_holds: StillHolds) -> _Found | None:
    """Take a directory entry, from a holder that has no right to it any more if need be. Returns one that has it."""
    partition = process.store.partitions[at]
    entry = await partition.reserve(name, job.id, home, "")
    waited_s, pause_s = 0.0, _LOOK_LEAST_S
    while not (entry.mine and entry.home == home):
        holder = entry.job, entry.home
        record, _ = await process.store.partitions[entry.home].job(entry.job, process.since(entry.home))
        if record is not None and still_holds(record, job):
            return _Found(record, entry.home)
        if record is None and waited_s < _RESERVED_S:
            # Reserved a while ago, perhaps, and on its way in.
            await process.clock.sleep(pause_s)
            waited_s, pause_s = waited_s + pause_s, min(pause_s * _GROWTH, _LOOK_MOST_S)
            entry = await partition.reserve(name, job.id, home, "")
        else:
            entry = await partition.reserve(name, job.id, home, entry.job)
        if (entry.job, entry.home) != holder:
            waited_s, pause_s = 0.0, _LOOK_LEAST_S
    return None


def _still_there(record: JobRecord, job: NewJob) -> bool:
    return record.id == job.id


def _still_holds(job: NewJob) -> StillHolds:
    return _still_unfinished if job.unique_until is UniqueUntil.FINISHED else _still_waits


def _still_waits(record: JobRecord, job: NewJob) -> bool:
    return record.unique == job.unique and record.state in WAITING


def _still_unfinished(record: JobRecord, job: NewJob) -> bool:
    return record.unique == job.unique and record.state not in FINAL
