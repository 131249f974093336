"""The signature of a task or loader: binds, coerces, encodes, and writes cache keys.

A stored payload is a map from parameter names to values, so that a program with more, fewer or reordered parameters
reads it or says exactly what does not fit.
"""

# Arguments here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import inspect
import re
import reprlib
import typing
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from datetime import date
from inspect import Parameter
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from selaras._core import tagged
from selaras._core.annotations import shape_of
from selaras._core.cache.parts import bare_writer, is_shortened, plain_text, shortened, written
from selaras._core.codec import (
    CARRIED,
    PAYLOAD_MOST,
    TAGGED,
    UNREADABLE,
    CorruptBytes,
    lowered_of,
    plain_of,
)
from selaras._core.errors import ConfigurationError, NotEncodable
from selaras._core.hints import Hints
from selaras._core.shapes import (
    NO_WIRE,
    AnyShape,
    DictShape,
    EnumShape,
    Leaf,
    ManyShape,
    RecordShape,
    Row,
    Shape,
    leaf,
)
from selaras._core.tagged import Hidden, Refused

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ENCODE: Final = msgspec.msgpack.Encoder().encode
# Types whose equality is identity of meaning: of them a raw argument may stand for its text in a memo.
_MEMO_TYPES: Final = frozenset({int, str, bool, bytes, UUID, date, type(None)})
_MEMO_MOST: Final = 20_000


def is_atomic(args: tuple[Any, ...]) -> bool:
    """Say whether raw arguments, with their types, are one call and no other, so that a memo may stand for them."""
    return _MEMO_TYPES.issuperset(map(type, args))


class Unbindable(Exception):
    """A stored payload does not fit the parameters of this program's function; says what is missing or extra."""


class UnresolvedAnnotation(UserWarning):
    """An annotation names something that does not exist at run time: its parameter is treated as if it had none."""


class Layout(Struct, frozen=True):
    """How a row of values, one a parameter, becomes a call.

    Attributes:
        names: of the parameters.
        leading: how many values, from the first, are given by position.
        spread: the place of `*args`, or -1. extra: the place of `**kwargs`, or -1.
    """

    names: tuple[str, ...]
    leading: int
    spread: int = -1
    extra: int = -1


class Arguments(Struct, frozen=True, gc=False):
    """A call's arguments in canonical form: one value a parameter, defaults applied, coerced."""

    values: tuple[Any, ...]
    layout: Layout

    @property
    def args(self) -> tuple[Any, ...]:
        """What to give by position: `function(*arguments.args, **arguments.kwargs)` is the call."""
        layout = self.layout
        given = self.values[: layout.leading]
        return given if layout.spread < 0 else (*given, *self.values[layout.spread])

    @property
    def kwargs(self) -> dict[str, Any]:
        """What to give by name."""
        layout = self.layout
        if layout.leading == len(self.values):
            return {}
        named = {
            layout.names[place]: self.values[place]
            for place in range(layout.leading, len(self.values))
            if place not in (layout.spread, layout.extra)
        }
        return named if layout.extra < 0 else {**named, **self.values[layout.extra]}

    def named(self) -> dict[str, Any]:
        """Return the value of each parameter by its name: `*args` as a tuple, `**kwargs` as a dict."""
        return dict(zip(self.layout.names, self.values, strict=True))


