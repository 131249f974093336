"""What an annotation says about its values: how they become plain data, and how they come back.

A shape answers four questions. `exact(value)`: is it certain, cheaply, that msgpack alone keeps this value? Only
shapes with a `wire` type are ever asked. `lower(value)`: its plain data, or Refused with the path. `lift(data)`: the
value again. `shared`: is it immutable to the depth?

Coercion is what typing itself says: an int is a float where a float is asked for, a bool is an int. Nothing
else is converted, and a subclass that the annotation does not describe is refused, for it would come back as its base.
"""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from decimal import Decimal
from enum import Enum, Flag
from operator import attrgetter
from typing import Any, Final, Literal, Union

from msgspec import UNSET

from selaras._core.tagged import (
    DEPTH_MOST,
    NATIVE,
    PLAIN_LEAVES,
    Hidden,
    Refused,
    Unreadable,
    check,
    encode as encode_plain,
    is_native,
)

# Types made at run time; as Any, for no checker can follow them.
_UNION: Final[Any] = Union
_LITERAL: Final[Any] = Literal
_LIST: Final[Any] = list
_TUPLE: Final[Any] = tuple
_DICT: Final[Any] = dict

REQUIRED: Final = object()
"""A field without default."""


class Shape:
    """One annotation, understood.

    Attributes:
        name: for people, and the tag of a union's branch in stored bytes.
        wire: the type msgspec is asked to encode and decode, where it alone keeps what `exact` approves; else NO_WIRE.
        kinds: which kinds of msgpack data carry it; branches of a union must differ to be carried without a tag.
        types: if the type of a value alone decides `exact`: the types it approves.
        shared: values are immutable to the depth.
        again: a value must be lowered twice and compared, for its class runs code when it is made.
        unmarked: values are secret, or hold what is, and only the annotation says so: their own types do not.
    """

    name: str = "Any"
    wire: Any = None
    kinds: frozenset[str] = frozenset({"any"})
    types: frozenset[type] | None = None
    shared: bool = False
    again: bool = False
    unmarked: bool = False

    def exact(self, value: Any) -> bool:
        """Say whether `wire` keeps `value` for sure; False only means that `lower` must be asked."""
        raise NotImplementedError

    def takes(self, value: Any) -> bool:
        """Say whether `value` is of this shape at its surface, without coercion."""
        raise NotImplementedError

    def lower(self, value: Any, depth: int) -> Any:
        """Return the plain data of `value`. Raises Refused."""
        raise NotImplementedError

    def lift(self, data: Any) -> Any:
        """Return the value of plain data. Raises Unreadable; whatever else a class raises is caught outside."""
        raise NotImplementedError

    def outline(self) -> str:
        """Say what it is made of, to the depth: two versions of a class with other fields are told apart by it."""
        return self.name

    def coerce(self, value: Any) -> Any:
        """Return `value` as the annotation says it at its surface: 1.0 for 1; anything else as it is."""
        return value


NO_WIRE: Final = object()


class AnyShape(Shape):
    """No annotation: plain data comes back, nothing else."""

    wire = Any

    def exact(self, value: Any) -> bool:
        return is_native(value)

    def takes(self, value: Any) -> bool:
        return True

    def lower(self, value: Any, depth: int) -> Any:
        check(value, depth)
        return value

    def lift(self, data: Any) -> Any:
        return data


