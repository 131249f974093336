"""What the processes of a world do beside running jobs."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from selaras import (
    JobCancelled,
    JobFailed,
    LeaseLost,
    ParentFailed,
    ResultExpired,
    SelarasError,
    StoreUnavailable,
    UnknownJob,
)
from simulation.machine import chance_of
from simulation.stage import Actor
from simulation.truth import GHOST

_TASKS: Final = (
    "write",
    "write",
    "write",
    "ordered",
    "shared",
    "pair",
    "bump",
    "save",
    "restock",
    "sweep",
    "look",
    "look",
    "mail",
)
_BATCH: Final = 8
_READ_EVERY: Final = 0.03
_WRITE_EVERY: Final = 0.1


class Passing(Exception):
    """What a scope's body raises to fail."""


async def produce(actor: Actor, share: int) -> None:
    """Enqueue jobs, wait for some, and read what they wrote."""
    chance, made = actor.chance, 0
    tasks: list[asyncio.Task[None]] = []
    before: Any = None
    while made < share and not actor.stage.closing:
        calls: list[Any] = []
        for _ in range(min(share - made, chance.randrange(1, _BATCH))):
            call, before = _call(actor, chance, before), None
            calls.append(call)
        made += len(calls)
        try:
            jobs = await actor.program.app.enqueue_many(calls)
        except StoreUnavailable:
            continue
        for job in jobs:
            actor.stage.accepted(job.id)
        actor.trace.add("enqueue", actor.name, *(job.id for job in jobs))
        before = chance.choice(jobs)
        if chance.random() < 0.2:
            tasks.append(asyncio.get_running_loop().create_task(_await_end(actor, chance, chance.choice(jobs))))
        if chance.random() < 0.03:
            await _cancel(actor, chance.choice(jobs))
        await asyncio.sleep(chance.expovariate(1) * actor.plan.gap_ms * len(calls) / 1_000)
    actor.stage.produced()
    await asyncio.gather(*tasks)


def _call(actor: Actor, chance: Random, before: Any) -> Any:
    task = chance.choice(_TASKS)
    n = actor.stage.number()
    arguments = (actor.a_key(chance), actor.a_key(chance), n) if task == "pair" else (actor.a_key(chance), n)
    options: dict[str, Any] = {}
    dice = chance.random()
    if dice < 0.08:
        options["delay"] = chance.random() * 0.5
    elif dice < 0.12:
        options["priority"] = chance.randrange(3)
    elif dice < 0.16:
        options["unique"] = f"u{chance.randrange(3)}"
    if before is not None and chance.random() < 0.15:
        options[chance.choice(["after", "after_finished"])] = [before]
    handle: Any = actor.program.tasks[task]
    return (handle.options(**options) if options else handle).call(*arguments)


async def _cancel(actor: Actor, job: Any) -> None:
    try:
        await job.cancel()
    except (StoreUnavailable, UnknownJob):
        return
    actor.trace.add("cancel", actor.name, job.id)


async def _await_end(actor: Actor, chance: Random, job: Any) -> None:
    try:
        await job.result(timeout=5)
    except (TimeoutError, StoreUnavailable, UnknownJob, ResultExpired, ParentFailed):
        return
    except (JobFailed, JobCancelled):
        pass
    actor.trace.add("told", actor.name, job.id)
    actor.promises.told_of_job(actor.name, job.id)
    for key in sorted({key for key, _ in actor.stage.truth.of(job.id)}):
        if not key.startswith("late:"):
            await actor.read(key, chance.choice([None, "strict", 0.5]), how="after a job's end")


