"""What is true of a memory partition between any two verbs."""

from __future__ import annotations

from selaras._contracts.limits import OPEN_POSITION
from selaras._core.cache.opening import opened_by
from selaras._core.jobs.job import JobKind
from selaras._core.jobs.lifecycle import FINAL, WAITING
from selaras._core.jobs.states import JobState
from selaras._core.positions import Scope
from selaras._stores.memory.jobs import Jobs, Row
from selaras._stores.memory.partition import MemoryPartition


def check(partition: MemoryPartition) -> None:
    """Fail if the partition contradicts itself."""
    jobs = partition._jobs
    _every_job_is_where_its_state_says(jobs)
    _of_a_line_one_at_most_runs(jobs)
    _a_line_that_can_go_on_does(jobs)
    _nothing_stands_without_an_owner(partition)
    _a_unique_key_is_held_by_a_living_job(jobs)
    _nothing_is_cached_where_an_intent_stands(partition)


def _every_job_is_where_its_state_says(jobs: Jobs) -> None:
    lanes = [rank[2] for lane in jobs.lanes.values() for rank in lane]
    assert len(lanes) == len(set(lanes)), "a job lies in two lanes"
    ready = {row.id for row in jobs.rows.values() if row.state is JobState.READY and row.new.kind is JobKind.TASK}
    assert set(lanes) == ready, "lanes and ready jobs differ"
    for (queue, _), lane in jobs.lanes.items():
        assert lane == sorted(lane)
        assert {jobs.rows[rank[2]].new.queue for rank in lane} == {queue}
    members = [rank[2] for line in jobs.lines.values() for rank in line.members]
    assert len(members) == len(set(members)), "a job stands in two lines"
    held = {row.id for row in jobs.rows.values() if row.state is JobState.HELD}
    assert held <= set(members), "a held job stands in no line"
    for row in jobs.rows.values():
        assert (row.state is JobState.RUNNING) == bool(row.instance), (row.id, row.state, row.instance)
        assert (row.state in FINAL) == bool(row.ended_us), (row.id, row.state)
        assert row.state is JobState.BLOCKED or not row.waits or row.state in FINAL, (row.id, row.state, row.waits)
        assert row.state is not JobState.BLOCKED or row.waits, f"{row.id} is blocked by nothing"


def _of_a_line_one_at_most_runs(jobs: Jobs) -> None:
    running: dict[str, list[str]] = {}
    for row in jobs.rows.values():
        if row.state is JobState.RUNNING and row.new.line:
            running.setdefault(row.new.line, []).append(row.id)
    for name, runners in running.items():
        assert runners == [jobs.lines[name].holder], f"line {name}: {runners} run"
    fences = [row.fence for row in jobs.rows.values() if row.state is JobState.RUNNING]
    assert len(fences) == len(set(fences))


def _a_line_that_can_go_on_does(jobs: Jobs) -> None:
    for name, line in jobs.lines.items():
        assert line.holder or line.members, f"line {name} is empty"
        assert line.members == sorted(line.members)
        if line.holder:
            assert not line.head
            assert _may_hold(jobs.rows[line.holder])
        else:
            assert jobs.rows[line.head].state is JobState.READY
        states = {rank[2]: jobs.rows[rank[2]].state for rank in line.members}
        assert all(state is (JobState.READY if id == line.head else JobState.HELD) for id, state in states.items())


def _may_hold(row: Row) -> bool:
    return row.state is JobState.RUNNING or (row.new.ordered and row.state in (JobState.SCHEDULED, JobState.READY))


def _nothing_stands_without_an_owner(partition: MemoryPartition) -> None:
    for key in partition._cells.standing:
        for intent in partition._cells.intents(key):
            if intent.home != partition.index or intent.until_us:
                continue
            row = partition._jobs.rows.get(intent.job)
            assert row is not None, f"{key}: its owner {intent.job} is gone"
            assert row.state is JobState.RUNNING or (row.state in WAITING and (row.lost or row.unsure)), (
                key,
                row.state,
            )
            assert intent.fence <= row.fence


def _a_unique_key_is_held_by_a_living_job(jobs: Jobs) -> None:
    for name, (holder, home) in jobs.directory.items():
        row = jobs.rows.get(holder)
        if home == jobs.index and row is not None and row.new.unique == name:
            assert row.state not in FINAL, f"{name} is held by {holder}, which has ended"
    waiting = [row.new.unique for row in jobs.rows.values() if row.state in WAITING and row.new.unique]
    here = [name for name in waiting if name in jobs.directory]
    assert len(here) == len(set(here)), "two waiting jobs of one unique key"


def _nothing_is_cached_where_an_intent_stands(partition: MemoryPartition) -> None:
    cells = partition._cells
    assert not cells.standing.keys() & (cells.entries.keys() | cells.tokens.keys())
    assert all(cells.standing.values()), "an empty set of intents"


def check_openings(partition: MemoryPartition) -> None:
    """Fail if something is open that nobody writes, or something was stored that bears what is open."""
    cells, marks = partition._cells, partition._cells.log._marks
    since = {
        opened: min(intent.planted_at for intent in here.values())
        for key, here in cells.standing.items()
        if (opened := opened_by(key))
    }
    assert since.keys() == {name for name, position in marks.items() if position == OPEN_POSITION}
    for key, stored in cells.entries.items():
        names = ((Scope.FAMILY, stored.family), *((Scope.TAG, tag) for tag in stored.entry.tags))
        assert all(stored.entry.position < since.get(name, OPEN_POSITION) for name in names), key
