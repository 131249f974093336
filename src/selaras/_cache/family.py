"""What the cache needs to know of a cached family, and one place in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from selaras._core.cache.freshness import BOUNDED, Level
from selaras._core.cache.lifetimes import Adaptive, early_us
from selaras._core.cache.opening import Opening
from selaras._core.positions import Scope

LEASE_US_UNKNOWN: Final = 5_000_000
"""A token's life before any load of its family was seen."""
PATIENCE_US_UNKNOWN: Final = 20_000_000
"""How long a load of such a family is waited for while its reader renews the token: it lives, and its loader may hang."""
LEASE_US_LEAST: Final = 1_000_000
LEASE_US_MOST: Final = 60_000_000
_UNAUDITED = 1 << 29  # a number of one digit, for it stands in the way of every hit; once reached it is raised
_LEASE_OF_LOAD = 4  # a load may take four times as long as its like before its token needs to be renewed


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING: Final = _Missing()
"""What stands for no value: what `Cache.hit` returns when it cannot answer at once. Not a value anybody can store."""


class Coder(Protocol):
    """Values of a family as bytes. Raises NotEncodable and CorruptBytes; see `_core.codec`."""

    shared: bool

    def encode(self, value: Any, *, path: str = "value") -> bytes:
        """Return the value's bytes."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value of these bytes."""
        ...


@dataclass(slots=True)
class Counts:
    """What became of a family's reads in this process. Approximate when several threads read at once.

    Attributes:
        local, host, shared: served by that tier. own: by the attempt's own put. preimages: by what its intent replaced.
        loads: served by the datastore. joined: shared somebody else's read. waited: waited for another's fill.
        intents: met a write intent. rejected: entries of the local tier that were too old to serve.
        refused: loads whose fill was refused. fallbacks: loads because the store could not be reached.
        early: loads ahead of a value's end. ahead: those for jobs that were not claimed yet. stale: served past the ttl. unchanged: loads that found the same value.
        audited: compared with the datastore. stale_reads: of those, older than the reader needed.
        repaired: corrupt entries. unstorable: values that could not be stored. too_large: larger ones than are kept.
        errors: loads that failed.
    """

    local: int = 0
    shared: int = 0
    own: int = 0
    preimages: int = 0
    loads: int = 0
    joined: int = 0
    waited: int = 0
    intents: int = 0
    rejected: int = 0
    refused: int = 0
    fallbacks: int = 0
    early: int = 0
    ahead: int = 0
    stale: int = 0
    unchanged: int = 0
    host: int = 0
    audited: int = 0
    stale_reads: int = 0
    repaired: int = 0
    unstorable: int = 0
    too_large: int = 0
    errors: int = 0


