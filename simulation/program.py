"""The program that every simulated process runs: cached rows, tasks that write them, and what they check of their reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from selaras import Fail, Read, Retry, Selaras, Snooze, current_job
from selaras._app.cached import Cached
from selaras._app.current import CurrentJob
from selaras._app.settings import SettingValues
from selaras._app.task import Task
from simulation.machine import chance_of
from simulation.truth import GHOST

if TYPE_CHECKING:
    from simulation.world import Node

_REPLICA_LAG: Final = 0.4
_SLOW_LOAD: Final = 0.08


class Mistake(Exception):
    """What a body raises that fails."""


@dataclass
class Declared:
    """What the program declares. `families` and `tasks`: by name."""

    app: Selaras
    families: dict[str, Cached[[int], int]]
    tasks: dict[str, Task[..., Any]]

    def key(self, name: str) -> Any:
        """Return the handle of a key: "item:3"."""
        family, _, number = name.partition(":")
        return self.families[family].key(int(number))


def declare(node: Node) -> Declared:
    """Declare the program for one process."""
    plan = node.plan
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
        version = await node.world.truth.read(key, replica=replica)
        if node.chance.random() < _SLOW_LOAD:
            await asyncio.sleep(node.chance.random() ** 3 * 0.8)
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
        return await _write(node, [f"item:{id}"], n, seen=seen)

    @app.task(writes=item, ordered=True)
    async def ordered(id: int, n: int) -> int:
        return await _write(node, [f"item:{id}"], n)

    @app.task(writes=item, exclusive=False)
    async def shared(id: int, n: int) -> int:
        return await _write(node, [f"item:{id}"], n)

    @app.task(writes=[item.by(id="a"), item.by(id="b")], lock=None)
    async def pair(a: int, b: int, n: int) -> int:
        return await _write(node, list(dict.fromkeys((f"item:{a}", f"item:{b}"))), n)

    @app.task(writes=app.tag("shelf", by="id"))
    async def restock(id: int, n: int) -> int:
        return await _write(node, [f"item:{id}"], n)

    @app.task(writes=item.all())
    async def sweep(id: int, n: int) -> int:
        return await _write(node, [f"item:{key}" for key in dict.fromkeys((id, 0))], n)

    @app.task(writes=served)
    async def bump(id: int, n: int) -> int:
        return await _write(node, [f"served:{id}"], n)

    @app.task(writes=late)
    async def save(id: int, n: int) -> int:
        return await _write(node, [f"late:{id}"], n)

    @app.task
    async def look(id: int, n: int) -> int:
        return await _look(node, id, n)

    @app.task(lock="mail:{id}")
    async def mail(id: int, n: int) -> int:
        return await _look(node, id, n)

    families: Any = {"item": item, "served": served, "late": late}
    tasks: Any = {one.name: one for one in (write, ordered, shared, pair, restock, sweep, bump, save, look, mail)}
    return Declared(app, families, tasks)


def _version(value: int) -> int:
    return value


# -- bodies


async def _write(node: Node, keys: list[str], n: int, *, seen: int | None = None) -> int:
    """Read, commit, read again; then end somehow."""
    job = current_job()
    chance = chance_of(node.plan.seed, "body", n, node.world.run_of(n))
    claimed_ns = node.promises.claimed_ns(job.id, job.fence)
    node.trace.add("begin", node.name, job.id, job.fence, *keys)
    node.touches(keys[0])
    line = node.world.line_of(job.id)
    if seen is not None:
        node.judge(keys[0], seen, how="before its body", needed_ns=claimed_ns, before=(0, 0))
    try:
        if line:
            node.promises.entered(line, job.id, job.fence, node.name, node.world.glass.holds)
        await _rest(node, chance)
        if chance.random() < 0.4:
            await _read_other(node, chance, keys, claimed_ns)
        for key in keys:
            await _change(node, chance, job, key, claimed_ns)
        await _rest(node, chance)
        if chance.random() < 0.1:
            await _read_other(node, chance, keys, claimed_ns)
        if chance.random() < 0.05:
            await node.program.tasks["look"].enqueue(node.a_key(chance), node.world.number())
        _end(chance)
        return n
    finally:
        if line:
            node.promises.left(line, job.id, job.fence)
        node.trace.add("leave", node.name, job.id, job.fence)


async def _change(node: Node, chance: Random, job: CurrentJob, key: str, claimed_ns: int) -> None:
    family, handle = key.partition(":")[0], node.program.key(key)
    own = family != "served" and family != "late"
    if chance.random() < 0.2:  # between its claim and its commit others may be misled
        await asyncio.sleep(chance.random() * 0.02)
    if own and chance.random() < 0.2:
        await node.read(key, None, needed_ns=claimed_ns, how="in its body, before its commit")
    if chance.random() < 0.03:
        await handle.put(GHOST)
        raise Mistake("put, and did not commit")
    version = await node.write(chance, key, job.id, job.fence)
    if not version:
        return
    put = 0
    if family == "late" or chance.random() < 0.4:
        await handle.put(version)
        put = version
    elif chance.random() < 0.1:
        await handle.invalidate()
    elif own and chance.random() < 0.05:
        await node.program.app.tag("shelf", int(key.partition(":")[2])).invalidate()
    if own and chance.random() < 0.3:
        await node.read(key, None, needed_ns=claimed_ns, own=version, put=put, how="in its body, after its commit")


async def _look(node: Node, id: int, n: int) -> int:
    job = current_job()
    chance = chance_of(node.plan.seed, "body", n, node.world.run_of(n))
    claimed_ns = node.promises.claimed_ns(job.id, job.fence)
    node.trace.add("begin", node.name, job.id, job.fence)
    line = node.world.line_of(job.id)
    try:
        if line:
            node.promises.entered(line, job.id, job.fence, node.name, node.world.glass.holds)
        if chance.random() < node.plan.warms:
            keys = list(dict.fromkeys((f"item:{id}", f"{node.a_family(chance)}:{node.a_recent_key(chance)}")))
            await node.warm(keys, (None, None), claimed_ns=claimed_ns, how="in a job")
        else:
            await node.read(f"item:{id}", None, needed_ns=claimed_ns, how="in a job")
        await _rest(node, chance)
        await _read_other(node, chance, [], claimed_ns)
        _end(chance)
    finally:
        if line:
            node.promises.left(line, job.id, job.fence)
        node.trace.add("leave", node.name, job.id, job.fence)
    return n


async def _read_other(node: Node, chance: Random, but: list[str], claimed_ns: int) -> None:
    key = f"{node.a_family(chance)}:{node.a_recent_key(chance)}"
    if key not in but:
        level: Any = chance.choice([None, None, "strict", 0.2])
        await node.read(key, level, needed_ns=claimed_ns, how=f"in a job, {level or 'causal'}")


async def _rest(node: Node, chance: Random) -> None:
    dice = chance.random()
    if dice < 0.6:
        await asyncio.sleep(chance.random() * 0.004)
    elif dice < 0.7:
        await asyncio.sleep(chance.random() ** 2 * 0.5)
    if chance.random() < node.rate("block"):
        await node.block(chance)


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
