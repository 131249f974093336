"""`selaras cache`: read and void cached values, and see the shared tier."""

from __future__ import annotations

import difflib
import inspect
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from math import floor, log10
from typing import Any, Final

import click
from rich.progress import Progress

from selaras._app.declared.specs import FamilySpec
from selaras._app.operating.lineage import noted
from selaras._app.operating.survey import cache_stats, invalidate_key, live_instances, long_writers
from selaras._app.process.audits import audited, said
from selaras._app.process.program import Program
from selaras._app.values.cached import Cached
from selaras._app.values.key import Fresh, Key, Reading
from selaras._app.values.tags import doubt_tag
from selaras._app.values.warming import LOADS_AT_ONCE, Warmed, warm as warm_keys
from selaras._core.cache.consistency import AGES_US, Audits, Found, Ledger
from selaras._core.cache.opening import shown_keys
from selaras._core.cache.tagging import tag_text, tag_texts
from selaras._core.durations import format_us
from selaras._core.errors import NotEncodable, SelarasError
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.job import JobKind
from selaras.cli.arguments import read_arguments, read_value
from selaras.cli.durations import level
from selaras.cli.exits import Misused, Told
from selaras.cli.output import console, instant_text, one_line, print_facts, print_json, print_table, value_text
from selaras.cli.target import Target, json_option, on_store
from selaras.cli.texts import ANY_TEXT

_AGES: Final = (*(f"< {format_us(us)}" for us in AGES_US), f"> {format_us(AGES_US[-1])}", "not known")
_FOUND_SHOWN: Final = 5


@click.group()
def cache() -> None:
    """Read and void cached values; see the shared tier."""


@cache.command("get")
@click.argument("family")
@click.argument("arguments", nargs=-1, type=ANY_TEXT, metavar="[ARGUMENT]...")
@click.option(
    "--fresh",
    type=level,
    envvar="SELARAS_FRESH",
    show_envvar=True,
    metavar="LEVEL",
    help="strict: as of now; else how old it may be, such as 5s. By default as the family says.",
)
@json_option
@on_store
async def get(target: Target, family: str, arguments: Sequence[str], fresh: Fresh | None, as_json: bool) -> None:
    """Read one value through the tiers, as the app would; say where it came from.

    ARGUMENTs are the loader's, in order or as name=value.
    """
    key = key_for(target, family, arguments)
    reading = await _read(key, fresh)
    facts = {
        "key": key.name,
        "value": reading.value,
        "tier": reading.tier,
        "age": round(reading.age, 6),
        "position": reading.position,
        "why": reading.why,
    }
    if as_json:
        print_json(facts)
        return
    position = "" if reading.position is None else str(reading.position)
    print_facts(
        [
            ("key", key.name),
            ("value", value_text(reading.value)),
            ("tier", reading.tier),
            ("as of", f"{reading.age:.3f} s ago"),
            ("position", position),
            ("why", reading.why),
        ]
    )


@cache.command("show")
@click.argument("family")
@click.argument("arguments", nargs=-1, type=ANY_TEXT, metavar="[ARGUMENT]...")
@json_option
@on_store
async def show(target: Target, family: str, arguments: Sequence[str], as_json: bool) -> None:
    """Show what stands in one value's place in the shared tier, how long it lives and why; and in the host tier, if there
    is one. Nothing is loaded.

    ARGUMENTs are the loader's, in order or as name=value.
    """
    key = key_for(target, family, arguments)
    tiers = target.app.process().cache
    found = await tiers.window.show(key.slot)
    host = None if tiers.host is None else await tiers.host.shown(key.slot)
    facts = {
        "key": key.name,
        "value": found.value,
        "tier": found.tier,
        "age": _seconds(found.age_us),
        "ttl": _seconds(found.ttl_us),
        "expires": _seconds(found.left_us),
        "position": found.position,
        "why": found.why,
        **({} if host is None else {"host": host}),
    }
    if as_json:
        print_json(facts)
        return
    stands = found.tier != "nothing"
    print_facts(
        [
            ("key", key.name),
            ("value", value_text(found.value) if stands else ""),
            ("tier", found.tier),
            ("age", _span(found.age_us, "")),
            ("ttl", f"{_span(found.ttl_us, 'no end')}: {found.why}" if stands else ""),
            ("expires", _span(found.left_us, "never" if stands else "")),
            ("position", "" if found.position is None else str(found.position)),
            *([] if stands else [("why", found.why)]),
            *([] if host is None else [("host tier", host)]),
        ]
    )


