"""A shop of one file, and what a person would type beside it."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click.testing
import pytest

SHOP = """
from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from selaras import Read, Secret, Selaras

app = Selaras()
PRICES = {42: 10.0}


class Product(msgspec.Struct, frozen=True):
    id: int
    price: float


@app.cached(ttl=300)
async def product(id: int) -> Product:
    return Product(id, PRICES.get(id, 1.0))


@app.task(writes=product, retries=0)
async def reprice(id: int, factor: float, *, p: Product = Read(product)) -> float:
    if factor < 0:
        raise ValueError("no price is below 0")
    PRICES[id] = p.price * factor
    return PRICES[id]


@app.task(queue="mail", lock="mail:{customer}")
def send_mail(customer: int, token: Secret[str]) -> None:
    pass


@app.task
async def odd(value: object) -> object:
    return {"loss": float("nan"), "most": float("inf"), "given": value}


@app.task
async def slow(seconds: float) -> None:
    Path("started").touch()
    await asyncio.sleep(seconds)
"""


class Shell:
    """A directory with a shop in it, and what a person would type there."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.env = {"SELARAS_URL": url} if url else {}
        self._processes: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(textwrap.dedent(text))

    def python(self, code: str) -> str:
        """Run a program beside the shop."""
        done = self.start(sys.executable, "-c", textwrap.dedent(code))
        out, err = done.communicate(timeout=50)
        assert done.returncode == 0, err
        return out

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SELARAS_")}
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env={**clean, **self.env, **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left running."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def selaras(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command line in a process of its own."""
        done = self.start(sys.executable, "-m", "selaras", *args, **env)
        try:
            out, err = done.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            done.kill()
            out, err = done.communicate()
            raise AssertionError(f"selaras {' '.join(args)} did not end:\n{out}\n{err}") from None
        return subprocess.CompletedProcess(args, done.returncode, out, err)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be there with this process: what is imported meanwhile is forgotten afterwards."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SELARAS_")}
        before, path = Path.cwd(), sys.path[:]
        os.chdir(self.directory)
        sys.path.insert(0, str(self.directory))
        try:
            with patch.dict(os.environ, {**clean, **self.env}, clear=True):
                yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            for module in [name for name, it in sys.modules.items() if _is_in(it, self.directory)]:
                del sys.modules[module]

    def enqueue(self, *calls: str, module: str = "shop") -> None:
        """Enqueue calls, written as Python in the module; with none, make the store."""
        with self.inside():
            names = vars(importlib.import_module(module))
            app = names["app"]

            async def main() -> None:
                async with app:
                    for call in calls:
                        await eval(call, names).enqueue()

            asyncio.run(main())

    def work(self, module: str = "shop") -> None:
        """Run all that is ready."""
        with self.inside():
            app = importlib.import_module(module).app

            async def main() -> None:
                async with app:
                    await app.worker(burst=True).run()

            asyncio.run(main())


class Line:
    """Runs command lines in this process: quick, and as strict about what they print."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def __call__(self, *args: str, stdin: str | None = None, **env: str) -> click.testing.Result:
        from selaras.cli.main import cli

        with self.shell.inside():
            given = {"SELARAS_APP": "shop:app", **env}
            result = click.testing.CliRunner().invoke(cli, args, input=stdin, env=given, prog_name="selaras")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *args: str, **env: str) -> Any:
        return strict(self(*args, "--json", **env).stdout)


def _is_in(module: object, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and Path(str(file)).is_relative_to(directory)


def strict(text: str) -> Any:
    """Read JSON as the strictest parser would."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


everywhere = pytest.mark.parametrize("url", ["", "sqlite:///selaras.db?partitions=4"], ids=["P1", "P4"])
"""The same test on one partition and on four."""
