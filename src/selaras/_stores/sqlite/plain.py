"""The short way for plain jobs: those that stand in no line, write nothing, and for whom nobody waits.

Nothing but their own row changes when they are enqueued, claimed or succeed, so a batch of them is a statement
repeated, with no row read into memory. Each statement says itself which rows it may touch; whatever it does not
touch goes the long way, through `Jobs`.
"""



from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from selaras._contracts.limits import EPOCH_SHIFT
from selaras._core.jobs.job import Admission, Claim, NewJob, Settled, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._stores.sqlite import rows
from selaras._stores.sqlite.connection import Connection
from selaras._stores.sqlite.jobs import Jobs
from selaras._stores.sqlite.log import Log
from selaras._stores.sqlite.schema import IS_CLAIMABLE, IS_RUNNING, STATES

CLAIMABLE: Final = f"""
    SELECT number, id, task, plain, priority, place, expires_us, payload, meta, queue, attempt, lost, created_us, strayed_us
    FROM jobs WHERE {IS_CLAIMABLE} AND queue = ? AND lane = ? ORDER BY priority DESC, place LIMIT ?
"""
NEXT_LANE: Final = f"SELECT lane FROM jobs WHERE {IS_CLAIMABLE} AND queue = ? AND lane > ? ORDER BY lane LIMIT 1"
CLAIM: Final = (
    f"UPDATE jobs SET state = {STATES[JobState.RUNNING]}, attempt = attempt + 1, fence = ?, instance = ?, turn = ?,"
    " started_us = ?, progress = NULL, lane = '' WHERE number = ?"
)
LAY_ASIDE: Final = (
    "UPDATE jobs SET lane = task, strayed_us = iif(strayed_us > 0, strayed_us, ready_us) WHERE number = ?"
)
SUCCEED: Final = (
    f"UPDATE jobs SET state = {STATES[JobState.SUCCEEDED]}, result = ?, error = ?, reason = ?, instance = '', ended_us = ?,"
    " keep_until_us = ? + result_ttl_us WHERE number = ? AND id = ? AND fence = ? AND instance = ?"
    f" AND {IS_RUNNING} AND plain = 1 AND awaited = 0 AND lost = 0"
)
CLAIMED: Final = "SELECT id, task, payload, meta, queue, priority, created_us FROM jobs WHERE number = ?"

_KNOWN_MOST: Final = 100_000

Candidate = Any
"""A row of `CLAIMABLE`."""

Recipe = tuple[int, int, int, int, int]
"""What a plain claim is made of beside its row: number, fence, attempt, lost, strayed_us."""


