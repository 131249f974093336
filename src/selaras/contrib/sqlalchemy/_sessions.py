"""Events of sessions: a root transaction begins, goes, and ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, TextClause, UpdateBase, event, inspect
from sqlalchemy.orm import Mapper, ORMExecuteState, Session, SessionTransaction

from selaras._app.process.program import Program
from selaras._app.transacting import Keys, Places
from selaras.contrib.sqlalchemy._aside import Aside
from selaras.contrib.sqlalchemy._connections import CONNECTED, autocommits, watch
from selaras.contrib.sqlalchemy._rows import RowEvents
from selaras.contrib.sqlalchemy._transaction import OpenTransaction


class SessionEvents:
    """One binding."""

    def __init__(self, program: Program, models: Mapping[type[Any], Keys], *, apart: bool) -> None:
        self.program = program
        self._models = models
        self._apart = apart
        self._open: WeakKeyDictionary[Session, OpenTransaction] = WeakKeyDictionary()
        self._early: WeakKeyDictionary[Session, list[Places]] = WeakKeyDictionary()  # said before anything had begun

    def listen(self, target: type[Session] | Session) -> None:
        hooks: tuple[tuple[str, Callable[..., None]], ...] = (
            ("after_transaction_create", self._created),
            ("after_begin", self._connected),
            ("do_orm_execute", self._executes),
            ("before_commit", self._commits),
            ("before_flush", self._flushes),
            ("after_flush", self._flushed),
            ("after_commit", self._committed),
            ("after_rollback", self._rolled_back),
            ("after_transaction_end", self._ended),
        )
        for name, hook in hooks:
            event.listen(target, name, hook)
        bound: dict[type[Any], RowEvents] = {}
        bound |= {model: RowEvents(self._open, keys, bound) for model, keys in self._models.items()}
        for model, rows in bound.items():
            of_rows: tuple[tuple[str, Callable[..., None]], ...] = (
                ("before_insert", rows.before_insert),
                ("after_insert", rows.after),
                ("before_update", rows.before_update),
                ("after_update", rows.after),
                ("before_delete", rows.before_delete),
            )
            for name, hook in of_rows:
                event.listen(model, name, hook, propagate=True)

    def written(self, session: Session, slots: Places) -> None:
        one = self._open.get(session)
        if one is None:
            self._early.setdefault(session, []).append(slots)
            return
        one.named = True
        one.add(slots)

    # -- events of sessions

    def _created(self, session: Session, transaction: SessionTransaction) -> None:
        if isinstance(session, Aside):
            return
        one = self._open.get(session)
        if transaction.parent is None:
            one = self._open[session] = OpenTransaction(self.program, self._unsaid, apart=self._apart)
            # A session that is lost without close() must not keep its thread inside a transaction for ever.
            lost = weakref.finalize(session, one.transaction.forget)
            lost.atexit = False
            one.forgotten = lost.detach
            one.transaction.enter()
            for slots in self._early.pop(session, ()):
                self.written(session, slots)
        elif transaction.nested and one is not None:
            one.savepoints[transaction] = one.transaction.mark()

    def _connected(self, session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        del transaction
        one = self._open.get(session)
        if one is not None:
            watch(connection.engine)
            CONNECTED[connection] = one
            one.connected = True
            one.autocommits = one.autocommits or autocommits(connection)

    def _executes(self, state: ORMExecuteState) -> None:
        one = self._open.get(state.session)
        if one is None or _only_reads(state):
            return
        one.wrote = True
        mapper = state.bind_mapper
        if mapper is not None and any(issubclass(mapper.class_, model) for model in self._models):
            verb = "insert" if state.is_insert else "update" if state.is_update else "delete"
            one.bulk = f"{verb}({mapper.class_.__name__})"
        if one.named:
            state.session.connection(bind_arguments=dict(state.bind_arguments))  # which tells if it autocommits
            if one.autocommits:
                one.plant()

    def _commits(self, session: Session) -> None:
        """Here a refusal leaves the session as it was; what other hooks add to it meanwhile is planted as COMMIT goes."""
        one = self._open.get(session)
        if one is not None and session.get_nested_transaction() is None:
            session.flush()
            one.plant()

    def _unsaid(self, statement: UpdateBase) -> str:
        table: object = getattr(statement, "table", None)
        if any(table in mapper.tables for model in self._models for mapper in mappers_of(model)):
            return f"{statement.__visit_name__}({table})"
        return ""

    def _flushes(self, session: Session, *_: object) -> None:
        if (one := self._open.get(session)) is not None:
            one.flush_ends()  # of one that failed
            one.is_flushing = True

    def _flushed(self, session: Session, context: object) -> None:
        del context
        if (one := self._open.get(session)) is not None:
            one.flush_ends()
            if session.new or session.dirty or session.deleted:
                one.wrote = True

    def _committed(self, session: Session) -> None:
        one = self._open.get(session)
        if one is None:
            return
        nested = session.get_nested_transaction()
        if nested is not None:
            one.savepoints.pop(nested, None)
            return
        if not one.sent:
            # Nothing went to a datastore; or the session joined a transaction that somebody else will commit.
            one.plant()
            one.end(None if one.connected and one.wrote else True)
            return
        one.end(True)

    def _rolled_back(self, session: Session) -> None:
        one = self._open.get(session)
        if one is not None and session.get_nested_transaction() is None:
            one.rolled_back = True

    def _ended(self, session: Session, transaction: SessionTransaction) -> None:
        one = self._open.get(session)
        if one is None:
            return
        if transaction.parent is None:
            del self._open[session]
            if not one.ended:
                one.end(None if one.sent else False)
        elif (mark := one.savepoints.pop(transaction, None)) is not None:
            one.transaction.back_to(mark)


def _only_reads(state: ORMExecuteState) -> bool:
    statement = state.statement
    if isinstance(statement, TextClause):
        return statement.text.lstrip()[:6].lower() == "select"
    return state.is_select


def mappers_of(model: type[object]) -> Iterator[Mapper[Any]]:
    mapper = inspect(model, raiseerr=False)
    if isinstance(mapper, Mapper):
        yield mapper
    for derived in type.__subclasses__(model):
        yield from mappers_of(derived)