class Signature:
    """What a function accepts.

    Types are resolved at the declaration if every name is defined by then, else at the first use.

    Attributes:
        parameters: their names, in order, without the skipped ones.
        name: the function's own name, for messages.
    """

    def __init__(
        self, function: Callable[..., Any], skip: frozenset[str], ignore: frozenset[str], *, dropped: int = 0
    ) -> None:
        """Use `Signature.of`."""
        self.name: str = getattr(function, "__name__", repr(function))
        self._made_of = (function, skip, ignore)
        whole = inspect.signature(function)
        self._hints = Hints(
            function,
            {name: it.annotation for name, it in whole.parameters.items()} | {"return": whole.return_annotation},
        )
        self._kept = [it for it in list(whole.parameters.values())[dropped:] if it.name not in skip]
        self._bare = whole.replace(parameters=self._kept)
        self.parameters: tuple[str, ...] = tuple(it.name for it in self._kept)
        unknown = ignore - set(whole.parameters)
        if unknown:
            raise ConfigurationError(f"ignore={sorted(unknown)} names no parameter of {self.name}{whole}")
        self._ignore = ignore
        self._dropped = dropped
        self.layout = _layout_of(self.name, list(whole.parameters.values())[dropped:], self._kept)
        self._defaults = tuple(it.default for it in self._kept)
        # Of an ordinary signature: how many of the last parameters have defaults.
        self._ordinary = self.layout.leading == len(self._kept)
        self._plan: _Plan | None = None
        self._memos: dict[tuple[type, ...], dict[tuple[Any, ...], str]] = {}
        self._memo_size = 0
        if self._hints.ready():
            self._resolve()

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        skip: frozenset[str] = frozenset(),
        ignore: frozenset[str] = frozenset(),
    ) -> Signature:
        """Read a function's signature, where it is declared.

        Args:
            skip: parameters that no caller gives (`Read(...)`).
            ignore: parameters that are not part of cache keys; they may be of any type.

        Raises:
            ConfigurationError: a parameter's type cannot be stored.
        """
        return cls(function, skip, ignore)

    @property
    def returns(self) -> Any:
        """The annotation of what the function returns (of a coroutine: its result); Any if it is not known."""
        return self._resolved().returns

    @property
    def is_resolved(self) -> bool:
        """Whether every name in its annotations is defined by now, or was at its first use."""
        return self._plan is not None

    @property
    def annotations(self) -> dict[str, Any]:
        """The annotation of each parameter, resolved; Any where there is none or it cannot be."""
        return self._resolved().annotations

    @property
    def unresolved(self) -> dict[str, str]:
        """Parameters whose annotation could not be resolved, and why; they are treated as if they had none."""
        self._resolved()
        return self._hints.unresolved

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Bind a call: defaults applied, coerced by the annotations.

        Raises:
            TypeError: the arguments do not fit the parameters, as Python itself would say it.
        """
        plan = self._plan or self._resolved()
        if not kwargs and self._ordinary and len(args) == len(self._kept):
            values = args
        else:
            values = self._bound(args, kwargs)
        for place, types, coerce in plan.coercions:
            if type(values[place]) not in types:
                values = (*values[:place], coerce(values[place]), *values[place + 1 :])
        return Arguments(values, self.layout)

    def without_first(self) -> Signature:
        """Return the signature of a call whose first argument comes later: the value of the step before (`then`)."""
        function, skip, ignore = self._made_of
        if not self._kept or self._kept[0].kind not in (*_POSITIONAL, Parameter.VAR_POSITIONAL):
            raise ConfigurationError(
                f"{self.name} takes no positional argument: a step gets the value before as its first"
            )
        dropped = 0 if self._kept[0].kind is Parameter.VAR_POSITIONAL else self._dropped + 1
        return Signature(function, skip, ignore - set(self.parameters[:1]), dropped=dropped)

    def with_first(self, value: Any, arguments: Arguments) -> Arguments:
        """Complete what `without_first` bound or decoded by the first argument."""
        return self.bind((value, *arguments.args), arguments.kwargs)

    # -- keys

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return `key_parts(bind(args, kwargs))`, remembered by the raw arguments."""
        if not kwargs:
            memo = self._memos.get(tuple(map(type, args)))
            if memo is not None:
                text = memo.get(args)
                if text is not None:
                    return text
        text = self.key_parts(self.bind(args, kwargs))
        if not kwargs:
            self._remember(args, text)
        return text

    def key_parts(self, arguments: Arguments) -> str:
        """Write arguments for a cache key: only letters, digits and `_.-~%,()='{}!#`, never a colon.

        Raises:
            NotEncodable: an argument is not of its annotation's type.
        """
        plan = self._plan or self._resolved()
        texts: list[str] = []
        for place, write in plan.writers:
            try:
                texts.append(write(arguments.values[place]))
            except Refused as refused:
                raise self._refusal(place, refused) from None
        return shortened(",".join(texts))

    def is_unmarked_secret(self, field: str) -> bool:
        """Say whether a parameter, or what of it a template names (`account.token`), is a secret or holds one, of which only
        the annotation tells. False where that does not resolve (yet).
        """
        if not self.is_resolved:
            return False
        name, *steps = re.split(r"[.\[]", field)
        try:
            shape = shape_of(self._resolved().annotations[name])
        except (ConfigurationError, NameError):  # of a parameter that is ignored, or that was warned of
            return False
        for step in steps:
            if not isinstance(shape, RecordShape):
                break
            shape = next((one.shape for one in shape.fields if one.name == step), shape)
        return shape.unmarked

    def with_part(self, value: Any, parts: str) -> str:
        """Return the text of a key with one more part before the others, of a value that no parameter has.

        Raises:
            NotEncodable: it is nothing that can stand in a key.
        """
        try:
            return shortened(f"{written(lowered_of(AnyShape(), value))},{parts}")
        except Refused as refused:
            raise NotEncodable(f"the self_key of {self.name}{refused.path} {refused.reason}") from None

    def _remember(self, args: tuple[Any, ...], text: str) -> None:
        if not is_atomic(args) or is_shortened(text):
            return
        types = tuple(map(type, args))
        if self._memo_size >= _MEMO_MOST:
            self._memos.clear()
            self._memo_size = 0
        self._memos.setdefault(types, {})[args] = text
        self._memo_size += 1

    # -- payloads

    def encode(self, arguments: Arguments, *, most: int = PAYLOAD_MOST) -> bytes:
        """Return the payload.

        Raises:
            NotEncodable: naming the path of what would not come back, such as `args[0]['x']`, or the limit `most`.
        """
        plan = self._plan or self._resolved()
        values = arguments.values
        data = None
        if plan.carrier is not None and plan.exact(values):
            try:
                data = CARRIED + _ENCODE(plan.carrier(*values))
            except (OverflowError, UnicodeEncodeError):
                data = None
        if data is None:
            data = TAGGED + tagged.encode(self._lowered(plan, values))
        if len(data) > most:
            raise NotEncodable(
                f"the payload of {self.name} is {len(data):,} bytes encoded, more than the limit of {most:,}: store it "
                "elsewhere and pass where it is, or raise max_payload"
            )
        return data

    def decode(self, payload: bytes) -> Arguments:
        """Return what `encode` took.

        Raises:
            CorruptBytes: nothing that this library wrote.
            Unbindable: the arguments of other parameters than this function has.
        """
        plan = self._plan or self._resolved()
        if payload[:1] == CARRIED and plan.read is not None:
            try:
                values = msgspec.structs.astuple(plan.read(payload[1:]))
            except UNREADABLE as error:
                raise self._unbindable(payload, error) from error
            if UNSET in values:
                values = tuple(
                    default if value is UNSET else value for value, default in zip(values, self._defaults, strict=True)
                )
            return Arguments(values, self.layout)
        return Arguments(self._lifted(plan, payload), self.layout)

    def _lowered(self, plan: _Plan, values: tuple[Any, ...]) -> dict[str, Any]:
        lowered: dict[str, Any] = {}
        for place, value in enumerate(values):
            # A default that cannot be stored (a marker object) is told by its absence.
            if place in plan.opaque and value is self._defaults[place]:
                continue
            try:
                lowered[self.parameters[place]] = lowered_of(plan.shapes[place], value)
            except Refused as refused:
                raise self._refusal(place, refused) from None
        return lowered

    def _lifted(self, plan: _Plan, payload: bytes) -> tuple[Any, ...]:
        found = plain_of(payload)
        if type(found) is not dict:
            raise CorruptBytes(f"a payload that is a {type(found).__name__}, not a map of parameters")
        self._check_names(found)
        values: list[Any] = []
        for place, name in enumerate(self.parameters):
            if name not in found:
                values.append(self._absent(place))
                continue
            shape = plan.shapes[place]
            # It was a secret in the version of the program that wrote it.
            data = found[name].data if type(found[name]) is Hidden else found[name]
            try:
                if payload[:1] == CARRIED and shape.wire is not NO_WIRE:
                    values.append(msgspec.convert(data, shape.wire))
                else:
                    values.append(shape.lift(data))
            except UNREADABLE as error:
                raise Unbindable(f"{self.name}: the stored {name!r} is not a {shape.name}: {error}") from error
        return tuple(values)

    def _absent(self, place: int) -> Any:
        kind = self._kept[place].kind
        if kind is Parameter.VAR_POSITIONAL:
            return ()
        return {} if kind is Parameter.VAR_KEYWORD else self._defaults[place]

    def _check_names(self, found: dict[Any, Any]) -> None:
        missing = [it.name for it in self._kept if it.name not in found and _required(it)]
        extra = [str(name) for name in found if name not in self.parameters]
        if missing or extra:
            said = [f"no value for {', '.join(missing)}"] if missing else []
            said += [f"a value for {', '.join(extra)}, which it does not have"] if extra else []
            raise Unbindable(f"{self._shown()}: the stored arguments have {' and '.join(said)}")

    def _unbindable(self, payload: bytes, error: BaseException) -> Exception:
        """Say what a payload that msgspec refused really is: broken bytes, or another signature's."""
        try:
            found = plain_of(payload)
            if type(found) is not dict:
                return CorruptBytes(f"a payload that is a {type(found).__name__}, not a map of parameters")
            self._check_names(found)
        except (CorruptBytes, Unbindable) as reason:
            return reason
        return Unbindable(f"{self._shown()}: {error}")

    def _shown(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"

    # -- for people

    def describe(self, arguments: Arguments) -> str:
        """Write arguments for people, as `id=42, factor=1.1`: cut to a bound, secrets masked. Never raises."""
        plan = self._plan or self._resolved()
        said: list[str] = []
        for place, (name, value) in enumerate(zip(self.parameters, arguments.values, strict=True)):
            said.append(f"{name}={_shown(plan.shapes[place], value)}")
        return ", ".join(said)

    # -- resolving

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = self._bare.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}{self._also_wrong(kwargs, str(error))}") from None
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self.parameters)

    def _also_wrong(self, kwargs: dict[str, Any], said: str) -> str:
        """Python names what is missing first; a wrong name is mostly the reason why something is."""
        if any(it.kind is Parameter.VAR_KEYWORD for it in self._kept):
            return ""
        unknown = [name for name in kwargs if name not in self.parameters and repr(name) not in said]
        return f", and has no parameter {', '.join(map(repr, unknown))}" if unknown else ""

    def _refusal(self, place: int, refused: Refused) -> NotEncodable:
        parameter = self._kept[place]
        if parameter.kind is Parameter.VAR_POSITIONAL:
            path = f"*{parameter.name}"
        elif parameter.kind in _POSITIONAL:
            path = f"args[{place}]"
        else:
            path = f"**{parameter.name}" if parameter.kind is Parameter.VAR_KEYWORD else f"kwargs[{parameter.name!r}]"
        return NotEncodable(f"{path}{refused.path} (the {parameter.name!r} of {self.name}) {refused.reason}")

    def _resolved(self) -> _Plan:
        return self._plan or self._resolve()

    def _resolve(self) -> _Plan:
        annotations = {name: self._hints.resolve(name) for name in self.parameters}
        shapes = [self._shape(parameter, annotations) for parameter in self._kept]
        returns = _unwrapped(self._hints.resolve("return"))
        plan = _Plan(self.name, annotations, returns, shapes, self._kept, self._ignore)
        for name, why in self._hints.unresolved.items():
            self._warn(
                f"{self.name}: the annotation of {name!r} does not resolve at run time ({why}); it is treated as Any"
            )
        self._plan = plan
        return plan

    def _warn(self, text: str) -> None:
        """Warn at the place of the function, wherever it is resolved from."""
        function: Any = inspect.unwrap(self._made_of[0])
        code = getattr(function, "__code__", None)
        if code is None:
            warnings.warn(text, UnresolvedAnnotation, stacklevel=3)
            return
        seen = function.__globals__.setdefault("__warningregistry__", {})
        warnings.warn_explicit(
            text, UnresolvedAnnotation, code.co_filename, code.co_firstlineno, function.__module__, seen
        )

    def _shape(self, parameter: Parameter, annotations: dict[str, Any]) -> Shape:
        if parameter.name in self._ignore:
            return AnyShape()
        try:
            shape = shape_of(annotations[parameter.name])
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.name}: the parameter {parameter.name!r}: {error}") from None
        except NameError as error:
            # A field of a class in the annotation names something that does not exist at run time.
            self._hints.unresolved[parameter.name] = f"NameError: {error}"
            shape = AnyShape()
        if parameter.kind is Parameter.VAR_POSITIONAL:
            return ManyShape(tuple, shape)
        return DictShape(leaf(str), shape) if parameter.kind is Parameter.VAR_KEYWORD else shape


