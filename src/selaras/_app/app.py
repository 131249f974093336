"""The app: where a program declares its cached families and tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from selaras._app.declared.loaders import SelfKey
from selaras._app.declared.registry import Registry
from selaras._app.declaring import (
    BlockingFamilyOptions,
    BlockingTaskOptions,
    FamilyOptions,
    TaskOptions,
    declare_family,
    declare_task,
)
from selaras._app.jobs.call import BlockingCall, Call, checked_calls, enqueue_calls
from selaras._app.jobs.job import BlockingJob, Job
from selaras._app.jobs.lines import BlockingLock, Lock
from selaras._app.jobs.task import BlockingTask, BlockingTaskDecorator, Task, TaskDecorator
from selaras._app.process.middleware import Middleware
from selaras._app.process.portal import aio_of, wait_for
from selaras._app.process.process import Process
from selaras._app.process.program import Program, make_program
from selaras._app.process.resources import (
    BlockingResource,
    BlockingResourceDecorator,
    Lifetime,
    Resource,
    ResourceDecorator,
)
from selaras._app.setup.checks import known
from selaras._app.setup.origin import Origin, calling_module
from selaras._app.setup.settings import Settings, SettingValues
from selaras._app.values.cached import (
    BlockingCached,
    BlockingCachedDecorator,
    BlockingCachedMethod,
    BlockingCachedMethodDecorator,
    Cached,
    CachedDecorator,
    CachedMethod,
    CachedMethodDecorator,
)
from selaras._app.values.key import BlockingKey, Fresh, Key, read_many
from selaras._app.values.tags import BlockingTag, Tag, TagBinding
from selaras._app.values.warming import LOADS_AT_ONCE, Warmed, warm
from selaras._app.work.working import AppWorker, BlockingWorker, WorkerOptions, make_worker
from selaras._core.cache.key import checked_name
from selaras._core.cache.tagging import tag_text
from selaras._core.durations import Duration
from selaras._core.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")


class Selaras:
    """An app: its tasks, its cached families, and the store that keeps them in step.

    Args:
        url: where jobs and cached values live: `sqlite:///jobs.db`, `sqlite:////var/lib/jobs.db`, `memory://`. By
            default $SELARAS_URL, else `selaras.db` beside the module that makes the app. A relative path in the
            program is relative to that module, so that every process finds the same file wherever it is started.
        namespace: several apps may share a store under different names.
        include: modules that declare more tasks and families; imported when they are first needed.
        middleware: around every enqueue and every run, the first outermost.
        settings: any option of `settings.py`, also as `SELARAS_…` in the environment; the program's word stands.

    Raises:
        ConfigurationError: what is wrong, and what to give instead.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "",
        include: Sequence[str] = (),
        middleware: Sequence[Middleware] = (),
        **settings: Unpack[SettingValues],
    ) -> None:
        self._program = make_program(url, namespace, include, middleware, settings, calling_module())
        self._program.app = self

    def __repr__(self) -> str:
        return f"<selaras {self.url}>"

    # -- what it is made of

    @property
    def sync(self) -> BlockingSelaras:
        """The twin of which every call blocks."""
        return BlockingSelaras.of(self)

    @property
    def url(self) -> str:
        """The store's URL: absolute, passwords masked."""
        return self._program.address.shown

    @property
    def settings(self) -> Settings:
        """The options in force."""
        return self._program.settings

    @property
    def registry(self) -> Registry:
        """What has been declared."""
        return self._program.registry

    @property
    def program(self) -> Program:
        """The inside that the handles share."""
        return self._program

    @property
    def origin(self) -> Origin:
        """The module that made it, and how a command line names it."""
        return self._program.origin

    # -- declarations

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, **declaration: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, **declaration: Any) -> Any:
        """Declare a task: a coroutine function, or a plain one, which runs in a thread or a process.

        Args:
            name: its name in the store; by default the function's.
            writes: the cached values it changes, matched to its parameters by name (`product.by(id="sku")` renames); all
                values of a family, `product.all()`, or of a tag, `app.tag("category", by="id")`.
            reads: cached values its body will read, warmed with the whole batch; `Read(...)` parameters need no mention.
            lock: the line its jobs stand in, one at a time, in order: "mail:{customer}", or a family, or None. By
                default the key it writes, if it writes exactly one.
            exclusive: False: intents on what it writes, but no line.
            ordered: a retry keeps its place in line while it backs off.
            retries: how often it runs again after a body failed. max_lost: after how many workers that died over it it is
                failed, too: deaths do not count as retries.
            timeout: after so long the body is told to end, and its attempt has failed. A coroutine that blocks its loop
                cannot be told: it counts as what it then returns.
            expires: a job that has not started so long after its enqueue is dropped; 0, as by default: none ever is.
            executor: "process" runs it in a process that can be killed.

        Raises:
            ConfigurationError: at import: what does not fit, and what to write instead.
        """
        known(declaration, TaskOptions, where="@app.task()")

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            return Task(self._program, declare_task(self._program, function, **declaration))

        return declare if function is None else declare(function)

    @overload
    def cached(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> Cached[P, V]: ...
    @overload
    def cached(self, loader: Callable[P, V], /) -> Cached[P, V]: ...
    @overload
    def cached(self, **declaration: Unpack[FamilyOptions]) -> CachedDecorator: ...
    @overload
    def cached(self, *, self_key: SelfKey | None, **declaration: Unpack[FamilyOptions]) -> CachedMethodDecorator: ...
    def cached(self, loader: Callable[..., Any] | None = None, **declaration: Any) -> Any:
        """Declare a family of cached values: the function's body is the datastore read, run on a miss only.

        Args:
            name: its name in the store; by default the function's.
            ttl: how long a value lives; 0: it is not stored; None: no end; `adaptive(min, max)`: as its key's changes say.
                What is stored keeps the one it was stored with: after a deploy that shortens it, invalidate the family.
                ttl_none: the same for the value None, but for `adaptive`.
            ignore: parameters that are no part of the key.
            self_key: of a method, what of its object is part of the key: an attribute's name, a function of the object, or None
                if values are the same whatever the object.
            tags: "category:{id}" texts filled from the parameters, or a function of the value that returns tags.
            version: a value's own version in the datastore, where reads of the datastore may come late.
            replica_lag: how late they may come: so long after a write without a version nothing is stored.
            during_write: "serve" shows the old value until a writer settles; for what is written all the time.
            tiers: where values are kept.
            fresh: how fresh reads are by default; 1 second outside of jobs.
            beta: how eagerly one reader loads a value anew ahead of its end, while all are served on; 0: never.
            stale_while_revalidate: how long past its ttl a value is served at once while it is loaded anew;
                stale_if_error: while it cannot be loaded. Never inside of jobs and scopes, to `strict` and `causal` reads,
                nor in `read_many`; and never a value that was invalidated.
            soft_timeout: a read that may have such a value waits no longer for the loader, which goes on.
            hard_timeout: a load that takes longer is an error. A plain function goes on in its thread.
            fallback_loads: how many loads run at once in a process while the shared tier does not answer.
            max_value, compress_threshold: as the settings of these names; bytes of an encoded value.
            audit: the share of hits that is compared with the datastore in the background: 0.001 is one in a thousand.
                `selaras cache stats` shows what that came to; what was stale is voided, and logged as an error.

        Raises:
            ConfigurationError: at import: a type that can't be stored, a parameter that can't be part of a key.
        """
        method = {"self_key": declaration.pop("self_key")} if "self_key" in declaration else {}
        known(declaration, FamilyOptions, where="@app.cached()")

        def declare(loader: Callable[..., Any]) -> Cached[..., Any]:
            spec = declare_family(self._program, loader, **method, **declaration)
            return (CachedMethod if spec.is_method else Cached)(self._program, spec)

        return declare if loader is None else declare(loader)

    @overload
    def resource(self, factory: Callable[[], AsyncIterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, factory: Callable[[], Iterator[T]], /) -> Resource[T]: ...
    @overload
    def resource(self, *, scope: Lifetime = "process") -> ResourceDecorator: ...
    def resource(self, factory: Callable[[], Any] | None = None, *, scope: Lifetime = "process") -> Any:
        """Declare what is opened at first need and closed with the process (or with the job): a generator function.

        `await db()` is the open one, and `db.sync()` in a thread the same as on the loop of the worker, or of `async with
        app`. Other loops have each their own. `with db.override(fake): ...` replaces it.
        """

        def declare(factory: Callable[[], Any]) -> Resource[Any]:
            name = factory.__name__
            self._program.resources.declare(name, factory)
            return Resource(self._program.resources, name, scope, factory)

        return declare if factory is None else declare(factory)

    # -- cached values

    async def read_many(self, keys: Iterable[Key[V]], fresh: Fresh | None = None) -> list[V]:
        """Read many keys in one trip a partition; what is missing goes to the families' batch loaders."""
        return await read_many(self._program, list(keys), fresh)

    async def warm(self, keys: Iterable[Key[Any]], *, loads: int = LOADS_AT_ONCE) -> Warmed:
        """Bring many values into the tiers before somebody needs them; what is there already costs no load.

        However many processes do it at once, each value is loaded once. What fails is counted, and left to whoever reads it.

        Args:
            keys: as many as you like: they are taken a piece at a time.
            loads: so many loaders run at a time at most; a call of a batch loader is one.

        Raises:
            ConfigurationError: one is no key.
        """
        return await warm(self._program, keys, loads=loads)

    @overload
    def tag(self, name: str, value: object = None) -> Tag: ...
    @overload
    def tag(self, name: str, *, by: str) -> TagBinding: ...
    def tag(self, name: str, value: object = None, *, by: str | None = None) -> Tag | TagBinding:
        """Return the tag of this name and value: `app.tag("category", 7)`.

        Equal values are one tag, whatever their types: 2, 2.0 and Decimal("2.00"), one instant in two time zones; and a
        text is that of the value it spells. What cannot stand in a key cannot stand here.

        `by`, for `writes=`: its value is that parameter of the task.
        """
        if by is None:
            return Tag(tag_text(name, value), self._program)
        if value is not None:
            raise ConfigurationError(
                f"tag({name!r}, {value!r}, by={by!r}): give the value, or the parameter it comes from"
            )
        return TagBinding(checked_name(name, what="tag"), by)

    # -- jobs

    async def enqueue_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Enqueue many jobs in one step a partition. Returns theirs, in order.

        Raises:
            ConfigurationError: one is no call: nothing was enqueued.
            IdConflict: naming the first; the others were enqueued.
            StoreUnavailable: nothing was enqueued in at least one partition.
        """
        return await enqueue_calls(self._program, checked_calls(calls))

    def job(self, id: str) -> Job[Any]:
        """Stand for the job of this id, of any task, which may or may not exist."""
        return Job(self._program, id, "", False)

    def lock(self, line: str | Key[Any], *, lease: Duration | None = None, timeout: Duration | None = None) -> Lock:
        """Hold a line, the same one that jobs stand in: `async with app.lock("mail:7") as lock: lock.fence`.

        Args:
            line: its name, or a key, whose writers stand in it.
            lease: for how long it is still held after this process died. A living one renews it.
            timeout: how long to stand in line; then TimeoutError.

        Raises:
            ConfigurationError: `line` names none.
        """
        name: object = line.name if isinstance(line, Key) else line
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
            raise ConfigurationError(f"lock({line!r}): give the name of a line, such as 'mail:7', or a key")
        return Lock(self._program, name, lease=lease, timeout=timeout)

    # -- life

    async def __aenter__(self) -> Self:
        process = self._program.process()
        await process.open_to_read()
        process.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._program.process().leave()
        self._program.registry.forget_places()

    @asynccontextmanager
    async def lifespan(self, _application: object = None) -> AsyncGenerator[None]:
        """Open and close it with a web application: `FastAPI(lifespan=app.lifespan)`."""
        async with self:
            yield

    async def close(self) -> None:
        """Close what the running loop has opened: resources, leases, the store. It opens again at the next need."""
        await self._program.processes.close_here()
        self._program.registry.forget_places()

    def process(self) -> Process:
        """Return what the running loop has open, or will at first need."""
        return self._program.process()

    def worker(self, **options: Unpack[WorkerOptions]) -> AppWorker:
        """Make a worker for this app on the running loop; `await app.worker(burst=True).run()`.

        Raises:
            ConfigurationError: naming the option and what to give instead.
        """
        return make_worker(self._program, options)


class BlockingSelaras:
    """An app for code without an event loop; arguments as of `selaras.Selaras`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "",
        include: Sequence[str] = (),
        middleware: Sequence[Middleware] = (),
        **settings: Unpack[SettingValues],
    ) -> None:
        self.aio = Selaras(url, namespace=namespace, include=include, middleware=middleware, **settings)
        self.aio.program.app = self  # as the program's own module knows it

    @classmethod
    def of(cls, aio: Selaras) -> Self:
        """Return the twin of an app."""
        twin = cls.__new__(cls)
        twin.aio = aio
        return twin

    def __repr__(self) -> str:
        return repr(self.aio)

    @property
    def url(self) -> str:
        """The store's URL: absolute, passwords masked."""
        return self.aio.url

    @property
    def settings(self) -> Settings:
        """The options in force."""
        return self.aio.settings

    @property
    def registry(self) -> Registry:
        """What has been declared."""
        return self.aio.registry

    # -- declarations

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BlockingTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> BlockingTask[P, R]: ...
    @overload
    def task(self, **declaration: Unpack[BlockingTaskOptions]) -> BlockingTaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, **declaration: Any) -> Any:
        """Declare a task: a plain function, which runs in a thread or process, or a coroutine function.

        Arguments as of `selaras.Selaras.task`.
        """
        decorate: Any = self.aio.task(**{name: aio_of(value) for name, value in declaration.items()})

        def declare(function: Callable[..., Any]) -> BlockingTask[..., Any]:
            return BlockingTask(decorate(function))

        return declare if function is None else declare(function)

    @overload
    def cached(self, loader: Callable[P, Coroutine[Any, Any, V]], /) -> BlockingCached[P, V]: ...
    @overload
    def cached(self, loader: Callable[P, V], /) -> BlockingCached[P, V]: ...
    @overload
    def cached(self, **declaration: Unpack[BlockingFamilyOptions]) -> BlockingCachedDecorator: ...
    @overload
    def cached(
        self, *, self_key: SelfKey | None, **declaration: Unpack[BlockingFamilyOptions]
    ) -> BlockingCachedMethodDecorator: ...
    def cached(self, loader: Callable[..., Any] | None = None, **declaration: Any) -> Any:
        """Declare a family of cached values: the function's body is the datastore read, run on a miss only.

        Arguments as of `selaras.Selaras.cached`.
        """
        decorate: Any = self.aio.cached(**declaration)

        def declare(loader: Callable[..., Any]) -> BlockingCached[..., Any]:
            cached: Any = decorate(loader)
            return (BlockingCachedMethod if cached.family.is_method else BlockingCached)(cached)

        return declare if loader is None else declare(loader)

    @overload
    def resource(self, factory: Callable[[], AsyncIterator[T]], /) -> BlockingResource[T]: ...
    @overload
    def resource(self, factory: Callable[[], Iterator[T]], /) -> BlockingResource[T]: ...
    @overload
    def resource(self, *, scope: Lifetime = "process") -> BlockingResourceDecorator: ...
    def resource(self, factory: Callable[[], Any] | None = None, *, scope: Lifetime = "process") -> Any:
        """Declare what is opened at first need and closed with the process (or with the job): a generator function."""
        decorate: Any = self.aio.resource(scope=scope)

        def declare(factory: Callable[[], Any]) -> BlockingResource[Any]:
            return BlockingResource(decorate(factory))

        return declare if factory is None else declare(factory)

    # -- cached values

    def read_many(self, keys: Iterable[BlockingKey[V]], fresh: Fresh | None = None) -> list[V]:
        """Read many keys in one trip a partition; what is missing goes to the families' batch loaders."""
        return wait_for(lambda: self.aio.read_many([aio_of(key) for key in keys], fresh))

    def warm(self, keys: Iterable[BlockingKey[Any]], *, loads: int = LOADS_AT_ONCE) -> Warmed:
        """Bring many values into the tiers before somebody needs them; arguments as of `selaras.Selaras.warm`."""
        return wait_for(lambda: self.aio.warm(map(aio_of, keys), loads=loads))

    @overload
    def tag(self, name: str, value: object = None) -> BlockingTag: ...
    @overload
    def tag(self, name: str, *, by: str) -> TagBinding: ...
    def tag(self, name: str, value: object = None, *, by: str | None = None) -> BlockingTag | TagBinding:
        """Return the tag of this name and value: `app.tag("category", 7)`; `by` as of `selaras.Selaras.tag`."""
        if by is not None and value is None:
            return self.aio.tag(name, by=by)
        return BlockingTag(self.aio.tag(name, value))

    # -- jobs

    def enqueue_many(self, calls: Iterable[BlockingCall[R]]) -> list[BlockingJob[R]]:
        """Enqueue many jobs in one step a partition. Returns theirs, in order."""
        waiting = checked_calls([aio_of(call) for call in calls])
        return [BlockingJob(job) for job in wait_for(lambda: self.aio.enqueue_many(waiting))]

    def job(self, id: str) -> BlockingJob[Any]:
        """Stand for the job of this id, of any task, which may or may not exist."""
        return BlockingJob(self.aio.job(id))

    def lock(
        self, line: str | BlockingKey[Any], *, lease: Duration | None = None, timeout: Duration | None = None
    ) -> BlockingLock:
        """Hold a line, the same one that jobs stand in; arguments as of `selaras.Selaras.lock`."""
        return BlockingLock(
            self.aio.lock(line.aio if isinstance(line, BlockingKey) else line, lease=lease, timeout=timeout)
        )

    # -- life

    def __enter__(self) -> Self:
        wait_for(self.aio.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(lambda: self.aio.__aexit__(kind, error, traceback))

    def close(self) -> None:
        """Close what blocking calls have opened: resources, leases, the store. It opens again at the next need."""
        wait_for(self.aio.close)

    def worker(self, **options: Unpack[WorkerOptions]) -> BlockingWorker:
        """Make a worker for this app; `app.worker(burst=True).run()` works in this thread."""
        return BlockingWorker(self.aio.worker(**options))
