"""Which store a command looks at: that of an app, or that of a URL, where no program is at hand."""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec

import click
from click.core import ParameterSource

from selaras._app.app import Selaras
from selaras._app.loading import load_app
from selaras._app.setup.opening import Address, address_of
from selaras._app.setup.origin import Origin
from selaras._contracts.store import Store
from selaras.cli.exits import Misused, Unreachable

P = ParamSpec("P")

URL_VARIABLE: Final = "SELARAS_URL"
APP_VARIABLE: Final = "SELARAS_APP"
_SHELL: Final = Origin("__main__", "")
"""A URL typed in a shell is relative to where the shell is."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a command works on.

    Attributes:
        app: of a bare URL it has no tasks and families: payloads are shown as they are encoded.
        reference: what the command line called the app; "" for a bare URL.
        now_us: the time by which ages are told.
    """

    app: Selaras
    reference: str
    now_us: int

    def start_line(self, queue: str) -> str:
        """Return the command that starts a worker for a queue."""
        return f"selaras worker {self.reference or 'APP'} -q {shlex.quote(queue)}"

    @property
    def store(self) -> Store:
        """The open store."""
        return self.app.process().store


json_option = click.option(
    "--json", "as_json", is_flag=True, envvar="SELARAS_JSON", show_envvar=True, help="Print strict JSON."
)
_app_option = click.option(
    "-A", "--app", "reference", envvar=APP_VARIABLE, show_envvar=True, metavar="MODULE:ATTR", help="The app."
)
_url_option = click.option(
    "-u",
    "--url",
    envvar=URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="The store; alone it is enough to look around without the app's code.",
)


def on_store(
    command: Callable[Concatenate[Target, P], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Give a command `--app` and `--url`, and run it on the open store of either."""

    @functools.wraps(command)
    def run(*args: Any, reference: str | None, url: str | None, **options: Any) -> None:
        app = app_for(reference, url)
        check_it_exists(app)
        asyncio.run(_on(app, reference or "", lambda target: command(target, *args, **options)))

    return _app_option(_url_option(run))


def on_app(command: Callable[Concatenate[Selaras, P], None]) -> Callable[..., None]:
    """Give a command `--app` and `--url`, and run it on the app of either, whose store stays closed."""

    @functools.wraps(command)
    def run(*args: Any, reference: str | None, url: str | None, **options: Any) -> None:
        command(app_for(reference, url), *args, **options)

    return _app_option(_url_option(run))


async def _on(app: Selaras, reference: str, command: Callable[[Target], Coroutine[Any, Any, None]]) -> None:
    await app.process().open()  # an app would read on without its store: a person asks of the store
    async with app:
        await command(Target(app, reference, app.process().clock.wall_us()))


def app_at(url: str, namespace: str = "") -> Selaras:
    """Return an app without tasks on the store of a URL, as a shell means it: a relative path is from where one is."""
    os.environ[URL_VARIABLE] = url
    return Selaras(namespace=namespace)


def app_for(reference: str | None, url: str | None) -> Selaras:
    """Return the app that a command line names, on the store it names.

    Raises:
        ConfigurationError, Misused: neither is named, or they contradict each other.
    """
    if url:
        # An app that names no store itself, and every process it starts, takes it from there.
        os.environ[URL_VARIABLE] = url
    if reference:
        app = load_app(reference)
        if url:
            _check_same_store(app, reference, url)
        return app
    if url:
        return Selaras()
    raise Misused(
        f"which store? Name an app (--app shop:app, or ${APP_VARIABLE}) or a URL (--url sqlite:///selaras.db, or "
        f"${URL_VARIABLE})"
    )


def _check_same_store(app: Selaras, reference: str, url: str) -> None:
    source = click.get_current_context().get_parameter_source("url")
    if source is not ParameterSource.COMMANDLINE:
        return  # an environment is shared by many programs, and a program's own word stands
    meant = address_of(url, "", _SHELL)
    if not _may_be(app.program.address, meant):
        raise Misused(
            f"{reference} names its own store, {app.url}, so --url {meant.shown} would not be used: leave it out, or let "
            f"the app take its store from ${URL_VARIABLE} (`Selaras()` without a URL)"
        )


def _may_be(address: Address, meant: Address) -> bool:
    """Say whether an app that was told `meant` would be there: a namespace makes it another file beside it."""
    here, there = Path(address.path), Path(meant.path)
    return address.kind == meant.kind and here.parent == there.parent and here.stem.startswith(there.stem)


def check_it_exists(app: Selaras) -> None:
    """Refuse to look around in a file that is not there: opening it would make an empty store.

    Raises:
        Unreachable: there is no such file.
    """
    address = app.program.address
    if address.kind == "sqlite" and not Path(address.path).exists():
        raise Unreachable(f"there is no store at {address.path}; a worker or the program makes it when it starts")
    if address.kind == "memory":
        raise Misused("memory:// lives inside one process: there is nothing to look at from another one")