@cache.command("warm")
@click.argument("family")
@click.argument("arguments", nargs=-1, type=ANY_TEXT, metavar="[ARGUMENT]...")
@click.option(
    "--loads",
    type=click.IntRange(min=1),
    default=LOADS_AT_ONCE,
    show_default=True,
    envvar="SELARAS_LOADS",
    show_envvar=True,
    help="So many loaders run at a time; a call of a batch loader is one.",
)
@json_option
@on_store
async def warm(target: Target, family: str, arguments: Sequence[str], loads: int, as_json: bool) -> None:
    """Bring values into the shared tier before somebody needs them; what is there already is not loaded.

    ARGUMENTs are the loader's, in order or as name=value. Without any (and for a loader that takes some) each line of the
    standard input names one value, as in: seq 1 1000 | selaras cache warm product

    If one of the lines names none, that is said, and nothing is loaded.
    """
    spec = family_of(target, family)
    if spec.is_method:
        raise Misused(
            f"{family} is a method, and loading its values needs their objects, which only the program has: warm them in it, "
            f"with app.warm(...)"
        )
    if arguments or not spec.signature.parameters:
        keys = [key_for(target, family, arguments)]
    else:
        keys = _keys_of_lines(target, family)
    with _progress(len(keys), shown=not as_json) as told:
        warmed = await warm_keys(target.app.program, keys, loads=loads, told=told)
    if as_json:
        counts: dict[str, int] = {
            name: getattr(warmed, name) for name in ("asked", "held", "shared", "loaded", "unkept", "failed")
        }
        print_json({"family": family, **counts, "error": None if warmed.error is None else repr(warmed.error)})
    else:
        print_facts(
            [
                ("values", f"{warmed.asked:,}"),
                ("there already", f"{warmed.held + warmed.shared:,}"),
                ("loaded", f"{warmed.loaded:,}"),
                *([("not kept", f"{warmed.unkept:,}, for somebody writes them")] if warmed.unkept else []),
                *([("failed", f"{warmed.failed:,}")] if warmed.failed else []),
            ]
        )
    if warmed.error is not None:
        failure = Failure.of(warmed.error)
        raise Told(
            f"{family}: its loader failed {warmed.failed:,} times, first with {failure.type}: {one_line(failure.message)}"
        )


@cache.command("invalidate")
@click.argument("words", nargs=-1, type=ANY_TEXT, metavar="[FAMILY [ARGUMENT]... | VALUE]")
@click.option("--tag", metavar="NAME", help="All values that bear this tag; with a VALUE: this tag of that value.")
@click.option("--family", metavar="FAMILY", help="All values of a family.")
@click.option("--key", metavar="TEXT", help="One value by the text of its key, such as product:42; needs no app.")
@json_option
@on_store
async def invalidate(
    target: Target, words: Sequence[str], tag: str | None, family: str | None, key: str | None, as_json: bool
) -> None:
    """Void one cached value, or all of a tag or a family. The next reader loads it from the datastore."""
    if sum((tag is not None, family is not None, key is not None, tag is None and bool(words))) != 1:
        raise Misused("say what to void, and one thing at a time: FAMILY ARGUMENT..., --tag, --family or --key")
    if tag is not None:
        if len(words) > 1:
            raise Misused(f"--tag {tag} takes one VALUE at most, not {len(words)}")
        names = tag_texts(tag, words[0]) if words else (tag_text(tag),)
        name = names[0]
        _refuse_joined(target, tag)
        doubt_tag(target.app.program, name)
        await target.app.process().cache.invalidate(tags=names)
        said = {"tag": name}
    elif family is not None:
        if target.reference:
            family_of(target, family)
        await target.app.process().cache.invalidate(families=[family])
        said = {"family": family}
    elif key is not None:
        await invalidate_key(target.store, key, target.app.process().cache.lineage)
        said = {"key": key}
    else:
        place = key_for(target, words[0], words[1:])
        await place.invalidate()
        said = {"key": place.name}
    if as_json:
        print_json({"invalidated": said})
    else:
        what, name = next(iter(said.items()))
        click.echo(f"{what} {one_line(name)} is void: the next read goes to the datastore")


