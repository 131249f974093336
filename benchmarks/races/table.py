"""Forces each race on each cache, and prints who survives what."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks.peers.environment import ROOT, Environment, Unusable
from benchmarks.peers.peer import peers
from benchmarks.peers.servers import Redis, redis_server
from benchmarks.races.forced import RACES

ADAPTERS: Final = Path(__file__).with_name("adapters")
_SECONDS: Final = 400.0


class Column(Struct, frozen=True):
    """One cache in the table.

    Attributes:
        url: "" stands for a server of the run.
        server: a binary that its environment brings, for what asks for a newer one.
    """

    title: str
    adapter: str
    python: str
    url: str = ""
    alone: bool = False
    server: str = ""


class Cell(Struct, frozen=True):
    """One race of one cache.

    Attributes:
        survived: None: it cannot come about there, or could not be forced.
        error: it could not.
    """

    survived: bool | None
    seen: str
    error: bool = False

    @property
    def mark(self) -> str:
        """What stands in the table."""
        if self.survived is None:
            return "error" if self.error else "-"
        return "yes" if self.survived else "**no**"


def print_table(command: str) -> bool:
    """Force all, print a table in Markdown and what was seen. Returns whether Selaras survived everything."""
    with ExitStack() as stack:
        server = stack.enter_context(redis_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="selaras-races-")))
        columns, missing = _columns(folder)
        found: dict[str, dict[str, Cell]] = {}
        for column in columns:
            own = redis_server(column.server) if column.server else nullcontext(server)
            with own as its:
                found[column.title] = _force(column, its, folder)
                if column.server:
                    missing.append(f"{column.title}: on Redis {its.version}, for it asks for a newer one")
        version = server.version
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    print(f"{day}, `{command}`, Redis {version}, Python {platform.python_version()}.\n")
    print("| race | " + " | ".join(column.title for column in columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for race in RACES:
        print(f"| {race} | " + " | ".join(found[column.title][race].mark for column in columns) + " |")
    print()
    for column in columns:
        print(f"{column.title}: " + "; ".join(_lines(found[column.title])))
    for line in missing:
        print(line)
    return all(
        cell.survived is not False and not cell.error
        for column in columns
        if column.adapter == "selaras"
        for cell in found[column.title].values()
    )


def _lines(cells: dict[str, Cell]) -> Sequence[str]:
    return [
        f"{race.partition(' ')[0]}: {cell.seen}"
        for race, cell in cells.items()
        if cell.survived is not None or cell.error
    ]


def _columns(folder: Path) -> tuple[list[Column], list[str]]:
    """Return what can be measured, ours first; and lines about what cannot."""
    columns = [
        Column("Selaras, memory", "selaras", sys.executable, "memory://", alone=True),
        Column("Selaras, SQLite", "selaras", sys.executable, f"sqlite:///{folder}/selaras.db"),
        Column("Selaras, Redis", "selaras", sys.executable),
    ]
    missing: list[str] = []
    for peer in peers(ADAPTERS):
        if peer.ours:
            continue
        try:
            environment = Environment(peer, renew=False)
        except Unusable as error:
            missing.append(f"{peer.name}: {error}")
            continue
        versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        title = f"{peer.name.replace('_', ' ')} ({versions})"
        brought = next(Path(environment.python).parents[1].glob("lib/*/site-packages/*/bin/redis-server"), None)
        columns.append(Column(title, peer.name, environment.python, server=str(brought or "")))
    return columns, missing


def _force(column: Column, server: Redis, folder: Path) -> dict[str, Cell]:
    """Force all races on one cache, in its own environment."""
    on_server = not column.url
    if on_server:
        server.call("FLUSHALL")
        # What is over is then found by whoever reads it, and by nobody else: the worst case, made certain.
        server.call("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    command = [
        column.python,
        "-m",
        "benchmarks.races.forced",
        column.adapter,
        column.url or server.url(),
        str(server.port if on_server else 0),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RACES_ALONE": str(int(column.alone))}
    said = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    cells = {str(one["race"]): Cell(one["survived"], one["seen"]) for one in map(json.loads, said.stdout.splitlines())}
    failed = Cell(None, "not run: " + " ".join(said.stderr.split())[-200:], error=True)
    return {race: cells.get(race, failed) for race in RACES}
