"""Pydantic models as records. Imported only by a program that has one in an annotation."""

# Values here are of any type at all, which is what pyright would otherwise report on every line.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, TypeAdapter

from selaras._core.errors import ConfigurationError
from selaras._core.shapes import NO_WIRE, REQUIRED, Field, RecordShape, Shape, mismatch
from selaras._core.tagged import Refused, Unreadable, check

_EXTRA = "__pydantic_extra__"
_SET = "__pydantic_fields_set__"


class ModelShape(RecordShape):
    """A pydantic model: its fields, which of them were set, and what `extra="allow"` let in.

    It comes back as it was, without validation: it was valid when it was made.
    """

    def lower(self, value: Any, depth: int) -> Any:
        lowered = super().lower(value, depth)
        lowered[_SET] = sorted(value.model_fields_set)
        extra = value.model_extra
        if extra:
            try:
                check(extra, depth + 1)
            except Refused as refused:
                raise refused.under("") from None
            lowered[_EXTRA] = extra
        if self.lift(lowered) != value and value == value.model_copy():
            raise Refused(f"is a {self.name} with state beyond its fields, which would not come back")
        return lowered

    def lift(self, data: Any) -> Any:
        if type(data) is not dict:
            raise Unreadable(f"expected the data of {self.name}, got {type(data).__name__}")
        model = super().lift(data)
        found: dict[str, Any] = data
        extra = found.get(_EXTRA) or {}
        names = {*found.get(_SET, ()), *extra}
        return self.kind.model_construct(names, **{**model, **extra})


class FieldShape(Shape):
    """A field of a type that pydantic alone understands, as JSON; it must come back equal."""

    wire = NO_WIRE
    again = True

    def __init__(self, annotation: Any, name: str) -> None:
        self.adapter = TypeAdapter[Any](annotation)
        self.name = name

    def exact(self, value: Any) -> bool:
        return False

    def takes(self, value: Any) -> bool:
        return True

    def lower(self, value: Any, depth: int) -> Any:
        try:
            text = self.adapter.dump_json(value).decode()
            back = self.adapter.validate_json(text)
        except ValueError as error:
            raise Refused(f"is not a {self.name} that JSON keeps: {error}") from None
        if back != value or type(back) is not type(value):
            raise mismatch(self.name, value)
        return text

    def lift(self, data: Any) -> Any:
        return self.adapter.validate_json(data)


def model_shape(kind: Any, path: str, read: Callable[[Any, str], Shape]) -> Shape:
    """Return the shape of a model; fields whose types only pydantic knows go through pydantic."""
    assert issubclass(kind, BaseModel)
    fields: list[Field] = []
    for name, info in kind.model_fields.items():
        try:
            shape = read(info.annotation, f"{path}.{name}")
        except ConfigurationError:
            try:
                shape = FieldShape(info.annotation, getattr(info.annotation, "__name__", str(info.annotation)))
            except Exception as error:
                raise ConfigurationError(f"{path}.{name}: {info.annotation!r} cannot be stored: {error}") from error
        default = REQUIRED if info.is_required() else _default(info)
        fields.append(Field(name, shape, default))
    names = [field.name for field in fields]
    record = ModelShape(kind, kind.__name__)
    record.settle(
        fields,
        read=lambda model: [model.__dict__[name] for name in names],
        build=lambda values: values,
        wire=NO_WIRE,
        frozen=bool(kind.model_config.get("frozen")),
        again=False,
    )
    return record


def _default(info: Any) -> Callable[[], Any]:
    return lambda: info.get_default(call_default_factory=True)
