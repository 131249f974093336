"""Transactions of SQLAlchemy 2 as scopes: `bind(app, Session, {Product: product})`.

Where it takes hold:

    a session begins          reads and enqueues of the code around it are within the transaction
    a row is written          its keys, as it was and as it is, belong to the transaction
    COMMIT is about to go     intents are planted, jobs wait in the store; if that fails nothing is committed
    it is committed           intents are resolved, jobs are released
    it is rolled back         jobs are dropped; the store was never asked, or is told
    COMMIT raised             the datastore's own refusal is a rollback. Anything else leaves it open: the intents stand
                              until a late commit must have been seen, and the jobs are released
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Column, Connection, Engine, TextClause, UpdateBase, event, inspect, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    ORMExecuteState,
    Session,
    SessionTransaction,
    object_session,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.transacting import (
    AnyApp,
    AnyKey,
    Keys,
    KeysOf,
    Places,
    Savepoint,
    Transaction,
    keys_of_models,
    program_of,
    slots_of,
)
from selaras._core.errors import ConfigurationError
from selaras.contrib._refusals import is_refusal

__all__ = ["bind", "writes"]

_log = logging.getLogger("selaras")

Target: TypeAlias = (
    type[Session]
    | Session
    | AsyncSession
    | sessionmaker[Any]
    | scoped_session[Any]
    | async_sessionmaker[Any]
    | async_scoped_session[Any]
)


def bind(app: AnyApp, sessions: Target, keys: Mapping[type[Any], KeysOf], *, apart: bool = False) -> None:
    """Let transactions of these sessions be scopes of `app`. Once, where sessions and models are declared.

    Args:
        sessions: a `sessionmaker`, an `async_sessionmaker`, a scoped one of either, a class of sessions, or one session.
        keys: which cached values hang on a row of each model: a family, whose arguments are the primary key, or a function
            that returns a key or several. It is asked for the row as it was, which costs a query before each UPDATE and
            DELETE unless it asks for no more than the primary key, and as it is.
        apart: True says that no loader reads through a session that its caller has open, that is, each opens its own.
            Then what is loaded while a transaction is open is kept like any other. Without it nothing can tell a loader
            that sees what is not committed yet, and nothing it returns is kept.

    Raises:
        ConfigurationError: what does not fit, or these sessions are bound already.
    """
    target = _target(sessions)
    if _hooks_of(target) is not None:
        raise ConfigurationError(f"bind(..., {sessions!r}, ...): these sessions are bound already")
    program = program_of(app)
    hooks = _Hooks(program, keys_of_models(program, keys, _is_model), apart=apart)
    hooks.listen(target)
    _HOOKS[target] = hooks


def writes(session: Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any], *keys: AnyKey) -> None:
    """Say what the current transaction of a session writes, where no row says it: bulk updates, text, other tables.

    Before its commit, in any order with the statements; of an engine in autocommit, before the statement.

    Raises:
        ConfigurationError: the session is not bound, or this is no key.
    """
    one = session() if isinstance(session, (scoped_session, async_scoped_session)) else session
    if not isinstance(one, (Session, AsyncSession)):
        raise ConfigurationError(f"writes({session!r}, ...): give the session whose transaction writes, then the keys")
    sync: Session = one.sync_session if isinstance(one, AsyncSession) else one
    hooks = _hooks_of(sync)
    if hooks is None:
        raise ConfigurationError(
            f"writes({session!r}, ...): this session is not bound: bind(app, its maker, ...) first"
        )
    hooks.written(sync, slots_of(hooks.program, keys))


_HOOKS: Final[WeakKeyDictionary[type[Session] | Session, _Hooks]] = WeakKeyDictionary()


def _hooks_of(target: type[Session] | Session) -> _Hooks | None:
    places: list[Any] = list(target.__mro__) if isinstance(target, type) else [target, *type(target).__mro__]
    return next((hooks for place in places if (hooks := _HOOKS.get(place)) is not None), None)


def _target(sessions: Any) -> type[Session] | Session:
    """Return what events are listened to at. Makers of asynchronous sessions get a class of synchronous ones of their own."""
    if isinstance(sessions, (scoped_session, async_scoped_session)):
        return _target(cast("Any", sessions).session_factory)
    if isinstance(sessions, sessionmaker):
        return cast("type[Session]", cast("Any", sessions).class_)
    if isinstance(sessions, async_sessionmaker):
        maker = cast("Any", sessions)
        base: type[Session] = maker.kw.get("sync_session_class") or maker.class_.sync_session_class
        own = type(base.__name__, (base,), {})
        maker.configure(sync_session_class=own)
        return own
    if isinstance(sessions, AsyncSession):
        return sessions.sync_session
    if isinstance(sessions, Session) or (isinstance(sessions, type) and issubclass(sessions, Session)):
        return sessions
    raise ConfigurationError(
        f"bind(..., {sessions!r}, ...): give a sessionmaker, an async_sessionmaker, a scoped one, or a Session"
    )


def _is_model(model: type[object]) -> bool:
    """Say whether rows may be of this class, or of one derived from it: mapped, or a base of what is."""
    if inspect(model, raiseerr=False) is not None or hasattr(model, "metadata"):
        return True
    return any(_is_model(one) for one in type.__subclasses__(model)) if model is not object else False


def _mappers_of(model: type[object]) -> Iterator[Mapper[Any]]:
    mapper = inspect(model, raiseerr=False)
    if isinstance(mapper, Mapper):
        yield mapper
    for derived in type.__subclasses__(model):
        yield from _mappers_of(derived)


def _run(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Wait for a coroutine: on the caller's loop beneath an asynchronous session, else on the portal's."""
    if in_greenlet():
        await_only(make())
    else:
        wait_for(make)


