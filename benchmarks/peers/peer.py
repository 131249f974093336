"""Who is measured, as its adapter's file says: read, not imported, for each peer's packages are in an environment of its own."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

_ADAPTERS: Final = Path(__file__).with_name("adapters")
_METADATA: Final = re.compile(r"^# /// script$\n(?P<lines>(?:^#.*$\n)+?)^# ///$", re.MULTILINE)
_ORDER: Final = (
    "selaras",
    "selaras_sqlite",
    "dramatiq",
    "huey",
    "taskiq",
    "saq",
    "docket",
    "arq",
    "bullmq",
    "streaq",
    "celery",
    "rq",
    "pgqueuer",
    "procrastinate",
)


class Peer(Struct, frozen=True, kw_only=True):
    """A job queue, and how it is measured.

    Attributes:
        settings: what its users would choose for throughput.
        packages: what its environment holds.
        shown: the packages whose versions the table names.
        store: what its jobs are kept in.
        jobs: no-ops in a drain: two seconds' worth or more.
        lease: seconds of silence after which its jobs go to others, as short as it can be set; 0: it has no such thing.
        lease_is: how that is set, in its own words. A cache says nothing.
        waits: its jobs are coroutines that may wait for each other's I/O, and cached lookups are measured too.
    """

    name: str
    settings: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    store: Literal["redis", "postgresql", "sqlite"] = "redis"
    jobs: int = 5_000
    lease: float = 2.0
    lease_is: str = ""
    waits: bool = True

    @property
    def ours(self) -> bool:
        """Whether it is Selaras."""
        return self.name.startswith("selaras")


def peers(adapters: Path = _ADAPTERS) -> Sequence[Peer]:
    """Return all that have an adapter, ours first."""
    found = {path.stem: _read(path) for path in sorted(adapters.glob("[a-z]*.py"))}
    return sorted(found.values(), key=lambda peer: _ORDER.index(peer.name) if peer.name in _ORDER else len(_ORDER))


def _read(path: Path) -> Peer:
    source = path.read_text(encoding="utf-8")
    metadata = _METADATA.search(source)
    assert metadata, f"{path} has no inline script metadata"
    said = tomllib.loads("\n".join(line[2:] for line in metadata["lines"].splitlines()))
    own = said.get("tool", {}).get("peer", {})
    return msgspec.convert(
        {
            "name": path.stem,
            "settings": " ".join((ast.get_docstring(ast.parse(source)) or "").split()),
            "packages": said["dependencies"],
            "shown": [path.stem],
            **own,
        },
        type=Peer,
    )
