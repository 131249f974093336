"""Intents that stand for long while readers pass them: told once, with who holds them."""

from __future__ import annotations

import pytest
from tests.cache.world import Process, World

from selaras._cache.vigil import LONG_US, Holding
from selaras._core.cache.entry import Intent
from selaras._core.cache.events import IntentStands
from selaras._core.cache.opening import open_name
from selaras._core.jobs.job import NewJob
from selaras._core.positions import Scope

LONG_S = LONG_US / 1_000_000


async def _told(reader: Process, seconds: float) -> list[IntentStands]:
    """Read once a second for so long; return what was told."""
    for _ in range(round(seconds)):
        await reader.get(fresh="strict")
        await reader.world.pass_time(1, step=0.5)
    await reader.get(fresh="strict")
    await reader.world.idle()
    return [event for event in reader.events if isinstance(event, IntentStands)]


async def _write_together(writer: Process, name: str) -> None:
    await writer.world.store.partitions[0].enqueue([NewJob(id="a", task="work", writes=(name,))], writer.cursor(0))
    await writer.turn(limit=1)


async def test_an_intent_that_stands_long_is_told_once_with_who_holds_it(world: World) -> None:
    reader, writer = await world.process("reader"), await world.process("writer")
    await writer.claim("a", writes=[world.slot()])

    told = await _told(reader, 3 * LONG_S)

    assert [(one.job, one.task, one.instance, one.family) for one in told] == [("a", "work", "writer", "product")]
    assert told[0].stands_us >= LONG_US
    assert told[0].text.startswith("job a (work, on writer) writes product:42, for 1")
    assert reader.cache.stats()["stuck_intents"] == 1


@pytest.mark.parametrize(
    ("scope", "name", "shown"), [(Scope.TAG, "t", "tag t"), (Scope.FAMILY, "product", "family product")]
)
async def test_so_is_one_of_a_tag_or_a_family(world: World, scope: Scope, name: str, shown: str) -> None:
    world.like(tags=lambda _arguments, _value: ("t",))
    reader, writer = await world.process("reader"), await world.process("writer")
    await _write_together(writer, open_name(scope, name, 0))

    told = await _told(reader, 2 * LONG_S)

    assert len(told) == 1
    assert f"writes {shown}, for" in told[0].text


async def test_writers_that_come_one_after_the_other_are_not_told_of(world: World) -> None:
    reader, writer = await world.process("reader"), await world.process("writer")

    told: list[IntentStands] = []
    for number in range(6):
        session = await writer.claim(f"job-{number}", writes=[world.slot()])
        told = await _told(reader, LONG_S / 2)
        await writer.settle(session)

    assert told == []


async def test_an_intent_that_nobody_passes_is_not_told_of(world: World) -> None:
    reader, writer = await world.process("reader"), await world.process("writer")
    await writer.claim("a", writes=[world.slot()])

    await reader.get(fresh="strict")
    world.advance(LONG_S + 1)
    await reader.get(fresh="strict")
    await world.idle()

    assert not [event for event in reader.events if isinstance(event, IntentStands)]


async def test_what_is_shown_of_a_key_names_who_writes_it(world: World) -> None:
    world.like(tags=lambda _arguments, _value: ("t",))
    process = await world.process("p")
    before = await process.cache.window.show(world.slot())
    await _write_together(process, open_name(Scope.TAG, "t", 0))
    world.advance(12)

    after = await process.cache.window.show(world.slot())
    lines = await process.cache.window.explain(world.slot())

    assert before.why == "nobody has loaded it, or it was voided or evicted"
    assert after.why == "job a (work, on p) writes tag t, for 12 s"
    assert any(line.startswith("intent     job a (work, on p) writes tag t, for 12 s, fence") for line in lines)


@pytest.mark.parametrize(("instance", "who"), [("web", "(on web)"), ("", "(cut off; its commit may still land)")])
def test_a_scope_without_a_process_is_told_as_what_it_is(instance: str, who: str) -> None:
    held = Holding(Intent("product:42", 0, "a", 1), instance=instance, is_scope=True)
    assert held.shown(0) == f"a writing() scope {who} writes product:42"