@cache.command("stats")
@json_option
@on_store
async def stats(target: Target, as_json: bool) -> None:
    """Show the shared tier: what is stored, what is being written, how long the log is; and measured consistency.

    In JSON values are called entries, what is being written intents, and what is being loaded tokens.

    Hits and misses are counted where they happen, in each process. Families with audit= are measured: of the hits that
    were compared with the datastore, the share that was not stale, and the share that is certain (95 % confidence).
    While a job or a scope writes, what it writes is read from the datastore: those that have been at it for more than 10 s are listed.
    """
    parts = await cache_stats(target.store)
    ledger, _ = await audited(target.store)
    notes, noted_bytes = await noted(target.store)
    total = {
        # What is noted for people lies among the values, and is none.
        "entries": sum(part.entries for part in parts) - notes,
        "bytes": sum(part.bytes for part in parts) - noted_bytes,
        "intents": sum(part.intents for part in parts),
        "tokens": sum(part.tokens for part in parts),
    }
    logs = [
        {"partition": index, "position": part.position, "events": part.log_length, "epoch": part.epoch}
        for index, part in enumerate(parts)
    ]
    writers: list[dict[str, Any]] = [
        {
            "job": job.id,
            "kind": job.kind.value,
            "task": job.task,
            "instance": job.instance,
            "writes": shown_keys(job.writes),
            "seconds": round((target.now_us - job.started_us) / 1_000_000, 6),
        }
        for job in await long_writers(target.store, target.now_us)
    ]
    processes = {one.id: f"{one.host}:{one.pid}" for one in await live_instances(target.store)} if writers else {}
    if as_json:
        audits = [_audit_facts(names, audits) for names, audits in ledger.by().items()]
        found = [_as_object(one) for one in ledger.found]
        print_json(
            {
                "store": target.store.url,
                **total,
                "long_writers": writers,
                "logs": logs,
                "audits": audits,
                "stale_reads": found,
            }
        )
        return
    print_facts(
        [
            ("store", target.store.url),
            ("values", f"{total['entries']:,}"),
            ("bytes", f"{total['bytes']:,}"),
            ("being written", f"{total['intents']:,}"),
            *(
                (
                    "for long",
                    f"{one_line(', '.join(one['writes']))}: by {_writer_shown(one, processes)}, "
                    f"for {one['seconds']:.0f} s",
                )
                for one in writers
            ),
            ("being loaded", f"{total['tokens']:,}"),
            *(
                (
                    "log" if len(logs) == 1 else f"log {log['partition']}",
                    f"position {log['position']:,}, {log['events']:,} events kept, epoch {log['epoch']}",
                )
                for log in logs
            ),
        ]
    )

    if ledger.rows:
        _print_audits(ledger)


def _print_audits(ledger: Ledger) -> None:
    click.echo()
    rows = [
        (
            family,
            task or "(no job)",
            pool,
            f"{audits.judged:,}",
            f"{audits.stale:,}",
            percent_text(audits.consistency),
            percent_text(audits.at_least),
            ", ".join(f"{count} {age}" for count, age in zip(audits.ages, _AGES, strict=True) if count),
        )
        for (family, task, pool), audits in sorted(ledger.by().items())
    ]
    columns = ("FAMILY", "TASK", "POOL", "AUDITED", "STALE", "CONSISTENT", "AT LEAST", "SINCE VOIDED")
    print_table(columns, rows, empty="")
    for found in ledger.found[-_FOUND_SHOWN:]:
        click.echo(f"{instant_text(found.at_us)}  {one_line(said(found))}")


def _writer_shown(writer: Mapping[str, Any], processes: Mapping[str, str]) -> str:
    where = processes.get(writer["instance"], writer["instance"])
    if writer["kind"] == JobKind.WRITING:
        return f"a writing() scope (in {where})"
    return f"job {writer['job']} ({writer['task']}, on {where})"


def percent_text(share: float | None) -> str:
    """Say a share of nearly all as exactly as it is known: 99.9999 %."""
    if share is None:
        return "-"
    missing = 1 - share
    digits = 2 if missing <= 0 else max(2, min(9, -floor(log10(missing)) - 1))
    return f"{floor(share * 100 * 10**digits) / 10**digits:.{digits}f} %" if missing > 0 else "100 %"


def _audit_facts(names: tuple[str, str, str], audits: Audits) -> dict[str, Any]:
    family, task, pool = names
    return {
        "family": family,
        "task": task,
        "pool": pool,
        "audited": audits.judged,
        "stale": audits.stale,
        "unsure": audits.unsure,
        "consistency": audits.consistency,
        "at_least": audits.at_least,
        "since_voided": dict(zip(_AGES, audits.ages, strict=True)),
    }


