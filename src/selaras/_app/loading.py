"""From a name such as `shop:app` to the app: imports the program, and says what is wrong with it if it can't."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from selaras._app.app import Selaras
from selaras._core.errors import ConfigurationError

_TRAIL_MOST: Final = 8
_CIRCLE: Final = "partially initialized module"


def load_app(reference: str) -> Selaras:
    """Import the app that `reference` names: `module:attribute`; `module` alone means its only app.

    The current directory can be imported from, as with `python -m`. The module sees none of this program's arguments.

    Raises:
        ConfigurationError: what kept the app from being imported, where, and what to change.
    """
    name, _, attribute = reference.partition(":")
    _check_reference(reference, name, attribute)
    if sys.path[:1] not in ([""], [str(Path.cwd())]):
        sys.path.insert(0, str(Path.cwd()))
    with _importing(name):
        module = importlib.import_module(name)
        app = _app_in(module, name, attribute)
        app.registry.complete()
    return app


def _check_reference(reference: str, name: str, attribute: str) -> None:
    if name.endswith(".py") or "/" in name or "\\" in name:
        module = Path(name).stem
        raise ConfigurationError(
            f"{reference!r} names a file; name its module, from the directory it is in: {module}:{attribute or 'app'}"
        )
    if not all(part.isidentifier() for part in name.split(".")) or (attribute and not attribute.isidentifier()):
        raise ConfigurationError(
            f"{reference!r} names no app: write module:attribute, such as shop:app or shop.tasks:app"
        )


@contextmanager
def _importing(name: str) -> Generator[None]:
    """Turn what an import may do into a sentence: exits, failures, circles."""
    argv = sys.argv
    # A module that reads a command line must not read ours, and would be wrong to read one at all.
    sys.argv = [name]
    try:
        yield
    except SystemExit as left:
        raise ConfigurationError(
            f"module {name!r} called sys.exit({'' if left.code is None else repr(left.code)}) during import, {_trail(left)}: "
            f"put what runs or reads a command line under `if __name__ == '__main__':`"
        ) from left
    except ConfigurationError:
        raise
    except ImportError as error:
        raise ConfigurationError(_why_not_imported(name, error)) from error
    except Exception as error:
        raise ConfigurationError(
            f"module {name!r} failed during import: {type(error).__name__}: {error}, {_trail(error)}"
        ) from error
    finally:
        sys.argv = argv


def _why_not_imported(name: str, error: ImportError) -> str:
    missing = error.name or ""
    if isinstance(error, ModuleNotFoundError) and (name == missing or name.startswith(f"{missing}.")):
        return f"there is no module {missing!r} in {Path.cwd()}, nor is one installed: is this the right directory?"
    if isinstance(error, ModuleNotFoundError):
        return f"module {name!r} imports {missing!r}, which is not installed here, {_trail(error)}"
    if _CIRCLE in str(error):
        return (
            f"modules import each other in a circle, {_trail(error)}: {error}. Move the app to a module that imports "
            f"neither, and name the others in Selaras(include=[...])"
        )
    return f"module {name!r} failed during import: {error}, {_trail(error)}"


def _trail(error: BaseException) -> str:
    """Say where in the program it happened: `at shop.py:3, from main.py:1`, without import's own frames."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not Path(frame.filename).is_relative_to(Path(__file__).parent)
    ]
    if isinstance(error, SyntaxError):
        return f"at {error.filename}:{error.lineno}"
    places = [f"{_near(frame.filename)}:{frame.lineno}" for frame in reversed(frames)]
    if not places:
        return "before any of it ran"
    return ", from ".join([f"at {places[0]}", *places[1:_TRAIL_MOST]])


def _near(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _app_in(module: ModuleType, name: str, attribute: str) -> Selaras:
    if not attribute:
        return _only_app(module, name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise ConfigurationError(f"module {name!r} has no {attribute!r}{_known_apps(module, name)}") from None
    app = _as_app(found)
    if app is None:
        raise ConfigurationError(
            f"{name}:{attribute} is {_article(found)}, not a Selaras app{_known_apps(module, name)}"
        )
    return app


def _only_app(module: ModuleType, name: str) -> Selaras:
    apps = {key: app for key, value in vars(module).items() if (app := _as_app(value)) is not None}
    different = {id(app): app for app in apps.values()}
    if len(different) == 1:
        return next(iter(different.values()))
    if not apps:
        raise ConfigurationError(f"module {name!r} has no Selaras app; write which module has one: module:attribute")
    raise ConfigurationError(f"module {name!r} has several apps: write which one, {_listed(apps, name)}")


def _as_app(value: object) -> Selaras | None:
    """The app itself, or the one behind the blocking face."""
    if isinstance(value, Selaras):
        return value
    inner = getattr(value, "aio", None) if type(value).__module__.startswith("selaras.") else None
    return inner if isinstance(inner, Selaras) else None


def _known_apps(module: ModuleType, name: str) -> str:
    apps = [key for key, value in vars(module).items() if _as_app(value) is not None]
    return f"; its app is {_listed(apps, name)}" if apps else ""


def _listed(attributes: Iterable[str], name: str) -> str:
    return " or ".join(f"{name}:{attribute}" for attribute in attributes)


def _article(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
