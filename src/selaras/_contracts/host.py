"""What the worker asks of the program it runs: the worker knows leases and turns, the host knows tasks.

One attempt, through both:

    worker: turn ─> Claim ─> host.heard(news) ─> host.prepare(claim) ─> Run
    worker: host.ready_for(runs)             plants elsewhere, warms what the bodies will read (one trip a batch)
    worker: task = run.execute(executors)    ─> Settlement        (the host decides what the body's end means)
    worker: host.before_settle(settlement)   tells other partitions what must be known before (P17)
    worker: turn(settlements=...)            ─> Settled ─> host.settled(run, settlement, settled)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

from selaras._contracts.partition import Instance
from selaras._core.jobs.job import Claim, Settled, Settlement
from selaras._core.positions import News


class Mode(StrEnum):
    """Where a body runs."""

    LOOP = "loop"  # a coroutine, on the worker's loop
    THREAD = "thread"  # a plain function: it cannot be stopped
    PROCESS = "process"  # a child process: it can be killed


class Stop(StrEnum):
    """Why the worker ends a body before its time."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"  # somebody cancelled the job
    LOST = "lost"  # its lease is gone: whatever it settles will be refused, and voids what it wrote
    SHUTDOWN = "shutdown"  # grace is over: it is given back


class Executors(Protocol):
    """Where plain functions run; owned by the worker."""

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread, in a copy of the caller's context. Cancelling the wait does not stop it:
        the thread's slot stays taken until it has really ended."""
        ...

    async def in_process(self, request: bytes) -> bytes:
        """Run one attempt in a child process; cancelling the wait kills the child."""
        ...


class Run(Protocol):
    """One attempt, prepared: decoded, bound, with the task's policy.

    Attributes:
        claim, partition: what it runs, and the partition that is its home.
        mode: where the body runs.
        timeout_us: how long the body may take; 0: for ever.
        stopping: set by the worker before it cancels the task of `execute`, so that a CancelledError that comes
            from the body itself is never taken for the worker's.
    """

    claim: Claim
    partition: int
    mode: Mode
    timeout_us: int
    stopping: Stop | None

    def execute(self, executors: Executors) -> Awaitable[Settlement]:
        """Run the body to its end and say what that end means. Never raises an Exception of the body's.

        When cancelled with `stopping` set it lets the body clean up, then returns the settlement of that stop
        (TIMEOUT: retry or fail; CANCEL: cancel; SHUTDOWN: release, uncounted; LOST: any, it will be refused).
        """
        ...

    def unstarted(self) -> Settlement:
        """Return the release of an attempt whose body never began (its pre-image may return)."""
        ...


class Host(Protocol):
    """The program, as the worker sees it."""

    tasks: frozenset[str]
    queues: tuple[str, ...]

    def heard(self, partition: int, news: News, sent_ns: int) -> None:
        """Apply a reply's news to the local tier: before any of the reply's claims is started (G1)."""
        ...

    def prepare(self, claim: Claim, partition: int, received_ns: int) -> Run | Settlement:
        """Bind a claim to its task; or say how it ends at once (undecodable: dead letter; unbindable: give back)."""
        ...

    def must_wait(self, runs: Sequence[Run]) -> bool:
        """Say whether `ready_for` has anything to do for these (a batch of plain jobs has nothing)."""
        ...

    async def ready_for(self, runs: Sequence[Run]) -> None:
        """Plant intents elsewhere (P17) and warm the declared reads of a whole batch, in one trip a partition."""
        ...

    def has_effects_elsewhere(self, settlement: Settlement, partition: int) -> bool:
        """Say whether `before_settle` must be awaited (never, with one partition)."""
        ...

    async def before_settle(self, settlement: Settlement, partition: int) -> None:
        """Invalidate elsewhere what must be known before the settle (P12, P17); reserve names of children (P22)."""
        ...

    def settled(self, run: Run, settlement: Settlement, settled: Settled, partition: int) -> None:
        """Hear what became of a settlement: stored values enter the local tier with their own positions (P3)."""
        ...

    async def relay(self) -> bool:
        """Deliver effects that wait in outboxes to their partitions. Returns whether any were delivered."""
        ...

    def enrolled(self, instance: Instance) -> None:
        """Hear under which instance this process now speaks (a new one after its lease was lost)."""
        ...
