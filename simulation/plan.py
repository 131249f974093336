"""What a world is made of: drawn from its seed, and small enough to be changed by hand or by the shrinker."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from simulation.machine import chance_of

Fault = Literal[
    "crash",  # a process ends at a call
    "pause",  # a process stands still, as by SIGSTOP, often for longer than its lease
    "block",  # a body blocks its loop; the heart goes on
    "slow",  # a call takes long
    "lost-request",  # a call is not done, and its caller is told so late
    "lost-reply",  # a call is done, and its caller is told that the store cannot be reached
    "cut",  # a process is cut off from the store for a while
    "outage",  # the store answers nobody for a while
    "bells",  # rings are lost, late or doubled
    "hints",  # a log's growth is told late, twice, or for nothing, with its events or without
    "trim",  # the log keeps a few events only
    "evict",  # the shared tier drops entries by itself; the local ones have room for two
    "forget",  # the store comes back without its last events and entries, in a new epoch
    "wall",  # civil time jumps
    "late-writes",  # a commit is on its way for long, though its writer may be gone
    "deploy",  # a worker is told to end in order, and another comes
    "shelf-silent",  # the host tier does not answer a look
    "shelf-late",  # its answer, or what is put there, is on its way for long
    "shelf-lost",  # it has lost an entry
    "shelf-empty",  # it has lost all of them
    "shelf-old",  # it brings an old entry back
    "shelf-mixed",  # it answers with another's entry
    "shelf-damaged",  # a bit of an entry has turned
    "shelf-blind",  # it stores over what it was told to compare with
]
FAULTS: Final[tuple[Fault, ...]] = Fault.__args__  # type: ignore[attr-defined] # the words above
SHELF_FAULTS: Final = tuple(fault for fault in FAULTS if fault.startswith("shelf-"))

_MOST: Final[dict[Fault, float]] = {
    "crash": 0.002,
    "pause": 0.002,
    "block": 0.02,
    "slow": 0.03,
    "lost-request": 0.02,
    "lost-reply": 0.02,
    "cut": 0.001,
    "outage": 0.1,
    "bells": 0.5,
    "hints": 0.3,
    "trim": 1.0,
    "evict": 4.0,
    "forget": 0.15,
    "wall": 0.2,
    "late-writes": 0.05,
    "deploy": 0.2,
    **dict.fromkeys(SHELF_FAULTS, 0.1),
}
"""The highest rate of each: per call, per body (`block`, `late-writes`), per second (`outage`, `evict`, `forget`, `wall`,
`deploy`), per look or put on the shelf, or as a share of all (`bells`, `hints`)."""

_QUIET: Final = 0.1
_ON: Final = 0.4
_SHELF: Final = 0.25
_AUDITED: Final = 0.3


class Plan(Struct, frozen=True, kw_only=True):
    """One world.

    Attributes:
        jobs: enqueued by all producers together. `gap_ms`: the mean time between two of one producer's.
        ttl_s: of cached values; 0: no end. `lease_s`: of workers and scopes.
        fenced: whether the datastore refuses a write of a lower fence than the row's.
        faults: rate by kind.
        shelf: whether the processes share a host tier. audit: the share of hits that is compared with the datastore.
        warms: how often a reader, or a body that reads, brings values into the tiers first. ahead: see `warm_ahead`.
    """

    seed: int
    store: Literal["memory", "sqlite"]
    partitions: int
    keys: int
    workers: int
    producers: int
    readers: int
    writers: int
    lockers: int
    jobs: int
    gap_ms: float
    lease_s: float
    ttl_s: float
    concurrency: int
    fenced: bool
    faults: dict[Fault, float]
    shelf: bool = False
    audit: float = 0.0
    warms: float = 0.0
    ahead: int = 0

    def rate(self, fault: Fault) -> float:
        """Return how often a fault happens."""
        return self.faults.get(fault, 0.0)

    def encoded(self) -> str:
        """Return it as a command line takes it."""
        return msgspec.json.encode(self).decode()


def plan_of(
    seed: int, *, jobs: int = 400, store: Literal["memory", "sqlite", "any"] = "any", shelf: float = 0.0
) -> Plan:
    """Draw a plan: most faults are off, so that those that are on meet each other in many combinations.

    `shelf`: there is a host tier, and each of its faults happens so often.
    """
    chance = chance_of(seed, "plan")
    drawn: Literal["memory", "sqlite"] = "sqlite" if chance.random() < 0.15 else "memory"
    quiet = chance.random() < _QUIET
    has_shelf = chance.random() < _SHELF or shelf > 0
    faults: dict[Fault, float] = {}
    for fault in FAULTS:
        on, size = chance.random() < _ON, chance.uniform(-1.5, 0)
        if on and not quiet and (has_shelf or fault not in SHELF_FAULTS):
            faults[fault] = float(f"{_MOST[fault] * 10**size:.2g}")
    if shelf:
        faults |= dict.fromkeys(SHELF_FAULTS, shelf)
    return Plan(
        seed=seed,
        store=drawn if store == "any" else store,
        partitions=chance.choice([1, 1, 4]),
        keys=chance.choice([2, 5, 20]),
        workers=chance.choice([1, 2, 3, 4]),
        producers=chance.choice([1, 2, 3]),
        readers=chance.choice([0, 1, 2]),
        writers=chance.choice([0, 1, 2]),
        lockers=chance.choice([0, 0, 1]),
        jobs=jobs,
        gap_ms=chance.choice([2, 5, 20]),
        lease_s=chance.choice([1.5, 3.0]),
        ttl_s=chance.choice([0, 0, 0.5]),
        concurrency=chance.choice([4, 20]),
        fenced=chance.random() < 0.7,
        faults=faults,
        shelf=has_shelf,
        audit=0.3 if chance.random() < _AUDITED else 0.0,
        warms=chance.choice([0, 0.05, 0.2]),
        ahead=chance.choice([0, 0, 4, 20]),
    )


def plan_from(text: str) -> Plan:
    """Read what `encoded` wrote."""
    return msgspec.json.decode(text, type=Plan)
