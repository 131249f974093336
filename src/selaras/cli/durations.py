"""Lengths of time and freshness on a command line."""

from __future__ import annotations

import click

from selaras._app.values.key import Fresh
from selaras._core.durations import duration_us
from selaras._core.errors import ConfigurationError


def duration(text: str) -> float:
    """Read `90`, `1.5s`, `10m` as seconds."""
    try:
        return duration_us(text, name="time") / 1_000_000
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


def level(text: str) -> Fresh:
    """Read `strict`, `causal`, or how old a value may be."""
    match text:
        case "strict":
            return "strict"
        case "causal":
            return "causal"
        case _:
            return duration(text)
