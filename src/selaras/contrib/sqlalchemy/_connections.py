"""Events of connections: what no session sees, and COMMIT as it goes."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Engine, UpdateBase, event
from sqlalchemy.engine import ExceptionContext

from selaras.contrib._refusals import is_refusal
from selaras.contrib.sqlalchemy._transaction import OpenTransaction

CONNECTED: Final[WeakKeyDictionary[Connection, OpenTransaction]] = WeakKeyDictionary()
"""Whose commit it is that goes over a connection."""
_ENGINES: Final[WeakSet[Engine]] = WeakSet()


def watch(engine: Engine) -> None:
    """Listen to an engine, once."""
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
    if not isinstance(statement, UpdateBase) or (one := CONNECTED.get(connection)) is None:
        return
    if not (one.ended or one.is_flushing or one.bulk) and (said := one.unsaid(statement)):
        one.wrote, one.bulk = True, said


def _savepoint_begins(connection: Connection, name: str | None) -> None:
    """Where SQLite's driver leaves BEGIN to the first write, a savepoint before it is the transaction: RELEASE commits."""
    del name
    if connection.dialect.name == "sqlite" and (one := CONNECTED.get(connection)) is not None:
        one.releases_commit = one.releases_commit or not _is_begun(connection)


def _savepoint_goes(connection: Connection, name: str, context: object) -> None:
    del name, context
    if (one := CONNECTED.get(connection)) is not None and one.releases_commit:
        one.plant_keys()


def _commit_goes(connection: Connection) -> None:
    if (one := CONNECTED.get(connection)) is not None and not one.ended:
        one.commit_goes(connection)


def _prepare_goes(connection: Connection, xid: object) -> None:
    del xid
    if (one := CONNECTED.get(connection)) is not None and not one.ended:
        one.plant()  # here it can still be refused


def _commit_twophase_goes(connection: Connection, xid: object, is_prepared: bool) -> None:
    del xid, is_prepared
    _commit_goes(connection)


def _failed(context: ExceptionContext) -> None:
    connection = context.connection
    if connection is None or (one := CONNECTED.get(connection)) is None:
        return
    if connection in one.sent and not context.is_disconnect and is_refusal(context.original_exception):
        one.sent.discard(connection)


def autocommits(connection: Connection) -> bool:
    """Say whether each statement over it is committed by itself."""
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