class _Plan:
    """What is known of a signature once its types are: how to coerce, write, encode and read its rows."""

    __slots__ = ("annotations", "carrier", "coercions", "exact", "opaque", "read", "returns", "shapes", "writers")

    def __init__(
        self,
        name: str,
        annotations: dict[str, Any],
        returns: Any,
        shapes: list[Shape],
        parameters: list[Parameter],
        ignore: frozenset[str],
    ) -> None:
        self.annotations = annotations
        self.returns = returns
        self.shapes = tuple(shapes)
        self.exact = Row(shapes).exact
        self.coercions = tuple(_coercions(shapes))
        self.writers = tuple(
            (place, _writer(shape)) for place, shape in enumerate(shapes) if parameters[place].name not in ignore
        )
        self.opaque = frozenset(
            place for place, shape in enumerate(shapes) if not _can_store(shape, parameters[place].default)
        )
        self.carrier: Any = None
        self.read: Callable[[bytes], Any] | None = None
        if not self.opaque:
            self.carrier, self.read = _carrier(name, parameters, shapes)


def _coercions(shapes: list[Shape]) -> list[tuple[int, frozenset[type], Callable[[Any], Any]]]:
    found: list[tuple[int, frozenset[type], Callable[[Any], Any]]] = []
    for place, shape in enumerate(shapes):
        if isinstance(shape, ManyShape | DictShape) or type(shape).coerce is not Shape.coerce:
            found.append((place, shape.types or frozenset(), _coercer(shape)))
    return found


