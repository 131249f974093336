"""From what a program says in a decorator to a record, with every mistake told at import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import Parameter
from string import Formatter
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

from selaras._app.declared.lifetimes import OldValue
from selaras._app.declared.loaders import (
    SelfKey,
    calling,
    calling_with,
    check_parameters,
    loader_of,
    of_self,
    old_parameter,
)
from selaras._app.declared.specs import FamilySpec, KeyPlan, LinePlan, OpenPlan, TaskSpec
from selaras._app.jobs.task import BlockingTask, Task
from selaras._app.process.program import Program
from selaras._app.setup.checks import count, rank, word, yes_or_no
from selaras._app.values.cached import Binding, BlockingCached, BlockingWhole, Cached, Whole
from selaras._app.values.key import Fresh, level_of
from selaras._app.values.read import Reads
from selaras._app.values.tags import BlockingTag, Tag, TagBinding, name_of_tag
from selaras._cache.family import Family
from selaras._contracts.host import Mode
from selaras._core.cache.freshness import BOUNDED
from selaras._core.cache.key import checked_name
from selaras._core.cache.lifetimes import Adaptive
from selaras._core.cache.tagging import tag_text, tag_texts
from selaras._core.codec import codec_of
from selaras._core.durations import Duration, duration_us, format_us
from selaras._core.errors import ConfigurationError
from selaras._core.hints import Hints
from selaras._core.jobs.retry import Backoff, Policy
from selaras._core.positions import Scope
from selaras._core.shapes import can_become
from selaras._core.signature import Signature


class Auto(Enum):
    """Stands for "not said", where None says something."""

    AUTO = "auto"


AUTO: Final = Auto.AUTO

_VERSION_MOST: Final = (1 << 63) - 1
"""What every store can keep of a version."""

Keyed: TypeAlias = Cached[..., Any] | Binding[Any]
Writable: TypeAlias = Keyed | Whole | Tag | TagBinding
Lockable: TypeAlias = str | Cached[..., Any] | Binding[Any] | None
Tagging: TypeAlias = Sequence[str] | Callable[[Any], Iterable[Tag | str]]
BlockingKeyed: TypeAlias = BlockingCached[..., Any] | Binding[Any]
BlockingWritable: TypeAlias = BlockingKeyed | BlockingWhole | BlockingTag | TagBinding


class CommonTaskOptions(TypedDict, total=False):
    """What `@app.task(...)` takes in either face, with the defaults of `declare_task`."""

    name: str | None
    exclusive: bool
    ordered: bool
    retries: int | None
    backoff: Duration | None
    backoff_most: Duration | None
    timeout: Duration | None
    queue: str | None
    priority: int | None
    expires: Duration | None
    result_ttl: Duration | None
    failed_ttl: Duration | None
    max_lost: int | None
    executor: Literal["process"] | None


class TaskOptions(CommonTaskOptions, total=False):
    """What `@app.task(...)` takes."""

    writes: Writable | Sequence[Writable]
    reads: Keyed | Sequence[Keyed]
    lock: Lockable


class BlockingTaskOptions(CommonTaskOptions, total=False):
    """What it takes where nothing can be awaited."""

    writes: BlockingWritable | Sequence[BlockingWritable]
    reads: BlockingKeyed | Sequence[BlockingKeyed]
    lock: str | BlockingKeyed | None


class CommonFamilyOptions(TypedDict, total=False):
    """What `@app.cached(...)` takes in either face, with the defaults of `declare_family`."""

    name: str | None
    ttl: Duration | Adaptive | None
    ttl_none: Duration | None
    ignore: Sequence[str]
    version: Callable[[Any], int | None] | None
    replica_lag: Duration
    during_write: Literal["load", "serve"]
    tiers: Sequence[Literal["local", "host", "shared"]]
    fresh: Fresh | Duration | None
    beta: float
    soft_timeout: Duration | None
    hard_timeout: Duration | None
    stale_if_error: Duration
    stale_while_revalidate: Duration
    fallback_loads: int
    max_value: int | None
    compress_threshold: int | None
    audit: float


class FamilyOptions(CommonFamilyOptions, total=False):
    """What `@app.cached(...)` takes."""

    tags: Tagging


class BlockingFamilyOptions(CommonFamilyOptions, total=False):
    """What it takes where nothing can be awaited."""

    tags: Sequence[str] | Callable[[Any], Iterable[BlockingTag | str]]


# -- tasks


def declare_task(
    program: Program,
    function: Callable[..., Any],
    *,
    name: str | None = None,
    writes: Writable | Sequence[Writable] = (),
    reads: Keyed | Sequence[Keyed] = (),
    lock: Lockable | Auto = AUTO,
    exclusive: bool = True,
    ordered: bool = False,
    retries: int | None = None,
    backoff: Duration | None = None,
    backoff_most: Duration | None = None,
    timeout: Duration | None = None,
    queue: str | None = None,
    priority: int | None = None,
    expires: Duration | None = None,
    result_ttl: Duration | None = None,
    failed_ttl: Duration | None = None,
    max_lost: int | None = None,
    executor: Literal["process"] | None = None,
) -> TaskSpec:
    """Declare a task. Raises ConfigurationError, saying what does not fit and what to write instead."""
    name = _name_of(function, name, "task")
    read_bindings = _read_parameters(function)
    signature = Signature.of(function, skip=frozenset(read_bindings))
    _check_reads(name, function, read_bindings)
    opens: list[OpenPlan] = []
    written: list[KeyPlan] = []
    for one in _writes(writes):
        if isinstance(one, (Whole, Tag, TagBinding)):
            opens.append(_opening(name, one, signature))
        else:
            written.append(_plan(name, "writes", one, signature))
    settings = program.settings
    spec = TaskSpec(
        name,
        function,
        _place(function),
        signature=signature,
        mode=_mode(name, function, executor),
        policy=Policy(
            retries=settings.retries if retries is None else count(retries, option=f"task {name!r}: retries"),
            backoff=_backoff(name, program, backoff, backoff_most),
            timeout_us=settings.timeout if timeout is None else duration_us(timeout, name="timeout"),
            max_lost=settings.max_lost if max_lost is None else count(max_lost, option=f"task {name!r}: max_lost"),
            result_ttl_us=settings.result_ttl if result_ttl is None else duration_us(result_ttl, name="result_ttl"),
            failed_ttl_us=settings.failed_ttl if failed_ttl is None else duration_us(failed_ttl, name="failed_ttl"),
            ordered=yes_or_no(ordered, option=f"task {name!r}: ordered"),
        ),
        queue=settings.queue if queue is None else checked_name(queue, what="queue"),
        priority=settings.priority if priority is None else rank(priority, option=f"task {name!r}: priority"),
        expires_us=0 if expires is None else duration_us(expires, name="expires"),
        writes=written,
        reads=[_plan(name, "reads", one, signature) for one in _each(reads)],
        read_parameters=[(p, _plan(name, f"Read of {p!r}", one, signature)) for p, one in read_bindings.items()],
        line=_line(name, lock, written, signature, exclusive=yes_or_no(exclusive, option=f"task {name!r}: exclusive")),
        opens=opens,
    )
    program.registry.add_task(spec)
    return spec


def _writes(several: Writable | Sequence[Writable]) -> list[Writable]:
    """A single one may stand for a list of one; what is neither is refused as a single one."""
    return list(several) if isinstance(several, (list, tuple, set, frozenset)) else [cast(Writable, several)]


def _each(several: Keyed | Sequence[Keyed]) -> list[Keyed]:
    """As `_writes`."""
    return cast("list[Keyed]", _writes(several))


def _read_parameters(function: Callable[..., Any]) -> dict[str, Binding[Any]]:
    parameters = inspect.signature(function).parameters
    return {name: p.default.binding for name, p in parameters.items() if isinstance(p.default, Reads)}


def _check_reads(task: str, function: Callable[..., Any], reads: Mapping[str, Binding[Any]]) -> None:
    """Refuse a parameter that can be no value of the family it reads. Annotations that say nothing are let be."""
    annotations = {name: inspect.signature(function).parameters[name].annotation for name in reads}
    hints = Hints(function, {name: Any if one is Parameter.empty else one for name, one in annotations.items()})
    for name, binding in reads.items():
        family = binding.family
        try:
            given, taken = codec_of(family.signature.returns).shape, codec_of(hints.resolve(name)).shape
        except (ConfigurationError, NameError):
            continue
        if not can_become(given, taken):
            raise ConfigurationError(
                f"task {task!r}: {name}: {taken.name} = Read({family.name}): {family.name} returns {given.name}, which is "
                f"never {taken.name}"
            )


def _opening(task: str, source: Whole | Tag | TagBinding, signature: Signature) -> OpenPlan:
    """Read what a task writes as a whole."""
    if isinstance(source, Tag):
        return OpenPlan(Scope.TAG, source.name)
    if isinstance(source, TagBinding):
        if source.by not in signature.parameters:
            raise ConfigurationError(
                f"task {task!r}: writes {source!r}: the task has no parameter {source.by!r}, "
                f"but {_listed(signature.parameters)}"
            )
        _check_not_secret(f"task {task!r}: writes {source!r}", source.by, signature)
        return OpenPlan(Scope.TAG, source.name, source.by)
    if source.family.family.during_write == "serve":
        raise ConfigurationError(
            f"task {task!r}: writes {source!r}: while that stands no value of {source.family.name} is served, and it says "
            f"during_write='serve': leave one of them out; {source.family.name}.all().invalidate() at the end of the body "
            f"voids them when the job succeeds"
        )
    return OpenPlan(Scope.FAMILY, source.family.name)


def _plan(task: str, role: str, source: Keyed, signature: Signature) -> KeyPlan:
    """Match a family's parameters with the task's, by name."""
    if not isinstance(source, (Cached, Binding)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(
            f"task {task!r}: {role} {source!r} is no cached family: give a function declared with @app.cached, or its .by(…)"
            + (", its .all(), or a tag of the app" if role == "writes" else "")
        )
    family = source.family
    renames = source.names if isinstance(source, Binding) else {}
    parameters = inspect.signature(family.function).parameters
    for ours in renames:
        if ours not in parameters:
            raise ConfigurationError(
                f"task {task!r}: {family.name}.by({ours}=…): {family.name} has no parameter {ours!r}, "
                f"but {_listed(parameters)}"
            )
    names: list[tuple[str, str]] = []
    for ours, parameter in parameters.items():
        if isinstance(parameter.default, OldValue):
            continue
        theirs = renames.get(ours, ours)
        if theirs in signature.parameters:
            names.append((ours, theirs))
        elif ours in renames:
            raise ConfigurationError(
                f"task {task!r}: {family.name}.by({ours}={theirs!r}): the task has no parameter {theirs!r}, "
                f"but {_listed(signature.parameters)}"
            )
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ConfigurationError(
                f"task {task!r} {role} {family.name}, whose parameter {ours!r} is none of the task's "
                f"({_listed(signature.parameters)}): say which one it is with {family.name}.by({ours}='…')"
            )
    layout = family.signature.layout
    first = [ours for ours, _ in names] == list(layout.names[: len(names)])
    return KeyPlan(family, tuple(names), first and layout.spread < 0 and len(names) <= layout.leading)


def _line(
    task: str, lock: Lockable | Auto, written: Sequence[KeyPlan], signature: Signature, *, exclusive: bool
) -> LinePlan | None:
    if not exclusive:
        if lock not in (AUTO, None):
            raise ConfigurationError(
                f"task {task!r}: exclusive=False means no line, and lock={lock!r} names one: choose"
            )
        return None
    if lock is None:
        return None
    if isinstance(lock, Auto):
        if len(written) > 1:
            names = ", ".join(plan.family.name for plan in written)
            raise ConfigurationError(
                f"task {task!r} writes {names}: say which one orders its jobs with lock={written[0].family.name}, "
                f"or that none does with lock=None"
            )
        return LinePlan(key=written[0], needs=written[0].parameters()) if written else None
    if isinstance(lock, str):
        return _line_of_text(task, lock, signature)
    plan = _plan(task, "lock", lock, signature)
    return LinePlan(key=plan, needs=plan.parameters())


def _line_of_text(task: str, text: str, signature: Signature) -> LinePlan:
    try:
        fields = list(_fields_of(text))
    except ValueError as error:
        raise ConfigurationError(
            f"task {task!r}: lock={text!r} is no template ({error}): write {{parameter}} for a value, and {{{{ or }}}} for "
            f"a brace"
        ) from None
    needs = {_parameter(field) for field, _, _ in fields}
    for name in sorted(needs):
        if name not in signature.parameters:
            raise ConfigurationError(
                f"task {task!r}: lock={text!r} names {name!r}, which is no parameter of the task "
                f"({_listed(signature.parameters)})"
            )
    if not text:
        raise ConfigurationError(f"task {task!r}: lock='' names no line; lock=None says that there is none")
    for field, spec, conversion in fields:
        _check_not_secret(f"task {task!r}: lock={text!r}", field, signature)
        _try_field(task, text, field, spec, conversion, signature)
    return LinePlan(text=text, needs=frozenset(needs))


def _fields_of(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield (field, format, conversion) of each `{...}` of a template, those within formats too. Raises ValueError."""
    for _, field, spec, conversion in Formatter().parse(text):
        if field is not None:
            yield field, spec or "", conversion
            yield from _fields_of(spec or "")


