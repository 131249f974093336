"""Texts on a command line: one that is empty is a mistake, most often a variable of the shell that is not set.

Left out, a queue or a task means all of them; `-q "$QUEUE"` of an unset variable must not.
"""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource
from click.types import StringParamType


class _Named(StringParamType):
    """Text of at least one character."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what was typed and is empty; a default stays what it is."""
        typed = (
            ctx is None or param is None or ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        )
        if value == "" and typed:
            self.fail("it is empty: give a name, or leave it out", param, ctx)
        return super().convert(value, param, ctx)


NAMED: Final = _Named()
ANY_TEXT: Final = StringParamType()
"""For what may be empty: the arguments of a loader."""


def refuse_empty(command: click.Command) -> None:
    """Let no parameter of a command and those below it be an empty text, but for those of the type `ANY_TEXT`."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = NAMED
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_empty(below)
