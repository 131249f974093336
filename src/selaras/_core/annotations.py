"""Understands annotations: what the typing module writes, and the classes people put into their data."""

# Annotations here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import collections
import collections.abc as abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UnsetType

from selaras._core.errors import ConfigurationError
from selaras._core.shapes import (
    NO_WIRE,
    REQUIRED,
    AnyShape,
    DictShape,
    EnumShape,
    Field,
    Later,
    LiteralShape,
    ManyShape,
    RecordShape,
    SecretShape,
    Shape,
    TupleShape,
    TypedDictShape,
    UnionShape,
    getter,
    leaf,
)
from selaras._core.tagged import PLAIN_LEAVES


class SecretMark:
    """Marks an annotation whose values are never shown."""


NONE: Final = type(None)

_LISTS: Final = (list, tuple)
# What an abstract annotation may stand for; a value of another class would not come back as one.
_ABSTRACT: Final[dict[Any, tuple[type, ...]]] = {
    abc.Sequence: _LISTS,
    abc.MutableSequence: (list,),
    abc.Set: (set, frozenset),
    abc.MutableSet: (set,),
    abc.Collection: (list, tuple, set, frozenset),
    abc.Iterable: (list, tuple, set, frozenset),
    abc.Container: (list, tuple, set, frozenset),
    abc.Reversible: _LISTS,
}
_MAPPINGS: Final = (dict, abc.Mapping, abc.MutableMapping)


def shape_of(annotation: Any) -> Shape:
    """Return the shape of an annotation.

    Raises:
        ConfigurationError: naming the path of the part that cannot be stored.
        NameError: a name in it is not defined (yet).
    """
    return _Reader().read(annotation, "")


