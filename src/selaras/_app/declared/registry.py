"""Every name a program declares, once: two tasks or two families of one name are an error at import."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from selaras._app.declared.specs import FamilySpec, TaskSpec
from selaras._core.errors import ConfigurationError


class Registry:
    """The tasks and families of an app. `include` are modules that declare more, imported at first need."""

    def __init__(self, include: Sequence[str] = ()) -> None:
        self.tasks: dict[str, TaskSpec] = {}
        self.families: dict[str, FamilySpec] = {}
        self.include = tuple(include)
        self._included = not self.include

    def add_task(self, task: TaskSpec) -> None:
        """Declare a task."""
        known = self.tasks.get(task.name)
        if known is not None:
            raise ConfigurationError(_twice("task", task.name, known.place, task.place))
        self.tasks[task.name] = task

    def add_family(self, family: FamilySpec) -> None:
        """Declare a family."""
        known = self.families.get(family.name)
        if known is not None:
            raise ConfigurationError(_twice("family", family.name, known.place, family.place))
        self.families[family.name] = family

    def find_task(self, name: str) -> TaskSpec | None:
        """Return a declared task, looking into what `include` names if need be."""
        if name not in self.tasks:
            self.complete()
        return self.tasks.get(name)

    def forget_places(self) -> None:
        """Forget which places arguments named: of an app that is over nothing may stay."""
        for family in self.families.values():
            family.forget()
        for task in self.tasks.values():
            task.forget()

    def may_bear(self, tag: str) -> bool:
        """Say whether values of this program's families can bear a tag of this name; True, too, if it has none."""
        names = [family.tag_names for family in self.families.values()]
        return not names or any(known is None or tag in known for known in names)

    def queues(self, default: str) -> tuple[str, ...]:
        """Return the queues that a worker of this program serves if it isn't told otherwise: its tasks' own."""
        return tuple(sorted({default, *(task.queue for task in self.tasks.values())}))

    def complete(self) -> None:
        """Import what `include` names, once, so that every name is known."""
        if self._included:
            return
        self._included = True
        for module in self.include:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                    raise ConfigurationError(f"include={module!r}: there is no such module") from error
                raise


def _twice(what: str, name: str, first: str, second: str) -> str:
    return (
        f"two {'tasks' if what == 'task' else 'families'} are called {name!r}: one at {first}, one at {second}; "
        f"names in the store are function names, so give one of them another with name="
    )