def _parameter(field: str) -> str:
    return field.partition(".")[0].partition("[")[0]


_SAMPLES: Final[Mapping[object, Any]] = {int: 1, str: "a", float: 1.0, bool: True, bytes: b"a"}


def _try_field(task: str, text: str, field: str, spec: str, conversion: str | None, signature: Signature) -> None:
    """Fill a field in, where any value of its parameter's type will do to tell what can be."""
    name, formatter = _parameter(field), Formatter()
    annotation = signature.annotations[name] if signature.is_resolved else Any
    sample = _SAMPLES.get(annotation) if isinstance(annotation, type) else None
    if sample is None or "{" in spec:
        return
    try:
        value, _ = formatter.get_field(field, (), {name: sample})
        formatter.format_field(formatter.convert_field(value, conversion), spec)
    except Exception as error:  # noqa: BLE001 - whatever it is, each enqueue would raise it
        raise ConfigurationError(
            f"task {task!r}: lock={text!r}: {{{field}}} cannot be filled in from {name!r}, of type {annotation.__name__}: {error}"
        ) from None


def _mode(task: str, function: Callable[..., Any], executor: str | None) -> Mode:
    coroutine = inspect.iscoroutinefunction(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"task {task!r} is a generator function: a task returns once; return a list instead")
    if executor is None:
        return Mode.LOOP if coroutine else Mode.THREAD
    if executor != "process":
        raise ConfigurationError(f"task {task!r}: executor={executor!r}: 'process' is the only one to choose")
    return Mode.PROCESS


