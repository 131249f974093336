"""Holds what happens against the promises, as it happens; a broken one ends the world.

Words as in docs/guarantees.md. Beside G1-G8: *lines* (jobs of a line run one at a time), *ends* (what was accepted is
settled in bounded time once faults stop), *nothing left* (no intent, token or owner stays behind).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from selaras._app.values.warming import Warmed
from selaras._cache.auditing import WORD_S
from selaras._contracts.partition import HeartbeatRequest, Invalidation, TurnReply, TurnRequest
from selaras._core.cache.consistency import Found
from selaras._core.jobs.job import JobRecord, Settled, Settlement
from selaras._core.jobs.states import JobEvent, JobState
from selaras._core.routing import partition_of
from simulation.loop import Lane, Loop
from simulation.trace import Trace
from simulation.truth import GHOST, Datastore

MAX_LAG_NS: Final = 1_000_000_000
WORD_NS: Final = round(WORD_S * 1e9)
FAMILIES: Final = ("item", "served", "late")

SAID: Final = {
    "G1": "If attempt A settled before job B was claimed, no read made by B returns a value older than A's effects.",
    "G2": "What a job commits is not hidden by a cache, even while the job still runs.",
    "G3": "A value loaded before an invalidation is never stored after it.",
    "G4": "An attempt whose lease was lost can store nothing any more: its settle is refused.",
    "G5": "One process never sees the versions of a key go backwards.",
    "G6": "An accepted job is settled at least once; each attempt at most once; nothing is ever in no state.",
    "G7": "A process cut off from the log stops serving its own memory after max_lag.",
    "G8": "Whoever was told of an end reads nothing older than it afterwards, in that process.",
    "uncommitted": "What a failed attempt put is read by nobody.",
    "lines": "Jobs of one line run one at a time.",
    "ends": "Every accepted job is settled in bounded time once faults have stopped.",
    "nothing left": "No intent, token or owner of leases stays behind.",
    "audits": "An audit calls stale only what was: a change of which nobody had said a word for a second.",
    "warm": "Warming accounts for each key it was given, and fails only where a loader does.",
    "no trouble": "No part of the product fails by a mistake of its own.",
}


class Broken(Exception):
    """A promise was broken. `promise`: its name in `SAID`."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.what = what


