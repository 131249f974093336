"""Durations: what people write (seconds, timedelta, "10m") into whole microseconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from selaras._core.errors import ConfigurationError

Duration: TypeAlias = float | int | str | timedelta
"""Seconds, a timedelta, or text such as "250ms", "10m", "1h30m", "7d"."""

US = 1_000_000
_UNITS_US = {"us": 1, "ms": 1_000, "s": US, "m": 60 * US, "h": 3_600 * US, "d": 86_400 * US, "w": 604_800 * US}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")
# A century: anything longer is a mistake of units, and stays far below 2**63 us.
_MOST_US = 100 * 366 * 86_400 * US


def duration_us(value: Duration, *, name: str = "duration") -> int:
    """Return `value` in whole microseconds; what is negative, NaN or unreadable is refused.

    Raises:
        ConfigurationError: naming `name` and the value.
    """
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        us = _text_us(value, name)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - called with users' values
        raise ConfigurationError(f"{name}={value!r}: give seconds, a timedelta or text such as '10m'")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{name}={value!r} is not a length of time")
    else:
        us = round(max(-1, min(value, _MOST_US)) * US)  # cut before it overflows: it is refused below
    if us < 0:
        raise ConfigurationError(f"{name}={value!r} is negative; a length of time starts at 0")
    if us > _MOST_US:
        raise ConfigurationError(f"{name}={value!r} is longer than a century")
    return us


def _text_us(text: str, name: str) -> int:
    stripped = text.strip().lower()
    parts = _PART.findall(stripped)
    if not parts or _PART.sub("", stripped).strip():
        try:
            seconds = float(stripped)
        except ValueError:
            raise ConfigurationError(
                f"{name}={text!r}: units are us, ms, s, m, h, d, w, as in '10m' or '1h30m'"
            ) from None
        return duration_us(seconds, name=name)
    return round(min(sum(float(number) * _UNITS_US[unit] for number, unit in parts), 2 * _MOST_US))


def format_us(us: int) -> str:
    """Say a length of time shortly for people: `250ms`, `15s`, `10m`, `1h30m`, `7d`."""
    if us < US:
        return f"{us / 1_000:g}ms"
    rest, said = us, ""
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _UNITS_US[unit])
        if count:
            said += f"{count}{unit}"
    if rest:
        said += f"{rest / US:g}s"
    return said
