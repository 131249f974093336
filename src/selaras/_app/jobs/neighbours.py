"""Looks for another program on the same store that has tasks of the same names: their jobs would be mixed up."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._contracts.partition import Instance
from selaras._core.errors import StoreUnavailable

_log = logging.getLogger("selaras")


def name_of_worker(name: str, reference: str) -> str:
    """Return what a worker is called in the store: by its name for people, if it has one, and by its app."""
    return f"{name} {reference}".strip()


def mixed_up(program: Program, instances: Iterable[Instance]) -> str:
    """Say which task another app's worker has as well; "" if none."""
    mine = program.reference()
    for instance in instances:
        theirs = instance.name.rpartition(" ")[2]
        both = sorted(program.registry.tasks.keys() & set(instance.tasks))
        if both and ":" in theirs and theirs != mine:
            return (
                f"task {both[0]!r} of {mine} and of {theirs} share one store and namespace, so each would run the other's "
                f"jobs: give one app a namespace='...' or a store of its own"
            )
    return ""


async def warn_of_neighbours(program: Program, process: Process) -> None:
    """Look once a process, at its first enqueue or when its worker starts; warn of what would be mixed up."""
    program.looked_around = True
    try:
        instances = await process.store.partitions[0].instances()
    except StoreUnavailable:
        return  # whoever wants something of the store is told
    said = mixed_up(program, instances)
    if said:
        _log.warning("%s", said)
