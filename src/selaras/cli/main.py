"""The command `selaras`: knows the names of its commands, and imports one only to run it."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from selaras._core.errors import SelarasError
from selaras.cli.exits import Interrupted, Told, told
from selaras.cli.listing import nearest
from selaras.cli.texts import refuse_empty

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "worker": ("selaras.cli.worker:worker", "Run jobs of an app."),
    "jobs": ("selaras.cli.jobs:jobs", "List, show, retry, cancel and purge jobs."),
    "queues": ("selaras.cli.queues:queues", "Show queues; pause and resume them."),
    "cache": ("selaras.cli.cache:cache", "Read and invalidate cached values; see the shared tier."),
    "explain": ("selaras.cli.explain:explain", "Say what a job read and who made it, or what happened to a value."),
    "doctor": ("selaras.cli.doctor:doctor", "See whether the store is in order, and what to do if not."),
    "migrate-store": ("selaras.cli.migrate:migrate_store", "Move the jobs of one store to another."),
    "demo": ("selaras.demo.command:demo", "Run a month of real flights, and check every plane."),
}
"""name -> (where it is, one line about it)."""

_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG})

_EPILOG: Final = """\b
Exit codes:
  0    done
  1    the answer is no: not found, refused, or it failed
  2    the command line, a setting or the app is wrong
  3    the store cannot be reached
  130  interrupted
"""


class CommandLine(click.Group):
    """The root: lazy commands, and errors of Selaras told without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands, in the order one meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that is run."""
        known = _COMMANDS.get(cmd_name)
        if known is None:
            return None
        module, _, attribute = known[0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        refuse_empty(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a name that is none say what may have been meant."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}: {nearest(args[0], _COMMANDS, 'command')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list from what is known here, so that help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of Selaras becomes a sentence and an exit code."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
            return answer
        except SelarasError as error:
            logging.getLogger("selaras.cli").debug("failed", exc_info=True)
            raise told(error) from error
        except click.NoSuchOption as error:
            if not re.match(r"-[\d.]", error.option_name):
                raise
            hint = "a negative number is written after `--`, or with its name, as in id=-1"
            raise click.NoSuchOption(error.option_name, f"{error.message}; {hint}", ctx=error.ctx) from error
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"selaras {version('selaras')}")
    ctx.exit()


@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EPILOG,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """Selaras: background jobs whose workers never act on a stale cached value.

    What a machine or a shell sets once can be an environment variable: each command's help names those it reads.
    """


def main() -> None:
    """Run the command line of this process."""
    try:
        cli(prog_name="selaras")
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is flushed once more at the end
        Told(f"what this says cannot be written: {error.strerror}").show()
        sys.exit(Told.exit_code)
