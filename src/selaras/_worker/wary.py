"""The host as the worker calls it: whatever raises there is reported, and answered so that the attempt goes on to an end.

The host promises not to raise, but it runs the program's own code: keys, codecs, middleware. A mistake there must cost
no more than the attempt it belongs to. What each call comes to when it raises:

    prepare               the attempt is lost: counted, so that a job that can never be prepared ends
    heard                 nothing of that reply is started (G1)
    must_wait             yes: `ready_for` then says what is wrong, and the batch is given back
    has_effects_elsewhere yes: `before_settle` is asked, again and again, and then the attempt is lost
    unstarted, cut_off    a plain release; lost
    since, progress       the log's start; nothing
    settled               nothing: the store has decided already
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from selaras._contracts.host import Host, Run
from selaras._contracts.observer import Observer
from selaras._core.events import Trouble
from selaras._core.jobs.job import Claim, Settled, Settlement
from selaras._core.jobs.states import JobEvent
from selaras._core.positions import START, Cursor, News
from selaras._worker.telling import tell

Progress = tuple[tuple[str, int, bytes], ...]
_NONE: Final[Progress] = ()


LAPSED: Final = "its worker had not renewed its lease in time"
"""Why an attempt was given back that somebody else may have by now."""


class Wary:
    """The plain calls of a host, and of its runs; see the head of this module. What may be awaited is called by others."""

    def __init__(self, host: Host, observer: Observer) -> None:
        self._host = host
        self._observer = observer

    def since(self, partition: int) -> Cursor:
        """See `Host`."""
        try:
            return self._host.since(partition)
        except Exception as error:  # noqa: BLE001
            self.report("asking how far the log was applied", error)
            return START

    def heard(self, partition: int, news: News, sent_ns: int) -> bool:
        """See `Host`. Returns whether the news were applied."""
        try:
            self._host.heard(partition, news, sent_ns)
        except Exception as error:  # noqa: BLE001
            self.report("applying news", error)
            return False
        return True

    def prepare(self, claim: Claim, partition: int, received_ns: int) -> Run | Settlement:
        """See `Host`."""
        try:
            return self._host.prepare(claim, partition, received_ns)
        except Exception as error:  # noqa: BLE001
            self.report(f"preparing {claim.task} {claim.job}", error)
            return lost(claim, "it could not be prepared")

    def must_wait(self, runs: Sequence[Run]) -> bool:
        """See `Host`."""
        try:
            return self._host.must_wait(runs)
        except Exception as error:  # noqa: BLE001
            self.report("looking at a batch", error)
            return True

    def has_effects_elsewhere(self, settlement: Settlement, partition: int) -> bool:
        """See `Host`."""
        try:
            return self._host.has_effects_elsewhere(settlement, partition)
        except Exception as error:  # noqa: BLE001
            self.report(f"looking at the effects of {settlement.job}", error)
            return True

    def settled(self, run: Run | None, settlement: Settlement, settled: Settled, partition: int) -> None:
        """See `Host`."""
        try:
            self._host.settled(run, settlement, settled, partition)
        except Exception as error:  # noqa: BLE001
            self.report(f"hearing of the end of {settlement.job}", error)

    def progress(self, partition: int) -> Progress:
        """See `Host`."""
        try:
            return self._host.progress(partition)
        except Exception as error:  # noqa: BLE001
            self.report("taking progress", error)
            return _NONE

    def unstarted(self, run: Run, reason: str = "") -> Settlement:
        """See `Run`. `reason`: why, if not because the worker stops."""
        try:
            settlement = run.unstarted()
            return replace(settlement, reason=reason) if reason else settlement
        except Exception as error:  # noqa: BLE001
            claim = run.claim
            self.report(f"giving back {claim.task} {claim.job}", error)
            return Settlement(
                claim.job, claim.fence, JobEvent.RELEASE, writes=claim.writes, serves=claim.serves, started=False
            )

    def cut_off(self, run: Run) -> Settlement:
        """See `Run`."""
        try:
            return run.cut_off()
        except Exception as error:  # noqa: BLE001
            claim = run.claim
            self.report(f"ending {claim.task} {claim.job}", error)
            return lost(claim, "its end could not be told")

    def report(self, where: str, error: BaseException) -> None:
        """Say what the host did not promise."""
        tell(self._observer, Trouble(where=where, error=f"{type(error).__name__}: {error}"))


def lost(claim: Claim, reason: str) -> Settlement:
    """Return the end of an attempt that nobody can settle: bounded by max_lost, where a release would go round for ever."""
    return Settlement(claim.job, claim.fence, JobEvent.LOSE, reason=reason, writes=claim.writes, serves=claim.serves)
