"""Where jobs lie that may be claimed: a queue, or with a task what lies apart in it."""

from __future__ import annotations

from typing import Final

from selaras._stores.sqlite.connection import Connection
from selaras._stores.sqlite.log import Log

ENTER_LANE: Final = "INSERT INTO ready VALUES (?, ?, ?, ?)"
LEAVE_LANE: Final = "DELETE FROM ready WHERE lane = ? AND priority = ? AND place = ?"


class Lanes:
    """The codes of lanes, as this process knows them."""

    def __init__(self, con: Connection, log: Log) -> None:
        self._con = con
        self._log = log
        self._codes: dict[tuple[str, str], int] = {}
        self._known_at = -1

    def code(self, queue: str, task: str = "") -> int:
        """Return the code of a lane; a new one gets one."""
        codes = self._current()
        code = codes.get((queue, task))
        if code is None:
            code = self._con.execute("INSERT INTO lanes (queue, task) VALUES (?, ?)", (queue, task)).lastrowid
            assert code is not None
            codes[queue, task] = code
            self._log.lanes += 1
            self._known_at = self._log.lanes
        return code

    def of(self, queue: str, tasks: frozenset[str]) -> list[int]:
        """Return the lanes of a queue in which jobs may lie that a worker of these tasks may have."""
        return [code for (its, task), code in self._current().items() if its == queue and (not task or task in tasks)]

    def drop_empty(self) -> None:
        """Drop lanes in which what lay apart has gone."""
        dropped = self._con.execute(
            "DELETE FROM lanes WHERE task <> '' AND NOT EXISTS (SELECT 1 FROM ready WHERE lane = lanes.code)"
        ).rowcount
        self._log.lanes += dropped > 0

    def forget(self) -> None:
        """The transaction was rolled back."""
        self._known_at = -1

    def _current(self) -> dict[tuple[str, str], int]:
        if self._known_at != self._log.lanes:
            found = self._con.execute("SELECT queue, task, code FROM lanes")
            self._codes = {(queue, task): code for queue, task, code in found}
            self._known_at = self._log.lanes
        return self._codes
