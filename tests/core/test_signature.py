"""Calls are bound, coerced, stored by name, and read back or said not to fit."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from tests.core.values import ANNOTATED, PLAIN, Colour, Order, Point, Product, same

from selaras._core.codec import CorruptBytes, Secret, peek
from selaras._core.errors import ConfigurationError, NotEncodable
from selaras._core.signature import Signature, Unbindable, UnresolvedAnnotation

if TYPE_CHECKING:
    from decimal import Context as NotThereAtRunTime

T = TypeVar("T")
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - naive on purpose


def calls(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind, encode, decode, and return what the function would be called with."""
    signature = Signature.of(function)
    arguments = signature.decode(signature.encode(signature.bind(args, kwargs)))
    return arguments.args, arguments.kwargs


async def reprice(id: int, factor: float = 1.0, *, note: str | None = None) -> float:
    return id * factor


# -- binding


def test_defaults_are_applied_and_arguments_coerced() -> None:
    signature = Signature.of(reprice)

    bound = signature.bind((42, 2), {})

    assert same(bound.named(), {"id": 42, "factor": 2.0, "note": None})
    assert bound.args == (42, 2.0)
    assert bound.kwargs == {"note": None}
    assert signature.parameters == ("id", "factor", "note")
    assert signature.returns is float


def test_a_call_that_python_would_refuse_for_what_is_missing_names_what_is_wrong_too() -> None:
    with pytest.raises(TypeError, match=r"missing a required argument: 'id', and has no parameter 'idd'"):
        Signature.of(reprice).bind((), {"idd": 1})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'idd'$"):
        Signature.of(reprice).bind((1,), {"idd": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'id'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"id": 1}, "multiple values for argument 'id'"),
        ((1,), {"nope": 1}, "unexpected keyword argument 'nope'"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(TypeError, match=rf"reprice\(\) .*{said}"):
        Signature.of(reprice).bind(args, kwargs)


@given(st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from("cdexyz"), st.integers(), max_size=4))
@settings(deadline=None)
def test_what_comes_back_calls_the_function_as_the_caller_did(args: list[int], kwargs: dict[str, int]) -> None:
    def everything(a: int, b: int = 5, /, c: int = 6, *more: int, d: int = 7, e: int = 8, **rest: int) -> Any:
        return a, b, c, more, d, e, rest

    try:
        expected = everything(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            calls(everything, *args, **kwargs)
        return
    got_args, got_kwargs = calls(everything, *args, **kwargs)

    assert everything(*got_args, **got_kwargs) == expected


def test_skipped_parameters_are_given_by_nobody() -> None:
    def body(id: int, p: Product = object(), factor: float = 1.0) -> None:  # type: ignore[assignment]
        ...

    signature = Signature.of(body, skip=frozenset({"p"}))
    bound = signature.bind((1, 2.0), {})

    assert (bound.args, bound.kwargs) == ((1,), {"factor": 2.0})
    with pytest.raises(TypeError, match="'p'"):
        signature.bind((1,), {"p": 1})
    with pytest.raises(ConfigurationError, match="after `\\*`"):
        Signature.of(lambda p=1, *more: None, skip=frozenset({"p"}))


def test_the_value_of_the_step_before_is_the_first_argument() -> None:
    def notify(price: Decimal, channel: str, *, loud: bool = False) -> None: ...

    whole = Signature.of(notify)
    step = whole.without_first()
    stored = step.encode(step.bind((), {"channel": "#ops"}))

    arguments = whole.with_first(Decimal("1.10"), step.decode(stored))

    assert arguments.named() == {"price": Decimal("1.10"), "channel": "#ops", "loud": False}
    assert whole.annotations["price"] is Decimal
    with pytest.raises(Unbindable, match="no value for price"):
        whole.decode(stored)
    with pytest.raises(ConfigurationError, match="takes no positional argument"):
        Signature.of(lambda *, a: None).without_first()
    spread = Signature.of(lambda *items: None)
    assert spread.with_first(1, spread.without_first().bind((2,), {})).args == (1, 2)


# -- payloads


@given(st.lists(ANNOTATED, min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_annotated_arguments_come_back_as_they_were(pairs: list[tuple[Any, Any]], data: st.DataObject) -> None:
    function = with_annotations([annotation for annotation, _ in pairs])
    values = [data.draw(strategy) for _, strategy in pairs]

    args, _ = calls(function, *values)

    assert same(list(args), values)


@given(st.lists(PLAIN, max_size=3))
@settings(max_examples=100, deadline=None)
def test_arguments_without_annotation_come_back_as_they_were(values: list[Any]) -> None:
    args, _ = calls(lambda *given: None, *values)

    assert same(list(args), values)


def with_annotations(annotations: list[Any]) -> Callable[..., None]:
    names = [f"p{place}" for place in range(len(annotations))]

    def function(*args: Any) -> None: ...

    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)
            for name, annotation in zip(names, annotations, strict=True)
        ]
    )
    return function


