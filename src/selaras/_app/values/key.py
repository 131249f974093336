"""One key of a family, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.values.writing import BlockingWriting, Writing
from selaras._cache.family import MISSING, Slot
from selaras._core.cache.freshness import Level
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

Fresh: TypeAlias = Literal["strict", "causal"] | float | timedelta
"""How fresh a read must be: as of now, as of the current job's claim, or at most so many seconds old."""


def level_of(fresh: Fresh | Duration, *, name: str = "fresh") -> Level:
    """Return the cache's word for it. `name` is for the message."""
    match fresh:
        case "strict":
            return "strict"
        case "causal":
            return "causal"
        case str() if not fresh[:1].isdigit():
            raise ConfigurationError(f"{name}={fresh!r}: give 'strict', 'causal', or how old at most, as in '5s'")
        case _:
            return duration_us(fresh, name=name)


class Reading(Struct, Generic[V_co], frozen=True):
    """A value and where it came from.

    Attributes:
        tier: "local", "host", "shared", "stale" (the shared tier, past its ttl), "put" (this attempt's own), "preimage" or
            "loader".
        age: seconds since it was known to be true.
        position: the position of its partition's log at which it was true; None straight from the loader.
        why: one line: why it was answered from there.
    """

    value: V_co
    tier: str
    age: float
    position: int | None
    why: str


class Key(Generic[V]):
    """A cached value's place. Two keys are equal if they name the same place."""

    __slots__ = ("_program", "slot")

    def __init__(self, program: Program, slot: Slot) -> None:
        self._program = program
        self.slot = slot

    @property
    def name(self) -> str:
        """The text of the key: `product:42`. Its line has the same name."""
        return self.slot.key

    @property
    def sync(self) -> BlockingKey[V]:
        """The twin of which every call blocks."""
        return BlockingKey(self)

    def __repr__(self) -> str:
        return f"<key {self.slot.key}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.slot.key == self.slot.key

    def __hash__(self) -> int:
        return hash(self.slot.key)

    async def get(self, fresh: Fresh | None = None) -> V:
        """Read through. Inside a job no level goes below "causal"."""
        process = self._program.processes.current or self._program.process()
        if not process.opened:
            await process.open_to_read()
        value: V = await process.cache.get(self.slot, None if fresh is None else level_of(fresh))
        return value

    def at_hand(self, fresh: Fresh | None = None) -> tuple[V] | None:
        """Return the value if the local tier may serve it without waiting, alone in a tuple. From any thread."""
        process = self._program.process()
        if not process.opened:
            return None
        value: Any = process.cache.hit(self.slot, None if fresh is None else level_of(fresh))
        return None if value is MISSING else (value,)

    async def read(self, fresh: Fresh | None = None) -> Reading[V]:
        """Read through, and say where the value came from."""
        process = self._program.process()
        await process.open_to_read()
        found = await process.cache.read(self.slot, None if fresh is None else level_of(fresh))
        return Reading(found.value, found.tier, found.age_us / 1_000_000, found.position, found.why)

    async def put(self, value: V) -> None:
        """Store a value when the job or scope that writes this key succeeds.

        Anywhere else it voids what is cached: two writers could come in the other order here than in the datastore
        (P8).

        Raises:
            NotEncodable: the value cannot be stored, or is none of the family's; what is cached is voided all the same.
        """
        process = self._program.process()
        await process.open()
        await process.cache.put(self.slot, value)

    async def invalidate(self) -> None:
        """Void what is cached: now, and inside a job or scope again when that succeeds."""
        process = self._program.process()
        await process.open()
        await process.cache.invalidate([self.slot])

    async def warm(self) -> None:
        """Bring it into the local tier."""
        process = self._program.process()
        await process.open_to_read()
        await process.cache.warming.warm([self.slot])

    async def explain(self) -> str:
        """Say what stands in this place in each tier and what a read would do now, for people."""
        process = self._program.process()
        await process.open()
        return "\n".join(await process.cache.window.explain(self.slot))

    def writing(self) -> Writing:
        """Write the datastore outside of a task's declaration: `async with key.writing(): ...` around the transaction."""
        return Writing(self._program, [self.slot])


async def read_many(program: Program, keys: Sequence[Key[V]], fresh: Fresh | None = None) -> list[V]:
    """Read many keys in one trip a partition. Raises ConfigurationError for what is no key."""
    for key in keys:
        if not isinstance(key, Key):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
            raise ConfigurationError(f"read_many was given {key!r}, which is no key: name each, as in family.key(42)")
    process = program.process()
    await process.open_to_read()
    return await process.cache.get_many([key.slot for key in keys], None if fresh is None else level_of(fresh))


class BlockingKey(Generic[V]):
    """A cached value's place; see `selaras.Key`."""

    __slots__ = ("aio",)

    def __init__(self, aio: Key[V]) -> None:
        self.aio = aio

    @property
    def name(self) -> str:
        """The text of the key: `product:42`."""
        return self.aio.name

    def __repr__(self) -> str:
        return repr(self.aio)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingKey) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def get(self, fresh: Fresh | None = None) -> V:
        """Read through. Inside a job no level goes below "causal"."""
        found = self.aio.at_hand(fresh)
        return wait_for(lambda: self.aio.get(fresh)) if found is None else found[0]

    def at_hand(self, fresh: Fresh | None = None) -> tuple[V] | None:
        """Return the value if the local tier may serve it without waiting, alone in a tuple."""
        return self.aio.at_hand(fresh)

    def read(self, fresh: Fresh | None = None) -> Reading[V]:
        """Read through, and say where the value came from."""
        return wait_for(lambda: self.aio.read(fresh))

    def put(self, value: V) -> None:
        """Store a value when the job or scope that writes this key succeeds; anywhere else: void what is cached."""
        wait_for(lambda: self.aio.put(value))

    def invalidate(self) -> None:
        """Void what is cached: now, and inside a job or scope again when that succeeds."""
        wait_for(self.aio.invalidate)

    def warm(self) -> None:
        """Bring it into the local tier."""
        wait_for(self.aio.warm)

    def explain(self) -> str:
        """Say what stands in this place in each tier and what a read would do now, for people."""
        return wait_for(self.aio.explain)

    def writing(self) -> BlockingWriting:
        """Write the datastore outside of a task's declaration: `with key.writing(): ...` around the transaction."""
        return BlockingWriting(self.aio.writing())
