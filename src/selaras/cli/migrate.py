"""`selaras migrate-store`: moves the jobs of one store to another."""

from __future__ import annotations

import asyncio

import click

from selaras._app.app import Selaras
from selaras._app.operating.moving import Moved, move
from selaras.cli.exits import Misused
from selaras.cli.output import counted, one_line, print_json
from selaras.cli.target import app_at, check_it_exists, json_option


@click.command("migrate-store")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--namespace", default="", metavar="NAME", help="The namespace of the app, in both stores.")
@click.option(
    "--merge", is_flag=True, help="TO may have jobs already: its own, or those of a move that was interrupted."
)
@json_option
def migrate_store(source: str, target: str, namespace: str, merge: bool, as_json: bool) -> None:
    """Move all jobs that are not over, and those that failed, from store FROM to store TO. Both are URLs.

    Stop every process of the program first, and start it with TO afterwards. Queues, lines with their order, priorities,
    due times, attempts, dependents and unique keys move with the jobs; results and cached values do not. Where it is
    interrupted, run it again with --merge: no job is lost, and none runs twice.
    """
    here, there = app_at(source, namespace), app_at(target, namespace)
    check_it_exists(here)
    if there.program.address.kind == "memory":
        raise Misused("memory:// lives inside one process: nothing can be moved there from another one")
    if here.url == there.url:
        raise Misused(f"{here.url} is named twice: give the store to move from, and the one to move to")
    moved = asyncio.run(_move(here, there, merges=merge))
    if as_json:
        print_json(
            {"from": here.url, "to": there.url, "moved": moved.jobs, "there": moved.there, "paused": list(moved.paused)}
        )
    else:
        _say(moved, here, there)


async def _move(here: Selaras, there: Selaras, *, merges: bool) -> Moved:
    async with here, there:
        return await move(
            here.process().store,
            there.process().store,
            here.process().clock,
            merges=merges,
            told=lambda text: click.echo(one_line(text), err=True),
        )


def _say(moved: Moved, here: Selaras, there: Selaras) -> None:
    said = ", ".join(f"{count:,} {state}" for state, count in sorted(moved.jobs.items()))
    click.echo(
        f"{counted(sum(moved.jobs.values()), 'job')} moved from {one_line(here.url)} to {one_line(there.url)}"
        f"{f': {said}' if said else ''}"
    )
    if moved.there:
        click.echo(f"{counted(moved.there, 'job')} had been there already")
    for queue in moved.paused:
        click.echo(f"{one_line(queue)}: is paused there, too")
