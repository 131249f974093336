"""What the worker asks of the program it runs: the worker knows leases and turns, the host knows tasks.

One attempt, through both:

    worker: turn ─> Claim ─> host.heard(news) ─> host.prepare(claim) ─> Run
    worker: host.ready_for(runs)             plants elsewhere, warms what the bodies will read (one trip a batch)
    worker: task = run.execute(executors)    ─> Settlement        (the host decides what the body's end means)
    worker: host.before_settle(settlement)   tells other partitions what must be known before (P17)
    worker: turn(settlements=...)            ─> Settled ─> host.settled(run, settlement, settled)

The worker calls everything here on its loop, in its own thread, except where said otherwise. `prepare`, `heard`,
`must_wait`, `ahead`, `settled`, `since` and `progress` are plain calls on the hot path: they must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from selaras._contracts.partition import Instance, Waiting
from selaras._core.jobs.job import Claim, Settled, Settlement
from selaras._core.positions import Cursor, News


class Mode(StrEnum):
    """Where a body runs."""

    LOOP = "loop"  # a coroutine, on the worker's loop
    THREAD = "thread"  # a plain function: it cannot be stopped
    PROCESS = "process"  # a child process: it can be killed


class Stop(StrEnum):
    """Why the worker ends a body before its time."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"  # somebody cancelled the job
    LOST = "lost"  # the store said that it is another's, or nobody's; a refused settle voids what it wrote
    SHUTDOWN = "shutdown"  # grace is over: it is given back


class ProcessDied(Exception):
    """A child process ended while it ran a body (`os._exit`, a crash, the OOM killer). `code`: as in subprocess."""

    def __init__(self, code: int | None) -> None:
        super().__init__(
            f"worker process died ({'killed by signal ' + str(-code) if code and code < 0 else f'exit code {code}'})"
        )
        self.code = code


class Executors(Protocol):
    """Where plain functions run; owned by the worker."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread, in a copy of the caller's context.

        A thread cannot be stopped. A wait that is cancelled goes on until the function has really ended (so that
        the settlement, and with it the void of what a late body wrote, comes after its last write: P18), drops
        its result, and raises CancelledError then. Whatever the function raises is raised here, except
        StopIteration, which a coroutine cannot carry: it comes as a RuntimeError with it as its cause.
        """
        ...

    async def in_process(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """Run one attempt in a child process: `Servant.serve` there. Cancelling the wait kills the child.

        `report`: called here, on the loop, with what the body reports there; the latest of a short while.

        Raises ProcessDied when the child ended without an answer: the settlement is `lose` then, with the
        error's text as its reason.
        """
        ...


class Run(Protocol):
    """One attempt, prepared: decoded, bound, with the task's policy.

    Attributes:
        claim: what it runs.
        partition: the partition that is its home.
        mode: where the body runs.
        timeout_us: how long the body may take; 0: for ever. The worker keeps the time.
        stopping: set by the worker before it cancels the task of `execute`, so that a CancelledError that comes
            from the body itself is never taken for the worker's.
    """

    claim: Claim
    partition: int
    mode: Mode
    timeout_us: int
    stopping: Stop | None

    def execute(self, executors: Executors) -> Coroutine[Any, Any, Settlement]:
        """Run the body to its end and say what that end means. Called once, in a task and a context of its own.

        Never raises what the body raised: CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit and
        StopIteration of a body are ordinary failures (BR-014, BR-070).

        When cancelled with `stopping` set it lets the body clean up, then returns the settlement of that stop
        (TIMEOUT: retry or fail; CANCEL: cancel; SHUTDOWN and LOST: release, with started=True: if the lease is
        really lost it is refused, if it was only thought lost the job is not left behind). A body that swallowed
        the cancel and returned a value is judged by `stopping` too, never as a success. It may be cancelled again.
        """
        ...

    def cut_off(self) -> Settlement:
        """Return the settlement of `stopping` for a body that ignored every cancel and was closed where it stood."""
        ...

    def unstarted(self) -> Settlement:
        """Return the release of an attempt whose body never began (started=False: its pre-image may return)."""
        ...


class Host(Protocol):
    """The program, as the worker sees it."""

    @property
    def tasks(self) -> Mapping[str, Mode]:
        """Every task, by name, and where its bodies run: the worker claims no more than can be placed."""
        ...

    @property
    def servant(self) -> tuple[str, ...]:
        """By what a child process makes its Servant: (reference "module:function", arguments...).

        () when no task runs in processes. The child gets this process's environment and sys.path.
        """
        ...

    def since(self, partition: int) -> Cursor:
        """Return how far this process has applied the partition's log: what the next turn asks news from."""
        ...

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """Apply a reply's news to the local tier: before any of the reply's claims is started (G1).

        `sent_ns`: the instant the reply's first request was sent (P2). Replies may come out of order.
        """
        ...

    def prepare(self, claim: Claim, partition: int, received_ns: int) -> Run | Settlement:
        """Bind a claim to its task; or say how it ends at once (undecodable: dead letter; unbindable: give back)."""
        ...

    def must_wait(self, runs: Sequence[Run]) -> bool:
        """Say whether `ready_for` has anything to do for these (a batch of plain jobs has nothing)."""
        ...

    async def ready_for(self, runs: Sequence[Run]) -> None:
        """Plant intents elsewhere (P17) and warm the declared reads of a whole batch, in one trip a partition.

        What it raises is reported, and the batch is given back unstarted: so it raises only what passes.
        """
        ...

    def ahead(self, waiting: Sequence[Waiting], most: int) -> None:
        """Begin to bring what jobs will read that are to be claimed next, in this order: `most` values at a time, and none
        that one of them writes, or one before it. Nothing waits for it, and whatever fails is left to the attempt.
        """
        ...

    def has_effects_elsewhere(self, settlement: Settlement, partition: int) -> bool:
        """Say whether `before_settle` must be awaited (never, with one partition; then it is not asked)."""
        ...

    async def before_settle(self, settlement: Settlement, partition: int) -> Settlement:
        """Invalidate elsewhere what must be known before the settle (P12, P17); reserve names of children (P22).

        Returns the settlement to send: children whose name another job has are left out of it.
        Raising StoreUnavailable makes the worker call it again: it must bear being repeated.
        """
        ...

    def settled(self, run: Run | None, settlement: Settlement, settled: Settled, partition: int) -> None:
        """Hear what became of a settlement: stored values enter the local tier with their own positions (P3).

        `run` is None for a settlement that `prepare` returned. A `lose` is told to the store by a heartbeat, as
        abandoned (so that its intents pass to the next attempt, P18), and is not heard of again here.
        """
        ...

    def progress(self, partition: int) -> tuple[tuple[str, int, bytes], ...]:
        """Take what bodies have reported since the last call: (job, fence, data), the latest of each."""
        ...

    async def relay(self) -> bool:
        """Deliver effects that wait in outboxes to their partitions. Returns whether any were delivered."""
        ...

    def enrolled(self, instance: Instance) -> None:
        """Hear under which instance this process now speaks (a new one after its lease was lost).

        Scopes and locks that the program opened under the one before are lost with it.
        """
        ...


class Servant(Protocol):
    """The program inside a child process of `executor="process"`; made by the function that `Host.servant` names."""

    async def open(self) -> None:
        """Get ready: import the program, open its store and resources. What it raises ends the child."""
        ...

    async def serve(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """Run one attempt and encode its end. Never raises what the body raised; the child serves one at a time.

        `report`: sends what the body says of itself to the parent; from any thread, it never waits.
        """
        ...

    async def close(self) -> None:
        """The parent has no more work, or is gone."""
        ...
