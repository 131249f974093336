"""What a store says of its own health, to a person who asks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    """How good or bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may stop working, or promises less than one may think."""
    ERROR = "error"
    """It does not work, or breaks a promise."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        about: what it is about, a word or two: "eviction".
        where: the server or file; "" for the store as a whole.
        found: how it is.
        remedy: what to do about it; "" if nothing needs to be done.
        numbers: what was measured, for programs.
    """

    level: Level
    about: str
    where: str = ""
    found: str
    remedy: str = ""
    numbers: Mapping[str, int | float | str] = {}


def fine(about: str, where: str, found: str, **numbers: float | str) -> Finding:
    """Say that all is well."""
    return Finding(level=Level.OK, about=about, where=where, found=found, numbers=numbers)


def doubtful(about: str, where: str, found: str, remedy: str, **numbers: float | str) -> Finding:
    """Warn."""
    return Finding(level=Level.WARNING, about=about, where=where, found=found, remedy=remedy, numbers=numbers)


def wrong(about: str, where: str, found: str, remedy: str, **numbers: float | str) -> Finding:
    """Say that something must be done."""
    return Finding(level=Level.ERROR, about=about, where=where, found=found, remedy=remedy, numbers=numbers)
