"""Where an app was made: the module beside which its files lie, and what a command line calls it."""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import Struct


class Origin(Struct, frozen=True):
    """The module that made an app. `file` is "" in an interactive session."""

    module: str
    file: str

    @property
    def folder(self) -> Path:
        """Where relative paths of the program begin."""
        return Path(self.file).resolve().parent if self.file else Path.cwd()

    def reference(self, app: object) -> str:
        """Return what `selaras worker` calls the app: `first:app`."""
        return _reference(self.module, self.file, app) or f"{_name_of(self.module, self.file)}:app"

    def reference_by(self, module: str, app: object) -> str:
        """Return what it may be called by a module that imports it, `tasks:app`; "" if it has no name there."""
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return _reference(module, file, app)


def calling_module() -> Origin:
    """Return the first module up the stack that is none of ours."""
    frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the one way to know who calls
    while frame.f_back and _is_ours(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    return Origin(str(frame.f_globals.get("__name__", "__main__")), str(frame.f_globals.get("__file__") or ""))


def _is_ours(module: str) -> bool:
    ours = ("selaras._app", "selaras.blocking", "selaras.testing")
    return module == "selaras" or any(module == part or module.startswith(f"{part}.") for part in ours)


def _reference(module: str, file: str, app: object) -> str:
    names = [key for key, value in vars(sys.modules[module]).items() if value is app] if module in sys.modules else []
    return f"{_name_of(module, file)}:{names[0]}" if names else ""


def _name_of(module: str, file: str) -> str:
    return _name_of_main(file) if module == "__main__" else module


def _name_of_main(file: str) -> str:
    """A script's name as a module: `python first.py` is `first`, `python -m shop.main` is `shop.main`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    return Path(file).stem if file else "__main__"
