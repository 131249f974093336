"""Mistakes at the command line: what is said, and which exit code a shell sees."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.edges.shell import Line, Shell

from selaras.cli.main import cli
from selaras.cli.texts import NAMED


def test_without_an_app_or_a_store_it_says_how_to_name_one(line: Line) -> None:
    result = line("jobs", SELARAS_APP="")

    assert result.exit_code == 2
    assert "--app shop:app" in result.stderr
    assert "$SELARAS_URL" in result.stderr


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nix:app", "there is no module 'nix'"),
        ("shop:nix", "its app is shop:app"),
        ("shop:PRICES", "a dict, not a Selaras app"),
        ("shop.py", "name its module, from the directory it is in: shop:app"),
        ("./shop.py:app", "shop:app"),
        ("shop app", "write module:attribute"),
        (":app", "write module:attribute"),
        ("json", "has no Selaras app"),
    ],
)
def test_an_app_that_is_not_there_is_told_with_what_to_write(line: Line, reference: str, said: str) -> None:
    result = line("jobs", SELARAS_APP=reference)

    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_module_alone_means_its_only_app(shell: Shell, line: Line) -> None:
    shell.enqueue("slow.options(id='a').call(1)")

    assert line("jobs", "list", "--ids", SELARAS_APP="shop").stdout == "a\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit(0)", "module 'bad' called sys.exit(0) during import, at bad.py:1"),
        ("raise SystemExit", "module 'bad' called sys.exit() during import, at bad.py:1"),
        (
            "import argparse; p = argparse.ArgumentParser(); p.add_argument('x'); p.parse_args()",
            "called sys.exit(2) during import",
        ),
        ("import nothere", "module 'bad' imports 'nothere', which is not installed here, at bad.py:1"),
        ("1 / 0", "module 'bad' failed during import: ZeroDivisionError: division by zero, at bad.py:1"),
        ("def f(:\n    pass", "SyntaxError"),
        ("from bad_half import app", "import each other in a circle"),
        ("from selaras import Selaras; app = Selaras(include=['gone'])", "include='gone': there is no such module"),
        (
            "from selaras import Selaras; app = Selaras(include=['bad_exit'])",
            "called sys.exit(7) during import, at bad_exit.py:2",
        ),
        ("from selaras import Selaras; app = Selaras('nosql://x')", "there is no store 'nosql'"),
        ("from selaras import Selaras; app = Selaras(retires=3)", "retires"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_the_place(
    shell: Shell, line: Line, text: str, said: str
) -> None:
    shell.write("bad.py", text + "\n")
    shell.write("bad_half.py", "from bad import app\n")
    shell.write("bad_exit.py", "import sys\nsys.exit(7)\n")

    result = line("jobs", SELARAS_APP="bad:app")

    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_module_does_not_see_the_commands_arguments(shell: Shell) -> None:
    shell.write(
        "curious.py",
        """
        import sys
        from selaras import Selaras
        app = Selaras()
        app.task(print)
        print(sys.argv)
        """,
    )

    done = shell.selaras("worker", "curious:app", "--burst")

    assert done.stdout == "['curious']\n"


def test_a_module_that_enqueues_while_it_is_imported_works(shell: Shell) -> None:
    shell.write(
        "eager.py",
        """
        import asyncio
        from selaras import Selaras
        app = Selaras()

        @app.task
        async def hello() -> None:
            print("hello")

        if __name__ != "__main__":
            asyncio.run(hello.options(id="h").enqueue())
        """,
    )

    done = shell.selaras("worker", "eager:app", "--burst")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello\n"


@pytest.mark.parametrize("command", [("jobs",), ("queues",), ("cache", "stats"), ("jobs", "show", "x")])
def test_looking_at_a_file_that_is_not_there_makes_none(line: Line, shell: Shell, command: tuple[str, ...]) -> None:
    result = line(*command, "--url", "sqlite:///typo.db", SELARAS_APP="")

    assert result.exit_code == 3
    assert str(shell.directory / "typo.db") in result.stderr
    assert not (shell.directory / "typo.db").exists()


def test_a_store_that_is_a_directory_or_no_database_is_told(line: Line, shell: Shell) -> None:
    shell.write("garbage.db", "not a database, but long enough to be looked at as one" * 100)

    directory = line("jobs", "--url", f"sqlite:///{shell.directory}", SELARAS_APP="")
    garbage = line("jobs", "--url", "sqlite:///garbage.db", SELARAS_APP="")

    assert directory.exit_code == garbage.exit_code == 3
    assert "not a SQLite database" in garbage.stderr
    assert "Traceback" not in directory.output + garbage.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_told(line: Line, shell: Shell) -> None:
    shell.enqueue()
    for file in Path(shell.directory).glob("selaras.db*"):
        file.chmod(stat.S_IREAD)
    shell.directory.chmod(stat.S_IREAD | stat.S_IEXEC)

    result = line("jobs")

    shell.directory.chmod(stat.S_IRWXU)
    assert result.exit_code == 3
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("selaras.db", "is no URL of a store"),
        ("redis://user:hunter2@localhost/0?nonsense=1", "redis://user:***@localhost/0?nonsense=1"),
        ("postgresql://user:hunter2@localhost/x", "there is no store 'postgresql'"),
        ("sqlite://selaras.db", "sqlite:///selaras.db is relative"),
        ("sqlite:///", "names no file"),
        ("sqlite:///x.db?partitions=0", "no whole number from 1"),
        ("sqlite:///x.db?password=hunter2", "unknown option 'password'"),
        ("memory://", "nothing to look at from another one"),
    ],
)
def test_a_url_that_names_no_store_is_told_without_its_password(line: Line, url: str, said: str) -> None:
    result = line("jobs", "--url", url, SELARAS_APP="")

    assert result.exit_code == 2
    assert said in result.stderr
    assert "hunter2" not in result.output


def test_a_relative_url_is_relative_to_the_shells_directory(line: Line, shell: Shell) -> None:
    shell.enqueue("slow.options(id='a').call(1)")

    assert line("jobs", "list", "--ids", "--url", "sqlite:///./selaras.db", SELARAS_APP="").stdout == "a\n"


def test_a_url_that_an_app_would_not_use_is_refused(line: Line, shell: Shell) -> None:
    shell.write("fixed.py", "from selaras import Selaras\napp = Selaras('sqlite:///own.db')\n")

    result = line("jobs", "--url", "sqlite:///other.db", SELARAS_APP="fixed:app")

    assert result.exit_code == 2
    assert "names its own store" in result.stderr


def test_an_environment_with_another_url_does_not_stop_an_app_that_names_its_own(line: Line, shell: Shell) -> None:
    shell.write("fixed.py", "from selaras import Selaras\napp = Selaras('sqlite:///own.db')\n")

    result = line("jobs", SELARAS_APP="fixed:app", SELARAS_URL="sqlite:///other.db")

    assert result.exit_code == 3
    assert "own.db" in result.stderr


def test_a_setting_in_the_environment_that_cannot_be_read_is_named(line: Line) -> None:
    result = line("jobs", SELARAS_GRACE="soon")

    assert result.exit_code == 2
    assert "SELARAS_GRACE='soon'" in result.stderr


def test_a_store_of_other_partitions_is_named(line: Line, shell: Shell) -> None:
    shell.enqueue()

    result = line("jobs", "--url", "sqlite:///selaras.db?partitions=2", SELARAS_APP="")

    assert result.exit_code == 2
    assert "partition" in result.stderr


def test_options_and_commands_that_do_not_exist_are_usage_errors(line: Line) -> None:
    assert line("jbos").exit_code == 2
    assert line("jobs", "--nope").exit_code == 2
    assert line("jobs", "list", "--limit", "0").exit_code == 2
    assert line("jobs", "show").exit_code == 2


def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    shell.enqueue(*(f"slow.call({n})" for n in range(50)))

    done = shell.start("sh", "-c", "python -m selaras jobs -A shop:app --json | head -1", PATH=_path())
    out, err = done.communicate(timeout=30)

    assert out == "[\n"
    assert "Traceback" not in err


def _path() -> str:
    import sys

    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def _texts(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _texts(below, (*words, name))
    else:
        yield from ((words, param) for param in command.params if param.type is NAMED)


TEXTS = [(words, param) for words, param in _texts(cli, ()) if words[0] != "demo"]


def test_texts_that_must_not_be_empty_are_found() -> None:
    assert {"jobs purge", "jobs retry", "queues pause", "cache invalidate", "worker"} <= {
        " ".join(words) for words, _ in TEXTS
    }


@pytest.mark.parametrize(("words", "param"), TEXTS, ids=[f"{'-'.join(words)}-{param.name}" for words, param in TEXTS])
def test_an_empty_name_is_refused_and_does_not_mean_all(
    line: Line, words: tuple[str, ...], param: click.Parameter
) -> None:
    given = (param.opts[0], "") if isinstance(param, click.Option) else ("", "", "")

    result = line(*words, *given)

    assert result.exit_code == 2
    assert "it is empty: give a name, or leave it out" in result.stderr


def test_an_argument_of_a_loader_may_be_empty(line: Line, shell: Shell) -> None:
    shell.enqueue()

    assert "no int" in line("cache", "get", "product", "").stderr


def test_explain_of_nothing_is_a_mistake(line: Line, shell: Shell) -> None:
    shell.enqueue()

    assert line("explain", "").exit_code == 2


@pytest.mark.parametrize(("lease", "said"), [("0", "at least 500ms"), ("0.1", "at least 500ms"), ("-1", "time")])
def test_a_lease_in_which_nothing_can_be_done_is_refused(line: Line, lease: str, said: str) -> None:
    result = line("worker", "shop:app", "--burst", "--lease", lease)

    assert result.exit_code == 2
    assert said in result.stderr


def test_a_command_that_does_not_exist_is_told_with_the_one_that_may_be_meant(line: Line) -> None:
    assert "did you mean 'jobs'?" in line("job", "list").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no file that is always full")
@pytest.mark.parametrize("arguments", ["jobs list", "--help"])
def test_a_place_that_is_full_is_told_without_a_traceback(shell: Shell, arguments: str) -> None:
    shell.enqueue()
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "selaras", *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=shell.directory,
            env={**os.environ, "SELARAS_APP": "shop:app"},
            check=False,
        )

    assert result.returncode == 1
    assert result.stderr.decode() == "selaras: what this says cannot be written: No space left on device\n"
