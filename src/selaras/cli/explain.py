"""`selaras explain`: what a job read, and who made it; what happened to a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from selaras._app.operating.lineage import concerning, recent
from selaras._app.operating.survey import find_job
from selaras._core.cache.lineage import Happening, What, maker_of
from selaras._core.routing import partition_of
from selaras.cli.cache import key_for
from selaras.cli.exits import Misused, Told
from selaras.cli.output import instant_json, instant_text, print_facts, print_json, print_table
from selaras.cli.target import Target, json_option, on_store
from selaras.cli.texts import ANY_TEXT

_COLUMNS = ("WHEN", "WHAT", "JOB", "TASK", "POSITION", "TIER", "PROCESS")


@click.command("explain")
@click.argument("words", nargs=-1, required=True, type=ANY_TEXT, metavar="JOB | FAMILY [ARGUMENT]...")
@json_option
@on_store
async def explain(target: Target, words: Sequence[str], as_json: bool) -> None:
    """Say what a recent job read, and which settle made it; or what happened to a value lately.

    A JOB is named by its id, a value by its FAMILY and the loader's ARGUMENTs, in order or as name=value. Processes note
    so many jobs a second (the setting `lineage`), and keep what they noted for a day at the most.
    """
    if not words[0]:
        raise Misused("the first word is empty: name a JOB by its id, or a FAMILY")
    happenings = await recent(target.store)
    is_family = bool(target.reference) and words[0] in target.app.registry.families
    if is_family or len(words) > 1:
        await _explain_key(target, words, happenings, as_json=as_json)
    else:
        await _explain_job(target, words[0], happenings, as_json=as_json)


async def _explain_job(target: Target, id: str, happenings: Sequence[Happening], *, as_json: bool) -> None:
    own = [one for one in happenings if one.job == id]
    found = await find_job(target.store, id)
    if not own and found is None:
        raise Told(
            f"there is no job {id}, and nothing was noted of one: `selaras jobs list` shows those that there are"
        )
    reads = [one for one in own if one.what is What.READ]
    partitions = len(target.store.partitions)
    made = [maker_of(one, partition_of(one.key, partitions), happenings) for one in reads]
    task = found.job.task if found else own[0].task
    state = found.job.state.value if found else "forgotten"
    if as_json:
        print_json(
            {
                "job": id,
                "task": task,
                "state": state,
                "reads": [
                    {**_facts(one), "made_by": None if maker is None else _facts(maker)}
                    for one, maker in zip(reads, made, strict=True)
                ],
                "did": [_facts(one) for one in own if one.what is not What.READ],
            }
        )
        return
    print_facts([("job", id), ("task", task), ("state", state)])
    click.echo()
    rows = [
        (one.key, one.tier, _position_text(one.position), _maker_text(one, maker, partition_of(one.key, partitions)))
        for one, maker in zip(reads, made, strict=True)
    ]
    print_table(("READ", "TIER", "POSITION", "MADE BY"), rows, empty="no read of it was noted")
    did = [one for one in own if one.what is not What.READ]
    if did:
        click.echo()
        print_table(("WHEN", "DID", "KEY", "POSITION"), [_did(one) for one in did], empty="")


async def _explain_key(target: Target, words: Sequence[str], happenings: Sequence[Happening], *, as_json: bool) -> None:
    key = key_for(target, words[0], words[1:])
    slot = key.slot
    own = concerning(slot, happenings)
    standing = await target.app.process().cache.window.explain(slot)
    if as_json:
        print_json({"key": key.name, "standing": standing, "happened": [_facts(one, slot.partition) for one in own]})
        return
    for line in standing:
        click.echo(line)
    click.echo()
    rows = [
        (
            *(instant_text(one.at_us), _what_text(one, key.name), one.job, one.task),
            *(_position_text(one.at(slot.partition)), one.tier, one.where),
        )
        for one in own
    ]
    print_table(_COLUMNS, rows, empty="nothing was noted of it lately")


def _what_text(one: Happening, key: str) -> str:
    return one.what.value if one.key == key else f"{one.what.value} with {one.key}"


def _did(one: Happening) -> tuple[str, str, str, str]:
    position = "" if len(one.positions) > 1 else _position_text(one.position)  # each partition has its own
    return instant_text(one.at_us), one.what.value, one.key, position


def _position_text(position: int | None) -> str:
    return "" if position is None else str(position)


def _maker_text(read: Happening, maker: Happening | None, partition: int) -> str:
    if read.tier == "put":
        return "this attempt"
    if read.tier == "loader" and read.position is None:
        return "the datastore itself"
    if maker is None:
        return "no change of it was noted"
    who = f"job {maker.job} ({maker.task})" if maker.job else "code outside of jobs"
    return f"{who}, {_what_text(maker, read.key)} at {maker.at(partition)}, {instant_text(maker.at_us)}"


def _facts(one: Happening, partition: int | None = None) -> dict[str, Any]:
    """Return it as JSON. `partition`: whose position of an invalidation that went to several is meant."""
    return {
        "at": instant_json(one.at_us),
        "what": one.what.value,
        "key": one.key,
        "process": one.where,
        "job": one.job,
        "task": one.task,
        "position": one.position if partition is None else one.at(partition),
        "tier": one.tier,
    }
