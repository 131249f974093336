"""A group of commands whose plain name lists."""

from __future__ import annotations

import click


class ListByDefault(click.Group):
    """`selaras jobs` and `selaras jobs --state failed` mean `selaras jobs list ...`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of options that stand alone."""
        own = ctx.help_option_names
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["list", *args]
        return super().parse_args(ctx, args)
