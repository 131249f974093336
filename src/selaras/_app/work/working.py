"""Makes workers for an app."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from msgspec.structs import replace

from selaras._app.jobs.neighbours import name_of_worker, warn_of_neighbours
from selaras._app.process.portal import refuse_on_loop
from selaras._app.process.process import Process
from selaras._app.process.program import Program
from selaras._app.setup.checks import known, yes_or_no
from selaras._app.setup.settings import OPTION, Settings, check_lease
from selaras._core.cache.key import checked_name
from selaras._core.durations import Duration, duration_us
from selaras._core.errors import ConfigurationError, StoreMismatch, StoreRefused, StoreUnavailable
from selaras._core.events import StoreBack, StoreLost

if TYPE_CHECKING:  # a producer never needs a worker's modules
    from selaras._contracts.observer import Observer
    from selaras._worker.exits import Exit
    from selaras._worker.worker import Worker


_TOLD_EVERY_NS: Final = 60_000_000_000
"""While the store has not answered yet it is said again so often."""

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
        known(options, WorkerOptions, where="app.worker()")
        self._program = program
        self._options = options
        self._settings = in_force(program.settings, options)
        self._queues = _queues(options.get("queues"))
        _check_rest(options)
        self._worker: Worker | None = None
        self._stopped: bool | None = None
        self._told = asyncio.Event()  # to stop, before there was a worker
        self._loop: AbstractEventLoop | None = None

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves."""
        self._program.registry.complete()
        return self._queues or tuple(self._program.registry.queues(self._program.settings.queue))

    async def reach(self) -> bool:
        """Open the store, however long its server is away: nobody orders the starts of a machine or of a deploy.

        A burst does not wait, nor does a worker on a file, which nobody else will bring. Returns False if told to stop
        before it was reached.

        Raises:
            StoreUnavailable: for a reason that does not pass.
        """
        from selaras._worker.keeper import AGAIN
        from selaras._worker.signals import heard_by
        from selaras._worker.waiting import within

        self._told, self._loop = asyncio.Event(), asyncio.get_running_loop()
        waits = self._program.address.redis is not None and not self._options.get("burst", False)
        heard = heard_by(lambda _: self.stop()) if self._options.get("owns_process", False) else nullcontext()
        process = self._program.process()
        tries, away_ns, told_ns = 0, 0, 0
        with heard if waits else nullcontext():
            while self._stopped is None:
                now_ns = process.clock.instant_ns()
                try:
                    await self._open(process)
                except (StoreRefused, StoreMismatch):
                    raise
                except StoreUnavailable as error:
                    if not waits:
                        raise
                    tries, away_ns = tries + 1, away_ns or now_ns
                    if not told_ns or now_ns - told_ns >= _TOLD_EVERY_NS:
                        told_ns = now_ns
                        self._tell(StoreLost(partition=-1, error=str(error)))
                    delay_s = AGAIN.delay_us(tries, process.entropy) / 1_000_000
                    await within(process.clock, delay_s, self._told)
                    continue
                if away_ns:
                    self._tell(StoreBack(partition=-1, away_us=(process.clock.instant_ns() - away_ns) // 1_000))
                break
        return self._stopped is None

    async def _open(self, process: Process) -> None:
        loop = asyncio.get_running_loop()
        opening, told = loop.create_task(process.open()), loop.create_task(self._told.wait())
        try:
            await asyncio.wait((opening, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opening.cancel()
            told.cancel()
        if opening.done():
            opening.result()

    def _tell(self, event: StoreLost | StoreBack) -> None:
        from selaras._worker.telling import tell

        observer = self._options.get("observer")
        if observer is not None:
            tell(observer, event)

    async def run(self) -> Exit:
        """Work until told to stop; with `burst`, until nothing is left to do."""
        from selaras._app.work.host import AppHost
        from selaras._worker.exits import Exit
        from selaras._worker.worker import Worker

        if not await self.reach():
            return Exit.STOPPED
        process = self._program.process()
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
        process.enter()
        process.housekeeping.workers += 1
        try:
            return await self._worker.run()
        finally:
            process.housekeeping.workers -= 1
            await process.leave()

    def stop(self) -> None:
        """Stop in order: no more claims, what runs may finish within the grace. From any thread."""
        self._stopped = False
        self._give_up()
        if self._worker is not None:
            self._worker.stop()

    def _give_up(self) -> None:
        if self._loop is not None and self._worker is None:
            with suppress(RuntimeError):  # it is closed: nobody waits there
                self._loop.call_soon_threadsafe(self._told.set)

    def halt(self) -> None:
        """Stop at once. From any thread."""
        self._stopped = True
        self._give_up()
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


def _queues(given: object) -> tuple[str, ...]:
    """Return the queues to serve; a text is none, though it can be gone through."""
    if given is None:
        return ()
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise ConfigurationError(f"queues={given!r}: give a list of queues' names, such as ['mail']")
    return tuple(dict.fromkeys(checked_name(queue, what="queue") for queue in cast("Iterable[str]", given)))


def _check_rest(options: WorkerOptions) -> None:
    given = cast("Mapping[str, object]", options)
    for option in ("burst", "owns_process"):
        yes_or_no(given.get(option, False), option=option)
    name, observer = given.get("name", ""), given.get("observer")
    if not isinstance(name, str):
        raise ConfigurationError(f"name={name!r}: give a text, for people")
    if observer is not None and not callable(getattr(observer, "heard", None)):
        raise ConfigurationError(f"observer={observer!r}: give an object with a method heard(event), or None")


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
