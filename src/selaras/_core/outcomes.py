"""What a body, or a loader, may say besides returning: raise one of these, from any depth.

They steer, they are not errors: nothing is logged as a failure unless the job really ends.
"""

from __future__ import annotations

from selaras._core.durations import Duration, duration_us


class Outcome(Exception):
    """The root of the three. An `Exception`, so that every transaction it passes through is rolled back."""


class Retry(Outcome):
    """Run this job again, as after a failure: it counts as an attempt, and the last one ends the job.

    Attributes:
        delay_us: how long to wait; None: as the task's back-off says.
        message: why, for people.
    """

    def __init__(self, message: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.delay_us = None if delay is None else duration_us(delay, name="Retry(delay=)")


class Snooze(Outcome):
    """Run this job again later; the attempt is given back, so a job may snooze for ever."""

    def __init__(self, delay: Duration, message: str = "") -> None:
        super().__init__(delay, message)
        self.message = message
        self.delay_us = duration_us(delay, name="Snooze(delay)")


class Fail(Outcome):
    """End this job as failed, now, whatever attempts are left."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class NotModified(Exception):
    """Said by the loader of a cached family that was given its old value: that is what the datastore still holds."""