class Leaf(Shape):
    """A type of plain data without parts."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.name = "None" if kind is type(None) else kind.__name__
        self.wire = None if kind is type(None) else kind
        self.kinds = _WIRE_KINDS[kind]
        self.shared = kind is not bytearray
        # A datetime's own zone decides; see Moment.
        self.types = frozenset({kind})

    def exact(self, value: Any) -> bool:
        return type(value) is self.kind

    def takes(self, value: Any) -> bool:
        return type(value) is self.kind

    def lower(self, value: Any, depth: int) -> Any:
        value = self.coerce(value)
        if type(value) is not self.kind:
            raise mismatch(self.name, value)
        return value

    def lift(self, data: Any) -> Any:
        data = self.coerce(data)
        if type(data) is not self.kind:
            raise Unreadable(f"expected {self.name}, got {type(data).__name__}")
        return data


class Integer(Leaf):
    def coerce(self, value: Any) -> Any:
        return int(value) if type(value) is bool else value


class Float(Leaf):
    def coerce(self, value: Any) -> Any:
        if type(value) is int or type(value) is bool:
            try:
                number = float(value)
            except OverflowError:
                return value
            # An integer beyond 2**53 may have no float that equals it; then it is not one.
            return number if number == value else value
        return value


class Moment(Leaf):
    """A datetime or time: msgpack keeps the naive ones and those in UTC; another zone travels by its name."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind)
        self.types = None

    def exact(self, value: Any) -> bool:
        if type(value) is not self.kind or value.fold:
            return False
        zone = value.tzinfo
        return zone is None or (zone is UTC and self.kind is datetime)

    def lower(self, value: Any, depth: int) -> Any:
        super().lower(value, depth)
        check(value)
        return value


_WIRE_KINDS: Final[dict[type, frozenset[str]]] = {
    kind: frozenset({"str"}) for kind in PLAIN_LEAVES if kind not in NATIVE
} | {
    type(None): frozenset({"nil"}),
    bool: frozenset({"bool"}),
    int: frozenset({"int"}),
    float: frozenset({"float"}),
    str: frozenset({"str"}),
    bytes: frozenset({"bin"}),
    bytearray: frozenset({"bin"}),
    datetime: frozenset({"str", "ext"}),
}


def leaf(kind: type) -> Leaf:
    """Return the shape of a type of plain data without parts."""
    if kind is int:
        return Integer(kind)
    if kind is float:
        return Float(kind)
    if kind is datetime or kind is time:
        return Moment(kind)
    return Leaf(kind)


class EnumShape(Shape):
    """A member of an Enum, by its name, or its value if that is text; of a Flag, by its number, for members combine."""

    shared = True

    def __init__(self, kind: type[Enum]) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.flag = issubclass(kind, Flag)
        self.types = frozenset({kind})
        values = {type(member.value) for member in kind}
        # msgspec carries members by their values. Texts are somebody's words; numbers `auto()` gives, and other ones after a
        # deploy that inserts a member: what waits in a queue would come back as its neighbour.
        if values == {str} and "_missing_" not in vars(kind):
            self.wire = kind
            self.kinds = frozenset({"str"})
        else:
            self.wire = NO_WIRE

    def exact(self, value: Any) -> bool:
        return type(value) is self.kind

    def takes(self, value: Any) -> bool:
        return type(value) is self.kind

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.kind:
            raise mismatch(self.name, value)
        return value.value if self.flag else value.name

    def lift(self, data: Any) -> Any:
        if self.flag:
            return self.kind(data)
        try:
            return self.kind[data]
        except KeyError:
            raise Unreadable(f"{self.name} has no member {data!r}") from None

    def outline(self) -> str:
        # A member that was inserted before others gives theirs, as `auto()` does, to the next ones.
        members = sorted(f"{name}={member.value!r}" for name, member in self.kind.__members__.items())
        return f"{self.name}{{{','.join(members)}}}"


