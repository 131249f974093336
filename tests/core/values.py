"""Annotations with values of theirs, for properties; and what "equal and of the same type" means."""

from __future__ import annotations

import dataclasses
import enum
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    NONE = None


class Right(enum.IntFlag):
    READ = 1
    WRITE = 2


class Product(msgspec.Struct, frozen=True):
    id: int
    name: str
    price: float
    tags: tuple[str, ...] = ()


class Basket(msgspec.Struct):
    products: list[Product]
    note: str | None = None
    by_colour: dict[Colour, int] = {}


class Node(msgspec.Struct, frozen=True):
    value: int
    below: tuple[Node, ...] = ()


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Trip:
    start: Point
    when: datetime
    stops: list[Point] = dataclasses.field(default_factory=list)
    _seen: int = 0


class Pair(NamedTuple):
    left: int
    right: Decimal


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Order(BaseModel):
    id: UUID
    when: datetime
    total: Decimal
    colour: Colour
    blob: bytes
    labels: set[str] = set()
    note: str | None = None


ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(seconds=-3723))]
    + [ZoneInfo(name) for name in ("Asia/Kathmandu", "America/New_York", "America/St_Johns", "UTC")]
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
INTEGERS = st.one_of(st.integers(-300, 300), st.integers())
DATETIMES = st.one_of(
    st.datetimes(), st.datetimes(allow_imaginary=True, timezones=ZONES), st.datetimes().map(lambda d: d.replace(fold=1))
)
TIMES = st.one_of(st.times(), st.times(timezones=ZONES), st.times().map(lambda t: t.replace(fold=1)))
# A signalling NaN can be neither hashed nor compared, not even by a test.
DECIMALS = st.decimals().filter(lambda decimal: not decimal.is_snan())

