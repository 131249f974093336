"""The tables of a partition, and what is checked before a file is used.

Whatever is ready, running, due, late or over is found in a table or a partial index of just such jobs, so that a
claim costs the same with ten jobs waiting and with a million. The tables that a job passes through are narrow and
hold numbers; the wide row with its texts is written once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from selaras._core.errors import StoreMismatch
from selaras._core.jobs.job import JobKind
from selaras._core.jobs.lifecycle import FINAL, WAITING
from selaras._core.jobs.states import JobState
from selaras._stores.sqlite.connection import Connection

VERSION: Final = 5

STATES: Final = {
    JobState.BLOCKED: 0,
    JobState.SCHEDULED: 1,
    JobState.HELD: 2,
    JobState.READY: 3,
    JobState.RUNNING: 4,
    JobState.SUCCEEDED: 5,
    JobState.FAILED: 6,
    JobState.CANCELLED: 7,
    JobState.EXPIRED: 8,
}
"""How a state is kept: as numbers whose order lets each index name its jobs by one comparison."""

KINDS: Final = {JobKind.TASK: 0, JobKind.WRITING: 1, JobKind.LOCK: 2}
"""How a kind is kept."""

OTHER: Final = 0
PLAIN: Final = 1
LINED: Final = 2
"""The way a job takes: with what else changes when it is claimed and succeeds, or with its own rows alone, or with its line
and the keys that it writes besides.
"""

assert all(STATES[state] <= STATES[JobState.READY] for state in WAITING)
assert all(STATES[state] >= STATES[JobState.SUCCEEDED] for state in FINAL)


def among(states: Iterable[JobState]) -> str:
    """Write states as an SQL list."""
    return ", ".join(str(STATES[state]) for state in sorted(states))


# An index is used only where a query spells its condition in the same way.
IS_TASK: Final = f"kind = {KINDS[JobKind.TASK]}"
IS_EARLY: Final = f"state <= {STATES[JobState.SCHEDULED]}"
IS_SCHEDULED: Final = f"{IS_EARLY} AND state = {STATES[JobState.SCHEDULED]}"
IS_WAITING: Final = f"state <= {STATES[JobState.READY]}"
IS_SCOPE: Final = f"kind > {KINDS[JobKind.TASK]}"
IS_LOCK_OFFER: Final = f"{IS_SCOPE} AND kind = {KINDS[JobKind.LOCK]} AND state = {STATES[JobState.READY]}"

TABLES: Final = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row: the log's ends, the counters, and the latest time ever told.
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL DEFAULT 0, event_id INTEGER NOT NULL DEFAULT 0,
    before_position INTEGER NOT NULL DEFAULT 0, before_id INTEGER NOT NULL DEFAULT 0,
    last_mark INTEGER NOT NULL DEFAULT 0, tag_floor INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0, counter INTEGER NOT NULL DEFAULT 0, numbers INTEGER NOT NULL DEFAULT 0,
    effects_waiting INTEGER NOT NULL DEFAULT 0, tellings INTEGER NOT NULL DEFAULT 0,
    serving INTEGER NOT NULL DEFAULT 0, arranged INTEGER NOT NULL DEFAULT 0, lanes INTEGER NOT NULL DEFAULT 0,
    time_us INTEGER NOT NULL DEFAULT 0,
    -- The store's time is `offset_us` + the time since boot; `slewed_us`: when, since boot, the offset was looked at.
    offset_us INTEGER NOT NULL DEFAULT 0, slewed_us INTEGER NOT NULL DEFAULT 0
);
INSERT INTO ledger (one) VALUES (1);

CREATE TABLE events (position INTEGER PRIMARY KEY, event_id INTEGER, scope INTEGER, name TEXT);
CREATE TABLE marks (scope INTEGER, name TEXT, position INTEGER, PRIMARY KEY (scope, name)) WITHOUT ROWID;

CREATE TABLE entries (
    key TEXT NOT NULL UNIQUE, position INTEGER, stamp INTEGER, checksum INTEGER, until_us INTEGER,
    family TEXT, version INTEGER, tags BLOB, value BLOB, note BLOB
);
CREATE INDEX entries_late ON entries (until_us) WHERE until_us > 0;
CREATE TABLE intents (
    number INTEGER PRIMARY KEY, key TEXT, home INTEGER, job TEXT, fence INTEGER, planted_us INTEGER,
    planted_at INTEGER, clean INTEGER, until_us INTEGER DEFAULT 0, preimage BLOB
);
CREATE UNIQUE INDEX intents_key ON intents (key, home, job);
CREATE INDEX intents_owner ON intents (home, job);
CREATE INDEX intents_falling ON intents (until_us) WHERE until_us > 0;
CREATE TABLE tokens (key TEXT PRIMARY KEY, token INTEGER, until_us INTEGER, granted_at INTEGER) WITHOUT ROWID;
CREATE INDEX tokens_late ON tokens (until_us);
CREATE TABLE floors (key TEXT PRIMARY KEY, version INTEGER, closed_until_us INTEGER) WITHOUT ROWID;

-- What a job is, and how it waits. Once it was handed out, `runs` and then `ends` tell how it stands, and from `state`
-- on nothing here is looked at; one on the short way is not even written again, and its state stays what it was.
-- Nor is it when it becomes the head of its line: whoever is that is ready, and its place is that in which it joined.
-- `way`: PLAIN (1) or LINED (2) of a job that was never tried, and for whose end nobody waits.
-- `awaited`: another job may wait for it. `more`: what no query asks for, NULL if as by default.
-- `asker`: the instance that asked for a scope or lock. `registered_us`: of one that waits for parents elsewhere, when
-- they were last told of it.
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind INTEGER NOT NULL DEFAULT 0,
    way INTEGER NOT NULL DEFAULT {PLAIN}, awaited INTEGER NOT NULL DEFAULT 0, priority INTEGER NOT NULL,
    place INTEGER NOT NULL DEFAULT 0, ready_us INTEGER NOT NULL DEFAULT 0, lost INTEGER NOT NULL DEFAULT 0,
    joined INTEGER NOT NULL DEFAULT 0, created_us INTEGER NOT NULL, due_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL DEFAULT 0, result_ttl_us INTEGER NOT NULL, strayed_us INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0, queue TEXT NOT NULL, task TEXT NOT NULL,
    lane TEXT NOT NULL DEFAULT '', line TEXT NOT NULL DEFAULT '', unique_key TEXT NOT NULL DEFAULT '',
    payload BLOB NOT NULL, meta BLOB NOT NULL, more BLOB,
    state INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0,
    started_us INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', error BLOB, progress BLOB,
    asker TEXT NOT NULL DEFAULT '', registered_us INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_early ON jobs (state, due_us, number) WHERE {IS_EARLY};
CREATE INDEX jobs_late ON jobs (expires_us, number) WHERE expires_us > 0 AND {IS_WAITING};
CREATE INDEX jobs_scopes ON jobs (kind, state, number) WHERE {IS_SCOPE};
CREATE INDEX jobs_asked ON jobs (asker, number) WHERE asker <> '';
CREATE INDEX jobs_far ON jobs (registered_us, number) WHERE registered_us > 0;

-- A queue, or with a task what lies apart in it because a worker did not know that task.
CREATE TABLE lanes (code INTEGER PRIMARY KEY, queue TEXT NOT NULL, task TEXT NOT NULL, UNIQUE (queue, task));

-- What may be claimed, in the order of claims.
CREATE TABLE ready (
    lane INTEGER, priority INTEGER, place INTEGER, number INTEGER, PRIMARY KEY (lane, priority DESC, place)
) WITHOUT ROWID;

-- Running attempts. `way`: what its success touches; `asked`: to end.
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, instance INTEGER NOT NULL, fence INTEGER NOT NULL, turn INTEGER NOT NULL,
    started_us INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 1, way INTEGER NOT NULL DEFAULT {PLAIN},
    asked INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', error BLOB, progress BLOB
);
CREATE INDEX runs_asked ON runs (instance, fence) WHERE asked = 1;

-- How jobs ended.
CREATE TABLE ends (
    number INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT {STATES[JobState.SUCCEEDED]},
    fence INTEGER NOT NULL, attempt INTEGER NOT NULL DEFAULT 1, started_us INTEGER NOT NULL, ended_us INTEGER NOT NULL,
    keep_until_us INTEGER NOT NULL, reason TEXT NOT NULL DEFAULT '', error BLOB, progress BLOB, result BLOB
);
CREATE INDEX ends_over ON ends (keep_until_us);

-- How many jobs of a queue are in a state, but for those in `ready` and `runs`, which are counted themselves.
CREATE TABLE counts (queue TEXT, state INTEGER, jobs INTEGER, PRIMARY KEY (queue, state)) WITHOUT ROWID;

-- For people who read the file.
CREATE TABLE states (code INTEGER PRIMARY KEY, name TEXT);

-- `ready_us`: since when the head may be claimed.
CREATE TABLE lines (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, head TEXT NOT NULL, ready_us INTEGER NOT NULL
) WITHOUT ROWID;

-- Who waits in a line, in the order in which they are served but for queues that nobody works on.
CREATE TABLE members (
    line TEXT, kind INTEGER, queue TEXT, priority INTEGER, joined INTEGER, id TEXT, number INTEGER NOT NULL,
    PRIMARY KEY (line, kind, queue, priority DESC, joined, id)
) WITHOUT ROWID;
CREATE TABLE dependents (
    number INTEGER PRIMARY KEY, parent TEXT, child TEXT, edge TEXT, home INTEGER, UNIQUE (parent, child, edge)
);
-- Jobs whose first so many dependents are to be told yet how they stand, or that they are not known any more.
CREATE TABLE tellings (
    number INTEGER PRIMARY KEY, job TEXT NOT NULL UNIQUE, dependents INTEGER NOT NULL, is_gone INTEGER NOT NULL
);
CREATE TABLE directory (name TEXT PRIMARY KEY, job TEXT, home INTEGER) WITHOUT ROWID;
CREATE TABLE paused (queue TEXT PRIMARY KEY) WITHOUT ROWID;
-- `told`: the turns above `acked`, and what they came to.
CREATE TABLE instances (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, until_us INTEGER, suspected_us INTEGER DEFAULT 0,
    acked INTEGER DEFAULT 0, bell TEXT, idle BLOB, instance BLOB, told BLOB
);
CREATE INDEX instances_idle ON instances (number) WHERE idle IS NOT NULL;
CREATE TABLE outbox (id INTEGER PRIMARY KEY, effect BLOB);

-- Of each partition that sends effects, the highest id that was accepted.
CREATE TABLE accepted (sender INTEGER PRIMARY KEY, id INTEGER NOT NULL);
"""


