"""Lists: a group of commands whose plain name lists, and what is said of a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import click


class ListByDefault(click.Group):
    """`selaras jobs` and `selaras jobs --state failed` mean `selaras jobs list ...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of options that stand alone."""
        own = ctx.help_option_names
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Say what somebody may have meant by a name that is none: `did you mean 'default'?`, or which there are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(map(repr, names))}" if names else f"there is no {what}"
