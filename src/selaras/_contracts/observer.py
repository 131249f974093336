"""Who listens to what a worker does: logs, progress displays, telemetry."""

from __future__ import annotations

from typing import Protocol

from selaras._core.events import WorkerEvent


class Observer(Protocol):
    """Hears events, as they happen, in the thread in which they happen (usually the worker's loop).

    It must be quick and must not raise; what it raises is dropped.

    Attributes:
        wants_attempts: send an `AttemptEnded` for each attempt, not only for those that do not succeed. Costs
            something per job; counts by batch come with every `Turned` anyway.
    """

    wants_attempts: bool

    def heard(self, event: WorkerEvent) -> None:
        """Hear one event."""
        ...