def test_the_path_of_an_argument_that_would_not_come_back_is_named() -> None:
    def f(a: list[Any], *more: int, note: str = "", **rest: int) -> None: ...

    signature = Signature.of(f)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (([{"x": object()}],), {}, r"args\[0\]\[0\]\['x'\] \(the 'a' of f\) is an object"),
        (([], 1, "b"), {}, r"\*more\[1\] \(the 'more' of f\) is 'b', where int is expected"),
        (([],), {"note": 3}, r"kwargs\['note'\] .* is 3, where str is expected"),
        (([],), {"z": "q"}, r"\*\*rest\['z'\] .* is 'q'"),
    ]
    for args, kwargs, path in cases:
        with pytest.raises(NotEncodable, match=path):
            signature.encode(signature.bind(args, kwargs))


def test_a_default_that_cannot_be_stored_is_still_a_default() -> None:
    nothing = object()

    def f(a: int, b: Any = nothing) -> None: ...

    assert calls(f, 1) == ((1, nothing), {})
    assert calls(f, 1, 2) == ((1, 2), {})


def test_a_program_with_a_new_optional_parameter_reads_older_payloads() -> None:
    def older(id: int) -> None: ...

    def newer(flag: bool = True, *, id: int, at: datetime | None = None, **rest: int) -> None: ...

    def guarded(id: int, token: Secret[str] = "none") -> None: ...

    stored = Signature.of(older).encode(Signature.of(older).bind((7,), {}))

    assert Signature.of(newer).decode(stored).named() == {"flag": True, "id": 7, "at": None, "rest": {}}
    assert Signature.of(guarded).decode(stored).named() == {"id": 7, "token": "none"}


def test_a_payload_of_other_parameters_says_what_does_not_fit() -> None:
    def new(id: int, at: datetime, extra: int = 0) -> None: ...

    def old(id: int, name: str) -> None: ...

    def retyped(id: UUID, at: datetime, extra: int) -> None: ...

    signature = Signature.of(new)
    stored = signature.encode(signature.bind((1, NAIVE), {}))

    with pytest.raises(Unbindable, match=r"old\(id, name\): .* no value for name and a value for at, extra, which"):
        Signature.of(old).decode(stored)
    with pytest.raises(Unbindable, match="retyped"):
        Signature.of(retyped).decode(stored)


def test_forms_of_two_versions_of_a_program_read_each_other() -> None:
    def plain(id: int, at: datetime, name: str) -> None: ...

    def marked(id: int, at: datetime, name: Secret[str]) -> None: ...

    values = (1, NAIVE, "ann")
    for one, other in [(plain, marked), (marked, plain)]:
        stored = Signature.of(one).encode(Signature.of(one).bind(values, {}))
        assert Signature.of(other).decode(stored).values == values


