"""What the processes of a world do beside running jobs."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

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
from simulation.truth import GHOST

if TYPE_CHECKING:
    from simulation.world import Node

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


async def produce(node: Node, share: int) -> None:
    """Enqueue jobs, wait for some, and read what they wrote."""
    chance, made = node.chance, 0
    tasks: list[asyncio.Task[None]] = []
    before: Any = None
    while made < share and not node.world.closing:
        calls: list[Any] = []
        for _ in range(min(share - made, chance.randrange(1, _BATCH))):
            call, before = _call(node, chance, before), None
            calls.append(call)
        made += len(calls)
        try:
            jobs = await node.program.app.enqueue_many(calls)
        except StoreUnavailable:
            continue
        for job in jobs:
            node.world.accepted(job.id)
        node.trace.add("enqueue", node.name, *(job.id for job in jobs))
        before = chance.choice(jobs)
        if chance.random() < 0.2:
            tasks.append(asyncio.get_running_loop().create_task(_await_end(node, chance, chance.choice(jobs))))
        if chance.random() < 0.03:
            await _cancel(node, chance.choice(jobs))
        await asyncio.sleep(chance.expovariate(1) * node.plan.gap_ms * len(calls) / 1_000)
    node.world.produced(node)
    await asyncio.gather(*tasks)


def _call(node: Node, chance: Random, before: Any) -> Any:
    task = chance.choice(_TASKS)
    n = node.world.number()
    arguments = (node.a_key(chance), node.a_key(chance), n) if task == "pair" else (node.a_key(chance), n)
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
    handle: Any = node.program.tasks[task]
    return (handle.options(**options) if options else handle).call(*arguments)


async def _cancel(node: Node, job: Any) -> None:
    try:
        await job.cancel()
    except (StoreUnavailable, UnknownJob):
        return
    node.trace.add("cancel", node.name, job.id)


async def _await_end(node: Node, chance: Random, job: Any) -> None:
    try:
        await job.result(timeout=5)
    except (TimeoutError, StoreUnavailable, UnknownJob, ResultExpired, ParentFailed):
        return
    except (JobFailed, JobCancelled):
        pass
    node.trace.add("told", node.name, job.id)
    node.promises.told_of_job(node.name, job.id)
    for key in sorted({key for key, _ in node.world.truth.of(job.id)}):
        if not key.startswith("late:"):
            await node.read(key, chance.choice([None, "strict", 0.5]), how="after a job's end")


async def read(node: Node) -> None:
    """Read this and that, now and then."""
    chance = chance_of(node.plan.seed, "reader", node.name)
    while not node.world.closing:
        dice = chance.random()
        if chance.random() < node.plan.warms:
            keys = list(dict.fromkeys(f"{node.a_family(chance)}:{node.a_recent_key(chance)}" for _ in range(3)))
            await node.warm(keys, [chance.choice([None, "strict", 5.0]) for _ in keys], how="outside")
        elif dice < 0.15:
            keys = [f"item:{node.a_recent_key(chance)}" for _ in range(3)]
            await node.read_many(keys, chance.choice([None, "strict"]))
        else:
            key = f"{node.a_family(chance)}:{node.a_recent_key(chance)}"
            level: Any = chance.choice([None, None, "strict", 0.2, 5.0])
            await node.read(key, level, how=f"outside, {level or 'bounded'}")
        await asyncio.sleep(chance.expovariate(1) * _READ_EVERY)


async def write(node: Node) -> None:
    """Change rows outside of jobs: in scopes, or first and then told."""
    chance = chance_of(node.plan.seed, "writer", node.name)
    while not node.world.closing:
        key = f"item:{node.a_recent_key(chance)}"
        try:
            if chance.random() < 0.5:
                await _in_a_scope(node, chance, key)
            else:
                await _told_afterwards(node, chance, key)
        except (StoreUnavailable, LeaseLost, Passing):
            pass
        await asyncio.sleep(chance.expovariate(1) * _WRITE_EVERY)


async def _in_a_scope(node: Node, chance: Random, key: str) -> None:
    handle = node.program.key(key)
    scope = _scope_over(node, chance, key)
    async with scope:
        owner = scope._session.owner
        node.trace.add("begin", node.name, "writing", scope.fence, key)
        if chance.random() < 0.05:
            await handle.put(GHOST)
            raise Passing
        version = await node.write(chance, key, owner.job, owner.fence)
        if chance.random() < 0.1:
            raise Passing
        if version and chance.random() < 0.5:
            await handle.put(version)
    if version:
        node.promises.told(node.name, key, version)
        await node.read(key, None, how="after its writing()")


def _scope_over(node: Node, chance: Random, key: str) -> Any:
    """Return a scope on a key, on a tag that it bears, or on its family as a whole."""
    family, _, number = key.partition(":")
    dice = chance.random()
    if dice < 0.1:
        return node.program.families[family].all().writing()
    if dice < 0.25 and family == "item":
        return node.program.app.tag("shelf", int(number)).writing()
    return node.program.key(key).writing()


async def _told_afterwards(node: Node, chance: Random, key: str) -> None:
    version = await node.write(chance, key, "", 0, quiet=True)
    dice, number = chance.random(), key.partition(":")[2]
    while True:
        try:
            if dice < 0.6:
                await node.program.key(key).invalidate()
            elif dice < 0.8:
                await node.program.app.tag("shelf", int(number)).invalidate()
            else:
                await node.program.families["item"].invalidate_all()
            break
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    node.world.truth.voided([key], node.world.loop.now_ns)
    node.promises.told(node.name, key, version)
    await node.read(key, None, how="after its invalidate()")


async def lock(node: Node) -> None:
    """Hold lines in which jobs stand, too."""
    chance = chance_of(node.plan.seed, "locker", node.name)
    while not node.world.closing:
        line = f"{chance.choice(['mail', 'item'])}:{node.a_key(chance)}"
        held = node.program.app.lock(line, timeout=3)
        try:
            async with held:
                assert held._job is not None
                node.trace.add("lock", node.name, line, held.fence)
                node.promises.entered(line, held._job.id, held.fence, node.name, node.world.glass.holds)
                try:
                    await asyncio.sleep(chance.random() * 0.01)
                finally:
                    node.promises.left(line, held._job.id, held.fence)
        except (StoreUnavailable, LeaseLost, TimeoutError):
            pass
        except SelarasError as error:
            node.promises.breaks("no trouble", f"{node.name} could not lock {line}: {error}")
        await asyncio.sleep(chance.expovariate(1) * _WRITE_EVERY)
