"""`selaras doctor`: whether the store is in order, and what to do if not."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import click

from selaras._app.app import Selaras
from selaras._app.operating.checkup import check_up
from selaras._contracts.finding import Finding, Level
from selaras.cli.exits import Misused, Told
from selaras.cli.output import counted, one_line, print_json, print_table, styled
from selaras.cli.target import json_option, on_app

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}


@click.command()
@json_option
@on_app
def doctor(app: Selaras, as_json: bool) -> None:
    """See whether the store and the host tier are in order, and what to do if not. Changes nothing.

    Exits with 1 if there is an error.
    """
    address = app.program.address
    if address.kind == "memory":
        raise Misused("memory:// lives inside one process: there is nothing to look at from another one")
    findings = asyncio.run(check_up(address, app.process().clock, app.program.settings))
    if as_json:
        print_json({"store": address.shown, "findings": [_record(finding) for finding in findings]})
    elif sys.stdout.isatty():
        _tell(address.shown, findings)
    else:
        columns = ("LEVEL", "ABOUT", "WHERE", "FOUND", "REMEDY")
        print_table(columns, [(f.level, f.about, f.where, f.found, f.remedy) for f in findings], empty="")
    if any(finding.level is Level.ERROR for finding in findings):
        raise SystemExit(Told.exit_code)


def _record(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level,
        "about": finding.about,
        "where": finding.where,
        "found": finding.found,
        "remedy": finding.remedy,
        "numbers": finding.numbers,
    }


def _tell(store: str, findings: Sequence[Finding]) -> None:
    """Tell a person: one line each, and beneath it what to do; the place only where it changes."""
    wide = max(len(finding.about) for finding in findings)
    where = ""
    click.echo(one_line(store))
    for finding in findings:
        if finding.where not in ("", where):
            where = finding.where
            click.echo(f"\n{one_line(where)}")
        level = styled(f"{finding.level:<7}", fg=_COLOURS[finding.level])
        click.echo(f"  {level}  {finding.about:<{wide}}  {one_line(finding.found)}")
        if finding.remedy:
            click.echo(f"  {'':<7}  {'':<{wide}}  {one_line(finding.remedy)}")
    counts = Counter(finding.level for finding in findings)
    said = [counted(counts[level], level.value) for level in (Level.ERROR, Level.WARNING) if counts[level]]
    click.echo(f"\n{', '.join(said) or 'all is well'}")
