"""Makes workers for an app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from msgspec.structs import replace

from selaras._app.neighbours import name_of_worker, warn_of_neighbours
from selaras._app.portal import refuse_on_loop
from selaras._app.program import Program
from selaras._app.settings import OPTION, Settings, check_lease
from selaras._core.cache.key import checked_name
from selaras._core.durations import Duration, duration_us

if TYPE_CHECKING:  # a producer never needs a worker's modules
    from selaras._contracts.observer import Observer
    from selaras._worker.exits import Exit
    from selaras._worker.worker import Worker


_COUNTS: Final = ("concurrency", "threads", "children", "warm_ahead")


class WorkerOptions(TypedDict, total=False):
    """How a worker differs from the app's settings.

    Attributes:
        queues: those it serves; by default all that the app's tasks are declared in.
        burst: stop when nothing is left to do.
        owns_process: the process is here for this worker alone: it hears signals, and may be ended by it.
    """

    queues: Sequence[str]
    name: str
    concurrency: int
    threads: int
    children: int
    warm_ahead: int
    lease: Duration
    heartbeat: Duration
    grace: Duration
    burst: bool
    observer: Observer | None
    owns_process: bool


class AppWorker:
    """A worker of an app, on the loop that runs it."""

    def __init__(self, program: Program, options: WorkerOptions) -> None:
        self._program = program
        self._options = options
        self._settings = in_force(program.settings, options)
        self._queues = tuple(dict.fromkeys(checked_name(queue, what="queue") for queue in options.get("queues") or ()))
        self._worker: Worker | None = None
        self._stopped: bool | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves."""
        self._program.registry.complete()
        return self._queues or tuple(self._program.registry.queues(self._program.settings.queue))

    async def run(self) -> Exit:
        """Work until told to stop; with `burst`, until nothing is left to do."""
        from selaras._app.host import AppHost
        from selaras._worker.exits import Exit
        from selaras._worker.worker import Worker

        process = self._program.process()
        await process.open()
        if self._stopped is not None:
            return Exit.STOPPED
        options, settings = self._options, self._settings
        await warn_of_neighbours(self._program, process)
        self._worker = Worker(
            process.store,
            AppHost(self._program, process),
            process.clock,
            process.entropy,
            queues=self.queues,
            name=name_of_worker(options.get("name", ""), self._program.reference()),
            concurrency=settings.concurrency,
            threads=settings.threads,
            processes=settings.children,
            lease_us=settings.lease,
            heartbeat_us=settings.heartbeat,
            grace_us=settings.grace,
            warm_ahead=settings.warm_ahead,
            burst=options.get("burst", False),
            observer=options.get("observer"),
            owns_process=options.get("owns_process", False),
        )
        process.users += 1
        process.workers += 1
        try:
            return await self._worker.run()
        finally:
            process.users -= 1
            process.workers -= 1
            if process.users <= 0:
                await process.close()

    def stop(self) -> None:
        """Stop in order: no more claims, what runs may finish within the grace. From any thread."""
        self._stopped = False
        if self._worker is not None:
            self._worker.stop()

    def halt(self) -> None:
        """Stop at once. From any thread."""
        self._stopped = True
        if self._worker is not None:
            self._worker.halt()


def make_worker(program: Program, options: WorkerOptions) -> AppWorker:
    """Make a worker that starts when it is run."""
    return AppWorker(program, options)


def in_force(settings: Settings, options: WorkerOptions) -> Settings:
    """Return the settings of one worker: the app's, with what its options say instead.

    Raises:
        ConfigurationError: of a lease that is too short, a heartbeat that is too long for it, or a worker without room.
    """
    lease = _us(options.get("lease"), settings.lease, "lease")
    heartbeat = options.get("heartbeat")
    beat = min(settings.heartbeat, lease // 3) if heartbeat is None else duration_us(heartbeat, name="heartbeat")
    check_lease(lease, beat)
    given = cast("Mapping[str, object]", options)
    counts: dict[str, Any] = {name: OPTION[name].read(given[name], name) for name in _COUNTS if name in given}
    return replace(
        settings,
        **counts,
        lease=lease,
        heartbeat=beat,
        grace=_us(options.get("grace"), settings.grace, "grace"),
    )


def _us(given: Duration | None, default: int, name: str) -> int:
    return default if given is None else duration_us(given, name=name)


class BlockingWorker:
    """A worker in this thread."""

    def __init__(self, aio: AppWorker) -> None:
        self.aio = aio

    def run(self) -> int:
        """Work until told to stop; with `burst`, until nothing is left to do. Returns the exit code of a process."""
        from selaras._worker.loops import run

        refuse_on_loop()
        return int(run(self.aio.run()))

    def stop(self) -> None:
        """Stop in order: no more claims, what runs may finish within the grace. From any thread."""
        self.aio.stop()

    def halt(self) -> None:
        """Stop at once. From any thread."""
        self.aio.halt()
