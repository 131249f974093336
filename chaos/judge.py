"""Holds a history against the promises of docs/guarantees.md.

Of each version of a row it works out from when on it *binds*: no read that has to be fresh as of a later instant may
return an older one. A job's commit binds at once, under its intent, which its claim has planted and which passes on with
the job (G2). Where an intent may have been lost with its store's memory, and in a `writing()` scope, whose end its caller
must see first, it binds when it was surely voided: when the next writer of the row began, when an end was answered, when
`invalidate` returned. So whatever is unsure is decided for the accused.

Beside G1-G8 there are three more: *chain* (a job enqueued by another sees what that one wrote, by the program's own
count), *lines* (jobs of a line run one at a time) and *uncommitted* (what was never committed is read by nobody).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from msgspec import Struct

from chaos.history import (
    NEVER,
    Claimed,
    Commit,
    Enqueued,
    Fault,
    History,
    Left,
    Ran,
    Read,
    Settled,
    Told,
    Voided,
    Wrote,
)

DEFAULT_FRESH_S: Final = 1.0

"""How old an answer outside of jobs may be by default."""

FORKED_NS: Final = 1_500_000_000
"""So long a process may stay at a master that was replaced while it lives: it asks all sentinels every second, and waits for them."""

PROMISES: Final = ("G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "chain", "lines", "uncommitted")
_ENDED: Final = ("succeeded", "failed", "cancelled", "expired")

Attempt = tuple[str, int]


class Violation(Struct, frozen=True):
    """A promise that was broken, and how that is known."""

    promise: str
    what: str


class Verdict(Struct, kw_only=True):
    """What came of judging. `stale`: reads that returned less than they had to, whatever the promise."""

    reads: int = 0
    tiers: dict[str, int] = {}
    attempts: int = 0
    accepted: int = 0
    settled: int = 0
    lost: int = 0
    twice: int = 0
    refused: int = 0
    stale: int = 0
    violations: list[Violation] = []


class _Binding:
    """One row's versions, by the instant from which each binds."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._at: list[int] = []
        self._least: list[int] = []
        for at, version in sorted(pairs):
            self._at.append(at)
            self._least.append(max(version, self._least[-1] if self._least else 0))

    def least(self, instant: int) -> int:
        found = bisect_right(self._at, instant)
        return self._least[found - 1] if found else 0