def _backoff(task: str, program: Program, first: Duration | None, most: Duration | None) -> Backoff:
    first_us = program.settings.backoff if first is None else duration_us(first, name="backoff")
    most_us = program.settings.backoff_most if most is None else duration_us(most, name="backoff_most")
    if most is not None and most_us < first_us:
        raise ConfigurationError(
            f"task {task!r}: backoff_most={format_us(most_us)} is shorter than backoff={format_us(first_us)}, the first retry's "
            f"delay: give at least that, or a shorter backoff"
        )
    return Backoff(first_us, max(first_us, most_us))


# -- families


def declare_family(
    program: Program,
    decorated: Callable[..., Any],
    self_key: SelfKey | Auto | None = AUTO,
    *,
    name: str | None = None,
    ttl: Duration | Adaptive | Auto | None = AUTO,
    ttl_none: Duration | Auto | None = AUTO,
    ignore: Sequence[str] = (),
    tags: Tagging = (),
    version: Callable[[Any], int | None] | None = None,
    replica_lag: Duration = 0,
    during_write: Literal["load", "serve"] = "load",
    tiers: Sequence[Literal["local", "host", "shared"]] = ("local", "host", "shared"),
    fresh: Fresh | Duration | None = None,
    beta: float = 1.0,
    soft_timeout: Duration | None = None,
    hard_timeout: Duration | None = None,
    stale_if_error: Duration = 0,
    stale_while_revalidate: Duration = 0,
    fallback_loads: int = 32,
    max_value: int | None = None,
    compress_threshold: int | None = None,
    audit: float = 0.0,
) -> FamilySpec:
    """Declare a family. `self_key` makes it one of a method's.

    Raises:
        ConfigurationError: saying what does not fit and what to write instead.
    """
    _refuse_declared(decorated, "family")
    made_of = loader_of(decorated)
    loader = made_of.function
    name = _named(name if name is not None else made_of.name, loader, "family")
    parameters = inspect.signature(loader).parameters
    ignored = _several(name, "ignore", ignore)
    for left_out in ignored:
        if left_out not in parameters:
            raise ConfigurationError(
                f"family {name!r}: ignore={left_out!r}: it has no such parameter ({_listed(parameters)})"
            )
    if made_of.is_method and not isinstance(self_key, Auto):
        ignored = (*ignored, *list(parameters)[:1])
    self_part = of_self(made_of, self_key, said=not isinstance(self_key, Auto))
    word(during_write, ("load", "serve"), option=f"family {name!r}: during_write")
    kept_in = _several(name, "tiers", tiers)
    for tier in kept_in:
        word(tier, ("local", "host", "shared"), option=f"family {name!r}: tiers")
    old = old_parameter(name, parameters)
    signature = Signature.of(loader, skip=frozenset(() if old is None else (old,)), ignore=frozenset(ignored))
    spec = FamilySpec(
        name,
        loader,
        _place(loader),
        signature,
        is_method=made_of.is_method,
        of_self=self_part,
        self_name=self_key if isinstance(self_key, str) else next(iter(parameters), ""),
    )
    rule = ttl if isinstance(ttl, Adaptive) else None
    ttl_us = rule.max_us if rule else _ttl(name, "ttl", program.settings.ttl if isinstance(ttl, Auto) else None, ttl)
    if_error_us = duration_us(stale_if_error, name=f"family {name!r}: stale_if_error")
    meanwhile_us = duration_us(stale_while_revalidate, name=f"family {name!r}: stale_while_revalidate")
    soft_us, hard_us = _timeouts(name, soft_timeout, hard_timeout, can_be_stale=if_error_us > 0 or meanwhile_us > 0)
    if (if_error_us or meanwhile_us) and "shared" not in kept_in:
        raise ConfigurationError(
            f"family {name!r}: stale values are kept in the shared tier, for there it is known whether anything speaks "
            f"against them: add 'shared' to tiers={kept_in!r}, or leave stale_if_error= and stale_while_revalidate= out"
        )
    spec.family = Family(
        name,
        _codec(name, signature),
        calling(loader),
        ttl_us=ttl_us,
        ttl_none_us=ttl_us if isinstance(ttl_none, Auto) else _ttl(name, "ttl_none", None, ttl_none),
        local="local" in kept_in,
        host="host" in kept_in,
        shared_tier="shared" in kept_in,
        during_write=during_write,
        version=_version(name, version),
        replica_lag_us=duration_us(replica_lag, name=f"family {name!r}: replica_lag"),
        tags=_tagging(name, tags, signature),
        level=BOUNDED if fresh is None else level_of(fresh, name=f"family {name!r}: fresh"),
        load_again=None if old is None else calling_with(loader, old),
        adaptive=rule,
        adaptive_none=isinstance(ttl_none, Auto),
        beta=_beta(name, beta),
        soft_timeout_us=soft_us,
        hard_timeout_us=hard_us,
        stale_if_error_us=if_error_us,
        stale_while_revalidate_us=meanwhile_us,
        fallback_loads=count(fallback_loads, option=f"family {name!r}: fallback_loads", least=1),
        max_value=_bytes(name, "max_value", max_value, program.settings.max_value),
        compress_threshold=_bytes(name, "compress_threshold", compress_threshold, program.settings.compress_threshold),
        audit=_share(name, audit, during_write),
    )
    spec.tag_names = (
        None if callable(tags) else frozenset(text.partition(":")[0] for text in _several(name, "tags", tags))
    )
    program.registry.add_family(spec)
    return spec


