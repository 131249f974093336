"""Restarts the workers when a source file of the app changes: for development."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from selaras.cli.exits import Misused

_JOIN_MOST: Final = 2.0
_LEFT_OUT: Final = ("__pycache__", "node_modules")


def check_it_can_watch() -> None:
    """Say what to install, if it is missing."""
    if importlib.util.find_spec("watchfiles") is None:
        raise Misused("--reload needs the package watchfiles: pip install 'selaras[reload]'")


@contextmanager
def watching(restart: Callable[[str], None]) -> Generator[None]:
    """Call `restart`, in a thread, with a sentence for people after each change of a source file."""
    stop = Event()
    thread = Thread(target=_watch, args=(restart, stop), name="selaras-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_MOST)


def _watch(restart: Callable[[str], None], stop: Event) -> None:
    from watchfiles import PythonFilter, watch

    while not stop.is_set():
        # Anew after each change: a package may have got a folder more.
        for changes in watch(*folders(), watch_filter=PythonFilter(), recursive=False, stop_event=stop):
            restart(_told({path for _, path in changes}))
            break


def folders() -> list[Path]:
    """Return the folders of what the program is made of: the modules it has imported that nobody installed."""
    installed = [Path(path).resolve() for path in sysconfig.get_paths().values()]
    found: set[Path] = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or Path(file).suffix != ".py":
            continue
        folder = Path(file).resolve().parent
        if _is_in(folder, installed) or "site-packages" in folder.parts or name.partition(".")[0] == "selaras":
            continue
        found.add(folder)
        if hasattr(module, "__path__") and "." not in name:
            found |= {path.parent for path in folder.rglob("*.py") if not _is_left_out(path.relative_to(folder))}
    return sorted(found)


def _is_in(folder: Path, those: Iterable[Path]) -> bool:
    return any(folder.is_relative_to(each) for each in those)


def _is_left_out(path: Path) -> bool:
    return any(part in _LEFT_OUT or part.startswith(".") for part in path.parts)


def _told(paths: set[str]) -> str:
    here = Path.cwd()
    first, *more = sorted(
        str(path.relative_to(here)) if path.is_relative_to(here) else str(path) for path in map(Path, paths)
    )
    return f"{first} and {len(more)} more changed" if more else f"{first} changed"
