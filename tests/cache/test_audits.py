"""Audits: what is stale is found, repaired and told; what only changed meanwhile is not called stale."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.cache.world import Process, World
from tests.stores import KINDS, clear_servers

from selaras._cache.auditing import NOTE
from selaras._cache.local import LocalTier
from selaras._cache.notes import Notes, note_key
from selaras._core.cache.consistency import Audits, ledger_of
from selaras._core.cache.events import StaleRead
from selaras._core.codec import codec_of

SECOND = 1_000_000


@pytest.fixture(params=[kind for kind in KINDS if kind.endswith("-1")])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """One partition, on every kind of store; each hit but the first is audited."""
    async with World(request.param, tmp_path, entropy=Random(1)) as world:
        world.like(audit=1.0)
        yield world
    clear_servers()


async def held(world: World, process: Process) -> None:
    """Let a process hold the value, and its audits have begun."""
    assert await process.get() == 0
    assert await process.get() == 0
    assert world.family.audit_at > 0


async def judged(world: World, process: Process) -> Audits:
    """Let audits end, and return what they came to."""
    await world.pass_time(1.5, step=0.25)
    await world.idle()
    (audits,) = process.cache.audits.rows.values()
    return audits


async def test_what_the_datastore_has_is_not_stale(world: World) -> None:
    process = await world.process("p")
    await held(world, process)

    assert await process.get() == 0

    assert await judged(world, process) == Audits(same=1)
    assert world.family.counts.audited == 1


async def test_a_change_that_nobody_declared_is_found_voided_and_told(world: World) -> None:
    process = await world.process("p")
    await held(world, process)
    world.data.rows[42] = 7  # by another program

    assert await process.get() == 0
    audits = await judged(world, process)

    assert (audits.same, audits.stale, audits.unsure) == (0, 1, 0)
    assert await process.get() == 7
    (event,) = process.events
    assert isinstance(event, StaleRead)
    assert (event.found.key, event.found.tier, event.found.voided_at) == ("product:42", "local", 0)
    assert world.family.counts.stale_reads == 1


async def test_a_hit_of_the_shared_tier_is_sampled_too(world: World) -> None:
    one, other = await world.process("one"), await world.process("other")
    await one.get()
    world.data.rows[42] = 7

    assert await other.tier() == "shared"
    audits = await judged(world, other)

    assert audits.stale == 1
    assert await other.get() == 7


async def test_a_write_between_the_hit_and_the_audit_is_no_stale_read(world: World) -> None:
    process, writer = await world.process("p"), await world.process("w")
    await held(world, process)
    assert process.cache.hit(world.slot()) == 0  # its audit has not asked yet
    job = await writer.claim("w", writes=[world.slot()])
    world.data.rows[42] = 2
    await writer.settle(job)

    audits = await judged(world, process)

    assert audits.stale == 0
    assert process.events == []


async def test_a_value_that_is_being_written_is_no_stale_read(world: World) -> None:
    process, writer = await world.process("p"), await world.process("w")
    await held(world, process)
    await writer.claim("w", writes=[world.slot()])
    world.data.rows[42] = 2  # committed, not settled; the reader may not have heard of the claim yet

    assert process.cache.hit(world.slot()) == 0

    assert await judged(world, process) == Audits(unsure=1)


async def test_who_writes_first_and_tells_a_moment_later_is_given_that_moment(world: World) -> None:
    process, writer = await world.process("p"), await world.process("w")
    await held(world, process)
    world.data.rows[42] = 2
    assert await process.get() == 0
    await world.pass_time(0.5, step=0.25)

    await writer.cache.invalidate([world.slot()])

    assert await judged(world, process) == Audits(unsure=1)


async def test_an_event_that_did_not_void_is_named_as_what_should_have_been_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no test of ours may find otherwise: a fault in the coherence itself."""
    process, writer = await world.process("p"), await world.process("w")
    await held(world, process)
    monkeypatch.setattr(LocalTier, "void", lambda *_: None)
    world.data.rows[42] = 2
    await writer.cache.invalidate([world.slot()])
    await process.catch_up()

    assert process.cache.hit(world.slot()) == 0
    audits = await judged(world, process)

    (event,) = process.events
    assert isinstance(event, StaleRead)
    assert event.found.position < event.found.voided_at <= process.cursor(0).position
    assert audits.stale == 1
    assert audits.ages[-1] == 0, "the time since it was voided is known"


async def test_a_datastore_that_answers_late_itself_proves_nothing(world: World) -> None:
    world.like(audit=1.0, version=lambda value: value)
    world.data.rows[42] = 5
    process = await world.process("p")
    assert (await process.get(), await process.get()) == (5, 5)
    world.data.rows[42] = 4  # a replica that lags

    assert await process.get() == 5

    assert await judged(world, process) == Audits(unsure=1)


async def test_a_loader_that_never_says_the_same_proves_nothing(world: World) -> None:
    process = await world.process("p")
    calls = iter(range(100))

    async def load(row: Any) -> int:
        return next(calls)

    world.like(audit=1.0, load=load)
    first = await process.get()
    assert await process.get() == first

    assert await process.get() == first

    assert await judged(world, process) == Audits(unsure=1)


async def test_a_loader_that_fails_proves_nothing(world: World) -> None:
    process = await world.process("p")
    await held(world, process)
    world.data.error = RuntimeError("no datastore")

    assert await process.get() == 0

    assert await judged(world, process) == Audits(unsure=1)


async def test_sets_are_compared_as_sets(world: World) -> None:
    world.like(audit=1.0, codec=codec_of(set[int]))
    world.data.rows[42] = {0, 8}
    process = await world.process("p")
    await process.get()
    await process.get()
    world.data.rows[42] = {8, 0}  # met in another order

    assert await process.get() == {0, 8}

    assert await judged(world, process) == Audits(same=1)


async def test_families_without_audits_are_not_sampled(world: World) -> None:
    world.like(audit=0.0)
    process = await world.process("p")
    for _ in range(10):
        await process.get()

    await world.pass_time(1.5, step=0.5)

    assert process.cache.audits.rows == {}
    assert world.data.loads == 1


async def test_what_processes_measure_adds_up_in_the_store(world: World) -> None:
    world.options["publishes"] = True
    one, other = await world.process("one"), await world.process("other")
    for process in (one, other):
        await process.get()
        await process.get()
        await process.get()
    await world.pass_time(2.5, step=0.25)
    await one.cache.publish()
    await other.cache.publish()

    ledger = ledger_of(await Notes(world.store.partitions).read(NOTE))

    assert sum(audits.same for audits in ledger.rows.values()) == world.family.counts.audited > 0


async def test_a_note_is_changed_by_one_at_a_time(world: World) -> None:
    notes = Notes(world.store.partitions)
    assert await notes.read("x") is None
    assert await notes.change("x", lambda old: (old or b"") + b"1", ttl_us=60 * SECOND)

    def meanwhile(old: bytes | None) -> bytes:
        return (old or b"") + b"2"

    assert await notes.change("x", meanwhile, ttl_us=60 * SECOND)
    assert await notes.read("x") == b"12"
    world.advance(61)
    assert await notes.read("x") is None


def test_no_value_s_key_is_a_note_s() -> None:
    assert ":" not in note_key(NOTE)