@dataclass(slots=True, eq=False)
class Family:
    """One cached family: a loader, and how its values are kept.

    Attributes:
        load: the datastore read of one key's arguments. `load_many`: of many, as many values in the same order.
            `load_again`: of one key's arguments and the value known until now, or None; it may raise NotModified.
        ttl_us: None: no end; 0: not stored. `ttl_none_us`: the same for None as a value.
        adaptive: the ttl follows each key's changes. `adaptive_none`: that of None, too.
        beta: how eagerly values are loaded anew ahead of their end (XFetch); 0: never.
        soft_timeout_us: a read that may have a stale value waits for the loader no longer. 0: for ever.
        hard_timeout_us: a load that takes longer is an error. 0: none is.
        stale_if_error_us, stale_while_revalidate_us: how long past its ttl a value may be served, to reads outside of
            jobs that need neither `strict` nor `causal` (RFC 5861). `stale_us`: at the most.
        fallback_loads: of its loads, how many run at once in a process while the store does not answer.
        local, host, shared_tier: the tiers that may hold its values.
        during_write: "load": while somebody writes a key it is read from the datastore. "serve": the old value is
            served until the writer's settle.
        version: the datastore's own version of a value; what is older than the newest one known is not accepted.
        replica_lag_us: how long fills stay closed after a write that named no version.
        tags: of a value, from its arguments and itself.
        level: of a read that names none.
        max_value: bytes of a value, beyond which it is served and not kept; 0: no bound.
        compress_threshold: bytes of a value, from which on the shared tier is given it packed; 0: never.
        audit: the share of its hits that is compared with the datastore. `audit_at`: at this count of local hits the
            next one is; 0: it is not drawn yet.
    """

    name: str
    codec: Coder
    load: Callable[[Any], Awaitable[Any]]
    load_many: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]] | None = None
    load_again: Callable[[Any, Any], Awaitable[Any]] | None = None
    ttl_us: int | None = 300_000_000
    ttl_none_us: int | None = 60_000_000
    local: bool = True
    host: bool = True
    shared_tier: bool = True
    during_write: Literal["load", "serve"] = "load"
    version: Callable[[Any], int | None] | None = None
    replica_lag_us: int = 0
    tags: Callable[[Any, Any], tuple[str, ...]] | None = None
    level: Level = BOUNDED
    adaptive: Adaptive | None = None
    adaptive_none: bool = True
    beta: float = 1.0
    soft_timeout_us: int = 0
    hard_timeout_us: int = 0
    stale_if_error_us: int = 0
    stale_while_revalidate_us: int = 0
    fallback_loads: int = 32
    max_value: int = 0
    compress_threshold: int = 0
    audit: float = 0.0
    load_us: int = 0
    stale_us: int = field(init=False)
    counts: Counts = field(default_factory=Counts)
    audit_at: int = field(init=False)

    def __post_init__(self) -> None:
        self.audit_at = 0 if self.audit else _UNAUDITED
        self.stale_us = max(self.stale_if_error_us, self.stale_while_revalidate_us)

    def lease_us(self) -> int:
        """Return how long a token must live: as long as loads of this family take, and some."""
        if not self.load_us:
            return LEASE_US_UNKNOWN
        return min(max(self.load_us * _LEASE_OF_LOAD, LEASE_US_LEAST), LEASE_US_MOST)

    def patience_us(self, *, same: bool) -> int:
        """Return how long another reader's fill is waited for: as long as loads of this family take, and some.

        Args:
            same: it is still the load that was waited for first. Where it failed, and another reader's has begun, more
                would be waiting for one failure after the other.
        """
        if self.load_us or not same:
            return self.lease_us()
        return PATIENCE_US_UNKNOWN

    def took(self, us: int) -> None:
        """Note how long a load took: longer ones count at once, shorter ones slowly."""
        self.load_us = max(us, 1, self.load_us * 9 // 10)

    def heard(self, load_us: int) -> None:
        """Note how long loads took in another process: it counts until there is one here."""
        self.load_us = self.load_us or load_us

    def ttl_of(self, value: Any) -> int | None:
        """Return how long this value may be kept; None: no end; 0: not at all. What `adaptive` says stands above it."""
        return self.ttl_none_us if value is None else self.ttl_us

    def adapts(self, value: Any) -> Adaptive | None:
        """Return the rule of this value's ttl, if it follows its key's changes."""
        return self.adaptive if value is not None or self.adaptive_none else None

    def bears(self, arguments: Any, value: Any, tags: tuple[str, ...]) -> bool:
        """Say whether among these are all the tags that a value has: what another version of the program stored may lack some,
        and whatever voided those did not void it.
        """
        if self.tags is None:
            return True
        try:
            now = self.tags(arguments, value)
        except Exception:  # noqa: BLE001 - of the program's own; a value that nobody can tag is not stored either
            return False
        return now == tags or set(now) <= set(tags)

    def tags_known(self, arguments: Any) -> tuple[str, ...]:
        """Return the tags that values of these arguments bear, where that can be told without a value."""
        try:
            return self.tags(arguments, None) if self.tags is not None else ()
        except Exception:  # noqa: BLE001 - of the program's own, which expects a value
            return ()

    def late_us(self, ttl_us: int) -> int:
        """Return how long past its ttl a value is kept: to be served, or to be compared with the next one."""
        compared = self.adaptive is not None or self.load_again is not None
        return max(self.stale_us, ttl_us if compared else 0)

    def early_us(self, load_us: int, chance: float) -> int:
        """Return how long before its end a value is loaded anew; see `lifetimes.early_us`."""
        return early_us(load_us or self.load_us, self.beta, chance) if self.beta else 0


def lag_us_of(families: Iterable[Family], what: Opening) -> int:
    """Return how late the datastore may be with values of a family, or of those that can bear a tag."""
    scope, name = what
    late = (family for family in families if family.replica_lag_us)
    return max(
        (
            family.replica_lag_us
            for family in late
            if (family.tags is not None if scope is Scope.TAG else family.name == name)
        ),
        default=0,
    )


class Slot(Struct, frozen=True, gc=False):
    """The place of one value: what a public key handle wraps. There may be many: the garbage collector does not see them.

    Attributes:
        key: the whole text, family included. `partition`: of that text.
        arguments: what the loader is called with.
    """

    family: Family
    key: str
    partition: int
    arguments: Any = None


class Standing(Struct, frozen=True):
    """What stands in a key's place in the shared tier, for people.

    Attributes:
        tier: "shared", "stale" (past its ttl), or "nothing".
        age_us: since it was stored; None: it has no end, and so nobody noted when.
        ttl_us: of which `left_us` is left, not above 0 if it is over; None: no end.
        why: one line: why its ttl is what it is.
    """

    value: Any
    tier: str
    age_us: int | None = None
    ttl_us: int | None = None
    left_us: int | None = None
    position: int | None = None
    why: str = ""


class Reading(Struct, frozen=True):
    """A value and where it came from.

    Attributes:
        tier: "local", "host", "shared", "stale" (the shared tier, past its ttl), "put" (this attempt's own), "preimage"
            or "loader".
        age_us: since it was known to be true.
        position: of its partition's log at which it was true; None: straight from the loader.
        why: one line for people.
    """

    value: Any
    tier: str
    age_us: int = 0
    position: int | None = None
    why: str = ""