class _Reader:
    """Reads one annotation; remembers the records it is within, since records may hold themselves."""

    def __init__(self) -> None:
        self.open: dict[Any, Later] = {}
        self.known: dict[Any, Shape] = {}

    def read(self, annotation: Any, path: str) -> Shape:
        if annotation is Any or annotation is object:
            return AnyShape()
        if annotation is None or annotation is NONE:
            return leaf(NONE)
        if isinstance(annotation, type) and annotation in PLAIN_LEAVES:
            return leaf(annotation)
        origin = get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation, path)
        if isinstance(annotation, TypeVar):
            return self._variable(annotation, path)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.read(annotation.__supertype__, path)
        if hasattr(annotation, "__value__"):  # `type X = ...`, bare or with arguments
            return self._alias(annotation, path)
        if origin is Union or origin is types.UnionType:
            return self._union(get_args(annotation), path)
        if origin is Literal:
            return LiteralShape(_flat_literals(annotation))
        if origin in (Required, NotRequired, typing.Final, typing.ClassVar):
            return self.read(get_args(annotation)[0], path)
        generic = self._generic(origin or annotation, get_args(annotation), path)
        if generic is not None:
            return generic
        return self._class(annotation, origin or annotation, path)

    def _annotated(self, annotation: Any, path: str) -> Shape:
        inner, *marks = get_args(annotation)
        shape = self.read(inner, path)
        if any(isinstance(mark, SecretMark) for mark in marks):
            return SecretShape(shape)
        return shape

    def _variable(self, variable: TypeVar, path: str) -> Shape:
        if variable.__constraints__:
            return self._union(variable.__constraints__, path)
        return AnyShape() if variable.__bound__ is None else self.read(variable.__bound__, path)

    def _alias(self, annotation: Any, path: str) -> Shape:
        arguments = get_args(annotation)
        value = annotation.__value__
        if arguments:
            parameters = get_origin(annotation).__type_params__
            value = _substituted(value, dict(zip(parameters, arguments, strict=True)))
        if annotation in self.open:
            return self.open[annotation]
        later = self.open[annotation] = Later(str(annotation))
        try:
            later.shape = self.read(value, path)
        finally:
            del self.open[annotation]
        return later.shape

    def _union(self, members: tuple[Any, ...], path: str) -> Shape:
        branches: list[Shape] = []
        unset = UnsetType in members
        for member in members:
            if member is UnsetType:
                continue
            branch = self.read(member, path)
            branches.extend(branch.branches if isinstance(branch, UnionShape) else (branch,))
        shape = branches[0] if len(branches) == 1 else UnionShape(tuple(branches))
        if unset:
            shape.wire = NO_WIRE
        return shape

    def _generic(self, origin: Any, arguments: tuple[Any, ...], path: str) -> Shape | None:
        if origin in (list, set, frozenset):
            return ManyShape(origin, self.read(arguments[0] if arguments else Any, f"{path}[…]"))
        if origin is tuple:
            return self._tuple(arguments, path)
        if origin in _MAPPINGS:
            key, item = arguments or (Any, Any)
            return DictShape(self.read(key, f"{path}[key]"), self.read(item, f"{path}[…]"))
        if origin in _ABSTRACT:
            item = self.read(arguments[0] if arguments else Any, f"{path}[…]")
            kinds = _ABSTRACT[origin]
            branches = tuple(ManyShape(kind, item) for kind in kinds)
            return branches[0] if len(branches) == 1 else UnionShape(branches)
        return None

    def _tuple(self, arguments: tuple[Any, ...], path: str) -> Shape:
        if not arguments:
            return ManyShape(tuple, AnyShape())
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return ManyShape(tuple, self.read(arguments[0], f"{path}[…]"))
        if arguments == ((),):
            return TupleShape(())
        return TupleShape(tuple(self.read(part, f"{path}[{place}]") for place, part in enumerate(arguments)))

    def _class(self, annotation: Any, kind: Any, path: str) -> Shape:
        if not isinstance(kind, type):
            raise ConfigurationError(f"{_where(path)}the annotation {annotation!r} is not a type that can be stored")
        if annotation in self.known:
            return self.known[annotation]
        if annotation in self.open:
            return self.open[annotation]
        if issubclass(kind, Enum):
            return EnumShape(kind)
        reader = self._reader_of(kind)
        if reader is None:
            raise ConfigurationError(
                f"{_where(path)}{_say_type(kind)} cannot be stored so that it comes back: use a Struct, dataclass, "
                "NamedTuple, TypedDict, Enum, pydantic model or a type of the standard library that is plain data"
            )
        later = self.open[annotation] = Later(kind.__name__)
        try:
            shape = reader(annotation, kind, path or kind.__name__)
        finally:
            del self.open[annotation]
        later.shape = self.known[annotation] = shape
        return shape

    def _reader_of(self, kind: type) -> Callable[[Any, type, str], Shape] | None:
        if issubclass(kind, msgspec.Struct):
            return self._struct
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple
        if typing.is_typeddict(kind):
            return self._typed_dict
        if _is_pydantic(kind):
            return self._pydantic
        if dataclasses.is_dataclass(kind):
            return self._dataclass
        return None

    def _fields(self, annotation: Any, kind: type, names: list[str], path: str) -> list[Shape]:
        hints = _hints(annotation, kind)
        return [self.read(hints.get(name, Any), f"{path}.{name}") for name in names]

    def _struct(self, annotation: Any, kind: Any, path: str) -> Shape:
        described = msgspec.structs.fields(kind)
        names = [field.name for field in described]
        shapes = self._fields(annotation, kind, names, path)
        fields = [
            Field(field.name, shape, _struct_default(field)) for field, shape in zip(described, shapes, strict=True)
        ]
        config = kind.__struct_config__
        runs_code = hasattr(kind, "__post_init__")
        record = RecordShape(kind, kind.__name__)
        if config.tag is not None:
            record.kinds = frozenset({f"map:{config.tag_field}:{config.tag!r}"})
        record.settle(
            fields,
            read=msgspec.structs.astuple,
            build=lambda values: kind(**values),
            wire=_carried(annotation) if not runs_code else NO_WIRE,
            frozen=config.frozen and not config.dict,
            again=runs_code,
        )
        return record

    def _dataclass(self, annotation: Any, kind: Any, path: str) -> Shape:
        described = dataclasses.fields(kind)
        names = [field.name for field in described]
        shapes = self._fields(annotation, kind, names, path)
        fields = [
            Field(field.name, shape, _dataclass_default(field)) for field, shape in zip(described, shapes, strict=True)
        ]
        ordinary = all(field.init and not field.name.startswith("_") for field in described)
        carried = ordinary and not hasattr(kind, "__post_init__")
        record = RecordShape(kind, kind.__name__)
        record.settle(
            fields,
            read=getter(names),
            build=lambda values: _restored(kind, values),
            wire=_carried(annotation) if carried else NO_WIRE,
            frozen=kind.__dataclass_params__.frozen,
            again=False,
        )
        return record

    def _named_tuple(self, annotation: Any, kind: Any, path: str) -> Shape:
        shapes = self._fields(annotation, kind, list(kind._fields), path)
        return TupleShape(tuple(shapes), kind, kind._fields)

    def _typed_dict(self, annotation: Any, kind: Any, path: str) -> Shape:
        hints = _hints(annotation, kind)
        shape = TypedDictShape(kind, kind.__name__)
        fields = {name: self.read(hint, f"{path}[{name!r}]") for name, hint in hints.items()}
        shape.settle(fields, frozenset(name for name, hint in hints.items() if _is_required(kind, name, hint)))
        return shape

    def _pydantic(self, annotation: Any, kind: type, path: str) -> Shape:
        # Only here, and only for those who use it: pydantic is an optional dependency.
        from selaras._core.models import model_shape

        return model_shape(kind, path, self.read)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    # Where annotations are text, `__required_keys__` was made without reading them (python/cpython#97727).
    origin = get_origin(hint)
    return origin is Required or (name in kind.__required_keys__ and origin is not NotRequired)


