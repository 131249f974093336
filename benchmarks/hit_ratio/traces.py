"""What is read, in which order: patterns made by a seed, and the look-ups of the flights that the demo carries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from selaras.demo.flights import read_flights

KEYS: Final = 20_000
READS: Final = 300_000


def zipf(chance: Random, exponent: float) -> Iterator[str]:
    """Few keys are read often, many seldom."""
    weights = list(itertools.accumulate(1 / rank**exponent for rank in range(1, KEYS + 1)))
    return (f"{rank}" for rank in chance.choices(range(KEYS), cum_weights=weights, k=READS))


def shifting(chance: Random) -> Iterator[str]:
    """The same, and every now and then other keys are the popular ones."""
    for place, key in enumerate(zipf(chance, 0.9)):
        yield f"{(int(key) + place // (READS // 10) * 1_000) % KEYS}"


def scan(chance: Random) -> Iterator[str]:
    """Popular keys, and between them jobs that read a table from end to end, once."""
    rows = 0
    for place, key in enumerate(zipf(chance, 0.9)):
        yield key
        if place % 30_000 == 0:
            yield from (f"row {rows + n}" for n in range(15_000))
            rows += 15_000


def loop(chance: Random) -> Iterator[str]:
    """The same keys over and over, in the same order: half as many again as the middle size holds."""
    del chance
    return (f"{place % (KEYS * 15 // 100)}" for place in range(READS))


def mixed(chance: Random) -> Iterator[str]:
    """Stretches of all of them, one after the other."""
    parts = [shifting(chance), scan(chance), loop(chance), zipf(chance, 0.7)]
    while parts:
        part = chance.choice(parts)
        stretch = list(itertools.islice(part, 5_000))
        yield from stretch
        if not stretch:
            parts.remove(part)


def flights(chance: Random) -> Iterator[str]:
    """What a job reads for each flight out of New York in 2013, in order: its plane, the hour's weather, both airports."""
    del chance
    for flight in read_flights(year=True):
        yield f"plane {flight.tailnum}"
        yield f"weather {flight.origin} {flight.hour}"
        yield f"airport {flight.dest}"


TRACES: Final[dict[str, Callable[[Random], Iterator[str]]]] = {
    "zipf 0.7": lambda chance: zipf(chance, 0.7),
    "zipf 1.0": lambda chance: zipf(chance, 1.0),
    "shifting": shifting,
    "scan": scan,
    "loop": loop,
    "mixed": mixed,
    "flights": flights,
}