def _coercer(shape: Shape) -> Callable[[Any], Any]:
    match shape:
        case ManyShape(kind=kind, item=item) if type(item).coerce is not Shape.coerce and kind is tuple:
            return lambda value: tuple(map(item.coerce, value)) if type(value) is tuple else value
        case _:
            return shape.coerce


def _writer(shape: Shape) -> Callable[[Any], str]:
    if isinstance(shape, Leaf):
        kind, bare = shape.kind, bare_writer(shape.kind)
        assert bare is not None

        def write_leaf(value: Any) -> str:
            return bare(value) if type(value) is kind else bare(shape.lower(value, 0))

        return write_leaf
    if isinstance(shape, EnumShape) and not shape.flag:
        return lambda value: plain_text(shape.lower(value, 0))
    return lambda value: written(lowered_of(shape, value))


def _can_store(shape: Shape, default: Any) -> bool:
    if default is Parameter.empty:
        return True
    try:
        lowered_of(shape, shape.coerce(default))
    except Refused:
        return False
    return True


def _carrier(name: str, parameters: list[Parameter], shapes: list[Shape]) -> tuple[Any, Any]:
    """Make the Struct that carries a row, and its reader; (None, None) if msgspec alone cannot keep such rows."""
    if any(shape.wire is NO_WIRE for shape in shapes):
        return None, None
    fields: list[Any] = []
    for place, (parameter, shape) in enumerate(zip(parameters, shapes, strict=True)):
        if _required(parameter):
            fields.append((f"f{place}", shape.wire))
        else:
            fields.append((f"f{place}", typing.Union[shape.wire, UnsetType], UNSET))  # noqa: UP007 - wires may be None
    names = {f"f{place}": parameter.name for place, parameter in enumerate(parameters)}
    try:
        carrier = msgspec.defstruct(
            f"Arguments of {name}", fields, rename=names, kw_only=False, forbid_unknown_fields=True
        )
        return carrier, msgspec.msgpack.Decoder(carrier).decode
    except (TypeError, NameError):
        # A required parameter after one with a default, or types that msgspec cannot tell apart.
        return None, None


