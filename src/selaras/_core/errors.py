"""Every error Selaras raises, in one tree.

A class exists because a caller does something different about it.

    SelarasError
    ├── ConfigurationError          fix the program or the setting; nothing was done
    ├── NotEncodable                an argument or result that could not come back equal; nothing was done
    ├── IdConflict                  this id belongs to another job; nothing was done
    ├── QueueFull                   the queue's limit is reached; nothing was done
    ├── WouldDeadlock               this wait could never end; nothing was done
    ├── LeaseLost                   this attempt may no longer speak for its job; its effects were refused
    ├── UnknownJob                  no job of this id is known (never enqueued, or its retention is over)
    ├── JobFailed                   the job ended `failed`; carries type, message and traceback
    │   └── ParentFailed            the job waits for a parent that ended `failed`
    ├── JobCancelled                the job ended `cancelled` or `expired`; carries the reason
    ├── ResultExpired               the job succeeded, its result is no longer kept
    ├── StaleSource                 the datastore answered below the version that must be seen
    └── StoreUnavailable            the store cannot be reached; nothing was done
        ├── NotReplicated           it was done, but no replica has it: a failover now would lose it
        ├── StoreRefused            the store does not let us in, or not do it: password, rights
        └── StoreMismatch           the store was made by another version or with other settings

Time-outs are the builtin `TimeoutError`.
"""

from __future__ import annotations


class SelarasError(Exception):
    """The root of everything Selaras raises on purpose."""


class ConfigurationError(SelarasError):
    """A declaration, setting or URL is wrong. Nothing was done; the message says what to change."""


class NotEncodable(SelarasError):
    """A value cannot be stored so that it comes back equal and of the same type.

    The message names the path of the value, such as `args[0]['x']`. Nothing was stored.
    """


class IdConflict(SelarasError):
    """The id belongs to a job of another task or with other arguments. Nothing was enqueued."""


class QueueFull(SelarasError):
    """The queue holds as many jobs as its limit allows. Nothing was enqueued."""


class WouldDeadlock(SelarasError):
    """The caller waits for something that only the caller's own end can bring about."""


class LeaseLost(SelarasError):
    """The attempt lost its lease: its settle, values and locks are refused from now on."""


class UnknownJob(SelarasError):
    """No job of this id is known: it was never enqueued, was purged, or its retention is over."""


class JobFailed(SelarasError):
    """The job ended `failed`.

    Attributes:
        type: the class name of the exception that ended the last attempt.
        message: its text, cut to a bounded length.
        traceback: its formatted traceback, cut to a bounded length.
    """

    def __init__(self, type: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{type}: {message}" if message else type)
        self.type = type
        self.message = message
        self.traceback = traceback

    def __reduce__(self) -> tuple[object, ...]:
        return (self.__class__, (self.type, self.message, self.traceback))


class ParentFailed(JobFailed):
    """The job is blocked by a parent that ended `failed`; it goes on if that parent is retried."""


class JobCancelled(SelarasError):
    """The job ended `cancelled` or `expired`; the text is the reason."""


class ResultExpired(SelarasError):
    """The job succeeded, but its result is no longer kept (`result_ttl`)."""


class StaleSource(SelarasError):
    """The datastore kept answering with a version older than one that is known to exist."""


class StoreUnavailable(SelarasError):
    """The store cannot be reached. The same call may be tried again. Nothing was done, unless the message says that it
    was sent and may have been done: a reply that was lost on its way.
    """


class NotReplicated(StoreUnavailable):
    """It was done, but no replica had it within `replicated_within` (a store with `durability=replicated`): a failover now
    would lose it. Without one it stands. An enqueue without an `id` that is called again makes a second job.
    """


class StoreRefused(StoreUnavailable):
    """The store does not let us in, or does not let us do it: a password, a right. Somebody must change it there."""


class StoreMismatch(StoreUnavailable):
    """The store was made by another version of Selaras or with other settings. Nothing was done."""
