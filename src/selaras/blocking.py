"""The same face for code without an event loop: Flask, Django, scripts. Every call blocks.

    from selaras.blocking import Selaras

Each object here has its twin for coroutines as `.aio`, and those have theirs here as `.sync`. Tasks and loaders may be
plain functions, which run in threads, or coroutine functions. Threads may call at the same time.
"""

from selaras._app.app import BlockingSelaras as Selaras
from selaras._app.declared.lifetimes import Old, adaptive
from selaras._app.jobs.call import BlockingCall as Call
from selaras._app.jobs.info import JobInfo
from selaras._app.jobs.job import BlockingJob as Job
from selaras._app.jobs.lines import BlockingLock as Lock
from selaras._app.jobs.task import BlockingPrepared as Prepared, BlockingTask as Task
from selaras._app.process.current import CurrentJob, current_job
from selaras._app.process.middleware import Message, Middleware
from selaras._app.process.resources import BlockingResource as Resource
from selaras._app.values.cached import Binding, BlockingCached as Cached, BlockingWhole as Whole
from selaras._app.values.key import BlockingKey as Key, Reading
from selaras._app.values.read import Read
from selaras._app.values.tags import BlockingTag as Tag, TagBinding
from selaras._app.values.warming import Warmed
from selaras._app.values.writing import BlockingWriting as Writing
from selaras._app.work.working import BlockingWorker as Worker
from selaras._core.codec import Secret
from selaras._core.errors import (
    ConfigurationError,
    IdConflict,
    JobCancelled,
    JobFailed,
    LeaseLost,
    NotEncodable,
    NotReplicated,
    ParentFailed,
    QueueFull,
    ResultExpired,
    SelarasError,
    StaleSource,
    StoreMismatch,
    StoreRefused,
    StoreUnavailable,
    UnknownJob,
    WouldDeadlock,
)
from selaras._core.jobs.states import JobState
from selaras._core.outcomes import Fail, NotModified, Retry, Snooze

__all__ = [
    "Binding",
    "Cached",
    "Call",
    "ConfigurationError",
    "CurrentJob",
    "Fail",
    "IdConflict",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobInfo",
    "JobState",
    "Key",
    "LeaseLost",
    "Lock",
    "Message",
    "Middleware",
    "NotEncodable",
    "NotModified",
    "NotReplicated",
    "Old",
    "ParentFailed",
    "Prepared",
    "QueueFull",
    "Read",
    "Reading",
    "Resource",
    "ResultExpired",
    "Retry",
    "Secret",
    "Selaras",
    "SelarasError",
    "Snooze",
    "StaleSource",
    "StoreMismatch",
    "StoreRefused",
    "StoreUnavailable",
    "Tag",
    "TagBinding",
    "Task",
    "UnknownJob",
    "Warmed",
    "Whole",
    "Worker",
    "WouldDeadlock",
    "Writing",
    "adaptive",
    "current_job",
]
