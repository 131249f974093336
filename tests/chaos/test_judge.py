"""The judge has teeth: histories made up by hand, each with one promise broken, and their twins that keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.history import (
    Claimed,
    Commit,
    Enqueued,
    Fault,
    History,
    Notebook,
    Opened,
    Ran,
    Read,
    Settled,
    Told,
    Voided,
    Wrote,
    read_notes,
)
from chaos.judge import PROMISES, judge

S = 1_000_000_000
K = "item:1"


class Tale:
    """A history in the making: each line an instant in seconds, and what happened then."""

    def __init__(self) -> None:
        self.history = History(notes={})

    def note(self, process: str, *notes: object) -> Tale:
        self.history.notes.setdefault(process, []).extend(notes)  # type: ignore[arg-type]
        return self

    def claim(self, job: str, fence: int, at: float, *, process: str = "w1", writes: tuple[str, ...] = (K,)) -> Tale:
        claimed = Claimed(job=job, fence=fence, writes=writes, sent=_ns(at), got=_ns(at + 0.01))
        return self.note(process, claimed, Ran(job=job, fence=fence, at=_ns(at + 0.02)))

    def settle(
        self, job: str, fence: int, at: float, *, process: str = "w1", refused: bool = False, event: str = "succeed"
    ) -> Tale:
        sent, got = _ns(at), _ns(at + 0.01)
        return self.note(process, Settled(job=job, fence=fence, event=event, refused=refused, sent=sent, got=got))

    def commit(
        self, version: int, job: str, fence: int, at: float, *, process: str = "w1", scope: bool = False
    ) -> Tale:
        self.history.commits.append(Commit(key=K, version=version, job=job, fence=fence, at=_ns(at)))
        return self.note(process, Wrote(key=K, version=version, job=job, fence=fence, at=_ns(at + 0.01), scope=scope))

    def read(
        self,
        version: int,
        at: float,
        *,
        process: str = "r1",
        level: str | float = "strict",
        took: float = 0.01,
        **more: object,
    ) -> Tale:
        fields = {"tier": "shared", **more}
        read = Read(key=K, version=version, level=level, called=_ns(at), at=_ns(at + took), **fields)  # type: ignore[arg-type]
        return self.note(process, read)

    def broken(self) -> list[str]:
        return [violation.promise for violation in judge(self.history).violations]


def _ns(seconds: float) -> int:
    return round(seconds * S)


def writer(settled: float | None = 2.0) -> Tale:
    """Job A commits version 1 at 1.0 and, unless it does not, settles at 2.0."""
    tale = Tale().claim("A", 10, 0.5).commit(1, "A", 10, 1.0)
    return tale.settle("A", 10, settled) if settled else tale


# -- reads


def test_g1_a_job_that_reads_less_than_a_job_wrote_that_had_ended_before_its_claim() -> None:
    tale = writer().claim("B", 20, 3.0, writes=(), process="w2")

    assert tale.read(0, 3.1, process="w2", level="causal", job="B", fence=20).broken() == ["G1"]
    tale = writer().claim("B", 20, 3.0, writes=(), process="w2")
    assert tale.read(1, 3.1, process="w2", level="causal", job="B", fence=20).broken() == []


def test_what_a_job_reads_may_be_as_old_as_its_claim() -> None:
    tale = writer().claim("B", 20, 0.8, writes=(), process="w2")

    assert tale.read(0, 3.1, process="w2", level="causal", job="B", fence=20).broken() == []


def test_g2_a_commit_hidden_while_its_job_still_runs() -> None:
    assert writer(settled=None).read(0, 1.5).broken() == ["G2"]
    assert writer(settled=None).read(1, 1.5).broken() == []


def test_g2_a_commit_hidden_whose_worker_was_killed_before_it_could_note_it() -> None:
    tale = Tale().claim("A", 10, 0.5)
    tale.history.commits.append(Commit(key=K, version=1, job="A", fence=10, at=_ns(1)))
    tale.history.died["w1"] = _ns(1.2)

    assert tale.read(0, 1.1).broken() == []  # its transaction may not have ended by then
    assert tale.read(0, 1.5).broken() == ["G2"]


def test_g2_a_job_that_does_not_see_its_own_commit() -> None:
    tale = writer(settled=None).read(0, 1.5, process="w1", level="causal", job="A", fence=10, own=1)

    assert tale.broken() == ["G2"]


def test_g3_an_old_value_that_stays_after_all_is_settled() -> None:
    assert writer().read(0, 5.0).broken() == ["G3"]
    assert writer().read(0, 3.5, level=1.0).broken() == ["G3"]
    assert writer().read(0, 1.8, level=1.0).broken() == []  # within its second


def test_g5_a_process_that_goes_back() -> None:
    tale = writer(settled=None).read(1, 1.5).read(0, 1.6, level=5.0)

    assert tale.broken() == ["G5"]
    assert writer(settled=None).read(1, 1.5).read(0, 1.6, level=5.0, process="r2").broken() == []


def test_reads_that_overlap_may_be_answered_in_any_order() -> None:
    assert writer(settled=None).read(1, 1.5, took=0.3).read(0, 1.6, level=5.0).broken() == []


def test_g7_a_process_that_is_cut_off_and_serves_its_memory_for_too_long() -> None:
    tale = writer().read(0, 4.0, level=1.0, tier="local")
    tale.history.faults.append(Fault(kind="cut", began=_ns(0.9), ended=_ns(6)))

    assert tale.broken() == ["G7"]


def test_g8_a_waiter_that_reads_less_than_it_was_told_of() -> None:
    tale = writer().note("r1", Told(job="A", at=_ns(2.1)))

    assert tale.read(0, 2.2, level=5.0, process="r2").broken() == []  # only the one who was told
    assert tale.read(0, 2.2, level=5.0).broken() == ["G8"]


def test_g8_an_invalidation_that_its_caller_does_not_see() -> None:
    tale = Tale().commit(1, "scope-1", 0, 1.0, process="r1", scope=True)
    tale.note("r1", Voided(key=K, called=_ns(1.1), at=_ns(1.2)))

    assert tale.read(0, 1.3, level=5.0).broken() == ["G8"]


def test_a_scope_s_commit_binds_when_its_scope_has_ended() -> None:
    tale = Tale().commit(1, "scope-1", 0, 1.0, process="r1", scope=True)
    tale.note("r1", Voided(key=K, called=_ns(1.1), at=_ns(1.2)))

    assert tale.read(0, 1.15, process="r2").broken() == []
    assert tale.read(0, 1.3, process="r2").broken() == ["G3"]


def test_chain_a_job_that_does_not_see_what_the_one_before_it_wrote() -> None:
    """By the program's own count, whatever any clock says."""
    tale = writer(settled=None).claim("B", 20, 0.6, writes=(), process="w2")

    assert tale.read(0, 1.0, process="w2", level="causal", job="B", fence=20, expects=1).broken() == ["chain"]