def _as_object(found: Found) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _keys_of_lines(target: Target, family: str) -> list[Key[Any]]:
    """Read values' arguments from the standard input, a value a line."""
    source = sys.stdin
    if source.isatty():
        raise Misused(f"say which values of {family}: its ARGUMENTs, or a line for each value on the standard input")
    keys: list[Key[Any]] = []
    number = 0
    try:
        for line in source:
            number += 1
            if words := shlex.split(line):
                keys.append(key_for(target, family, words))
    except Misused as error:
        raise Misused(f"line {number} of the standard input: {error.message}; nothing was loaded") from error
    except UnicodeDecodeError as error:
        raise Misused(f"line {number + 1} of the standard input is no text: {error}; nothing was loaded") from error
    except ValueError as error:
        raise Misused(
            f"line {number} of the standard input: {error}; write each value's arguments as in a shell. Nothing was loaded"
        ) from error
    return keys


def _tell_nobody(_: Warmed) -> None:
    """Nobody looks."""


@contextmanager
def _progress(values: int, *, shown: bool) -> Generator[Callable[[Warmed], None]]:
    """Show how far a warming is, where somebody looks."""
    screen = console(stderr=True)
    if not shown or not screen.is_terminal:
        yield _tell_nobody
        return
    with Progress(*Progress.get_default_columns(), "{task.completed:,} of {task.total:,}", console=screen) as bar:
        task = bar.add_task("warming", total=values)

        def told(warmed: Warmed) -> None:
            bar.update(task, completed=warmed.asked)

        yield told


def _refuse_joined(target: Target, tag: str) -> None:
    """`category:42` would be the name of a tag: as it is declared, "category:{id}", one easily types it so."""
    name, colon, value = tag.partition(":")
    bears = target.app.registry.may_bear
    if colon and bears(name) and not bears(tag):
        raise Misused(
            f"no family bears a tag {tag!r}; the tag {name!r} of the value {value!r} is: --tag {name} {value}"
        )


def _seconds(us: int | None) -> float | None:
    return None if us is None else round(us / 1_000_000, 6)


def _span(us: int | None, otherwise: str) -> str:
    if us is None:
        return otherwise
    return f"{us / 1_000_000:.3f} s" if us >= 0 else f"{-us / 1_000_000:.3f} s ago"


async def _read(key: Key[Any], fresh: Fresh | None) -> Reading[Any]:
    try:
        return await key.read(fresh)
    except SelarasError:
        raise
    except Exception as error:  # a loader may raise anything: it is the program's, and the answer
        failure = Failure.of(error)
        raise Told(f"{key.name}: its loader failed: {failure.type}: {one_line(failure.message)}") from error


def key_for(target: Target, family: str, arguments: Sequence[str]) -> Key[Any]:
    """Return the key of a family and arguments as typed.

    Raises:
        Misused: there is no such family, or the arguments are not its own.
    """
    spec = family_of(target, family)
    program = target.app.program
    try:
        if spec.is_method:
            return _key_of_method(program, spec, arguments)
        args, kwargs = read_arguments(spec.function, spec.signature.annotations, arguments)
        return Cached[..., Any](program, spec).key(*args, **kwargs)
    except (TypeError, NotEncodable) as error:
        raise Misused(f"{family}: {error}") from error


def _key_of_method(program: Program, spec: FamilySpec, texts: Sequence[str]) -> Key[Any]:
    """Return the key of a method's value: there is no object, and what of it is part of the key is the first argument."""
    partitions = program.process().partitions
    itself, *parameters = inspect.signature(spec.function).parameters.values()
    if not spec.has_self_part:
        args, kwargs = read_arguments(parameters, spec.signature.annotations, texts)
        return Key(program, spec.slot_without_object(None, args, kwargs, partitions))
    name, names = spec.self_name, [it.name for it in parameters]
    rest = list(texts)
    for text in texts:
        word, named, value = text.partition("=")
        if named and word in names:
            continue
        rest.remove(text)
        part = read_value(name, value if named and word in (name, itself.name) else text, Any)
        args, kwargs = read_arguments(parameters, spec.signature.annotations, rest)
        return Key(program, spec.slot_without_object(part, args, kwargs, partitions))
    raise Misused(
        f"{spec.name} is a method: its first argument, {name!r}, says of which object, as in {_example(spec, names)}"
    )


def _example(spec: FamilySpec, names: Iterable[str]) -> str:
    return " ".join([spec.name, spec.self_name.upper(), *(name.upper() for name in names)])


def family_of(target: Target, name: str) -> FamilySpec:
    """Return a family of the app.

    Raises:
        Misused: there is no such family, or no app.
    """
    if not target.reference:
        raise Misused(
            f"what {name!r} is, only the app knows: name it with --app, or the value by --key, all of them by --family"
        )
    families = target.app.registry.families
    if name not in families:
        near = difflib.get_close_matches(name, families, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f": it has {', '.join(families) or 'none'}"
        raise Misused(f"the app has no family {name!r}{hint}")
    return families[name]