class Promises:
    """What was promised so far, in one world."""

    def __init__(self, loop: Loop, trace: Trace, partitions: int) -> None:
        self._loop = loop
        self._trace = trace
        self._partitions = partitions
        self.truth: Datastore
        self.broken: Broken | None = None
        self.faults: Counter[str] = Counter()
        self.reads = 0
        self.claims = 0
        self.settles = 0
        self.accepted: set[str] = set()
        self.unsure: set[str] = set()  # whether they were accepted is not known
        self._claimed_ns: dict[tuple[str, int], int] = {}
        self._last_fence: dict[str, int] = {}
        self._ended: set[tuple[str, int]] = set()
        self._turns: set[tuple[int, str, int]] = set()
        self._answered: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by process: G5
        self._told: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by process: G8
        self._inside: defaultdict[str, dict[tuple[str, int], str]] = defaultdict(dict)

    def breaks(self, promise: str, what: str) -> None:
        """A promise is broken; the first one counts."""
        if self.broken is None:
            self.broken = Broken(promise, what)
            self._loop.halted = True
            self._trace.add("BROKEN", "", f"{promise}: {what}")

    # -- what the store does

    def happened(self, fault: str, lane: Lane | None) -> None:
        """See `Witness`."""
        self.faults[fault] += 1
        self._trace.add("fault", lane.name if lane else "", fault)

    def executed(
        self, partition: int, verb: str, arguments: tuple[Any, ...], reply: Any, begun_ns: int, ended_ns: int
    ) -> None:
        """See `Witness`."""
        match verb:
            case "turn":
                self._turned(partition, arguments[0], reply, begun_ns, ended_ns)
            case "beat":
                request: HeartbeatRequest = arguments[0]
                self._settled(request.settlements, reply.settled, ended_ns)
            case "settle":
                self._settled(arguments[1], reply.settled, ended_ns)
            case "enqueue":
                for job in arguments[0]:
                    self._trace.call(job.id)
            case "open_scope" | "acquire":
                self._trace.call(arguments[1].id, arguments[1].task)
            case "invalidate":
                self._voided(partition, arguments[0], ended_ns)
            case _:
                pass

    def _turned(self, partition: int, request: TurnRequest, reply: TurnReply, begun_ns: int, ended_ns: int) -> None:
        turn = partition, request.instance, request.number
        if turn in self._turns:
            return  # a repeat is answered from memory
        if reply.enrolled:
            self._turns.add(turn)
        self._settled(request.settlements, reply.settled, ended_ns)
        for claim in reply.claims:
            self.claims += 1
            attempt = claim.job, claim.fence
            self._trace.add("claim", "", claim.job, claim.fence, claim.task, *claim.writes)
            if attempt in self._claimed_ns:
                self.breaks("G6", f"attempt {claim.fence} of {self._trace.name(claim.job)} was given out twice")
            last = self._last_fence.get(claim.job, 0)
            if claim.fence <= last:
                self.breaks("G4", f"{self._trace.name(claim.job)} was claimed under fence {claim.fence}, after {last}")
            self._last_fence[claim.job] = claim.fence
            self._claimed_ns[attempt] = begun_ns

    def _settled(self, settlements: tuple[Settlement, ...], answers: tuple[Settled, ...], at_ns: int) -> None:
        for settlement, settled in zip(settlements, answers, strict=False):
            attempt = settlement.job, settlement.fence
            refused = settled.refusal is not None
            self._trace.add("refuse" if refused else "settle", "", *attempt, settlement.event.value)
            if not refused:
                self.settles += 1
                if attempt in self._ended:
                    self.breaks("G6", f"attempt {settlement.fence} of {self._trace.name(settlement.job)} ended twice")
                if settlement.fence < self._last_fence.get(settlement.job, 0):
                    self.breaks(
                        "G4", f"{self._trace.name(settlement.job)} was settled by attempt {settlement.fence}, whose "
                        f"place attempt {self._last_fence[settlement.job]} has taken"
                    )  # fmt: skip
                self._ended.add(attempt)
            self._binds(settlement, at_ns, refused=refused)

    def _binds(self, settlement: Settlement, at_ns: int, *, refused: bool) -> None:
        named = {key for key, _ in settlement.versions}
        for commit_key, commit in self.truth.of_attempt(settlement.job, settlement.fence):
            # P13: where the datastore answers late only a version that was told is a floor.
            if (commit_key in named and not refused) if commit_key.startswith("late:") else True:
                commit.binding_ns = min(commit.binding_ns, at_ns)

    def _voided(self, partition: int, names: Invalidation, at_ns: int) -> None:
        keys = [key for key in names.keys if not key.startswith("late:")]
        for key in self.truth.rows:
            if key.startswith("late:") or partition_of(key, self._partitions) != partition:
                continue
            family, _, number = key.partition(":")
            tagged = family == "item" and f"shelf:{number}" in names.tags
            if family in names.families or tagged:
                keys.append(key)
        self._trace.add("void", "", *names.keys, *names.tags, *names.families)
        self.truth.voided(keys, at_ns)

    # -- what readers see

    def claimed_ns(self, job: str, fence: int) -> int:
        """Return the instant at or before which an attempt was claimed."""
        return self._claimed_ns.get((job, fence), 0)

    def before(self, process: str, key: str) -> tuple[int, int]:
        """Return what a read of this process that begins now must at least see: by G5, and by G8."""
        return self._answered[process].get(key, 0), self._told[process].get(key, 0)

    def read(
        self,
        process: str,
        key: str,
        version: int,
        *,
        how: str,
        called_ns: int,
        needed_ns: int,
        before: tuple[int, int],
        local: bool = False,
        own: int = 0,
        put: int = 0,
    ) -> None:
        """Judge an answer. `local`: it came from the process's own memory. `own`: what the reader itself committed.

        `put`: what it put. That answers it whatever other jobs of its process have told since: their order with its own
        write is not known before both have ended.
        """
        self.reads += 1
        truth, now = self.truth, self._loop.now_ns
        self._trace.add("read", process, key, version, how)
        if not truth.knows(key, version):
            what = "was never committed" if version != GHOST else "was put by an attempt that failed"
            self.breaks("uncommitted", f"{process} read {version} of {key} {how}, which {what}")
            return
        since = f"called at {self._trace.at(called_ns)}, fresh as of {self._trace.at(needed_ns)}"
        least = truth.binding(key, needed_ns)
        if version < least:
            self.breaks(self._promise_of(key, least), f"{process} read {version} of {key} {how}, not {least}; {since}")
        elif version < own:
            self.breaks("G2", f"{process} read {version} of {key} {how}, though it had committed {own} itself")
        elif put and version == put:
            pass
        elif version < before[1]:
            self.breaks("G8", f"{process} read {version} of {key} {how}, though it was told of {before[1]}; {since}")
        elif version < before[0]:
            self.breaks("G5", f"{process} read {version} of {key} {how}, after it had read {before[0]}; {since}")
        elif local and version < (least := truth.binding(key, called_ns - MAX_LAG_NS)):
            self.breaks("G7", f"{process} read {version} of {key} {how} from its own memory, not {least}; {since}")
        if version > self._answered[process].get(key, 0) and truth.binds(key, version, now):
            self._answered[process][key] = version

    def _promise_of(self, key: str, least: int) -> str:
        commit = next(one for one in self.truth.rows[key] if one.version == least)
        if not commit.fence:
            return "G3"
        return "G1" if (commit.job, commit.fence) in self._ended else "G2"

    def found_stale(self, process: str, found: Found) -> None:
        """An audit found a value that was served stale: there must be a commit that nobody had told of for so long."""
        now, key = self._loop.now_ns, found.key
        self._trace.add("stale", process, key, found.tier)
        if found.voided_at:
            self.breaks("G1", f"an audit of {process} found {key} served from the {found.tier} tier as of {found.position}, "
                        f"though the event at {found.voided_at} had voided it")  # fmt: skip
        untold = [one for one in self.truth.rows[key] if min(one.binding_ns, now) - one.at_ns >= WORD_NS]
        if not untold:
            self.breaks("audits", f"{process} calls {key} from the {found.tier} tier stale, as of position {found.position}; "
                        "and whatever was committed there had been told")  # fmt: skip

    def warmed(self, process: str, keys: Sequence[str], warmed: Warmed) -> None:
        """Values were brought into the tiers."""
        if warmed.asked != len(set(keys)):
            self.breaks("warm", f"{process} was to warm {', '.join(keys)}, and accounts for {warmed.asked}: {warmed}")
        elif warmed.failed > sum(1 for key in set(keys) if key.startswith("late:")):
            self.breaks("warm", f"{process} could not warm {', '.join(keys)}: {warmed.error!r}")

    def told(self, process: str, key: str, version: int) -> None:
        """This process was told of an end that had this effect (G8)."""
        self._told[process][key] = max(version, self._told[process].get(key, 0))

    def told_of_job(self, process: str, job: str) -> None:
        """This process was told that a job has ended."""
        for key, commit in self.truth.of(job):
            if not key.startswith("late:") and commit.binding_ns <= self._loop.now_ns:
                self.told(process, key, commit.version)

    # -- lines

    def entered(self, line: str, job: str, fence: int, process: str, others_hold: Any) -> None:
        """A body that holds a line begins. `others_hold`: says of an attempt whether it still holds its line."""
        inside = self._inside[line]
        for attempt, other in list(inside.items()):
            if others_hold(*attempt) and others_hold(job, fence):
                self.breaks(
                    "lines",
                    f"{self._trace.name(attempt[0])} on {other} and {self._trace.name(job)} on {process} are both in {line}",
                )
        inside[job, fence] = process

    def left(self, line: str, job: str, fence: int) -> None:
        """It has ended."""
        self._inside[line].pop((job, fence), None)

    # -- looks at everything

    def look(self, records: dict[str, JobRecord]) -> None:
        """Look at all jobs there are: none is missing, and of a line one runs."""
        for job in self.accepted:
            if job not in records:
                self.breaks("G6", f"{self._trace.name(job)} was accepted, and is nowhere")
        running: dict[str, str] = {}
        for record in records.values():
            if record.state is JobState.RUNNING and record.line:
                if record.line in running:
                    self.breaks("lines", f"{self._trace.name(record.id)} and {self._trace.name(running[record.line])} "
                                f"run in {record.line}")  # fmt: skip
                running[record.line] = record.id
            fences = [attempt.fence for attempt in record.history]
            if len(fences) != len(set(fences)):
                self.breaks("G6", f"{self._trace.name(record.id)} tells of one attempt twice: {fences}")
            if record.state is JobState.SUCCEEDED:
                ends = [one for one in record.history if one.event is JobEvent.SUCCEED]
                if len(ends) > 1:
                    self.breaks("G6", f"{self._trace.name(record.id)} succeeded {len(ends)} times")
