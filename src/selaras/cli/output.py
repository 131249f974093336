"""What commands print: tables for people, tab-separated lines for pipes, strict JSON for programs."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import click
import msgspec

from selaras._core.durations import format_us
from selaras._core.texts import one_line as one_line

if TYPE_CHECKING:
    from rich.console import Console

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What JSON can say."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_A_SECOND: Final = 1_000_000
# Integers beyond this are not exact in JavaScript and jq; they go out as text.
_EXACT_INT: Final = 2**53


def plain(value: object) -> Plain:
    """Return `value` as strict JSON can say it.

    NaN and the infinities have no JSON: they become the texts "NaN", "Infinity" and "-Infinity". Bytes become text
    if they are UTF-8, else `{"base64": ...}`; whatever is unknown becomes its `str`.
    """
    match value:
        case Enum():
            return plain(value.value)
        case None | bool():
            return value
        case int():
            return int(value) if -_EXACT_INT < value < _EXACT_INT else str(value)
        case float():
            return _plain_float(value)
        case str():
            return str(value)
        case bytes() | bytearray():
            return _plain_bytes(bytes(value))
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            mapping = cast("Mapping[object, object]", value)
            return {_key(key): plain(item) for key, item in mapping.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in cast("Iterable[object]", value)]
        case _:
            return _plain_record(value)


def _plain_float(value: float) -> Plain:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _plain_bytes(value: bytes) -> Plain:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _plain_record(value: object) -> Plain:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    dump = getattr(value, "model_dump", None)  # pydantic
    return plain(dump()) if callable(dump) else str(value)


def _key(key: object) -> str:
    said = plain(key)
    return said if isinstance(said, str) else json.dumps(said)


def print_json(value: object) -> None:
    """Print `value` as one strict JSON document, readable by any parser."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeError:  # a narrow terminal, or a lone surrogate: escapes are legal JSON and say the same
        text = json.dumps(plain(value), indent=2, ensure_ascii=True, allow_nan=False)
    click.echo(text)


def many_lines(text: str) -> str:
    """As `one_line`, but line ends and tabs stay: for tracebacks."""
    return "\n".join(one_line(line.replace("\t", "    ")) for line in text.split("\n"))


def short(text: str, most: int) -> str:
    """Cut one line of text to `most` columns, saying that it was cut."""
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def value_text(value: object) -> str:
    """Say a value on one line, as JSON would."""
    return one_line(json.dumps(plain(value), ensure_ascii=False))


def counted(count: int, what: str) -> str:
    """Say how many: `1 job`, `2,000 jobs`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def instant_text(us: int) -> str:
    """Say an instant of the store, in UTC; "" for none."""
    return _instant(us).strftime("%Y-%m-%d %H:%M:%SZ") if us else ""


def instant_json(us: int) -> str | None:
    """Return an instant of the store as ISO 8601 in UTC, or None."""
    return _instant(us).isoformat() if us else None


def _instant(us: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:  # a job may be due in 2**63 us
        return datetime.max.replace(tzinfo=UTC)


def ago_text(us: int, now_us: int) -> str:
    """Say how long ago an instant was, roughly: `12s`, `3m`, `2d`."""
    return rough_text(now_us - us) if us else ""


def rough_text(us: int) -> str:
    """Say a length of time in its largest unit."""
    us = max(us, 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        if us >= size * _US_A_SECOND:
            return f"{us // (size * _US_A_SECOND)}{unit}"
    return format_us(us // 1_000 * 1_000) if us >= 1_000 else "0s"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print rows: drawn for a terminal; for a pipe tab-separated, a header first, nothing cut.

    `empty` is said to a person, on stderr, when there are no rows.
    """
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in [list(columns), *lines]:
            click.echo("\t".join(line))
        return
    if not lines:
        click.echo(empty, err=True)
        return
    _draw(columns, lines)


def styled(text: str, **style: Any) -> str:
    """Return text as a terminal shows it, plain where $NO_COLOR says so."""
    return text if _plain() else click.style(text, **style)


def console(*, stderr: bool = False) -> Console:
    """Return what draws on a terminal, without any style where $NO_COLOR says so."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, color_system=None if _plain() else "auto")


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def _draw(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    # A terminal is narrow: what says nothing in any row is left out.
    shown = [at for at in range(len(columns)) if not at or any(line[at] not in ("", "0") for line in lines)]
    screen = console()
    widths = {at: max(cell_len(text) for text in (columns[at], *(line[at] for line in lines))) for at in shown}
    least = [min(widths[at], _LAST_LEAST) if at == shown[-1] else widths[at] for at in shown]
    if sum(least) + len(shown) - 1 > screen.width:
        _draw_as_facts([columns[at] for at in shown], [[line[at] for at in shown] for line in lines])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at in shown:
        # The last column gives way; the others are for copying.
        wide = None if at == shown[-1] else widths[at]
        table.add_column(columns[at], no_wrap=True, min_width=wide, overflow="ellipsis")
    for line in lines:
        # Text, never markup: an id may hold "[red]".
        table.add_row(*(Text(line[at], style=_STYLES.get(line[at], "")) for at in shown))
    screen.print(table)


def _draw_as_facts(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print each row as lines of its own, where the table would lose columns."""
    for number, line in enumerate(lines):
        if number:
            click.echo()
        print_facts(zip(columns, line, strict=True))


_LAST_LEAST: Final = 12
"""Columns that the last one is left with, if it wants as many."""

_STYLES: Final = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "paused": "yellow",
}


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print `name  value` lines, aligned; facts without a value are left out."""
    said = [(name, value) for name, value in facts if value]
    wide = max((len(name) for name, _ in said), default=0)
    for name, value in said:
        click.echo(f"{name:<{wide}}  {one_line(value)}")
