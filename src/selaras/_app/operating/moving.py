"""Moves jobs from one store to another, so that a program can grow out of one without losing any.

    look ──> settle ──> hold ──────> take over ──> retire ──> let go
    nobody   due ends,  queues of    each job as   cancel it  queues that
    works    outboxes   the target   it stands     at home    were held

Laws:
    - A job is retired in the old store only when the new one has it, and runs in the new one only when it is retired:
      until then the queues there are paused. So whatever interrupts a move, no job is lost and none runs twice; the
      same move again goes on, for a job that is there already is left as it is.
    - Fences of the new store are above all of the old one (P15): its epochs are.
    - Who waits for another is taken over after it, so that it finds it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from selaras._app.process.process import looks_generated
from selaras._app.process.relaying import relay
from selaras._contracts.clock import Clock
from selaras._contracts.partition import JobFilter, Partition
from selaras._contracts.store import Store
from selaras._core.errors import ConfigurationError
from selaras._core.jobs.job import MOVING, JobRecord, Standing
from selaras._core.jobs.states import JobState
from selaras._core.routing import home_of, id_entry, partition_of

BATCH: Final = 200
ROUNDS_MOST: Final = 10
"""So often it is looked for jobs that came in meanwhile, before it is said that somebody goes on making them."""

LEASES_S: Final = 30.0
"""So long it is waited for the leases of processes that were killed: a living one keeps its own."""

LOOK_EVERY_S: Final = 0.5
_TEND_MOST: Final = 500
_UNFINISHED: Final = tuple(sorted(MOVING - {JobState.FAILED}))


class Moved(Struct, frozen=True, kw_only=True):
    """What a move came to.

    Attributes:
        jobs: how many were taken over, by the state they stood in. there: how many were in the new store already.
        paused: queues that are paused in the new store, as they were in the old one.
    """

    jobs: dict[str, int]
    there: int
    paused: tuple[str, ...]


class _Waiting(Struct, frozen=True):
    """One job to be moved. `home`: its partition now; `to`: that in the new store."""

    id: str
    home: int
    to: int
    is_blocked: bool
    parents: tuple[str, ...]


async def move(
    source: Store, target: Store, clock: Clock, *, merges: bool, told: Callable[[str], None] = lambda _: None
) -> Moved:
    """Move every job that is not over, and those that failed, from one open store to another.

    Args:
        merges: the new store may have jobs already: of its own, or of a move that was interrupted.
        told: hears what is waited for.

    Raises:
        ConfigurationError: somebody works on one of them, or the new one has jobs; nothing was moved.
        StoreUnavailable: one of them went away. The same move again, with `merges`, goes on.
    """
    await _nobody_works(source, clock, told)
    await _nobody_works(target, clock, told)
    if not merges and [queue for partition in target.partitions for queue in await partition.queues() if queue.counts]:
        raise ConfigurationError(
            f"{target.url} has jobs already: name another store or namespace; or say --merge, if they are to stand side "
            "by side, or if an earlier move there was interrupted"
        )
    await _settle(source)
    epoch = max([(await partition.cache_stats()).epoch for partition in source.partitions]) + 1
    held, paused = set[str](), set[str]()
    counts: dict[str, int] = {}
    there = 0
    for _ in range(ROUNDS_MOST):
        waiting = [one async for one in _waiting(source, len(target.partitions))]
        if not waiting:
            break
        await _hold(source, target, held, paused)
        for state, taken in [one async for one in _take_over(source, target, waiting, epoch)]:
            if taken:
                counts[state.value] = counts.get(state.value, 0) + 1
            else:
                there += 1
        await _settle(target)
        await _nobody_works(source, clock, told)
        await _retire(source, target, waiting)
    else:
        raise ConfigurationError(f"jobs keep coming into {source.url}: stop whoever enqueues there, then move again")
    await _hold(source, target, held, paused)
    for queue in sorted(held - paused):
        for partition in target.partitions:
            await partition.pause(queue, paused=False)
    return Moved(jobs=counts, there=there, paused=tuple(sorted(paused)))


# -- who works there


async def _nobody_works(store: Store, clock: Clock, told: Callable[[str], None]) -> None:
    """Wait until the leases of dead processes have ended; a living one is refused."""
    until_ns, said = clock.instant_ns() + round(LEASES_S * 1e9), False
    while True:
        for partition in store.partitions:
            await partition.tend(_TEND_MOST)
        found = [one for partition in store.partitions for one in await partition.instances()]
        if not found:
            return
        names = ", ".join(sorted({f"{one.name or one.id} (pid {one.pid} on {one.host})" for one in found}))
        if clock.instant_ns() > until_ns:
            raise ConfigurationError(f"{store.url} is being worked on, by {names}: stop it first")
        if not said:
            told(f"{store.url}: waiting until the leases have ended of {names}")
            said = True
        await clock.sleep(LOOK_EVERY_S)


async def _settle(store: Store) -> None:
    """Let everything happen that follows from what has ended: in each partition, and from one to another."""
    while True:
        again = [(await partition.tend(_TEND_MOST)).again for partition in store.partitions]
        if not any(again) and not await relay(store):
            return


# -- what is moved


async def _waiting(source: Store, partitions: int) -> AsyncIterator[_Waiting]:
    """List what is to be moved, by id: of a million jobs not all need fit into memory."""
    for partition in source.partitions:
        async for record in _records(partition):
            if record.state is JobState.RUNNING:
                raise ConfigurationError(f"{source.url}: job {record.id} runs; stop its worker first")
            yield _Waiting(
                record.id,
                partition.index,
                partition_of(record.line or record.id, partitions),
                record.state is JobState.BLOCKED,
                tuple([parent.job for parent in record.parents]),
            )


async def _records(partition: Partition) -> AsyncIterator[JobRecord]:
    which = JobFilter(states=(*sorted(MOVING), JobState.RUNNING), limit=BATCH)
    while True:
        page = await partition.jobs(which)
        for record in page.jobs:
            yield record
        if not page.cursor:
            return
        which = replace(which, before=page.cursor)


def _in_order(waiting: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """Divide jobs into waves, each after all that it waits for."""
    known = {one.id: one for one in waiting}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for one in waiting:
        sorter.add(one.id, *(parent for parent in one.parents if parent in known))
    try:
        sorter.prepare()
    except CycleError as error:
        raise ConfigurationError(f"these jobs wait for each other, and would for ever: {error.args[1]}") from error
    while sorter.is_active():
        wave = sorter.get_ready()
        yield [known[id] for id in wave]
        sorter.done(*wave)


async def _hold(source: Store, target: Store, held: set[str], paused: set[str]) -> None:
    """Pause in the new store what the old one has queues for: nothing runs there before it is retired here."""
    found = [queue for partition in source.partitions for queue in await partition.queues()]
    paused.update(queue.name for queue in found if queue.paused)
    for name in sorted({queue.name for queue in found} - held):
        held.add(name)
        for partition in target.partitions:
            await partition.pause(name, paused=True)


# -- over there


async def _take_over(
    source: Store, target: Store, waiting: Sequence[_Waiting], epoch: int
) -> AsyncIterator[tuple[JobState, bool]]:
    """Take jobs over. Yields the state of each, and whether it was not there yet."""
    homes = {one.id: one.to for one in waiting}
    for wave in _in_order(waiting):
        for home, to, some in _batches(wave):
            found = await source.partitions[home].standing([one.id for one in some])
            standing = [_as_there(one, homes, source, home, target) for one in found if one is not None]
            if len(target.partitions) > 1:
                await asyncio.gather(*(_reserve(target, one, to) for one in standing))
            for one, taken in zip(standing, await target.partitions[to].adopt(standing, epoch), strict=True):
                yield one.state, taken
        await relay(target)  # dependents elsewhere have registered before those that wait for them come


def _batches(wave: Iterable[_Waiting]) -> Iterator[tuple[int, int, list[_Waiting]]]:
    """Divide jobs by where they are and where they go."""
    ways: dict[tuple[int, int], list[_Waiting]] = {}
    for one in wave:
        ways.setdefault((one.home, one.to), []).append(one)
    for (home, to), some in ways.items():
        for first in range(0, len(some), BATCH):
            yield home, to, some[first : first + BATCH]


def _as_there(one: Standing, homes: dict[str, int], source: Store, home: int, target: Store) -> Standing:
    """Name the homes that the parents of a job have in the new store, and its place among those of all partitions."""
    partitions = len(target.partitions)
    parents = tuple([replace(it, home=homes.get(it.job, partition_of(it.job, partitions))) for it in one.job.parents])
    place = one.place * len(source.partitions) + home if one.place else 0
    return replace(one, job=replace(one.job, parents=parents), place=place)


async def _reserve(target: Store, one: Standing, home: int) -> None:
    """Take the names of a job in the partitions that keep them (P22); what another has by now stays its own."""
    job, partitions = one.job, len(target.partitions)
    at = partition_of(job.id, partitions)
    if at != home_of(job, partitions) or not looks_generated(job.id):
        await target.partitions[at].reserve(id_entry(job.id), job.id, home, "")
    if job.unique and one.state is not JobState.FAILED:
        await target.partitions[partition_of(job.unique, partitions)].reserve(job.unique, job.id, home, "")


# -- and gone here


async def _retire(source: Store, target: Store, waiting: Sequence[_Waiting]) -> None:
    """End jobs in the old store, for the new one has them: who asks for them here is told where they are."""
    reason = f"moved to {target.url}"
    for first in range(0, len(waiting), BATCH):
        some = waiting[first : first + BATCH]
        await asyncio.gather(*(source.partitions[one.home].cancel(one.id, reason) for one in some))
    await _settle(source)
    for partition in source.partitions:
        while await partition.purge([JobState.FAILED], "", BATCH) == BATCH:
            pass
    await _settle(source)