def _ttl(family: str, option: str, default: int | None, value: object) -> int | None:
    if isinstance(value, Auto):
        return default
    value = cast("Duration | None", value)
    return None if value is None else duration_us(value, name=f"family {family!r}: {option}")


def _timeouts(family: str, soft: Duration | None, hard: Duration | None, *, can_be_stale: bool) -> tuple[int, int]:
    soft_us = 0 if soft is None else duration_us(soft, name=f"family {family!r}: soft_timeout")
    hard_us = 0 if hard is None else duration_us(hard, name=f"family {family!r}: hard_timeout")
    if soft_us and not can_be_stale:
        raise ConfigurationError(
            f"family {family!r}: after soft_timeout={soft!r} a stale value is returned, and none is kept: say for how long "
            f"with stale_if_error=, or mean hard_timeout="
        )
    if hard_us and soft_us >= hard_us:
        raise ConfigurationError(
            f"family {family!r}: soft_timeout={soft!r} is not below hard_timeout={hard!r}, after which there is an error"
        )
    return soft_us, hard_us


def _beta(family: str, beta: object) -> float:
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 <= beta < float("inf"):
        raise ConfigurationError(
            f"family {family!r}: beta={beta!r}: give a number: 1 as a rule, more to load earlier, 0 never to load ahead"
        )
    return float(beta)


