"""`app.warm()`: brings many values into the tiers before somebody needs them, gently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from selaras._app.process.program import Program
from selaras._app.setup.checks import count
from selaras._app.values.key import Key
from selaras._cache.family import Slot
from selaras._cache.warming import Brought
from selaras._core.errors import ConfigurationError

LOADS_AT_ONCE: Final = 16
"""Half of what a busy reader may do: whoever waits for a value goes first."""

_BATCH_MOST: Final = 500
"""Keys of one call of a batch loader, which counts as one load."""


class Warmed(Struct, frozen=True, kw_only=True):
    """What a warming came to.

    Attributes:
        held: were in this process already. shared: were in the store. loaded: came from the datastore, and are kept.
        unkept: came from the datastore and are not kept, since somebody writes them or the store did not answer.
        failed: their loaders failed; `error` is what the first of them raised.
    """

    held: int = 0
    shared: int = 0
    loaded: int = 0
    unkept: int = 0
    failed: int = 0
    error: BaseException | None = None

    @property
    def asked(self) -> int:
        """How many different keys there were."""
        return self.held + self.shared + self.loaded + self.unkept + self.failed

    def plus(self, brought: Brought) -> Warmed:
        """Return both together."""
        return Warmed(
            held=self.held + brought.held,
            shared=self.shared + brought.shared,
            loaded=self.loaded + brought.loaded,
            unkept=self.unkept + brought.unkept,
            failed=self.failed + brought.failed,
            error=self.error or brought.error,
        )


async def warm(
    program: Program,
    keys: Iterable[Key[Any]],
    *,
    loads: int = LOADS_AT_ONCE,
    told: Callable[[Warmed], None] | None = None,
) -> Warmed:
    """Bring values into the tiers, `loads` at a time at most. `told` hears how far it is.

    Raises:
        ConfigurationError: for what is no key.
    """
    if count(loads, option="warm: loads") < 1:
        raise ConfigurationError("warm: loads=0 would load nothing: give at least 1")
    process = program.process()
    await process.open_to_read()
    warmed = Warmed()
    for slots in _pieces(map(_slot_of, keys), loads):
        warmed = warmed.plus(await process.cache.warming.bring(slots))
        if told is not None:
            told(warmed)
        await process.clock.sleep(0)  # where all is at hand nothing else would get a turn
    return warmed


def _pieces(slots: Iterator[Slot], loads: int) -> Iterator[Sequence[Slot]]:
    """Divide keys into pieces of so many loads at most. Those of a family with a batch loader are one load together."""
    piece: list[Slot] = []
    together: dict[str, int] = {}
    alone = 0
    for slot in slots:
        batch = slot.family.name if slot.family.load_many is not None else None
        size = together.get(batch, 0) if batch is not None else 0
        if size >= _BATCH_MOST or (not size and alone + len(together) >= loads):
            yield piece
            piece, together, alone, size = [], {}, 0, 0
        piece.append(slot)
        if batch is None:
            alone += 1
        else:
            together[batch] = size + 1
    if piece:
        yield piece


def _slot_of(key: Key[Any]) -> Slot:
    if not isinstance(key, Key):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"warm was given {key!r}, which is no key: name each, as in family.key(42)")
    return key.slot