async def read(actor: Actor) -> None:
    """Read this and that, now and then."""
    chance = chance_of(actor.plan.seed, "reader", actor.name)
    while not actor.stage.closing:
        dice = chance.random()
        if chance.random() < actor.plan.warms:
            keys = list(dict.fromkeys(f"{actor.a_family(chance)}:{actor.a_recent_key(chance)}" for _ in range(3)))
            await actor.warm(keys, [chance.choice([None, "strict", 5.0]) for _ in keys], how="outside")
        elif dice < 0.15:
            keys = [f"item:{actor.a_recent_key(chance)}" for _ in range(3)]
            await actor.read_many(keys, chance.choice([None, "strict"]))
        else:
            key = f"{actor.a_family(chance)}:{actor.a_recent_key(chance)}"
            level: Any = chance.choice([None, None, "strict", 0.2, 5.0])
            await actor.read(key, level, how=f"outside, {level or 'bounded'}")
        await asyncio.sleep(chance.expovariate(1) * _READ_EVERY)


async def write(actor: Actor) -> None:
    """Change rows outside of jobs: in scopes, or first and then told."""
    chance = chance_of(actor.plan.seed, "writer", actor.name)
    while not actor.stage.closing:
        key = f"item:{actor.a_recent_key(chance)}"
        try:
            if chance.random() < 0.5:
                await _in_a_scope(actor, chance, key)
            else:
                await _told_afterwards(actor, chance, key)
        except (StoreUnavailable, LeaseLost, Passing):
            pass
        await asyncio.sleep(chance.expovariate(1) * _WRITE_EVERY)


async def _in_a_scope(actor: Actor, chance: Random, key: str) -> None:
    handle = actor.program.key(key)
    scope = _scope_over(actor, chance, key)
    async with scope:
        owner = scope._session.owner
        actor.trace.add("begin", actor.name, "writing", scope.fence, key)
        if chance.random() < 0.05:
            await handle.put(GHOST)
            raise Passing
        version = await actor.write(chance, key, owner.job, owner.fence)
        if chance.random() < 0.1:
            raise Passing
        if version and chance.random() < 0.5:
            await handle.put(version)
    if version:
        actor.promises.told(actor.name, key, version)
        await actor.read(key, None, how="after its writing()")


def _scope_over(actor: Actor, chance: Random, key: str) -> Any:
    """Return a scope on a key, on a tag that it bears, or on its family as a whole."""
    family, _, number = key.partition(":")
    dice = chance.random()
    if dice < 0.1:
        return actor.program.families[family].all().writing()
    if dice < 0.25 and family == "item":
        return actor.program.app.tag("shelf", int(number)).writing()
    return actor.program.key(key).writing()


async def _told_afterwards(actor: Actor, chance: Random, key: str) -> None:
    version = await actor.write(chance, key, "", 0, quiet=True)
    dice, number = chance.random(), key.partition(":")[2]
    while True:
        try:
            if dice < 0.6:
                await actor.program.key(key).invalidate()
            elif dice < 0.8:
                await actor.program.app.tag("shelf", int(number)).invalidate()
            else:
                await actor.program.families["item"].invalidate_all()
            break
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    actor.stage.truth.voided([key], actor.stage.loop.now_ns)
    actor.promises.told(actor.name, key, version)
    await actor.read(key, None, how="after its invalidate()")


async def lock(actor: Actor) -> None:
    """Hold lines in which jobs stand, too."""
    chance = chance_of(actor.plan.seed, "locker", actor.name)
    while not actor.stage.closing:
        line = f"{chance.choice(['mail', 'item'])}:{actor.a_key(chance)}"
        held = actor.program.app.lock(line, timeout=3)
        try:
            async with held:
                assert held._job is not None
                actor.trace.add("lock", actor.name, line, held.fence)
                actor.promises.entered(line, held._job.id, held.fence, actor.name, actor.stage.glass.holds)
                try:
                    await asyncio.sleep(chance.random() * 0.01)
                finally:
                    actor.promises.left(line, held._job.id, held.fence)
        except (StoreUnavailable, LeaseLost, TimeoutError):
            pass
        except SelarasError as error:
            actor.promises.breaks("no trouble", f"{actor.name} could not lock {line}: {error}")
        await asyncio.sleep(chance.expovariate(1) * _WRITE_EVERY)