class PlainJobs:
    """Batches of plain jobs, as the running transaction sees them."""

    def __init__(self, con: Connection, log: Log, jobs: Jobs) -> None:
        self._con = con
        self._log = log
        self._jobs = jobs
        self._known: dict[int, int] = {}  # fence -> number of plain jobs claimed here: a hint, checked by `SUCCEED`

    def admit(self, news: Sequence[NewJob], now: int) -> list[Admission]:
        """Enqueue plain jobs."""
        self._jobs.clear()
        log = self._log
        before = number = log.numbers
        kept: list[tuple[Any, ...]] = []
        admissions: list[Admission] = []
        queues: dict[str, None] = {}
        ready, scheduled = JobState.READY, JobState.SCHEDULED
        is_ready, is_scheduled = STATES[ready], STATES[scheduled]
        for new in news:
            number += 1
            first = number
            due_us = new.due_us or now + new.delay_us
            if due_us <= now:
                number += 1
                state, code, place, ready_us = ready, is_ready, number, now
            else:
                state, code, place, ready_us = scheduled, is_scheduled, 0, 0
            expires_us = now + new.expires_in_us if new.expires_in_us else 0
            queues[new.queue] = None
            kept.append((
                first, new.id, code, new.priority, place, ready_us, now, due_us, expires_us, new.result_ttl_us,
                new.queue, new.task, new.payload, new.meta, rows.more_of(new),
            ))  # fmt: skip
            admissions.append(Admission(new.id, state))
        inserted = self._con.executemany(rows.INSERT_PLAIN, kept).rowcount
        if inserted == len(kept):
            log.numbers = number
            self._jobs.woken.extend(queues)
            return admissions
        # Some ids are known already: all of this batch goes the long way.
        if inserted:
            self._con.execute("DELETE FROM jobs WHERE number > ?", (before,))
        return [self._jobs.admit(new, now) for new in news]

    def lanes(self, queues: Iterable[str], tasks: frozenset[str]) -> list[tuple[str, str]]:
        """Return where jobs may lie that a worker of these queues and tasks may have."""
        paused = self._jobs.paused()
        found: list[tuple[str, str]] = []
        for queue in dict.fromkeys(queues):
            if queue in paused:
                continue
            found.append((queue, ""))
            lane = ""
            while True:
                row = self._con.execute(NEXT_LANE, (queue, lane)).fetchone()
                if row is None:
                    break
                lane = row[0]
                if lane in tasks:
                    found.append((queue, lane))
        return found

    def candidates(self, lanes: Sequence[tuple[str, str]], most: int) -> list[Candidate]:
        """Return the next jobs of these lanes, in the order in which they are claimed."""
        if len(lanes) == 1:
            return self._con.execute(CLAIMABLE, (*lanes[0], most)).fetchall()
        found = [row for lane in lanes for row in self._con.execute(CLAIMABLE, (*lane, most))]
        found.sort(key=lambda row: (-row[4], row[5]))
        return found[:most]

    def lay_aside(self, numbers: list[int]) -> None:
        """No worker here knows their tasks: they wait apart for one that does."""
        self._con.executemany(LAY_ASIDE, [(number,) for number in numbers])

    def fence(self, now: int) -> int:
        """Return the next fence (P15)."""
        log = self._log
        log.counter = max(log.counter + 1, (log.epoch << EPOCH_SHIFT) + now)
        return log.counter

    def take(self, taken: Sequence[tuple[Candidate, int]], instance: str, turn: int, now: int) -> None:
        """Hand out plain jobs, each with the fence it was given."""
        if not taken:
            return
        self._con.executemany(CLAIM, [(fence, instance, turn, now, row[0]) for row, fence in taken])
        if len(self._known) > _KNOWN_MOST:
            self._known.clear()
        self._known.update([(fence, row[0]) for row, fence in taken])

    def settle(self, instance: str, settlements: Sequence[Settlement], now: int) -> list[Settled]:
        """End attempts; runs of plain successes as one batch each."""
        known, succeed = self._known, JobEvent.SUCCEED
        settled: list[Settled] = []
        run: list[Settlement] = []
        numbers: list[int] = []
        for one in settlements:
            number = known.pop(one.fence, None)
            if number is not None and one.event is succeed and not _has_effects(one):
                run.append(one)
                numbers.append(number)
                continue
            if run:
                settled += self._succeed(instance, run, numbers, now)
                run, numbers = [], []
            settled.append(self._jobs.settle(instance, one, now))
        if run:
            settled += self._succeed(instance, run, numbers, now)
        return settled

    def _succeed(self, instance: str, run: list[Settlement], numbers: list[int], now: int) -> list[Settled]:
        self._jobs.clear()
        execute = self._con.execute
        execute("SAVEPOINT plain")
        touched = self._con.executemany(
            SUCCEED,
            [
                (one.result, one.error, one.reason, now, now, number, one.job, one.fence, instance)
                for one, number in zip(run, numbers, strict=True)
            ],
        ).rowcount
        if touched == len(run):
            execute("RELEASE plain")
            state = JobState.SUCCEEDED
            return [Settled(one.job, one.fence, state) for one in run]
        # One is no longer ours, or no longer plain: all of this batch goes the long way.
        execute("ROLLBACK TO plain")
        execute("RELEASE plain")
        return [self._jobs.settle(instance, one, now) for one in run]


def claim_of(row: Candidate, fence: int, position: int) -> Claim:
    """Make the claim of a plain job."""
    _, job, task, _, priority, _, _, payload, meta, queue, attempt, lost, created_us, strayed_us = row
    return Claim(
        job, fence, attempt + 1, task, payload, meta, queue, priority, lost, created_us, position, strayed_us=strayed_us
    )


def recipe_of(row: Candidate, fence: int) -> Recipe:
    """Return what `claim_again` needs beside the row."""
    return row[0], fence, row[10] + 1, row[11], row[13]


def claim_again(con: Connection, recipe: Recipe, position: int) -> Claim | None:
    """Make a plain claim once more, for a turn whose reply was lost; None: the job is no longer kept."""
    number, fence, attempt, lost, strayed_us = recipe
    row = con.execute(CLAIMED, (number,)).fetchone()
    if row is None:
        return None
    job, task, payload, meta, queue, priority, created_us = row
    return Claim(
        job, fence, attempt, task, payload, meta, queue, priority, lost, created_us, position, strayed_us=strayed_us
    )


def _has_effects(one: Settlement) -> bool:
    return bool(
        one.puts
        or one.keys
        or one.tags
        or one.families
        or one.versions
        or one.closes
        or one.children
        or one.planted
    )
