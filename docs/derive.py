"""Writes the reference pages that are facts of the code: settings, errors, the life of a job, bounds, rights,
the rules that the models take out.

    python docs/derive.py            writes them
    python docs/derive.py --check    says which are out of date, and fails

`make fix` writes them; a test of the repository checks them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click

import selaras
from selaras._app.declaring import declare_family, declare_task
from selaras._app.jobs.options import options_from
from selaras._app.setup.settings import OPTIONS, Option
from selaras._contracts import limits
from selaras._core import errors
from selaras._core.durations import format_us
from selaras._core.jobs import lifecycle, states
from selaras._core.jobs.lifecycle import FINAL, TRANSITIONS
from selaras._core.jobs.states import JobEvent, JobState
from selaras._stores.redis import address
from selaras._stores.redis.rights import rule
from selaras._stores.redis.scripts import script, verbs
from selaras.cli.main import cli

FOLDER = Path(__file__).parent / "reference"
HEAD = "<!-- Derived from the code by docs/derive.py: change it there, then `make fix`. -->\n\n"


def settings_page() -> str:
    """Every option of an app: name, default, environment variable, reason."""
    rows = "\n".join(
        f"| `{option.name}` | {_default(option)} | `{option.variable}` | {option.why} |" for option in OPTIONS
    )
    return (
        "# Settings\n\n"
        "Each can be given to `Selaras(...)`, or set in the environment; the program's word stands. Durations are seconds, "
        'a `timedelta`, or text such as `"10m"` or `"1h30m"`. Most can be said for a single task or family too.\n\n'
        "| setting | default | variable | why |\n| --- | --- | --- | --- |\n"
        f"{rows}\n"
    )


def _default(option: Option) -> str:
    return option.show(option.read(option.default, option.name))


def errors_page() -> str:
    """The tree as drawn, and what each class says of itself."""
    classes = "\n".join(f"## `{one.__name__}`\n\n{inspect.getdoc(one)}\n" for one in error_classes())
    return f"# Errors\n\n{_drawing(errors)}\n\n{classes}"


def error_classes() -> list[type[errors.SelarasError]]:
    """All error classes, in the order they are written in."""
    return [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.SelarasError)]


def lifecycle_page() -> str:
    """The drawing, the words, and the table."""
    meaning = _comments(states)
    state_rows = "\n".join(
        f"| `{state.value}`{' (an end)' if state in FINAL else ''} | {meaning[state.name]} |" for state in JobState
    )
    event_rows = "\n".join(
        f"| `{event.value}` | {_from(event)} | {_to(event)} | {meaning.get(event.name, '')} |" for event in JobEvent
    )
    return (
        f"# The life of a job\n\n{_drawing(lifecycle)}\n\n"
        f"| state | |\n| --- | --- |\n{state_rows}\n\n"
        f"| event | from | to | |\n| --- | --- | --- | --- |\n{event_rows}\n"
    )


def _from(event: JobEvent) -> str:
    return ", ".join(state.value for state in JobState if (state, event) in TRANSITIONS)


def _to(event: JobEvent) -> str:
    ends = {end for (_, happening), after in TRANSITIONS.items() if happening is event for end in after}
    return ", ".join(state.value for state in JobState if state in ends)


def limits_page() -> str:
    """Bounds and graces of the stores."""
    rows = "\n".join(f"| `{name}` | {value} | {text} |" for name, value, text in _constants(limits))
    return (
        "# Bounds\n\nEvery store keeps these, so that stores agree step by step. They are no settings.\n\n"
        f"| | | |\n| --- | --- | --- |\n{rows}\n"
    )


def _constants(module: ModuleType) -> Iterator[tuple[str, str, str]]:
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            value = getattr(module, name)
            assert isinstance(following, ast.Expr), f"{name} has no docstring"
            text = " ".join(ast.literal_eval(following.value).split())
            yield name, format_us(value) if name.endswith("_US") else f"{value:,}", text


def _comments(module: ModuleType) -> dict[str, str]:
    """Return NAME -> the comment behind `NAME = ...`."""
    found: dict[str, str] = {}
    for line in inspect.getsource(module).splitlines():
        name, equals, rest = line.strip().partition(" = ")
        if equals and name.isupper():
            found[name] = rest.partition("  # ")[2]
    return found


def _drawing(module: ModuleType) -> str:
    """Return the module's docstring with its indented part as a block."""
    title, _, rest = (inspect.getdoc(module) or "").partition("\n\n")
    before: list[str] = []
    drawn: list[str] = []
    after: list[str] = []
    for line in rest.splitlines():
        if line.startswith("    "):
            drawn.append(line[4:])
        else:
            (after if drawn else before).append(line)
    parts = [title, "\n".join(before).strip(), "```text\n" + "\n".join(drawn) + "\n```", "\n".join(after).strip()]
    return "\n\n".join(part for part in parts if part)


