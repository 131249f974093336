"""The program that every simulated process runs: cached rows, tasks that write them, and what they check of their reads."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

from selaras import Fail, Read, Retry, Selaras, Snooze, current_job
from selaras._app.process.current import CurrentJob
from selaras._app.setup.settings import SettingValues
from simulation.machine import chance_of
from simulation.stage import Actor, Declared
from simulation.truth import GHOST

_REPLICA_LAG: Final = 0.4
_SLOW_LOAD: Final = 0.08


class Mistake(Exception):
    """What a body raises that fails."""


def declare(actor: Actor) -> Declared:
    """Declare the program for one process."""
    plan = actor.plan
    settings: SettingValues = {
        "lease": plan.lease_s,
        "heartbeat": plan.lease_s / 3,
        "grace": 2.0,
        "backoff": 0.1,
        "backoff_most": 1.0,
        "timeout": 4.0,
        "concurrency": plan.concurrency,
        "warm_ahead": plan.ahead,
        "local_entries": 2 if plan.rate("evict") or plan.shelf else 1_000,
    }
    if plan.ttl_s:
        settings["ttl"] = plan.ttl_s
    app = Selaras("memory://", **settings)

    async def load(key: str, *, replica: bool = False) -> int:
        version = await actor.stage.truth.read(key, replica=replica)
        if actor.chance.random() < _SLOW_LOAD:
            await asyncio.sleep(actor.chance.random() ** 3 * 0.8)
        return version

    @app.cached(tags=["shelf:{id}"], audit=plan.audit)
    async def item(id: int) -> int:
        return await load(f"item:{id}")

    @app.cached(during_write="serve")
    async def served(id: int) -> int:
        return await load(f"served:{id}")

    @app.cached(version=_version, replica_lag=_REPLICA_LAG, audit=plan.audit)
    async def late(id: int) -> int:
        return await load(f"late:{id}", replica=True)

    @app.task(writes=item)
    async def write(id: int, n: int, *, seen: int = Read(item)) -> int:
        return await _write(actor, [f"item:{id}"], n, seen=seen)

    @app.task(writes=item, ordered=True)
    async def ordered(id: int, n: int) -> int:
        return await _write(actor, [f"item:{id}"], n)

    @app.task(writes=item, exclusive=False)
    async def shared(id: int, n: int) -> int:
        return await _write(actor, [f"item:{id}"], n)

    @app.task(writes=[item.by(id="a"), item.by(id="b")], lock=None)
    async def pair(a: int, b: int, n: int) -> int:
        return await _write(actor, list(dict.fromkeys((f"item:{a}", f"item:{b}"))), n)

    @app.task(writes=app.tag("shelf", by="id"))
    async def restock(id: int, n: int) -> int:
        return await _write(actor, [f"item:{id}"], n)

    @app.task(writes=item.all())
    async def sweep(id: int, n: int) -> int:
        return await _write(actor, [f"item:{key}" for key in dict.fromkeys((id, 0))], n)

    @app.task(writes=served)
    async def bump(id: int, n: int) -> int:
        return await _write(actor, [f"served:{id}"], n)

    @app.task(writes=late)
    async def save(id: int, n: int) -> int:
        return await _write(actor, [f"late:{id}"], n)

    @app.task
    async def look(id: int, n: int) -> int:
        return await _look(actor, id, n)

    @app.task(lock="mail:{id}")
    async def mail(id: int, n: int) -> int:
        return await _look(actor, id, n)

    families: Any = {"item": item, "served": served, "late": late}
    tasks: Any = {one.name: one for one in (write, ordered, shared, pair, restock, sweep, bump, save, look, mail)}
    return Declared(app, families, tasks)


def _version(value: int) -> int:
    return value


# -- bodies


async def _write(actor: Actor, keys: list[str], n: int, *, seen: int | None = None) -> int:
    """Read, commit, read again; then end somehow."""
    job = current_job()
    chance = chance_of(actor.plan.seed, "body", n, actor.stage.run_of(n))
    claimed_ns = actor.promises.claimed_ns(job.id, job.fence)
    actor.trace.add("begin", actor.name, job.id, job.fence, *keys)
    actor.touches(keys[0])
    line = actor.stage.line_of(job.id)
    if seen is not None:
        actor.judge(keys[0], seen, how="before its body", needed_ns=claimed_ns, before=(0, 0))
    try:
        if line:
            actor.promises.entered(line, job.id, job.fence, actor.name, actor.stage.glass.holds)
        await _rest(actor, chance)
        if chance.random() < 0.4:
            await _read_other(actor, chance, keys, claimed_ns)
        for key in keys:
            await _change(actor, chance, job, key, claimed_ns)
        await _rest(actor, chance)
        if chance.random() < 0.1:
            await _read_other(actor, chance, keys, claimed_ns)
        if chance.random() < 0.05:
            await actor.program.tasks["look"].enqueue(actor.a_key(chance), actor.stage.number())
        _end(chance)
        return n
    finally:
        if line:
            actor.promises.left(line, job.id, job.fence)
        actor.trace.add("leave", actor.name, job.id, job.fence)


async def _change(actor: Actor, chance: Random, job: CurrentJob, key: str, claimed_ns: int) -> None:
    family, handle = key.partition(":")[0], actor.program.key(key)
    own = family != "served" and family != "late"
    if chance.random() < 0.2:  # between its claim and its commit others may be misled
        await asyncio.sleep(chance.random() * 0.02)
    if own and chance.random() < 0.2:
        await actor.read(key, None, needed_ns=claimed_ns, how="in its body, before its commit")
    if chance.random() < 0.03:
        await handle.put(GHOST)
        raise Mistake("put, and did not commit")
    version = await actor.write(chance, key, job.id, job.fence)
    if not version:
        return
    put = 0
    if family == "late" or chance.random() < 0.4:
        await handle.put(version)
        put = version
    elif chance.random() < 0.1:
        await handle.invalidate()
    elif own and chance.random() < 0.05:
        await actor.program.app.tag("shelf", int(key.partition(":")[2])).invalidate()
    if own and chance.random() < 0.3:
        await actor.read(key, None, needed_ns=claimed_ns, own=version, put=put, how="in its body, after its commit")


async def _look(actor: Actor, id: int, n: int) -> int:
    job = current_job()
    chance = chance_of(actor.plan.seed, "body", n, actor.stage.run_of(n))
    claimed_ns = actor.promises.claimed_ns(job.id, job.fence)
    actor.trace.add("begin", actor.name, job.id, job.fence)
    line = actor.stage.line_of(job.id)
    try:
        if line:
            actor.promises.entered(line, job.id, job.fence, actor.name, actor.stage.glass.holds)
        if chance.random() < actor.plan.warms:
            keys = list(dict.fromkeys((f"item:{id}", f"{actor.a_family(chance)}:{actor.a_recent_key(chance)}")))
            await actor.warm(keys, (None, None), claimed_ns=claimed_ns, how="in a job")
        else:
            await actor.read(f"item:{id}", None, needed_ns=claimed_ns, how="in a job")
        await _rest(actor, chance)
        await _read_other(actor, chance, [], claimed_ns)
        _end(chance)
    finally:
        if line:
            actor.promises.left(line, job.id, job.fence)
        actor.trace.add("leave", actor.name, job.id, job.fence)
    return n


async def _read_other(actor: Actor, chance: Random, but: list[str], claimed_ns: int) -> None:
    key = f"{actor.a_family(chance)}:{actor.a_recent_key(chance)}"
    if key not in but:
        level: Any = chance.choice([None, None, "strict", 0.2])
        await actor.read(key, level, needed_ns=claimed_ns, how=f"in a job, {level or 'causal'}")


async def _rest(actor: Actor, chance: Random) -> None:
    dice = chance.random()
    if dice < 0.6:
        await asyncio.sleep(chance.random() * 0.004)
    elif dice < 0.7:
        await asyncio.sleep(chance.random() ** 2 * 0.5)
    if chance.random() < actor.rate("block"):
        await actor.block(chance)


def _end(chance: Random) -> None:
    dice = chance.random()
    if dice < 0.04:
        raise Mistake("as it happens")
    if dice < 0.05:
        raise Retry(delay=0.2)
    if dice < 0.06:
        raise Snooze(0.3)
    if dice < 0.065:
        raise Fail("for good")
