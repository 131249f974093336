"""Tells observers what happens, and keeps their mistakes away from the worker."""

from __future__ import annotations

from collections.abc import Sequence

from selaras._contracts.observer import Observer
from selaras._core.events import WorkerEvent


class Silence:
    """An observer that does not listen."""

    wants_attempts = False

    def heard(self, event: WorkerEvent) -> None:
        """Hear nothing."""


class Audience:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self.wants_attempts = any(observer.wants_attempts for observer in self._observers)

    def heard(self, event: WorkerEvent) -> None:
        """Tell each; one that raises does not keep it from the others."""
        for observer in self._observers:
            tell(observer, event)


def tell(observer: Observer, event: WorkerEvent) -> None:
    """Tell one event."""
    try:
        observer.heard(event)
    except Exception:  # noqa: BLE001, S110 - a broken log handler or display must not stop the jobs
        pass