def api_page() -> str:
    """Every public name: what it says of itself, and what can be called on it."""
    parts = ["# Public names\n\nAll of these are imported from `selaras`. Everything else is private.\n"]
    parts.extend(_name(name, getattr(selaras, name)) for name in public_names())
    return "\n".join(parts)


def public_names() -> list[str]:
    """Return what can be imported from the package: what it re-exports, not its modules."""
    return sorted(
        name for name, thing in vars(selaras).items() if not name.startswith("_") and not inspect.ismodule(thing)
    )


def _name(name: str, thing: object) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseException) and thing in error_classes():
        return f"## `{name}`\n\nAn error: see [errors](errors.md).\n"
    said = inspect.getdoc(thing) if inspect.isclass(thing) or inspect.isroutine(thing) else ""
    head = f"## `{name}{_signature(thing) if inspect.isroutine(thing) else ''}`\n\n{_block(said or '')}\n"
    return head + "".join(_methods(thing) if inspect.isclass(thing) else ())


def _methods(cls: type) -> Iterator[str]:
    for name, member in vars(cls).items():
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            yield f"\n**`.{name}`** {_block(inspect.getdoc(member) or '')}\n"
        elif inspect.isroutine(member) and inspect.getdoc(member):
            waits = "await " if _is_awaited(member) else ""
            called = "" if name == "__call__" else f".{name}"
            yield f"\n**`{waits}{_an_instance_of(cls)}{called}{_signature(member)}`** {_block(inspect.getdoc(member) or '')}\n"


def _is_awaited(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or str(inspect.signature(function).return_annotation).startswith(
        "Coroutine"
    )


def _an_instance_of(cls: type) -> str:
    return "app" if cls is selaras.Selaras else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _signature(function: Callable[..., object]) -> str:
    """Return the parameters, without types: those are in the code, and in your editor."""
    spelled: list[Callable[..., object]] = [*typing.get_overloads(function), function]
    parameters = max((list(map(_spelled_out, spelled))), key=len)
    shown = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name != "self"]
    return str(inspect.Signature(shown)).replace("<Auto.AUTO: 'auto'>", "auto")