def _hints(annotation: Any, kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    known = _arguments(annotation)
    return {name: _substituted(hint, known) for name, hint in hints.items()} if known else hints


def _arguments(annotation: Any) -> dict[Any, Any]:
    """Return what the type variables of a class and of its bases stand for, in `Box[int]`."""
    origin = get_origin(annotation)
    kind = origin or annotation
    known: dict[Any, Any] = {}
    if origin is not None:
        parameters = getattr(kind, "__parameters__", ())
        known = dict(zip(parameters, get_args(annotation), strict=False))
    for base in getattr(kind, "__orig_bases__", ()):
        if get_origin(base) is not None and get_origin(base) is not typing.Generic:
            inner = _arguments(_substituted(base, known))
            known = {**inner, **known}
    return known


def _substituted(hint: Any, known: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return known.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(known.get(parameter, parameter) for parameter in parameters)]


def _carried(annotation: Any) -> Any:
    """Return the annotation if msgspec can be asked to carry it, constraints of its own included."""
    try:
        info = msgspec.inspect.type_info(annotation)
    except (TypeError, NameError, AttributeError):
        return NO_WIRE
    # A constraint is checked when bytes are read, never when an instance is made.
    fields = info.fields if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType) else ()
    return NO_WIRE if any(_constrained(field.type) for field in fields) else annotation


def _constrained(info: Any) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return True
    for name in ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz"):
        if getattr(info, name, None) is not None:
            return True
    parts = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    parts.extend(getattr(info, "types", ()))
    parts.extend(getattr(info, "item_types", ()))
    return any(part is not None and _constrained(part) for part in parts)


def _struct_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory
    if field.default is not msgspec.NODEFAULT:
        return lambda: field.default
    return REQUIRED


def _dataclass_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return REQUIRED


def _restored(kind: type[Any], values: dict[str, Any]) -> Any:
    """Give an instance its fields back as they were, as `copy` does, without running its `__init__` again."""
    instance: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _is_pydantic(kind: type) -> bool:
    return any(base.__name__ == "BaseModel" and base.__module__.startswith("pydantic") for base in kind.__mro__)


def _flat_literals(annotation: Any) -> tuple[Any, ...]:
    values: list[Any] = []
    for value in get_args(annotation):
        values.extend(_flat_literals(value) if get_origin(value) is Literal else (value,))
    return tuple(values)


def _where(path: str) -> str:
    return f"{path}: " if path else ""


def _say_type(kind: type) -> str:
    if kind in (collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter):
        return f"collections.{kind.__name__}"
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
