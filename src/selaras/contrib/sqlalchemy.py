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
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Column, Connection, Engine, TextClause, UpdateBase, event, inspect
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    ORMExecuteState,
    RelationshipDirection,
    RelationshipProperty,
    Session,
    SessionTransaction,
    lazyload,
    make_transient_to_detached,
    object_session,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.orm.exc import DetachedInstanceError
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
            DELETE unless it asks for no more than the primary key, and as it is. It may ask whatever the class has,
            properties, methods and relations among it: a relation is what its foreign key says, and may cost a query.
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
        self.releases_commit = False  # those of savepoints
        self.sent: set[Connection] = set()  # connections whose COMMIT has gone and was not refused
        self.rolled_back = False
        self.ended = False
        self.savepoints: dict[SessionTransaction, Savepoint] = {}
        self.rows: dict[InstanceState[Any], _Row] = {}  # that are being flushed
        self._aside: _Aside | None = None
        self.forgotten: Callable[[], object] = _nothing

    def row(self, row: object) -> _Row:
        state: InstanceState[Any] = inspect(row)
        if state not in self.rows:
            session = object_session(row)
            assert session is not None, "rows that are flushed are of a session"
            self._aside = self._aside or _Aside(session)
            self.rows[state] = _Row(row, self._aside)
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


_CONNECTED: Final[WeakKeyDictionary[Connection, _Open]] = WeakKeyDictionary()
"""Whose commit it is that goes over a connection."""
_ENGINES: Final[WeakSet[Engine]] = WeakSet()


def _watch(engine: Engine) -> None:
    if engine in _ENGINES:
        return
    _ENGINES.add(engine)
    event.listen(engine, "before_execute", _executes)
    event.listen(engine, "savepoint", _savepoint_begins)
    event.listen(engine, "release_savepoint", _savepoint_goes)
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


def _savepoint_begins(connection: Connection, name: str | None) -> None:
    """Where SQLite's driver leaves BEGIN to the first write, a savepoint before it is the transaction: RELEASE commits."""
    del name
    if connection.dialect.name == "sqlite" and (one := _CONNECTED.get(connection)) is not None:
        one.releases_commit = one.releases_commit or not _is_begun(connection)


def _savepoint_goes(connection: Connection, name: str, context: object) -> None:
    del name, context
    if (one := _CONNECTED.get(connection)) is not None and one.releases_commit:
        one.plant_keys()


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
    if connection.dialect.name == "sqlite":  # whose driver may have been told to leave BEGIN to the program
        return driver.isolation_level is None and not _is_begun(connection)
    try:
        return bool(connection.dialect.detect_autocommit_setting(driver))
    except (AttributeError, NotImplementedError):  # an older SQLAlchemy, or a dialect that cannot say
        return connection.get_isolation_level() == "AUTOCOMMIT"


def _is_begun(connection: Connection) -> bool:
    """Say whether SQLite has a transaction open."""
    return getattr(connection.connection.driver_connection, "in_transaction", False)


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
        if isinstance(session, _Aside):
            return
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
        if any(table in mapper.tables for model in self._models for mapper in _mappers_of(model)):
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