def _share(family: str, audit: object, during_write: str) -> float:
    if isinstance(audit, bool) or not isinstance(audit, (int, float)) or not 0 <= audit <= 1:
        raise ConfigurationError(
            f"family {family!r}: audit={audit!r}: give the share of its hits that is compared with the datastore: 0.001 is one "
            f"in a thousand, 0 none"
        )
    if audit and during_write == "serve":
        raise ConfigurationError(
            f"family {family!r}: audit={audit!r} with during_write='serve': what is served while somebody writes it is old on "
            f"purpose, and an audit could not tell: leave one of them out"
        )
    return float(audit)


def _bytes(family: str, option: str, given: int | None, default: int) -> int:
    return default if given is None else count(given, option=f"family {family!r}: {option}")


def _codec(family: str, signature: Signature) -> Any:
    try:
        # Sealed: to a program with other fields a cached copy is a miss, never a value with a default made up.
        return codec_of(signature.returns, sealed=True)
    except ConfigurationError as error:
        raise ConfigurationError(f"family {family!r}: its values cannot be stored: {error}") from error


def _tagging(family: str, tags: Tagging, signature: Signature) -> Callable[[Any, Any], tuple[str, ...]] | None:
    if callable(tags):
        of_value = tags
        _check_takes_a_value(family, "tags", of_value)
        return lambda _arguments, value: _borne(family, of_value(value))
    texts = _several(family, "tags", tags)
    if not texts:
        return None
    parsed = [_tag_template(family, text, signature) for text in texts]
    return lambda arguments, _value: tuple(
        tag_text(name, None if field is None else arguments.named()[field]) for name, field in parsed
    )