def test_br_091_damaged_payloads_are_corrupt() -> None:
    signature = Signature.of(reprice)
    whole = signature.encode(signature.bind((1,), {}))

    for damaged in [b"", b"\x01", b"\x02", b"\x09" + whole[1:], whole[:-1], whole + b"x", b"\x01\xc0", b"\x02\x90"]:
        with pytest.raises(CorruptBytes):
            signature.decode(damaged)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_unbindable_or_corrupt(noise: bytes) -> None:
    for form in (b"", b"\x01", b"\x02"):
        try:
            Signature.of(reprice).decode(form + noise)
        except (CorruptBytes, Unbindable):
            continue


def test_br_094_arguments_beyond_the_limit_are_refused_at_the_call() -> None:
    signature = Signature.of(lambda blob: None)

    with pytest.raises(NotEncodable, match="more than the limit of 1,048,576"):
        signature.encode(signature.bind((b"x" * 2_000_000,), {}))
    with pytest.raises(NotEncodable, match="more than the limit of 10"):
        signature.encode(signature.bind((b"x" * 20,), {}), most=10)


def test_br_006_empty_containers_in_every_place() -> None:
    def f(a: Any, b: Any, c: Any, d: Any, *, meta: Any) -> None: ...

    assert calls(f, [], {}, [[]], {"a": []}, meta=[]) == (([], {}, [[]], {"a": []}), {"meta": []})


def test_br_037_an_infinite_argument_comes_back() -> None:
    assert calls(lambda x: None, float("-inf")) == ((float("-inf"),), {})


def test_br_064_a_datetime_argument_comes_back_as_it_was() -> None:
    def f(at: datetime) -> None: ...

    for moment in (NAIVE, datetime.fromisoformat("2024-01-01T00:00+05:45")):
        assert same(calls(f, moment)[0][0], moment)


def test_br_072_a_model_goes_in_and_comes_out() -> None:
    def f(order: Order, spot: Point, colours: dict[Colour, int]) -> None: ...

    order = Order(id=UUID(int=1), when=NAIVE, total=Decimal("1.10"), colour=Colour.RED, blob=b"\xff")

    args, _ = calls(f, order, Point(1, 2), {Colour.BLUE: 3})

    assert same(args[0], order)
    assert args[1:] == (Point(1.0, 2.0), {Colour.BLUE: 3})
    with pytest.raises(NotEncodable, match="order"):
        calls(f, {"id": "x"}, Point(1, 2), {})


# -- secrets


def test_secrets_are_stored_and_never_shown() -> None:
    def login(user: str, password: Secret[str], *, tokens: list[Secret[int]] = []) -> None: ...  # noqa: B006

    signature = Signature.of(login)
    arguments = signature.bind(("ann", "hunter2"), {"tokens": [7777]})
    stored = signature.encode(arguments)

    assert signature.decode(stored).named() == {"user": "ann", "password": "hunter2", "tokens": [7777]}
    assert signature.describe(arguments) == "user='ann', password=•••, tokens=[•••]"
    assert "hunter2" not in repr(peek(stored))
    assert "7777" not in repr(peek(stored))
    assert "hunter2" not in signature.key_parts(arguments)
    with pytest.raises(NotEncodable) as refused:
        signature.encode(signature.bind(("ann", 12345), {}))
    assert "12345" not in str(refused.value)


def test_a_description_is_short_and_never_raises() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    signature = Signature.of(lambda a, b=None: None)

    assert (
        signature.describe(signature.bind((Broken(),), {}))
        == "a=<test_a_description_is_short_and_never_raises.<locals>.Broken>, b=None"
    )
    assert len(signature.describe(signature.bind(("x" * 10_000, list(range(10_000))), {}))) < 300


# -- annotations


def test_br_074_forward_references_resolve_at_first_use() -> None:
    def f(later: DefinedLater, *, many: list[DefinedLater]) -> DefinedLater: ...  # type: ignore[empty-body]

    signature = Signature.of(f)
    value = DefinedLater(3)

    assert signature.returns is DefinedLater
    assert calls(f, value, many=[value]) == ((value,), {"many": [value]})


def test_br_074_a_name_that_appears_after_the_declaration_is_found() -> None:
    namespace: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef f(a: Late) -> Late: ...", namespace)
    signature = Signature.of(namespace["f"])

    namespace["Late"] = Point

    assert signature.decode(signature.encode(signature.bind((Point(1.0, 2.0),), {}))).args == (Point(1.0, 2.0),)
    assert signature.returns is Point


