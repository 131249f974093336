"""How the log looks: short and coloured in a terminal, complete in a pipe, one object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from selaras.cli.output import many_lines, one_line, plain, styled

_COLORS: Final = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}
# What a record has by itself; everything else was added by `extra=`.
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class _Terminal(logging.Formatter):
    """`12:30:01 text`, with the level only where it is above INFO, and the process where there are several."""

    def __init__(self, *, with_pid: bool) -> None:
        super().__init__()
        self._with_pid = with_pid

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")  # noqa: DTZ006 - a person's own time
        text = many_lines(record.getMessage()) + _story(self, record)
        color = _COLORS.get(record.levelno)
        if color:
            text = styled(f"{record.levelname.lower()}: {text}", fg=color)
        who = f"{when} {record.process}" if self._with_pid else when
        return f"{styled(who, dim=True)} {text}"


class _Pipe(logging.Formatter):
    """`2026-01-31T12:30:01.123Z 4711 INFO selaras.worker text`."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        head = f"{_utc(record)} {record.process} {record.levelname} {record.name}"
        return f"{head} {one_line(record.getMessage())}{_story(self, record)}"


class _Json(logging.Formatter):
    """One strict JSON object a line, with what the record carries besides its text."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        said = {
            "time": _utc(record),
            "pid": record.process,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(plain(said), allow_nan=False)


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _story(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return f"\n{many_lines(formatter.formatException(record.exc_info))}" if record.exc_info else ""


def show_log(level: str, *, as_json: bool, one_of_many: bool) -> None:
    """Send the log to stderr, unless the program has set up its own. `one_of_many`: other processes log there, too.

    A program that has (its root logger has a handler) keeps its formats and targets: only the level of Selaras's own
    loggers is set.
    """
    logging.getLogger("selaras").setLevel(level.upper())
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json())
    else:
        handler.setFormatter(_Terminal(with_pid=one_of_many) if sys.stderr.isatty() else _Pipe())
    root.addHandler(handler)
    root.setLevel(level.upper())