def _borne(family: str, tags: object) -> tuple[str, ...]:
    """Return the tags that a function of a value said; a single one may stand for a list of one."""
    several = (tags,) if isinstance(tags, (Tag, BlockingTag, str)) else tags
    if not isinstance(several, Iterable):
        raise ConfigurationError(f"family {family!r}: tags= returned {tags!r}: return tags, or () where there are none")
    borne: dict[str, None] = {}
    for tag in cast(Iterable[object], several):
        if isinstance(tag, (Tag, BlockingTag)):
            borne[tag.name] = None
        elif isinstance(tag, str):
            # Written out by the program: as a tag's own text, or as its name and a value that looks so.
            _, colon, value = tag.partition(":")
            name = name_of_tag(tag)
            borne[tag] = None
            borne.update(dict.fromkeys(tag_texts(name, value) if colon else (tag_text(name),)))
        else:
            raise ConfigurationError(
                f"family {family!r}: tags= returned {tag!r} ({type(tag).__name__}), which is no tag: return app.tag(name, value)"
            )
    return tuple(borne)


def _several(family: str, option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts; a single one may stand for a list of one."""
    several = (texts,) if isinstance(texts, str) else texts
    if not isinstance(several, (list, tuple, set, frozenset)) or not all(isinstance(one, str) for one in several):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"family {family!r}: {option}={texts!r}: give a list of texts")
    return tuple(several)


def _version(family: str, version: Callable[[Any], int | None] | None) -> Callable[[Any], int | None] | None:
    if version is None:
        return None
    if not callable(version):
        raise ConfigurationError(
            f"family {family!r}: version={version!r}: give a function of a value: lambda product: product.updated_seq"
        )
    _check_takes_a_value(family, "version", version)

    def checked(value: Any) -> int | None:
        found: Any = version(value)
        if found is None:
            return None
        if not isinstance(found, int):
            raise ConfigurationError(
                f"family {family!r}: version= returned {found!r} ({type(found).__name__}): return a whole number; of an instant, "
                "say, its microseconds"
            )
        if abs(found) > _VERSION_MOST:
            raise ConfigurationError(
                f"family {family!r}: version= returned {found}: it is kept in 64 bits, as a number of at most {_VERSION_MOST:,}"
            )
        return int(found)

    return checked


def _check_takes_a_value(family: str, option: str, function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with a value alone: as late as at a read it would cost each of them a load."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some builtins nobody knows
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"family {family!r}: {option}= takes a function of a value, and nothing else: {error}"
        ) from None


def _tag_template(family: str, text: str, signature: Signature) -> tuple[str, str | None]:
    """Read "name" or "name:{parameter}"."""
    name, _, rest = text.partition(":")
    field = rest.strip("{}") if rest else None
    if set("{}").intersection(name) or (
        field is not None and (rest != f"{{{field}}}" or field not in signature.parameters)
    ):
        raise ConfigurationError(
            f"family {family!r}: tags={text!r}: write 'name' or 'name:{{parameter}}', of {_listed(signature.parameters)}"
        )
    if field is not None:
        _check_not_secret(f"family {family!r}: tags={text!r}", field, signature)
    return checked_name(name, what="tag"), field


def _check_not_secret(where: str, field: str, signature: Signature) -> None:
    """Refuse a name that would show a secret, and that others must come to by the value alone: `app.tag(name, value)`,
    `app.lock(name)`. A digest here would be another name.
    """
    if signature.is_unmarked_secret(field):
        raise ConfigurationError(
            f"{where}: {field!r} is Secret, and the names of tags and lines are shown as they are, in logs and command lines:"
            " name what the secret belongs to, or a digest that you make yourself"
        )


# -- names and places


def _name_of(function: Callable[..., Any], name: str | None, what: str) -> str:
    _refuse_declared(function, what)
    _refuse_method(function)
    if not callable(function):
        raise ConfigurationError(f"@app.task decorates a function, not {function!r}")
    check_parameters(function)
    return _named(name if name is not None else getattr(function, "__name__", ""), function, what)


def _named(given: str, function: Callable[..., Any], what: str) -> str:
    if given == "<lambda>" or (not given and not getattr(function, "__name__", "")):
        raise ConfigurationError(f"{_place(function)}: a {what} without a name of its own needs name=")
    return checked_name(given, what=what)


def _refuse_declared(function: object, what: str) -> None:
    """A function is a task or a family: of one that is both, nobody could say what a call of it means."""
    if isinstance(function, (Task, BlockingTask, Cached, BlockingCached)):
        known = "a task" if isinstance(function, (Task, BlockingTask)) else "cached"
        name: str = function.name
        raise ConfigurationError(
            f"{name!r} is {known} already, and one function is either a task or cached: write the {what} as a function of "
            f"its own, which calls {name}()"
        )


def _refuse_method(function: Any) -> None:
    """A method's `self` is an address in memory: no name of anything another process could find."""
    name = str(getattr(function, "__qualname__", ""))
    owner = name.rpartition(".")[0]
    if isinstance(function, (staticmethod, classmethod, property)) or (owner and not owner.endswith("<locals>")):
        raise ConfigurationError(
            f"{_place(function)}: a task is a plain function, and {name or 'it'!r} belongs "
            f"to a class: move it out, and give it what it needs of the object as parameters"
        )


def _place(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