def test_br_074_local_classes_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    def f(a: Local, b: list[Local] | None = None) -> Local: ...  # type: ignore[empty-body]

    assert calls(f, Local(1), [Local(2)]) == ((Local(1), [Local(2)]), {})
    assert Signature.of(f).returns is Local


def test_br_074_an_annotation_that_does_not_resolve_spoils_only_its_own_parameter() -> None:
    def f(a: NotThereAtRunTime, b: Decimal) -> None: ...

    signature = Signature.of(f)
    with pytest.warns(UnresolvedAnnotation, match="'a' does not resolve at run time .*NotThereAtRunTime") as told:
        arguments = signature.bind((1, Decimal("1.0")), {})

    assert same(signature.decode(signature.encode(arguments)).args, (1, Decimal("1.0")))
    assert set(signature.unresolved) == {"a"}
    assert (told[0].filename, told[0].lineno) == (__file__, f.__code__.co_firstlineno)
    with pytest.raises(NotEncodable, match="where Decimal is expected"):
        signature.encode(signature.bind((1, 2), {}))


def test_br_074_annotated_and_pep_604_are_understood() -> None:
    def f(a: Annotated[int, "a note"], b: int | None, c: Annotated[Product | None, 3] = None) -> int | None: ...

    assert calls(f, 1, None, Product(1, "a", 1.0)) == ((1, None, Product(1, "a", 1.0)), {})
    assert Signature.of(f).returns == int | None


def test_br_074_pep_695_is_understood() -> None:
    type_alias = pytest.importorskip("typing_extensions").TypeAliasType
    ids: Any = type_alias("Ids", list[int])
    pair: Any = type_alias("Pair", cast(Any, tuple)[T, T], type_params=(T,))

    assert calls(with_annotations([ids, pair[str], cast(Any, T)]), [1], ("a", "b"), 3) == (([1], ("a", "b"), 3), {})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax came with Python 3.12")
def test_br_074_the_syntax_of_pep_695_is_understood() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n"
        "type Ids = list[int]\ntype Pair[A] = tuple[A, A]\ntype Tree = int | list[Tree]\n"
        "def f[T](a: Ids, b: Pair[str], c: T, d: Tree) -> Ids: ...",
        namespace,
    )

    assert calls(namespace["f"], [1], ("a", "b"), 3, [1, [2]]) == (([1], ("a", "b"), 3, [1, [2]]), {})


def test_coroutines_are_unwrapped_in_what_is_returned() -> None:
    def one() -> Coroutine[Any, Any, int]: ...  # type: ignore[empty-body]
    def two() -> Awaitable[list[int]]: ...  # type: ignore[empty-body]
    def three(): ...  # type: ignore[no-untyped-def]

    assert Signature.of(one).returns is int
    assert Signature.of(two).returns == list[int]
    assert Signature.of(three).returns is Any


def test_a_parameter_whose_type_cannot_be_stored_is_refused_at_the_declaration() -> None:
    class Pool: ...

    def f(id: int, pool: Pool) -> None: ...

    with pytest.raises(ConfigurationError, match=r"f: the parameter 'pool': .*Pool cannot be stored"):
        Signature.of(f)
    assert Signature.of(f, ignore=frozenset({"pool"})).key_of((1, Pool()), {}) == "1"
    with pytest.raises(ConfigurationError, match="names no parameter"):
        Signature.of(f, ignore=frozenset({"nope"}))


def test_generic_parameters_are_read_by_their_arguments() -> None:
    class Box(msgspec.Struct, Generic[T], frozen=True):
        item: T

    Box.__annotations__["item"] = cast(Any, T)

    def f(box: Box[Decimal]) -> None: ...

    assert same(calls(f, Box(Decimal("1.0")))[0], (Box(Decimal("1.0")),))


class DefinedLater(msgspec.Struct, frozen=True):
    x: int
