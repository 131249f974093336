"""What a command's exit code says to a shell, and how an error reaches a person."""

from __future__ import annotations

from typing import IO, Any

import click

from selaras._core.errors import (
    ConfigurationError,
    NotEncodable,
    SelarasError,
    StoreMismatch,
    StoreRefused,
    StoreUnavailable,
)


class Told(click.ClickException):
    """An end of a command that is told in words, with a code; this one: the answer is no."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message, without a traceback."""
        click.echo(f"selaras: {self.format_message()}", file=file, err=file is None)


class Misused(Told):
    """The command line, a setting or the app is wrong: the same command will fail again."""

    exit_code = 2


class Unreachable(Told):
    """The store cannot be reached: the same command may work later."""

    exit_code = 3


class Interrupted(Told):
    """Ctrl-C; the code as shells count it."""

    exit_code = 130


def told(error: SelarasError) -> Told:
    """Put an error of Selaras into words and a code."""
    match error:
        case StoreMismatch() | StoreRefused() | ConfigurationError() | NotEncodable():
            return Misused(str(error))
        case StoreUnavailable():
            return Unreachable(str(error))
        case _:
            return Told(str(error) or type(error).__name__)
