"""What a worker does, told in its log: one line for each notable event, none for what goes well by the thousand."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from typing import Final, assert_never

from selaras._contracts.host import Stop
from selaras._core.durations import format_us
from selaras._core.events import (
    AttemptAbandoned,
    AttemptEnded,
    AttemptStopped,
    BodyDied,
    ChildDied,
    ChildStarted,
    Housekept,
    LeaseLapsed,
    LoopLagged,
    Recycling,
    Reenrolled,
    Restarting,
    SettleRefused,
    StoreBack,
    StoreLost,
    Trouble,
    Turned,
    WorkerEvent,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from selaras._core.jobs.failure import Failure
from selaras._core.jobs.states import JobEvent
from selaras.cli.output import counted, rough_text, short

_log: Final = logging.getLogger("selaras.worker")
_REASON_MOST: Final = 300
_LINES_A_SECOND: Final = 10
_LOST: Final = Stop.LOST.value
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

# How loudly an attempt's end is told. What is not here goes by the thousand, or is told by another event.
_ENDS: Final = {
    JobEvent.FAIL: (logging.ERROR, "failed for good"),
    JobEvent.EXHAUST: (logging.ERROR, "failed for good, its workers were lost"),
    JobEvent.RETRY: (logging.WARNING, "failed, will be retried"),
    JobEvent.GIVE_BACK: (logging.WARNING, "given back, this worker cannot run it"),
    JobEvent.CANCEL: (logging.INFO, "cancelled"),
    JobEvent.LOSE: (logging.WARNING, "its process died"),
    JobEvent.SNOOZE: (logging.DEBUG, "snoozed"),
    JobEvent.RELEASE: (logging.INFO, "given back"),
    JobEvent.SUCCEED: (logging.DEBUG, "succeeded"),
}


class Reporter:
    """Tells a worker's events in its log.

    Args:
        every_job: also those that go well.
    """

    def __init__(self, *, every_job: bool) -> None:
        self.wants_attempts = every_job
        self._meter = _Meter()

    def heard(self, event: WorkerEvent) -> None:
        """Tell one event."""
        self._meter.goes_on(event)
        match event:
            case AttemptEnded():
                # Of one whose lease was lost the refusal of its end is told.
                ends = f"ended with {event.event.value}"
                if self.wants_attempts or (event.stop != _LOST and self._meter.lets_through(event.task, ends)):
                    _tell_end(event)
            case SettleRefused():
                if self.wants_attempts or self._meter.lets_through(
                    event.task, "were refused their ends, their leases had been lost,"
                ):
                    _tell_trouble(event)
            case Turned() | Housekept():
                _tell_round(event)
            case WorkerStarted() | WorkerStopping() | WorkerStopped() | Recycling():
                _tell_life(event)
            case ChildStarted() | ChildDied() | Restarting():
                _tell_fleet(event)
            case Reenrolled() | LeaseLapsed() | StoreLost() | StoreBack() | Trouble():
                _tell_trouble(event)
            case AttemptStopped() | AttemptAbandoned() | LoopLagged() | BodyDied():
                _tell_body(event)
            case _:
                assert_never(event)


class _Meter:
    """Lets the first lines of a kind in a second through and counts the rest.

    A task that fails by the thousand, or a worker that lost the lease of hundreds, must not fill a disk, nor keep the
    worker busy with writing lines.
    """

    def __init__(self) -> None:
        self._second = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._said: Counter[tuple[str, str]] = Counter()  # of those left out in this second

    def goes_on(self, event: WorkerEvent) -> None:
        """Say what was left out: of a second that is over, or once a turn is. The rest of a second is said together."""
        second = int(time.monotonic())
        is_over = second != self._second or isinstance(event, WorkerStopped)
        if is_over or isinstance(event, Turned):
            for kind, count in self._counts.items():
                if is_over or not self._said[kind]:
                    self._say(*kind, count - _LINES_A_SECOND - self._said[kind])
        if is_over:
            self._counts.clear()
            self._said.clear()
            self._second = second

    def _say(self, task: str, what: str, left_out: int) -> None:
        if left_out > 0:
            self._said[task, what] += left_out
            _log.warning("%s: %d more %s within a second", task or "jobs", left_out, what)

    def lets_through(self, task: str, what: str) -> bool:
        """Count one. `what`: happened to it, as a sentence about several goes on."""
        self._counts[task, what] += 1
        return self._counts[task, what] <= _LINES_A_SECOND


def _tell_end(event: AttemptEnded) -> None:
    level, said = _ENDS.get(event.event, (logging.DEBUG, event.event.value))
    if not _log.isEnabledFor(level):
        return
    reason = f": {short(event.reason, _REASON_MOST)}" if event.reason else ""
    if event.event is JobEvent.FAIL:
        # The log is where a person hears of it; what they need next is one command away.
        reason += f"{_innermost(Failure.decode(event.error).traceback)}; selaras jobs show {event.job}"
    _log.log(
        level,
        "%s %s %s (attempt %d, %s)%s",
        event.task,
        event.job,
        said,
        event.number,
        _took(event.ran_us),
        reason,
        extra={"task": event.task, "job": event.job, "queue": event.queue, "attempt": event.number},
    )


def _tell_round(event: Turned | Housekept) -> None:
    match event:
        case Turned():
            _log.debug(
                "turn: %d claimed, %d ended, %d events, %s",
                event.claimed,
                sum(count for _, count in event.ended),
                event.events,
                _took(event.took_us),
            )
        case Housekept():
            if event.lost:
                _log.warning("%s of lost workers taken back", counted(event.lost, "attempt"))
            if event.expired:
                _log.info("%s expired: waited too long", counted(event.expired, "job"))
            if event.unroutable:
                _log.error("%s of tasks that no worker has known for long", counted(event.unroutable, "job"))
            _log.debug("housekeeping: %d due, %d deleted", event.promoted, event.purged)
        case _:
            assert_never(event)


def _tell_fleet(event: ChildStarted | ChildDied | Restarting) -> None:
    match event:
        case ChildStarted():
            _log.info("process %d started, pid %d", event.slot, event.pid)
        case ChildDied():
            again = rough_text(event.again_in_us)
            _log.error("process %d (pid %d) died with %d; replaced in %s", event.slot, event.pid, event.code, again)
        case Restarting():
            _log.info("%s: restarting", event.reason)
        case _:
            assert_never(event)


def _tell_life(event: WorkerStarted | WorkerStopping | WorkerStopped | Recycling) -> None:
    match event:
        case WorkerStarted():
            _log.info("worker %s started, pid %d", event.name or event.instance, event.pid)
        case WorkerStopping():
            how = "stopping at once" if event.hard else "stopping: no new jobs"
            _log.info("%s, %d running (%s)", how, event.running, event.reason)
        case WorkerStopped():
            if event.unheard:
                _log.warning("stopped, but the store did not hear of it: what ran goes on elsewhere after the lease")
            else:
                back = f", {counted(event.given_back, 'job')} given back" if event.given_back else ""
                _log.info("stopped%s", back)
        case Recycling():
            _log.error(
                "%s %s blocks the loop past its timeout and grace: this process ends, and its jobs go on elsewhere",
                event.task,
                event.job,
            )
        case _:
            assert_never(event)


def _tell_trouble(event: Reenrolled | LeaseLapsed | SettleRefused | StoreLost | StoreBack | Trouble) -> None:
    match event:
        case Reenrolled():
            _log.warning("the lease was lost: %s told to stop; going on as new", counted(event.running, "running job"))
        case LeaseLapsed():
            _log.warning(
                "the lease could not be renewed in time (partition %d): %s on, none is started",
                event.partition,
                "1 running job goes" if event.running == 1 else f"{event.running:,} running jobs go",
            )
        case SettleRefused():
            _log.warning(
                "%s %s: its end (%s) was refused, its lease had been lost%s",
                event.task,
                event.job,
                event.event.value,
                "; what it wrote is voided" if event.wrote else "",
            )
        case StoreLost():
            if event.partition < 0:
                _log.error("the worker waits for the store: %s; trying again", event.error)
            else:
                _log.error("the worker waits for the store (partition %d): %s", event.partition, event.error)
        case StoreBack():
            if event.partition < 0:
                _log.info("the store answers after %s", rough_text(event.away_us))
            else:
                _log.info("the store answers again after %s (partition %d)", rough_text(event.away_us), event.partition)
        case Trouble():
            _log.error("%s: %s", event.where, event.error)
        case _:
            assert_never(event)


def _tell_body(event: AttemptStopped | AttemptAbandoned | LoopLagged | BodyDied) -> None:
    match event:
        case AttemptStopped():
            level = logging.DEBUG if event.stop == _LOST else logging.INFO
            ran = rough_text(event.ran_us)
            _log.log(level, "%s %s is told to end after %s: %s", event.task, event.job, ran, event.stop)
        case AttemptAbandoned():
            _log.error(
                "%s %s goes on %s past its end (%s): its attempt is given up as lost",
                event.task,
                event.job,
                rough_text(event.over_us),
                event.mode,
            )
        case LoopLagged():
            who = f" by {event.task} {event.job}" if event.job else ""
            _log.warning("the loop is blocked%s for %s%s", who, rough_text(event.lag_us), _innermost(event.stack))
        case BodyDied():
            code = "could not be started" if event.code is None else f"died with {event.code}"
            _log.error("child process %d %s", event.pid, code)
        case _:
            assert_never(event)


def _innermost(stack: str) -> str:
    """Return where a stack's innermost call is: `, at shop.py:12 in reprice`."""
    found = _FRAME.findall(stack)
    return ", at {}:{} in {}".format(*found[-1]) if found else ""


def _took(us: int) -> str:
    """Say a length of time as exactly as it matters."""
    return format_us(us // 10_000 * 10_000) if us >= 1_000_000 else format_us(us // 10 * 10)