class LiteralShape(Shape):
    """One of a few values, written in the annotation."""

    shared = True

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.name = f"Literal[{', '.join(map(repr, values))}]"
        self.allowed = frozenset((type(value), value) for value in values)
        self.by_text = {_literal_text(value): value for value in values}
        if {str, int, type(None)}.issuperset(map(type, values)):
            self.wire = _LITERAL[values]
            self.kinds = frozenset(kind for value in values for kind in _WIRE_KINDS[type(value)])
        else:
            self.wire = NO_WIRE

    def exact(self, value: Any) -> bool:
        return self.takes(value)

    def takes(self, value: Any) -> bool:
        try:
            return (type(value), value) in self.allowed
        except TypeError:
            return False

    def lower(self, value: Any, depth: int) -> Any:
        if not self.takes(value):
            raise Refused(f"is {_say(value)}, not one of {self.name}")
        return value if type(value) in NATIVE else _literal_text(value)

    def lift(self, data: Any) -> Any:
        if self.takes(data):
            return data
        if data in self.by_text:
            return self.by_text[data]
        raise Unreadable(f"expected {self.name}")


def _literal_text(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


class ManyShape(Shape):
    """A list, set, frozenset or tuple of any length, with items of one shape."""

    def __init__(self, kind: type[Any], item: Shape) -> None:
        self.kind = kind
        self.item = item
        self.name = kind.__name__
        self.shared = kind in (tuple, frozenset) and item.shared
        self.again = item.again
        self.unmarked = item.unmarked
        # Sets go the longer way: there their order is made the same in every process.
        if item.wire is NO_WIRE or kind not in (list, tuple):
            self.wire = NO_WIRE
        elif kind is list:
            self.wire = _LIST[item.wire]
        else:
            self.wire = _TUPLE[item.wire, ...]
        self.kinds = frozenset({"array"})

    def outline(self) -> str:
        return f"{self.name}[{self.item.outline()}]"

    def exact(self, value: Any) -> bool:
        if type(value) is not self.kind:
            return False
        types = self.item.types
        if types is not None:
            return types.issuperset(map(type, value))
        return all(map(self.item.exact, value))

    def takes(self, value: Any) -> bool:
        return type(value) is self.kind

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.kind:
            raise mismatch(self.name, value)
        too_deep(depth)
        lower = self.item.lower
        items: list[Any] = []
        try:
            for item in value:
                items.append(lower(item, depth + 1))  # noqa: PERF401 - so far done, they say where it stopped
        except Refused as refused:
            raise refused.under(f"[{len(items)}]" if self.kind in (list, tuple) else "{…}") from None
        # Plain data sorts the items of a set, so that equal sets give equal bytes.
        return items if self.kind in (list, tuple) else sorted(items, key=encode_plain)

    def lift(self, data: Any) -> Any:
        lift = self.item.lift
        return self.kind([lift(item) for item in _expected(list, data, self.name)])


class TupleShape(Shape):
    """A tuple, or NamedTuple, of fixed parts."""

    def __init__(self, items: tuple[Shape, ...], kind: type[Any] = tuple, names: tuple[str, ...] = ()) -> None:
        self.items = items
        self.kind = kind
        self.name = kind.__name__
        self.names = names
        self.shared = all(item.shared for item in items)
        self.again = any(item.again for item in items)
        self.unmarked = any(item.unmarked for item in items)
        self.kinds = frozenset({"array"})
        if any(item.wire is NO_WIRE for item in items):
            self.wire = NO_WIRE
        elif kind is tuple:
            self.wire = _TUPLE[tuple(item.wire for item in items)]
        else:
            self.wire = kind

    def outline(self) -> str:
        return f"{self.name}{self.names}[{','.join(item.outline() for item in self.items)}]"

    def exact(self, value: Any) -> bool:
        if type(value) is not self.kind or len(value) != len(self.items):
            return False
        return all(shape.exact(item) for shape, item in zip(self.items, value, strict=True))

    def takes(self, value: Any) -> bool:
        return type(value) is self.kind and len(value) == len(self.items)

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.kind:
            raise mismatch(self.name, value)
        if len(value) != len(self.items):
            raise Refused(f"has {len(value)} items where {len(self.items)} are expected")
        too_deep(depth)
        lowered: list[Any] = []
        try:
            for shape, item in zip(self.items, value, strict=True):
                lowered.append(shape.lower(item, depth + 1))
        except Refused as refused:
            place = len(lowered)
            raise refused.under(f".{self.names[place]}" if self.names else f"[{place}]") from None
        return lowered

    def lift(self, data: Any) -> Any:
        items = _expected(list, data, self.name)
        if len(items) != len(self.items):
            raise Unreadable(f"{self.name} with {len(items)} items; expected {len(self.items)}")
        lifted = [shape.lift(item) for shape, item in zip(self.items, items, strict=True)]
        return tuple.__new__(self.kind, lifted)


class DictShape(Shape):
    """A dict with keys and values of one shape each; its order is kept."""

    name = "dict"
    kinds = frozenset({"map"})

    def __init__(self, key: Shape, item: Shape) -> None:
        self.key = key
        self.item = item
        self.again = key.again or item.again
        self.unmarked = key.unmarked or item.unmarked
        if item.wire is NO_WIRE or not _is_map_key(key):
            self.wire = NO_WIRE
        else:
            self.wire = _DICT[key.wire, item.wire]

    def outline(self) -> str:
        return f"dict[{self.key.outline()},{self.item.outline()}]"

    def exact(self, value: Any) -> bool:
        if type(value) is not dict:
            return False
        types = self.key.types
        if types is None or not types.issuperset(map(type, value)):
            return False
        types = self.item.types
        if types is not None:
            return types.issuperset(map(type, value.values()))
        return all(map(self.item.exact, value.values()))

    def takes(self, value: Any) -> bool:
        return type(value) is dict

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not dict:
            raise mismatch("dict", value)
        too_deep(depth)
        pairs: list[list[Any]] = []
        for key, item in value.items():
            try:
                lowered_key = self.key.lower(key, depth + 1)
            except Refused as refused:
                raise Refused(f"the key {_say(key)}{refused.path} {refused.reason}") from None
            try:
                pairs.append([lowered_key, self.item.lower(item, depth + 1)])
            except Refused as refused:
                raise refused.under(f"[{key!r:.60}]") from None
        return dict(pairs) if all(type(key) is str for key, _ in pairs) else pairs

    def lift(self, data: Any) -> Any:
        pairs = data.items() if type(data) is dict else _expected(list, data, "dict")
        return {self.key.lift(key): self.item.lift(item) for key, item in pairs}


def _is_map_key(shape: Shape) -> bool:
    return (shape.types is not None and shape.wire in (str, int)) or (
        isinstance(shape, EnumShape) and shape.wire is not NO_WIRE
    )


@dataclasses.dataclass(slots=True)
class Field:
    """One field of a record. `default`: a function of no arguments, or REQUIRED."""

    name: str
    shape: Shape
    default: Any = REQUIRED


class Row:
    """Several shapes side by side; judges a row of values fast by the combination of their types."""

    __slots__ = ("_deep", "_shapes", "_surely")

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._shapes = tuple(shapes)
        self._surely: set[tuple[type, ...]] = set()
        self._deep = tuple((place, shape) for place, shape in enumerate(shapes) if shape.types is None)

    def exact(self, values: Sequence[Any]) -> bool:
        """Say whether each value is exact for its shape."""
        types = tuple(map(type, values))
        if types not in self._surely:
            for shape, kind in zip(self._shapes, types, strict=True):
                if shape.types is not None and kind not in shape.types:
                    return False
            # Combinations are few in practice; the bound is for data that differs in type all the time.
            if len(self._surely) < 256:
                self._surely.add(types)
        for place, shape in self._deep:  # noqa: SIM110 - a generator costs more than the test, and most rows have none
            if not shape.exact(values[place]):
                return False
        return True


class RecordShape(Shape):
    """A class with named fields: Struct, dataclass, TypedDict or pydantic model.

    Attributes:
        read: the field values of an instance, in order.
        build: makes an instance of a dict of field values.
    """

    kinds = frozenset({"map"})

    def __init__(self, kind: type[Any], name: str) -> None:
        self.kind = kind
        self.name = name
        self.wire = NO_WIRE
        self.fields: tuple[Field, ...] = ()

    def settle(
        self,
        fields: Sequence[Field],
        *,
        read: Callable[[Any], Sequence[Any]],
        build: Callable[[dict[str, Any]], Any],
        wire: Any,
        frozen: bool,
        again: bool,
    ) -> None:
        """Complete the shape: its fields may be of its own shape, so they come later."""
        self.fields = tuple(fields)
        self.read = read
        self.build = build
        self.wire = wire if all(field.shape.wire is not NO_WIRE for field in fields) else NO_WIRE
        self.shared = frozen and all(field.shape.shared for field in fields)
        self.again = again or any(field.shape.again for field in fields)
        self._row_exact = Row([field.shape for field in fields]).exact

    def outline(self) -> str:
        return f"{self.name}({','.join(f'{field.name}:{field.shape.outline()}' for field in self.fields)})"

    def exact(self, value: Any) -> bool:
        return type(value) is self.kind and self._row_exact(self.read(value))

    def takes(self, value: Any) -> bool:
        return type(value) is self.kind

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not self.kind:
            raise mismatch(self.name, value)
        too_deep(depth)
        lowered: dict[str, Any] = {}
        for field, part in zip(self.fields, self._parts(value), strict=True):
            if part is UNSET:
                continue
            try:
                lowered[field.name] = field.shape.lower(part, depth + 1)
            except Refused as refused:
                raise refused.under(f".{field.name}") from None
        return lowered

    def _parts(self, value: Any) -> Sequence[Any]:
        try:
            return self.read(value)
        except AttributeError as error:
            raise Refused(f"is a {self.name} without all of its fields: {error}") from None

    def lift(self, data: Any) -> Any:
        found = _expected(dict, data, self.name)
        values: dict[str, Any] = {}
        for field in self.fields:
            if field.name in found:
                values[field.name] = field.shape.lift(found[field.name])
            elif field.default is REQUIRED:
                raise Unreadable(f"{self.name} without its field {field.name!r}")
            else:
                values[field.name] = field.default()
        return self.build(values)


class TypedDictShape(Shape):
    """A dict with known keys, some of them optional."""

    kinds = frozenset({"map"})

    def __init__(self, kind: type, name: str) -> None:
        self.kind = kind
        self.name = name
        self.wire = NO_WIRE
        self.fields: dict[str, Shape] = {}
        self.required: frozenset[str] = frozenset()

    def settle(self, fields: dict[str, Shape], required: frozenset[str]) -> None:
        """Complete the shape."""
        self.fields = fields
        self.required = required
        self.again = any(shape.again for shape in fields.values())
        self.unmarked = any(shape.unmarked for shape in fields.values())
        if all(shape.wire is not NO_WIRE for shape in fields.values()):
            self.wire = self.kind

    def outline(self) -> str:
        fields = sorted(f"{name}:{shape.outline()}" for name, shape in self.fields.items())
        return f"{self.name}({','.join(fields)}){sorted(self.required)}"

    def exact(self, value: Any) -> bool:
        if type(value) is not dict or not self.required <= value.keys():
            return False
        fields = self.fields
        return all(key in fields and fields[key].exact(item) for key, item in value.items())

    def takes(self, value: Any) -> bool:
        return type(value) is dict and self.required <= value.keys() <= self.fields.keys()

    def lower(self, value: Any, depth: int) -> Any:
        if type(value) is not dict:
            raise mismatch(f"{self.name} (a dict)", value)
        too_deep(depth)
        for key in value:
            if key not in self.fields:
                raise Refused(f"has the key {_say(key)}, which {self.name} does not know")
        for key in self.required:
            if key not in value:
                raise Refused(f"lacks the key {key!r} of {self.name}")
        lowered: dict[str, Any] = {}
        for key, item in value.items():
            try:
                lowered[key] = self.fields[key].lower(item, depth + 1)
            except Refused as refused:
                raise refused.under(f"[{key!r}]") from None
        return lowered

    def lift(self, data: Any) -> Any:
        found = _expected(dict, data, self.name)
        for key in self.required:
            if key not in found:
                raise Unreadable(f"{self.name} without its key {key!r}")
        return {key: self.fields[key].lift(item) for key, item in found.items() if key in self.fields}


class UnionShape(Shape):
    """One of several shapes. Where more than one could be meant, the data says which."""

    def __init__(self, branches: tuple[Shape, ...]) -> None:
        self.branches = branches
        self.name = " | ".join(branch.name for branch in branches)
        self.shared = all(branch.shared for branch in branches)
        self.again = any(branch.again for branch in branches)
        self.unmarked = any(branch.unmarked for branch in branches)
        self.kinds = frozenset[str]().union(*(branch.kinds for branch in branches))
        self.with_none = any(isinstance(branch, Leaf) and branch.kind is type(None) for branch in branches)
        self.others = tuple(
            branch for branch in branches if not (isinstance(branch, Leaf) and branch.kind is type(None))
        )
        self.tags = _tags(self.others)
        carried = all(branch.wire is not NO_WIRE and "any" not in branch.kinds for branch in branches)
        if carried and len(self.kinds) == sum(len(branch.kinds) for branch in branches):
            self.wire = _UNION[tuple(branch.wire for branch in branches)]
        else:
            self.wire = NO_WIRE
        if all(branch.types is not None for branch in branches):
            self.types = frozenset[type]().union(*(branch.types or () for branch in branches))
        self._by_type = {kind: branch for branch in branches for kind in branch.types or ()}

    def outline(self) -> str:
        return "|".join(branch.outline() for branch in self.branches)

    def exact(self, value: Any) -> bool:
        branch = self._by_type.get(type(value))
        if branch is not None:
            return branch.exact(value)
        return any(branch.exact(value) for branch in self.branches if branch.types is None)

    def takes(self, value: Any) -> bool:
        return any(branch.takes(value) for branch in self.branches)

    def _branch(self, value: Any) -> Shape | None:
        taking = [branch for branch in self.others if branch.takes(value)]
        if len(taking) <= 1:
            return taking[0] if taking else None
        # Several containers look alike at their surface: the first that takes all of it.
        for branch in taking:
            try:
                branch.lower(value, 0)
            except Refused:
                continue
            return branch
        return taking[0]

    def coerce(self, value: Any) -> Any:
        if self.takes(value):
            return value
        for branch in self.branches:
            coerced = branch.coerce(value)
            if coerced is not value:
                return coerced
        return value

    def lower(self, value: Any, depth: int) -> Any:
        if value is None and self.with_none:
            return None
        value = self.coerce(value)
        branch = self._branch(value)
        if branch is None:
            raise mismatch(self.name, value)
        lowered = branch.lower(value, depth)
        if len(self.others) == 1:
            return lowered
        return [self.tags[self.others.index(branch)], lowered]

    def lift(self, data: Any) -> Any:
        if data is None and self.with_none:
            return None
        if len(self.others) == 1:
            return self.others[0].lift(data)
        tag, lowered = _expected(list, data, self.name)
        if tag not in self.tags:
            raise Unreadable(f"expected one of {self.name}, got {tag!r}")
        return self.others[self.tags.index(tag)].lift(lowered)


def _tags(branches: tuple[Shape, ...]) -> list[str]:
    tags: list[str] = []
    for branch in branches:
        alike = sum(tag.partition("#")[0] == branch.name for tag in tags)
        tags.append(f"{branch.name}#{alike}" if alike else branch.name)
    return tags


class SecretShape(Shape):
    """A value that is never shown: its data travels under a mark, so that no display needs to know the annotation."""

    def __init__(self, inner: Shape) -> None:
        self.inner = inner
        self.name = f"Secret[{inner.name}]"
        self.wire = NO_WIRE
        self.shared = inner.shared
        self.again = inner.again
        self.unmarked = True

    def outline(self) -> str:
        return f"Secret[{self.inner.outline()}]"

    def exact(self, value: Any) -> bool:
        return False

    def takes(self, value: Any) -> bool:
        return self.inner.takes(value)

    def coerce(self, value: Any) -> Any:
        return self.inner.coerce(value)

    def lower(self, value: Any, depth: int) -> Any:
        try:
            return Hidden(self.inner.lower(value, depth))
        except Refused:
            # The refusal's own text may show the value.
            raise Refused(f"is not a {self.name}") from None

    def lift(self, data: Any) -> Any:
        return self.inner.lift(data.data if type(data) is Hidden else data)


class Later(Shape):
    """A shape within itself (a tree, a list of nodes): it is known when the outer one is complete."""

    wire = NO_WIRE

    # Assumed of the inner while the outer is asked: it holds if the rest of the outer says so.
    shared = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.shape: Shape | None = None
        self.kinds = frozenset({"map"})

    @property
    def _it(self) -> Shape:
        assert self.shape is not None
        return self.shape

    def exact(self, value: Any) -> bool:
        return False

    def takes(self, value: Any) -> bool:
        return self._it.takes(value)

    def coerce(self, value: Any) -> Any:
        return self._it.coerce(value)

    def lower(self, value: Any, depth: int) -> Any:
        return self._it.lower(value, depth)

    def lift(self, data: Any) -> Any:
        return self._it.lift(data)


_SORTS: Final = {
    **dict.fromkeys(("bool", "int", "float"), "number"),
    **dict.fromkeys(("str", "ext"), "text"),
    **dict.fromkeys(("array", "map"), "parts"),
}


def can_become(given: Shape, taken: Shape) -> bool:
    """Say whether the bytes of a value may be read by another shape. False is certain, True may still depend on the value."""
    offered, read = _sorts(given), _sorts(taken)
    if any(isinstance(one, Leaf) and one.kind is Decimal for one in getattr(taken, "branches", (taken,))):
        read.add("number")  # written as text, and read from either
    return not offered.isdisjoint(read) or "any" in offered | read


def _sorts(shape: Shape) -> set[str]:
    kinds = [kind.partition(":")[0] for kind in shape.kinds]
    return {_SORTS.get(kind, kind) for kind in kinds}


def getter(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """Return what reads these attributes of an object, as a tuple."""
    if len(names) >= 2:
        return attrgetter(*names)
    if names:
        one = attrgetter(names[0])
        return lambda value: (one(value),)
    return lambda value: ()


def mismatch(expected: str, value: Any) -> Refused:
    """Refuse a value of another type than the annotation's."""
    kind = type(value)
    for base in kind.__mro__[1:-1]:
        if base.__name__ == expected:
            return Refused(
                f"is {_say(value)}, a {kind.__qualname__}: a subclass of {expected} would come back as its base; "
                f"give {expected} itself or annotate the subclass"
            )
    return Refused(f"is {_say(value)}, where {expected} is expected")


def too_deep(depth: int) -> None:
    """Refuse what lies deeper than the bound."""
    if depth >= DEPTH_MOST:
        raise Refused(f"lies deeper than {DEPTH_MOST} containers, or holds itself")


def _expected(kind: type, data: Any, name: str) -> Any:
    if type(data) is not kind:
        raise Unreadable(f"expected the data of {name}, got {type(data).__name__}")
    return data


def _say(value: Any) -> str:
    kind = type(value)
    if kind in NATIVE and not (kind is float and math.isnan(value)):
        text = repr(value) if kind is not int or abs(value) < 10**30 else "a large int"
        return text if len(text) <= 60 else text[:57] + "…"
    return f"of type {kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else f"a {kind.__name__}"
