"""Background jobs whose workers never act on a stale cached value."""

from selaras._app.app import Selaras as Selaras
from selaras._app.cached import Binding as Binding, Cached as Cached, Whole as Whole
from selaras._app.call import Call as Call
from selaras._app.current import CurrentJob as CurrentJob, current_job as current_job
from selaras._app.info import JobInfo as JobInfo
from selaras._app.job import Job as Job
from selaras._app.key import Key as Key, Reading as Reading
from selaras._app.lifetimes import Old as Old, adaptive as adaptive
from selaras._app.lines import Lock as Lock
from selaras._app.middleware import Message as Message, Middleware as Middleware
from selaras._app.read import Read as Read
from selaras._app.resources import Resource as Resource
from selaras._app.tags import Tag as Tag, TagBinding as TagBinding
from selaras._app.task import Prepared as Prepared, Task as Task
from selaras._app.warming import Warmed as Warmed
from selaras._app.writing import Writing as Writing
from selaras._core.codec import Secret as Secret
from selaras._core.errors import (
    ConfigurationError as ConfigurationError,
    IdConflict as IdConflict,
    JobCancelled as JobCancelled,
    JobFailed as JobFailed,
    LeaseLost as LeaseLost,
    NotEncodable as NotEncodable,
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