def test_uncommitted_a_value_that_was_never_in_the_datastore() -> None:
    assert writer().read(-1, 3.0).broken() == ["uncommitted"]
    assert writer().read(2, 3.0).broken() == ["uncommitted"]
    assert writer(settled=None).read(1, 0.7).broken() == ["uncommitted"]


def test_a_commit_whose_intent_may_be_lost_binds_when_its_end_is_answered() -> None:
    def lost() -> Tale:
        tale = writer()
        tale.history.faults.append(Fault(kind="failover", began=_ns(0.6), ended=_ns(0.7), moves=True))
        return tale

    assert lost().read(0, 1.5).broken() == []
    assert lost().read(0, 2.5).broken() == ["G3"]


def test_beside_a_master_that_was_replaced_alive_a_read_may_be_as_old_as_the_look_at_the_sentinels() -> None:
    def forked() -> Tale:
        tale = writer()
        tale.history.faults.append(Fault(kind="replaced-alive", began=_ns(0.9), ended=_ns(9), forks=True))
        return tale

    assert forked().read(0, 2.4).broken() == []
    assert forked().read(0, 2.6).broken() == ["G2"]
    assert forked().read(1, 2.2).read(0, 2.3).broken() == ["G5"]  # nobody goes back


def test_a_commit_of_an_attempt_whose_place_was_taken_binds_when_it_is_refused() -> None:
    def zombie() -> Tale:
        tale = Tale().claim("A", 10, 0.5).claim("A", 11, 0.9, process="w2").commit(1, "A", 10, 1.0)
        return tale.settle("A", 10, 3.0, refused=True)

    assert zombie().read(0, 2.5).broken() == []
    assert zombie().read(0, 3.5).broken() == ["G2"]


# -- jobs