class _Open:
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
        self.sent: set[Connection] = set()  # connections whose COMMIT has gone and was not refused
        self.rolled_back = False
        self.ended = False
        self.savepoints: dict[SessionTransaction, Savepoint] = {}
        self.before: dict[InstanceState[Any], _Before] = {}  # of the rows that are being flushed
        self.forgotten: Callable[[], object] = _nothing

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

    def commit_goes(self, connection: Connection) -> None:
        self.plant()
        self.sent.add(connection)

    def end(self, committed: bool | None) -> None:
        self.ended = True
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


_CONNECTED: Final[WeakKeyDictionary[Connection, _Open]] = WeakKeyDictionary()
"""Whose commit it is that goes over a connection."""
_ENGINES: Final[WeakSet[Engine]] = WeakSet()


def _watch(engine: Engine) -> None:
    if engine in _ENGINES:
        return
    _ENGINES.add(engine)
    event.listen(engine, "before_execute", _executes)
    event.listen(engine, "commit", _commit_goes)
    event.listen(engine, "prepare_twophase", _prepare_goes)
    event.listen(engine, "commit_twophase", _commit_twophase_goes)
    event.listen(engine, "handle_error", _failed)


def _executes(connection: Connection, statement: object, *_: object) -> None:
    """Whatever goes over a session's connection, the session's own bulk methods and Core among it."""
    if not isinstance(statement, UpdateBase) or (one := _CONNECTED.get(connection)) is None:
        return
    if not (one.ended or one.is_flushing or one.bulk) and (said := one.unsaid(statement)):
        one.wrote, one.bulk = True, said


def _commit_goes(connection: Connection) -> None:
    if (one := _CONNECTED.get(connection)) is not None and not one.ended:
        one.commit_goes(connection)


def _prepare_goes(connection: Connection, xid: object) -> None:
    del xid
    if (one := _CONNECTED.get(connection)) is not None and not one.ended:
        one.plant()  # here it can still be refused


def _commit_twophase_goes(connection: Connection, xid: object, is_prepared: bool) -> None:
    del xid, is_prepared
    _commit_goes(connection)


