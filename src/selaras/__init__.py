"""Background jobs whose workers never act on a stale cached value."""

from selaras._app.app import Selaras as Selaras
from selaras._app.declared.lifetimes import Old as Old, adaptive as adaptive
from selaras._app.jobs.call import Call as Call
from selaras._app.jobs.info import JobInfo as JobInfo
from selaras._app.jobs.job import Job as Job
from selaras._app.jobs.lines import Lock as Lock
from selaras._app.jobs.task import Prepared as Prepared, Task as Task
from selaras._app.process.current import CurrentJob as CurrentJob, current_job as current_job
from selaras._app.process.middleware import Message as Message, Middleware as Middleware
from selaras._app.process.resources import Resource as Resource
from selaras._app.values.cached import Binding as Binding, Cached as Cached, Whole as Whole
from selaras._app.values.key import Key as Key, Reading as Reading
from selaras._app.values.read import Read as Read
from selaras._app.values.tags import Tag as Tag, TagBinding as TagBinding
from selaras._app.values.warming import Warmed as Warmed
from selaras._app.values.writing import Writing as Writing
from selaras._core.codec import Secret as Secret
from selaras._core.errors import (
    ConfigurationError as ConfigurationError,
    IdConflict as IdConflict,
    JobCancelled as JobCancelled,
    JobFailed as JobFailed,
    LeaseLost as LeaseLost,
    NotEncodable as NotEncodable,
    NotReplicated as NotReplicated,
    ParentFailed as ParentFailed,
    QueueFull as QueueFull,
    ResultExpired as ResultExpired,
    SelarasError as SelarasError,
    StaleSource as StaleSource,
    StoreMismatch as StoreMismatch,
    StoreRefused as StoreRefused,
    StoreUnavailable as StoreUnavailable,
    UnknownJob as UnknownJob,
    WouldDeadlock as WouldDeadlock,
)
from selaras._core.jobs.states import JobState as JobState
from selaras._core.outcomes import Fail as Fail, NotModified as NotModified, Retry as Retry, Snooze as Snooze

__version__ = "0.1.0"
