"""The inside of an app: what its handles share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from selaras._app.declared.registry import Registry
from selaras._app.process.middleware import Middleware, checked_middleware
from selaras._app.process.process import Process, Processes
from selaras._app.process.resources import Resources
from selaras._app.setup.opening import Address, address_of, open_shelf, open_store, shelf_owner
from selaras._app.setup.origin import Origin
from selaras._app.setup.settings import Settings, SettingValues, settings_from
from selaras._core.errors import ConfigurationError
from selaras._core.jobs.job import JobRecord
from selaras._worker.system import system_clock, system_entropy


class Program:
    """Settings, declarations, and what this process has open.

    Attributes:
        around_enqueue, around_run: the middleware that overrides each; what isn't overridden costs nothing.
        looked_around: whether this process has looked for another program's tasks of the same names.
        doubted_tags: tags that nobody here bears, told already.
        while_waiting: told of each look at a job that somebody waits for, and for how many seconds they have; what it
            raises ends the wait. For tests.
    """

    def __init__(
        self, address: Address, origin: Origin, settings: Settings, registry: Registry, middleware: Sequence[Middleware]
    ) -> None:
        self.address = address
        self.origin = origin
        self.settings = settings
        self.registry = registry
        self.processes = Processes(self._make_process)
        self.resources = Resources(lambda: self.process().openings)
        self.around_enqueue = tuple(m for m in middleware if _overrides(m, "enqueue"))
        self.around_run = tuple(m for m in middleware if _overrides(m, "run"))
        self.app: object = None
        self.looked_around = False
        self.doubted_tags: set[str] = set()
        self.while_waiting: Callable[[JobRecord, float], None] | None = None

    def process(self) -> Process:
        """Return what this process has open, or will at first need."""
        return self.processes.here()

    def reference(self) -> str:
        """Return what a command line calls the app: `first:app`."""
        return self.origin.reference(self.app)

    def _make_process(self) -> Process:
        clock, entropy = system_clock(), system_entropy()
        store = open_store(self.address, self.settings.said_partitions, clock, entropy)
        shelf = open_shelf(self.settings.host_tier, self.settings.host_timeout)
        return Process(store, clock, entropy, self.settings, self.registry, shelf, shelf_owner(self.address))


def make_program(
    url: str | None,
    namespace: str,
    include: Sequence[str],
    middleware: Sequence[Middleware],
    settings: SettingValues,
    origin: Origin,
) -> Program:
    """Check what an app was given. Nothing is opened."""
    address = address_of(url, namespace, origin)
    return Program(
        address, origin, settings_from(settings), Registry(_modules(include)), checked_middleware(middleware)
    )


def _modules(include: object) -> Sequence[str]:
    several = cast("Sequence[object]", include) if isinstance(include, (list, tuple)) else ()
    if include is not several or not all(isinstance(one, str) for one in several):
        raise ConfigurationError(f"include={include!r}: give a list of modules' names, such as ['shop.tasks']")
    return cast("Sequence[str]", several)


def _overrides(middleware: Middleware, method: str) -> bool:
    return getattr(type(middleware), method) is not getattr(Middleware, method)