def _failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or (one := _CONNECTED.get(connection)) is None:
        return
    if connection in one.sent and not context.is_disconnect and is_refusal(context.original_exception):
        one.sent.discard(connection)


def _autocommits(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is not None:
        return bool(level == "AUTOCOMMIT")
    driver: Any = connection.connection.dbapi_connection
    try:
        return bool(connection.dialect.detect_autocommit_setting(driver))
    except (AttributeError, NotImplementedError):  # an older SQLAlchemy, or a dialect that cannot say
        if connection.dialect.name == "sqlite":
            return driver.isolation_level is None
        return connection.get_isolation_level() == "AUTOCOMMIT"


def _only_reads(state: ORMExecuteState) -> bool:
    statement = state.statement
    if isinstance(statement, TextClause):
        return statement.text.lstrip()[:6].lower() == "select"
    return state.is_select


class _Hooks:
    """One binding."""

    def __init__(self, program: Program, models: Mapping[type[Any], Keys], *, apart: bool) -> None:
        self.program = program
        self._models = models
        self._apart = apart
        self._open: WeakKeyDictionary[Session, _Open] = WeakKeyDictionary()
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
        for model, keys in self._models.items():
            rows = _Rows(self._open, keys)
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
        one = self._open.get(session)
        if transaction.parent is None:
            one = self._open[session] = _Open(self.program, self._unsaid, apart=self._apart)
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
            _watch(connection.engine)
            _CONNECTED[connection] = one
            one.connected = True
            one.autocommits = one.autocommits or _autocommits(connection)

    def _executes(self, state: ORMExecuteState) -> None:
        one = self._open.get(state.session)
        if one is None or _only_reads(state):
            return
        one.wrote = True
        mapper = state.bind_mapper
        if mapper is not None and any(issubclass(mapper.class_, model) for model in self._models):
            verb = "insert" if state.is_insert else "update" if state.is_update else "delete"
            one.bulk = f"{verb}({mapper.class_.__name__})"
        if one.named and _autocommits(state.session.connection(bind_arguments=dict(state.bind_arguments))):
            one.plant()

    def _commits(self, session: Session) -> None:
        """Here a refusal leaves the session as it was; what other hooks add to it meanwhile is planted as COMMIT goes."""
        one = self._open.get(session)
        if one is not None and session.get_nested_transaction() is None:
            session.flush()
            one.plant()

    def _unsaid(self, statement: UpdateBase) -> str:
        table: object = getattr(statement, "table", None)
        if any(table in mapper.tables for model in self._models for mapper in _mappers_of(model)):
            return f"{statement.__visit_name__}({table})"
        return ""

    def _flushes(self, session: Session, *_: object) -> None:
        if (one := self._open.get(session)) is not None:
            one.is_flushing = True

    def _flushed(self, session: Session, context: object) -> None:
        del context
        if (one := self._open.get(session)) is not None:
            one.is_flushing = False
            one.before.clear()
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


class _Rows:
    """Events of one model's rows."""

    def __init__(self, transactions: WeakKeyDictionary[Session, _Open], keys: Keys) -> None:
        self._open = transactions
        self._keys = keys
        self._names: dict[Mapper[Any], set[str]] = {}

    def _of(self, row: object) -> _Open | None:
        session = object_session(row)
        return None if session is None else self._open.get(session)

    def _slots(self, mapper: Mapper[Any], row: object, one: _Open) -> Places:
        if self._keys.by_identity:
            return self._keys.of_identity(mapper.primary_key_from_instance(row))
        before = one.before.get(inspect(row))
        return self._keys.of(row if before is None else before.now())

    def before_insert(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """In autocommit there is no later: but only a row that has its key by then has one to give."""
        del connection
        one = self._of(row)
        if one is not None and one.autocommits and None not in mapper.primary_key_from_instance(row):
            one.add(self._slots(mapper, row, one))
            one.plant()

    def before_update(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """The row as the datastore has it. That one is updated it hears, too, of whose collections alone are changed."""
        session = object_session(row)
        self._before(
            mapper, connection, row, session is not None and session.is_modified(row, include_collections=False)
        )

    def before_delete(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """The row as the datastore has it."""
        self._before(mapper, connection, row, True)

    def _before(self, mapper: Mapper[Any], connection: Connection, row: object, is_written: bool) -> None:
        one = self._of(row)
        if one is None:
            return
        state: InstanceState[Any] = inspect(row)
        if self._keys.by_identity:
            one.add(self._keys.of_identity(state.identity or mapper.primary_key_from_instance(row)))
        else:
            names = self._names.setdefault(mapper, set())
            before = one.before[state] = _Before(row, state, connection if is_written else None, names)
            one.add(self._keys.of(before))
        if one.autocommits:
            one.add(self._slots(mapper, row, one))
            one.plant()

    def after(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """The row as it is now."""
        del connection
        one = self._of(row)
        if one is not None:
            one.add(self._slots(mapper, row, one))
            if one.autocommits:
                one.plant()


class _Before:
    """A row as the datastore has it, which another transaction may have changed since this one read it.

    Args:
        connection: to look at it; None: it is not written, and what the session knows will do.
        names: of the columns that were asked for of such rows until now: they come together.
    """

    def __init__(self, row: object, state: InstanceState[Any], connection: Connection | None, names: set[str]) -> None:
        self._row = row
        self._state = state
        self._connection = connection
        self._names = names
        self._stored: dict[str, Any] = {}
        self._held: dict[str, Any] = {}  # what the session has of them, where its UPDATE leaves it alone

    def __getattr__(self, name: str) -> Any:
        state = self._state
        attribute = state.mapper.column_attrs.get(name)
        if attribute is not None and isinstance(attribute.columns[0], Column):
            for one, part in zip(state.mapper.primary_key, state.identity or (), strict=False):
                if one in attribute.columns:
                    return part
            if self._has(name):
                return self._stored[name]
        if name in state.attrs:
            history = state.attrs[name].history
            if history.has_changes() and (attribute is not None or _is_to_one(state.mapper, name)):
                return history.deleted[0] if history.deleted else None
        return getattr(self._row, name)

    def _has(self, name: str) -> bool:
        """Say whether the row was looked at and is there."""
        if self._connection is None:
            return False
        if name not in self._stored:
            self._names.add(name)
            self._look(self._connection, sorted(self._names))
        return name in self._stored

    def _look(self, connection: Connection, names: Sequence[str]) -> None:
        state = self._state
        mapper, identity = state.mapper, state.identity or ()
        where = [of == value for of, value in zip(mapper.primary_key, identity, strict=True)]
        columns = [mapper.column_attrs[name].columns[0] for name in names]
        # Locked as the statement that follows will lock it: nobody changes it between the two.
        looked = select(*columns).select_from(mapper.persist_selectable).where(*where).with_for_update(key_share=True)
        found = connection.execute(looked).first()
        self._stored = {} if found is None else dict(zip(names, found, strict=True))
        self._held = {
            name: state.dict[name]
            for name in self._stored
            if name in state.dict and not state.attrs[name].history.has_changes()
        }

    def now(self) -> Any:
        """Return the row as it is when it has been written: what that left alone is as the datastore has it."""
        now = self._state.dict
        left = {name: self._stored[name] for name, held in self._held.items() if now.get(name) is held}
        return _After(self._row, left) if left else self._row


class _After:
    """A row as its UPDATE leaves it. `left`: what it does not touch."""

    def __init__(self, row: object, left: Mapping[str, Any]) -> None:
        self._row = row
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return self._left[name] if name in self._left else getattr(self._row, name)


def _is_to_one(mapper: Mapper[Any], name: str) -> bool:
    relation = mapper.relationships.get(name)
    return relation is not None and not relation.uselist
