"""The statements whose cost must not grow with the number of jobs, and how SQLite means to run them."""

from __future__ import annotations

from typing import Final

from selaras._stores.sqlite import cells, jobs, lanes, lines, rows, short, steps
from selaras._stores.sqlite.connection import Connection

HOT: Final = {
    "claimable": short.CLAIMABLE,
    "take": short.TAKE,
    "leave line": lines.LEAVE_LINE,
    "clear lane": short.CLEAR_LANE,
    "succeed": short.SUCCEED,
    "differ": short.DIFFER,
    "leave": short.LEAVE,
    "lay aside": short.LAY_ASIDE,
    "lay aside, known": short.LAY_ASIDE_KNOWN,
    "enter lane": short.ENTER,
    "leave lane": lanes.LEAVE_LANE,
    "job": rows.BY_ID,
    "jobs": rows.BY_IDS,
    "change": rows.UPDATE,
    "due": jobs.DUE,
    "next due": jobs.NEXT_DUE,
    "late": jobs.LATE,
    "over": jobs.OVER,
    "running": jobs.RUNNING,
    "lock offers": jobs.OFFERS,
    "unroutable": jobs.UNROUTABLE,
    "scopes asked for": jobs.ASKED,
    "parents elsewhere": jobs.FAR,
    "head of a line": lines.NEXT_QUEUE,
    "head of a line, of the next kind": lines.NEXT_KIND,
    "cancels": steps.CANCELS,
    "hit": cells.HIT,
    "look at a key": cells.CELL,
    "keys": cells.CELLS_AHEAD,
    "intents on keys": cells.INTENTS_AHEAD,
    "intents of jobs": cells.OWNED,
    "lines": lines.LINES_AHEAD,
}


def plan(con: Connection, statement: str) -> list[str]:
    """Return SQLite's plan of a statement, a line a step."""
    found = con.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * _values(statement))
    return [detail for _, _, _, detail in found]


def _values(statement: str) -> int:
    """Return how many values a statement takes."""
    return statement.count("?")