class _Rows:
    """Events of one model's rows."""

    def __init__(self, transactions: WeakKeyDictionary[Session, _Open], keys: Keys) -> None:
        self._open = transactions
        self._keys = keys
        self._by_primary_key: dict[Mapper[Any], bool] = {}  # whether its keys were made of nothing else until now

    def _of(self, row: object) -> _Open | None:
        session = object_session(row)
        return None if session is None else self._open.get(session)

    def _slots(self, mapper: Mapper[Any], row: object, one: _Open) -> Places:
        if self._keys.by_identity:
            return self._keys.of_identity(mapper.primary_key_from_instance(row))
        try:
            return self._keys.of(one.row(row).now())
        except InvalidRequestError:  # a relation that is not loaded unless one says so (lazy="raise")
            return self._keys.of(one.row(row).now(loads_all=True))

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
        self._before(mapper, connection, row, True, is_deleted=True)

    def _before(
        self, mapper: Mapper[Any], connection: Connection, row: object, is_written: bool, *, is_deleted: bool = False
    ) -> None:
        one = self._of(row)
        if one is None:
            return
        if self._keys.by_identity:
            one.add(self._keys.of_identity(inspect(row).identity or mapper.primary_key_from_instance(row)))
        else:
            held = one.row(row)
            slots = self._of_primary_key(mapper, held)
            if slots is None:
                was = held.went(connection) if is_deleted else held.was(connection, is_locked=is_written)
                slots = () if was is None else self._keys.of(was)
            one.add(slots)
        if one.autocommits:
            one.add(self._slots(mapper, row, one))
            one.plant()

    def _of_primary_key(self, mapper: Mapper[Any], row: _Row) -> Places | None:
        if self._by_primary_key.get(mapper, True):
            try:
                return self._keys.of(row.unloaded())
            except (DetachedInstanceError, InvalidRequestError):
                self._by_primary_key[mapper] = False
        return None

    def after(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """The row as it is now."""
        del connection
        one = self._of(row)
        if one is not None:
            one.add(self._slots(mapper, row, one))
            if one.autocommits:
                one.plant()


class _Aside(Session):
    """What functions of rows look at, over the connections of the session that is being flushed."""

    def __init__(self, beside: Session) -> None:
        super().__init__(autoflush=False, join_transaction_mode="rollback_only")
        self._beside = beside

    def get_bind(self, mapper: Any = None, *, bind: Any = None, **arguments: Any) -> Any:
        """Return a connection within the other's transaction."""
        if bind is not None:
            return bind
        return self._beside.connection(bind_arguments={"mapper": mapper, "clause": arguments.get("clause")})

    def let_go(self, row: object) -> None:
        """Take this one out, and not what hangs on it: the rows of its collections may be those of the other session."""
        state: InstanceState[Any] = inspect(row)
        for relation in state.mapper.relationships:
            state.dict.pop(relation.key, None)
        self.expunge(row)


class _Row:
    """A row that is being flushed, as the datastore has it and as the flush leaves it.

    The session's own object tells neither: its columns are those to come, its relations those it once read, and another
    transaction may have changed the row since. So functions of a row are given other instances of its class, whose
    relations are what its foreign keys say.
    """

    def __init__(self, row: object, aside: _Aside) -> None:
        self._row = row
        self._aside = aside
        self._state: InstanceState[Any] = inspect(row)
        self._was: Any = None
        self._is_known = False
        self._shown: Any = None  # that of it which is in the session aside
        self._stored: dict[str, Any] = {}
        self._held: dict[str, Any] = {}  # what the session has of it, where its UPDATE leaves that alone

    def unloaded(self) -> Any:
        """Return a row with a primary key, of which nothing else can be asked."""
        mapper = self._state.mapper
        identity = self._state.identity or mapper.primary_key_from_instance(self._row)
        names = [mapper.get_property_by_column(column).key for column in mapper.primary_key]
        return _detached(mapper, dict(zip(names, identity, strict=True)))

    def went(self, connection: Connection) -> Any:
        """Return the row as it `was`: of one that is deleted the rows of its collections have gone ahead."""
        was = self.was(connection, is_locked=True)
        if was is not None:
            for relation in self._state.mapper.relationships:
                if relation.key in self._state.dict and not _is_to_one(relation):
                    self._give(was, relation)
        return was

    def was(self, connection: Connection, *, is_locked: bool) -> Any:
        """Return the row as the datastore has it, None if it has none.

        Args:
            is_locked: as the statement that follows will lock it: nobody changes it between the two.
        """
        if self._is_known:
            return self._was
        state, mapper = self._state, self._state.mapper
        # A nullable side of a join cannot be locked everywhere.
        of = mapper.local_table if len(mapper.with_polymorphic_mappers) > 1 else None
        lock = {"key_share": True, "of": of}
        self._was = self._shown = self._get(
            state.identity, with_for_update=lock if is_locked else None, bind_arguments={"bind": connection}
        )
        self._is_known = True
        self._stored = {} if self._was is None else dict(inspect(self._was).dict)
        self._held = {
            name: state.dict[name]
            for name in _columns(mapper)
            if name in state.dict and name in self._stored and not state.attrs[name].history.has_changes()
        }
        return self._was

    def _get(self, identity: Any, **how: Any) -> Any:
        """Look at the datastore. Relations are read when they are asked for, whatever the model says of them."""
        return self._aside.get(self._state.mapper.class_, identity, options=[lazyload("*")], **how)

    def now(self, *, loads_all: bool = False) -> Any:
        """Return the row as it is when it has been written: what that left alone is as the datastore has it.

        Args:
            loads_all: at the price of a query relations, too, that the model lets nobody load by the way.
        """
        mapper, has = self._state.mapper, self._state.dict
        values = {name: has[name] for name in _columns(mapper) if name in has}
        values |= {name: self._stored[name] for name, held in self._held.items() if has.get(name) is held}
        if self._shown is not None:
            self._aside.let_go(self._shown)
            self._is_known = False
        now = self._get(tuple(mapper.primary_key_from_instance(self._row))) if loads_all else None
        if now is None:
            now = _detached(mapper, values)
            self._aside.add(now)
        self._shown = now
        for name, value in values.items():
            set_committed_value(now, name, value)
        for relation in mapper.relationships:
            if relation.key in has and (not _is_to_one(relation) or _fits(relation, values, has[relation.key])):
                self._give(now, relation)
        return now

    def _give(self, other: object, relation: RelationshipProperty[Any]) -> None:
        value: Any = self._state.dict[relation.key]
        items = list(collection_adapter(value)) if relation.uselist and value is not None else value
        set_committed_value(other, relation.key, items)


def _columns(mapper: Mapper[Any]) -> Iterator[str]:
    return (attribute.key for attribute in mapper.column_attrs if isinstance(attribute.columns[0], Column))


def _detached(mapper: Mapper[Any], values: Mapping[str, Any]) -> Any:
    row = mapper.class_manager.new_instance()
    for name, value in values.items():
        set_committed_value(row, name, value)
    make_transient_to_detached(row)
    return row


def _is_to_one(relation: RelationshipProperty[Any]) -> bool:
    return relation.direction is RelationshipDirection.MANYTOONE


def _fits(relation: RelationshipProperty[Any], values: Mapping[str, Any], other: object) -> bool:
    """Say whether this is what the foreign key names, and not what was there before it was set."""
    if other is None:
        return False
    has = inspect(other).dict
    for local, remote in relation.local_remote_pairs or ():
        here = relation.parent.get_property_by_column(local).key
        there = relation.mapper.get_property_by_column(remote).key
        if here not in values or there not in has or values[here] != has[there]:
            return False
    return True