class Judge:
    """One history's."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.verdict = Verdict()
        self._claims: dict[Attempt, Claimed] = {}
        self._fences: defaultdict[str, list[Claimed]] = defaultdict(list)
        self._settles: defaultdict[Attempt, list[tuple[str, Settled]]] = defaultdict(list)
        self._ran: dict[Attempt, tuple[str, Ran]] = {}
        self._left: dict[Attempt, Left] = {}
        self._wrote: dict[tuple[str, int], int] = {}
        self._scopes: set[tuple[str, int]] = set()
        self._writers: defaultdict[str, list[Claimed]] = defaultdict(list)
        self._commits: defaultdict[str, dict[int, Commit]] = defaultdict(dict)
        self._of_job: defaultdict[str, list[Commit]] = defaultdict(list)
        self._losses = [fault for fault in history.faults if fault.loses or fault.moves]
        self._index()
        self._bound: dict[str, dict[int, int]] = {key: self._bind(key) for key in self._commits}
        self._binding = {key: _Binding((at, v) for v, at in bound.items()) for key, bound in self._bound.items()}

    def judge(self) -> Verdict:
        """Judge all of it."""
        self._ends()
        self._attempts()
        self._lines()
        for process, notes in self._history.notes.items():
            self._reads(process, [note for note in notes if isinstance(note, Read | Told | Voided)])
        return self.verdict

    def _breaks(self, promise: str, what: str) -> None:
        self.verdict.violations.append(Violation(promise, what))

    # -- what is where

    def _index(self) -> None:
        for commit in self._history.commits:
            self._commits[commit.key][commit.version] = commit
            self._of_job[commit.job].append(commit)
        for process, notes in self._history.notes.items():
            for note in notes:
                match note:
                    case Claimed():
                        self._claims[note.job, note.fence] = note
                        self._fences[note.job].append(note)
                        for key in note.writes:
                            self._writers[key].append(note)
                    case Settled():
                        self._settles[note.job, note.fence].append((process, note))
                    case Ran():
                        self._ran[note.job, note.fence] = process, note
                    case Left():
                        self._left[note.job, note.fence] = note
                    case Wrote():
                        place = note.key, note.version
                        self._wrote[place] = min(note.at, self._wrote.get(place, NEVER))
                        if note.scope:
                            self._scopes.add(place)
                    case _:
                        pass

    def _lost_within(self, began: int, ended: int) -> bool:
        return any(loss.began <= ended and loss.ended >= began for loss in self._losses)

    # -- from when on a version binds

    def _bind(self, key: str) -> dict[int, int]:
        voids = sorted(self._voids(key))
        bound = {}
        for version, commit in self._commits[key].items():
            ended = self._ended(commit)
            at = ended if self._is_covered(commit, ended) else NEVER
            bound[version] = min([at, *(told for known, told in voids if known >= ended)])
        return bound

    def _ended(self, commit: Commit) -> int:
        """When its transaction had returned: as its writer noted, else when that had died."""
        if (noted := self._wrote.get((commit.key, commit.version))) is not None:
            return noted
        process, _ = self._ran.get((commit.job, commit.fence), ("", None))
        return self._history.died.get(process, NEVER)

    def _is_covered(self, commit: Commit, ended: int) -> bool:
        claim = self._claims.get((commit.job, commit.fence))
        if claim is None or commit.key not in claim.writes or (commit.key, commit.version) in self._scopes:
            return False
        superseded = any(each.fence > claim.fence and each.sent <= ended for each in self._fences[commit.job])
        return not superseded and not self._lost_within(claim.sent, ended)

    def _voids(self, key: str) -> Iterable[tuple[int, int]]:
        """Yield (a, b): what had been committed by a binds from b on."""
        for claim in self._writers[key]:
            attempt = claim.job, claim.fence
            if attempt in self._ran:
                yield claim.sent, self._ran[attempt][1].at
            for _, settled in self._settles.get(attempt, ()):
                yield settled.sent, settled.got
        for notes in self._history.notes.values():
            for note in notes:
                if isinstance(note, Voided) and note.key == key:
                    yield note.called, note.at

    # -- reads

    def _reads(self, process: str, notes: list[Read | Told | Voided]) -> None:
        answered: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # by key: (when, what at least), growing
        told: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for note in sorted(notes, key=lambda each: each.at):
            match note:
                case Told():
                    for commit in self._of_job[note.job]:
                        if self._ended(commit) <= note.at:
                            _grow(told[commit.key], note.at, commit.version)
                case Voided():
                    known = [v for v, commit in self._commits[note.key].items() if self._ended(commit) <= note.called]
                    _grow(told[note.key], note.at, max(known, default=0))
                case Read():
                    self._read(
                        process, note, _until(answered[note.key], note.called), _until(told[note.key], note.called)
                    )
                    if self._bound.get(note.key, {}).get(note.version, NEVER) <= note.at:
                        _grow(answered[note.key], note.at, note.version)

    def _read(self, process: str, read: Read, answered: int, told: int) -> None:
        self.verdict.reads += 1
        tiers = self.verdict.tiers
        tiers[read.tier or "declared"] = tiers.get(read.tier or "declared", 0) + 1
        commit = self._commits[read.key].get(read.version)
        if read.version != 0 and (commit is None or commit.at > read.at):
            self._breaks("uncommitted", f"{self._say(process, read)}, which was not committed by then")
            return
        needed = self._needed(read)
        least = self._binding[read.key].least(needed) if read.key in self._binding else 0
        for promise, must, why in (
            ("chain", read.expects, "by what the job before it wrote"),
            ("G2", read.own, "which it had committed itself"),
            ("G8", told, "of which this process had been told"),
            (self._promise(process, read, least), least, f"as of {needed}"),
            ("G5", 0 if read.level == "declared" else answered, "which this process had read before"),
        ):
            if read.version < must:
                self.verdict.stale += 1
                self._breaks(promise, f"{self._say(process, read)}, not {must}, {why}")
                return

    def _needed(self, read: Read) -> int:
        """The instant as of which a read had to be fresh."""
        return self._asked_for(read) - FORKED_NS * self._forked_within(read.called, read.at)

    def _forked_within(self, began: int, ended: int) -> bool:
        return any(fault.forks and fault.began <= ended and fault.ended >= began for fault in self._history.faults)

    def _asked_for(self, read: Read) -> int:
        claim = self._claims.get((read.job, read.fence))
        if read.job and claim is None:
            return 0
        match read.level:
            case "strict":
                return read.called
            case "causal" | "declared":
                return claim.sent if claim else 0
            case _:
                age = round(float(read.level) * 1e9)
                return max(read.called - age, claim.sent if claim else 0)

    def _promise(self, process: str, read: Read, least: int) -> str:
        """Which promise it is that a stale read breaks."""
        commit = self._commits[read.key].get(least)
        cut = ("cut", "swallow", "refuse", "pause", "stop")
        if (
            any(
                fault.kind in cut
                and fault.of in ("", process)
                and fault.began <= read.at
                and fault.ended >= read.called
                for fault in self._history.faults
            )
            and read.tier == "local"
        ):
            return "G7"
        if commit is None or (commit.job, commit.fence) not in self._claims:
            return "G3"
        before = self._needed(read)
        settled = [note for _, note in self._settles.get((commit.job, commit.fence), ()) if not note.refused]
        if any(note.got <= before for note in settled):
            return "G1" if read.job else "G3"
        return "G2"

    @staticmethod
    def _say(process: str, read: Read) -> str:
        who = f"job {read.job} in {process}" if read.job else process
        return f"{who} read {read.version} of {read.key} ({read.level}, {read.tier or 'a tier not told'}, at {read.called})"

    # -- jobs

    def _ends(self) -> None:
        """G6: what was accepted has ended."""
        accepted: dict[str, int] = {}
        for notes in self._history.notes.values():
            for note in notes:
                if isinstance(note, Enqueued) and note.sure:
                    accepted.update((job, min(note.called, accepted.get(job, NEVER))) for job in note.jobs)
        self.verdict.accepted = len(accepted)
        done = {
            job
            for (job, _), answers in self._settles.items()
            if any(note.event == "succeed" and not note.refused for _, note in answers)
        }
        for job, called in accepted.items():
            state = self._history.ends.get(job, "")
            if state in _ENDED:
                self.verdict.settled += 1
            elif not self._history.lossless and any(loss.loses and loss.ended >= called for loss in self._losses):
                self.verdict.settled += job in done
                self.verdict.lost += job not in done
            else:
                self.verdict.lost += 1
                self._breaks("G6", f"job {job} was accepted, and is {state or 'nowhere'} when all is over")
            if state == "succeeded" and job.startswith(("write", "hop")) and not self._of_job[job]:
                self._breaks("G6", f"job {job} succeeded, and its row was never written")

    def _attempts(self) -> None:
        """G4 and G6: each attempt is settled once at most, and by nobody whose place was taken."""
        self.verdict.attempts = len(self._claims)
        self.verdict.twice = sum(1 for claims in self._fences.values() if len(claims) > 1)
        by_job: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for (job, fence), answers in self._settles.items():
            good = [(process, note) for process, note in answers if not note.refused]
            self.verdict.refused += len(answers) - len(good)
            if len({process for process, _ in good}) > 1:
                self._breaks("G6", f"attempt {fence} of {job} was settled by {sorted({p for p, _ in good})}")
            by_job[job] += [(fence, process) for process, note in good if note.event == "succeed"]
            for process, note in good:
                for claim in self._fences[job]:
                    if claim.fence > fence and claim.got < note.sent and not self._lost_within(claim.sent, note.got):
                        self._breaks(
                            "G4",
                            f"attempt {fence} of {job} was settled by {process} at {note.sent}, after attempt "
                            f"{claim.fence} had been handed out at {claim.got}",
                        )
        for job, ends in by_job.items():
            fences = {fence for fence, _ in ends}
            if len(fences) > 1 and not self._losses:
                self._breaks("G6", f"job {job} succeeded {len(fences)} times, under fences {sorted(fences)}")
        for job, claims in self._fences.items():
            if len({claim.fence for claim in claims}) < len(claims):
                self._breaks("G4", f"two attempts of {job} were handed out under one fence")

    def _lines(self) -> None:
        """Of the writers of a row one runs at a time: the next is handed out when the one before has been settled."""
        for key, claims in self._writers.items():
            held: list[tuple[Claimed, Settled]] = []
            for claim in claims:
                answers = self._settles.get((claim.job, claim.fence), ())
                good = [note for _, note in answers if not note.refused]
                if good:
                    held.append((claim, min(good, key=lambda note: note.sent)))
            held.sort(key=lambda pair: pair[0].got)
            for (first, end), (then, _) in pairwise(held):
                if then.got < end.sent and first.got < then.sent and not self._lost_within(first.sent, end.got):
                    self._breaks(
                        "lines",
                        f"{then.job} was handed out at {then.got} in the line of {key}, which {first.job} held until "
                        f"{end.sent}",
                    )


def _grow(steps: list[tuple[int, int]], at: int, version: int) -> None:
    last = steps[-1][1] if steps else 0
    if version > last:
        steps.append((at, version))


def _until(steps: list[tuple[int, int]], called: int) -> int:
    """What was known by then; the call itself is later."""
    return next((version for at, version in reversed(steps) if at <= called), 0)


def judge(history: History) -> Verdict:
    """Judge a history."""
    return Judge(history).judge()


def losses(faults: Iterable[Fault]) -> bool:
    """Say whether something was done that may lose what was answered."""
    return any(fault.loses for fault in faults)