def is_new(con: Connection) -> bool:
    """Say whether the file holds nothing yet."""
    row = con.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return bool(row[0] == 0)


def create(con: Connection, *, index: int, partitions: int) -> None:
    """Create the tables, inside the caller's transaction."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            con.execute(statement)
    facts = {"product": "selaras", "version": VERSION, "index": index, "partitions": partitions}
    con.executemany("INSERT INTO meta VALUES (?, ?)", list(facts.items()))
    con.executemany("INSERT INTO states VALUES (?, ?)", [(code, state.value) for state, code in STATES.items()])


def check(con: Connection, path: Path, *, index: int, partitions: int) -> None:
    """Refuse a file that this program must not touch.

    Raises:
        StoreMismatch: the file is another program's, of another version, or of another number of partitions.
    """
    ours = con.execute("SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'ledger')").fetchone()
    facts: dict[str, object] = dict(con.execute("SELECT name, value FROM meta")) if ours[0] == 2 else {}
    if facts.get("product") != "selaras":
        raise StoreMismatch(f"the store {path.absolute()} is another program's database: name another file")
    version = facts["version"]
    if version != VERSION:
        is_older = isinstance(version, int) and version < VERSION
        raise StoreMismatch(
            f"the store {path.absolute()} has schema {version}, this version of selaras knows {VERSION}: "
            + (
                "let the version of selaras that made it drain its jobs, then move the file away; a new one is made"
                if is_older
                else "upgrade selaras on this machine, or name another file"
            )
        )
    if (facts["index"], facts["partitions"]) != (index, partitions):
        raise StoreMismatch(
            f"the store {path.absolute()} is partition {facts['index']} of {facts['partitions']}, "
            f"it was opened as partition {index} of {partitions}: open it with ?partitions={facts['partitions']} "
            "in its URL, or without saying how many (partitions= and SELARAS_PARTITIONS say it, too)"
        )