def test_g4_an_attempt_that_is_settled_though_its_place_was_taken() -> None:
    tale = Tale().claim("A", 10, 0.5).claim("A", 11, 1.0, process="w2")

    assert tale.settle("A", 10, 2.0).broken() == ["G4"]
    tale = Tale().claim("A", 10, 0.5).claim("A", 11, 1.0, process="w2")
    assert tale.settle("A", 10, 2.0, refused=True).settle("A", 11, 2.0, process="w2").broken() == []


def test_g4_two_attempts_under_one_fence() -> None:
    assert Tale().claim("A", 10, 0.5).claim("A", 10, 1.0, process="w2").broken() == ["G4"]


def test_g6_a_job_that_was_accepted_and_never_ended() -> None:
    tale = Tale().note("r1", Enqueued(jobs=["A", "B"], called=_ns(1), at=_ns(1.1)))
    tale.history.ends = {"A": "cancelled", "B": "ready"}

    assert tale.broken() == ["G6"]
    tale.history.ends = {"A": "cancelled"}
    assert tale.broken() == ["G6"]
    tale.history.ends = {"A": "cancelled", "B": "succeeded"}
    assert tale.broken() == []


def test_of_a_job_that_may_have_been_accepted_nothing_is_asked() -> None:
    tale = Tale().note("r1", Enqueued(jobs=["A"], called=_ns(1), at=_ns(1.1), sure=False))

    assert tale.broken() == []


def test_a_job_may_be_lost_with_the_memory_of_its_store_and_not_otherwise() -> None:
    tale = Tale().note("r1", Enqueued(jobs=["A"], called=_ns(1), at=_ns(1.1)))
    tale.history.lossless = False
    tale.history.faults.append(Fault(kind="flushdb", began=_ns(2), ended=_ns(2.1), loses=True))

    assert tale.broken() == []
    assert judge(tale.history).lost == 1
    tale = Tale().note("r1", Enqueued(jobs=["A"], called=_ns(3), at=_ns(3.1)))
    tale.history.lossless = False
    tale.history.faults.append(Fault(kind="flushdb", began=_ns(2), ended=_ns(2.1), loses=True))
    assert tale.broken() == ["G6"]


def test_g6_an_attempt_that_is_settled_by_two() -> None:
    tale = Tale().claim("A", 10, 0.5, writes=()).settle("A", 10, 1.0, event="retry")

    assert tale.settle("A", 10, 1.5, process="w2", event="retry").broken() == ["G6"]


def test_g6_a_job_that_succeeds_twice() -> None:
    tale = Tale().claim("A", 10, 0.5, writes=()).settle("A", 10, 1.0).claim("A", 11, 2.0, writes=())

    assert tale.settle("A", 11, 3.0).broken() == ["G6"]


def test_g6_a_job_that_succeeded_and_wrote_nothing() -> None:
    tale = Tale().note("r1", Enqueued(jobs=["write-1"], called=_ns(1), at=_ns(1.1)))
    tale.history.ends = {"write-1": "succeeded"}

    assert tale.broken() == ["G6"]


def test_lines_two_writers_of_one_row_at_a_time() -> None:
    tale = Tale().claim("A", 10, 0.5).claim("B", 11, 1.0, process="w2")
    tale.settle("A", 10, 2.0).settle("B", 11, 3.0, process="w2")

    assert tale.broken() == ["lines"]
    tale = Tale().claim("A", 10, 0.5).settle("A", 10, 1.0).claim("B", 11, 1.2, process="w2")
    assert tale.settle("B", 11, 3.0, process="w2").broken() == []


def test_every_promise_has_a_history_that_breaks_it() -> None:
    source = Path(__file__).read_text(encoding="utf-8")

    assert [promise for promise in PROMISES if f'["{promise}"]' not in source] == []


def test_notes_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = tmp_path
    written = Read(key=K, version=3, level=0.5, called=1, at=2), Opened(at=5)
    book = Notebook(folder, "w1")
    for note in written:
        book.add(note)
    with (folder / "w1.notes").open("ab") as file:
        file.write(b'{"type":"Ope')  # a process was killed here

    assert read_notes(folder) == {"w1": list(written)}


@pytest.mark.parametrize("level", ["strict", "causal"])
def test_a_read_of_a_row_that_was_never_written_is_right(level: str) -> None:
    assert Tale().read(0, 1.0, level=level).broken() == []