LEAVES: list[tuple[Any, SearchStrategy[Any]]] = [
    (int, INTEGERS),
    (str, TEXT),
    (float, st.floats()),
    (bool, st.booleans()),
    (None, st.none()),
    (bytes, st.binary(max_size=8)),
    (datetime, DATETIMES),
    (date, st.dates()),
    (time, TIMES),
    (timedelta, st.timedeltas()),
    (Decimal, DECIMALS),
    (UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (Size, st.sampled_from(Size)),
    (Odd, st.sampled_from(Odd)),
    (Right, st.sampled_from([Right(0), Right.READ, Right.READ | Right.WRITE])),
    (Literal["a", 1, True], st.sampled_from(["a", 1, True])),
]

PRODUCTS = st.builds(Product, id=INTEGERS, name=TEXT, price=st.floats(), tags=st.lists(TEXT, max_size=2).map(tuple))
POINTS = st.builds(Point, x=st.floats(), y=st.floats())
NODES: SearchStrategy[Node] = st.deferred(
    lambda: st.builds(Node, value=INTEGERS, below=st.lists(NODES, max_size=2).map(tuple))
)
RECORDS: list[tuple[Any, SearchStrategy[Any]]] = [
    (Product, PRODUCTS),
    (
        Basket,
        st.builds(
            Basket,
            products=st.lists(PRODUCTS, max_size=2),
            note=st.none() | TEXT,
            by_colour=st.dictionaries(st.sampled_from(Colour), INTEGERS),
        ),
    ),
    (Node, NODES),
    (Point, POINTS),
    (Trip, st.builds(Trip, start=POINTS, when=DATETIMES, stops=st.lists(POINTS, max_size=2), _seen=INTEGERS)),
    (Pair, st.builds(Pair, INTEGERS, DECIMALS)),
    (Movie, st.fixed_dictionaries({"title": TEXT}, optional={"year": INTEGERS})),
    (
        Order,
        st.builds(
            Order.model_construct,
            id=st.uuids(),
            when=DATETIMES,
            total=DECIMALS,
            colour=st.sampled_from(Colour),
            blob=st.binary(max_size=4),
            labels=st.sets(TEXT, max_size=2),
            note=st.none() | TEXT,
        ),
    ),
]

HASHABLE = {int, str, bool, bytes, date, UUID, Colour, Size, Odd, Point, Product, Pair, None}


def _wrapped(pair: tuple[Any, SearchStrategy[Any]]) -> SearchStrategy[tuple[Any, SearchStrategy[Any]]]:
    annotation, values = pair
    # Made at run time; as Any, for no checker can follow them.
    many, row, table, maybe, group, fixed = (cast(Any, kind) for kind in (list, tuple, dict, Optional, set, frozenset))
    options: list[tuple[Any, SearchStrategy[Any]]] = [
        (many[annotation], st.lists(values, max_size=3)),
        (row[annotation, ...], st.lists(values, max_size=3).map(tuple)),
        (row[annotation, int], st.tuples(values, INTEGERS)),
        (maybe[annotation], values | st.none()),
        (table[str, annotation], st.dictionaries(TEXT, values, max_size=3)),
        (table[int, annotation], st.dictionaries(INTEGERS, values, max_size=3)),
    ]
    if annotation in HASHABLE:
        options += [
            (group[annotation], st.sets(values, max_size=3)),
            (fixed[annotation], st.frozensets(values, max_size=3)),
            (table[annotation, many[annotation]], st.dictionaries(values, st.lists(values, max_size=2), max_size=3)),
        ]
    return st.sampled_from(options)


def _either(
    one: tuple[Any, SearchStrategy[Any]], other: tuple[Any, SearchStrategy[Any]]
) -> tuple[Any, SearchStrategy[Any]]:
    return (one[0] | other[0], one[1] | other[1]) if one[0] != other[0] and None not in (one[0], other[0]) else one


SIMPLE = st.sampled_from(LEAVES + RECORDS)
ANNOTATED: SearchStrategy[tuple[Any, SearchStrategy[Any]]] = st.one_of(
    SIMPLE,
    SIMPLE.flatmap(_wrapped),
    st.sampled_from(LEAVES).flatmap(_wrapped).flatmap(_wrapped),
    st.builds(_either, SIMPLE, SIMPLE),
)
"""Pairs of an annotation and a strategy of its values."""

PLAIN: SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        INTEGERS,
        TEXT,
        st.floats(),
        st.binary(max_size=4),
        DATETIMES,
        st.dates(),
        TIMES,
        st.timedeltas(),
        DECIMALS,
        st.uuids(),
        st.binary(max_size=3).map(bytearray),
        st.frozensets(INTEGERS, max_size=3),
        st.sets(TEXT, max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(TEXT, INTEGERS, st.tuples(TEXT, INTEGERS), st.none()), inner, max_size=3),
    ),
    max_leaves=8,
)
"""Plain data: what a parameter without annotation takes."""

FOREIGN: SearchStrategy[Any] = st.one_of(
    POINTS,
    PRODUCTS,
    st.sampled_from([Colour.RED, Size.SMALL, Right.READ, object(), print, int, range(3), 1j, Ellipsis, UTC]),
    st.builds(Pair, INTEGERS, DECIMALS),
)
"""What does not come back without an annotation."""


def same(one: Any, other: Any) -> bool:
    """Say whether two values are equal and of the same type to the depth."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return (math.isnan(one) and math.isnan(other)) or (
                one == other and math.copysign(1, one) == math.copysign(1, other)
            )
        case Decimal():
            return str(one) == str(other)
        case datetime() | time():
            return (
                one.replace(tzinfo=None) == other.replace(tzinfo=None)
                and one.fold == other.fold
                and one.utcoffset() == other.utcoffset()
                and getattr(one.tzinfo, "key", None) == getattr(other.tzinfo, "key", None)
            )
        case dict():
            return len(one) == len(other) and all(
                same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
            )
        case set() | frozenset():
            return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case msgspec.Struct():
            return same(msgspec.structs.astuple(one), msgspec.structs.astuple(other))
        case BaseModel():
            return same(one.__dict__, other.__dict__) and one.model_fields_set == other.model_fields_set
        case _ if dataclasses.is_dataclass(one):
            return same(vars(one), vars(other))
        case _:
            return bool(one == other)
