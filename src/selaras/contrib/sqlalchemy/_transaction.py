"""The root transaction of one session, from its begin to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from sqlalchemy import Connection, UpdateBase, inspect
from sqlalchemy.orm import InstanceState, SessionTransaction, object_session
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.transacting import Places, Savepoint, Transaction
from selaras.contrib.sqlalchemy._aside import Aside, Row

_log = logging.getLogger("selaras")


class OpenTransaction:
    """The root transaction of one session, until it ends."""

    def __init__(self, program: Program, unsaid: Callable[[UpdateBase], str], *, apart: bool) -> None:
        self.transaction = Transaction(program, apart=apart)
        self.unsaid = unsaid  # a statement of a bound model's table, as a person would write it; else ""
        self.wrote = False  # rows, or statements that are no plain reads
        self.named = False  # keys were said by hand
        self.bulk = ""  # a statement that changed rows of a bound model and named none
        self.is_flushing = False  # whose statements are those of rows
        self.connected = False
        self.autocommits = False
        self.releases_commit = False  # those of savepoints
        self.sent: set[Connection] = set()  # connections whose COMMIT has gone and was not refused
        self.rolled_back = False
        self.ended = False
        self.savepoints: dict[SessionTransaction, Savepoint] = {}
        self.rows: dict[InstanceState[Any], Row] = {}  # that are being flushed
        self._aside: Aside | None = None
        self.forgotten: Callable[[], object] = _nothing

    def row(self, row: object) -> Row:
        state: InstanceState[Any] = inspect(row)
        if state not in self.rows:
            session = object_session(row)
            assert session is not None, "rows that are flushed are of a session"
            self._aside = self._aside or Aside(session)
            self.rows[state] = Row(row, self._aside)
        return self.rows[state]

    def flush_ends(self) -> None:
        self.is_flushing = False
        self.rows.clear()
        if self._aside is not None:
            self._aside.close()
            self._aside = None

    def add(self, slots: Places) -> None:
        self.wrote = True
        self.transaction.add(slots)

    def plant(self) -> None:
        if self.bulk and not self.named:
            _log.warning(
                "%s names no rows, so cached values of them are not voided: say which, with writes(session, ...)",
                self.bulk,
            )
            self.bulk = ""
        _run(self.transaction.plant)

    def plant_keys(self) -> None:
        _run(lambda: self.transaction.plant(jobs=False))

    def commit_goes(self, connection: Connection) -> None:
        self.plant()
        self.sent.add(connection)

    def end(self, committed: bool | None) -> None:
        self.ended = True
        self.flush_ends()
        self.forgotten()
        transaction = self.transaction
        try:
            if committed is False and not self.rolled_back and (waiting := transaction.children):
                if not self.wrote:
                    _run(transaction.release)
                else:
                    _log.warning("a session was closed without commit: %d jobs enqueued in it are dropped", waiting)
            if transaction.planted:
                self._settle(committed)
        finally:
            transaction.leave()

    def _settle(self, committed: bool | None) -> None:
        try:
            _run(lambda: self.transaction.settle(committed))
        except Exception:  # noqa: BLE001 - see below
            # It is over in the datastore, and whoever commits must not be told otherwise; its lease ends what is left.
            _log.exception("the end of a transaction could not be told to the store")


def _nothing() -> None:
    """Nobody watches it yet."""


def _run(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Wait for a coroutine: on the caller's loop beneath an asynchronous session, else on the portal's."""
    if in_greenlet():
        await_only(make())
    else:
        wait_for(make)