def _required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty and parameter.kind not in (
        Parameter.VAR_POSITIONAL,
        Parameter.VAR_KEYWORD,
    )


def _layout_of(name: str, offered: list[Parameter], kept: list[Parameter]) -> Layout:
    """Lay out a call: by position up to the first parameter that is left out, by name from there."""
    leading = 0
    while leading < len(kept) and offered[leading] is kept[leading] and kept[leading].kind in _POSITIONAL:
        leading += 1
    spread = extra = -1
    for place, parameter in enumerate(kept):
        if parameter.kind is Parameter.VAR_KEYWORD:
            extra = place
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            spread = place
        by_position_only = parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
        if by_position_only and offered[place] is not parameter:
            raise ConfigurationError(
                f"{name}: {parameter.name!r} can only be given by position and stands after a parameter with Read(...): "
                "put parameters with Read(...) after `*`"
            )
    return Layout(tuple(it.name for it in kept), leading, spread, extra)


def _unwrapped(annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin in (Coroutine, Awaitable) or origin in (typing.Coroutine, typing.Awaitable):
        return get_args(annotation)[-1]
    return annotation


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 8
        self.maxlevel = 4


_SHORT: Final = _Shortened()


def _shown(shape: Shape, value: Any) -> str:
    try:
        return _SHORT.repr(shape.lower(value, 0))
    except Exception:  # noqa: BLE001 - what cannot be stored can still be named
        return f"<{type(value).__qualname__}>"