def _spelled_out(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters; options that are told by a TypedDict as those of the function that knows their defaults."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        knows = next((knows for told, knows in KNOWS.items() if told in str(parameter.annotation)), None)
        if parameter.kind is parameter.VAR_KEYWORD and knows:
            known = inspect.signature(knows).parameters.values()
            parameters += [one for one in known if one.kind is one.KEYWORD_ONLY]
        else:
            parameters.append(parameter)
    return parameters


KNOWS: dict[str, Callable[..., object]] = {
    "TaskOptions": declare_task,
    "FamilyOptions": declare_family,
    "EnqueueOptions": options_from,
}


def _block(text: str) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    lines: list[str] = []
    lists = False  # outside of its sections what is indented is code
    for line in text.splitlines():
        if line and not line.startswith(" "):
            lists = False
        if line.rstrip() in ("Args:", "Raises:", "Attributes:", "Returns:"):
            lines.append(f"*{line.strip().rstrip(':')}*")
            lines.append("")
            lists = True
        elif lists and line.startswith("    ") and not line.startswith("     ") and ":" in line:
            lines.append(f"- {line.strip()}")
        else:
            lines.append(f"  {line.strip()}" if lists and line.startswith("        ") else line)
    return "\n".join(lines)


def commands_page() -> str:
    """What every command says of itself."""
    wide = {**cli.context_settings, "max_content_width": 100, "terminal_width": 100}
    root = click.Context(cli, info_name="selaras", **wide)
    return "# Commands\n\n" + "\n".join(_helps(root))


def _helps(context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n\n```text\n{context.get_help()}\n```\n"
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _helps(click.Context(command, info_name=name, parent=context))


def redis_page() -> str:
    """Forms of a URL, its options, the rights of a user, the keys."""
    options = "\n".join(f"| `{name}` | {text} |" for name, text in address.OPTIONS.items())
    rules = "\n".join(
        f"{title}:\n\n```text\nACL SETUSER app on >password {_folded(rule(address.DEFAULT_PREFIX, shape))}\n```\n"
        for title, shape in _SHAPES
    )
    names = address.Names(address.DEFAULT_PREFIX)
    keys = sorted({name for verb in verbs() for name in script(verb).keys})
    return (
        "# Redis and Valkey: URLs, options, rights, keys\n\n"
        "What to make of them is told in [Redis and Valkey](../redis.md).\n\n"
        f"## URLs\n\n{_drawing(address)}\n\n"
        "## Options\n\nThey stand behind a `?`, joined by `&`. In brackets, what holds where nothing is said.\n\n"
        f"| option | |\n| --- | --- |\n{options}\n\n"
        "## Rights\n\nRead from the scripts: what a user needs under the default prefix, and nothing else.\n\n"
        f"{rules}\n"
        "With `durability=replicated` it needs `+wait`, too.\n\n"
        f"## Keys\n\nPartition 0 of a store without namespace or prefix: `{names.stem(0)}` and one of "
        f"{', '.join(f'`{name}`' for name in keys)}, "
        "or `v:` and the key of a cached value. A script is told the name of each key that it touches.\n"
    )


_SHAPES: tuple[tuple[str, address.Shape], ...] = (
    ("One server, or Sentinel", "single"),
    ("A cluster", "cluster"),
)


def _folded(words: str) -> str:
    return " \\\n    ".join(textwrap.wrap(words, 100, break_on_hyphens=False))


def model_page() -> str:
    """Each rule of the protocol, taken out of the models."""
    return (
        "# The protocol's rules in the models\n\n"
        "What [the models](../../spec/README.md) take out, one at a time, and the promise that TLC must then find broken; "
        "and of each rule what they do not say, and why. `make model ARGS=\"--trace '...'\"` shows how a promise breaks.\n\n"
        f"{_model().table()}"
    )


def _model() -> ModuleType:
    sys.path.insert(0, str(FOLDER.parents[1]))
    try:
        return importlib.import_module("spec.check")
    finally:
        sys.path.pop(0)


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
    "errors.md": errors_page,
    "lifecycle.md": lifecycle_page,
    "bounds.md": limits_page,
    "redis.md": redis_page,
    "model.md": model_page,
}


def outdated() -> list[str]:
    """Return the pages that no longer say what the code says."""
    return [name for name, page in PAGES.items() if not _same(FOLDER / name, HEAD + page())]


def _same(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") == text


def main() -> None:
    """Write all pages, or check them."""
    if "--check" in sys.argv[1:]:
        late = outdated()
        if late:
            sys.exit(f"out of date: {', '.join(late)}; run `make fix`")
        return
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(HEAD + page(), encoding="utf-8")


if __name__ == "__main__":
    main()
