"""Binds sessions to an app, and says what a transaction writes where no row says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from selaras._app.transacting import AnyApp, AnyKey, KeysOf, keys_of_models, program_of, slots_of
from selaras._core.errors import ConfigurationError
from selaras.contrib.sqlalchemy._sessions import SessionEvents

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
    target = target_of(sessions)
    if _hooks_of(target) is not None:
        raise ConfigurationError(f"bind(..., {sessions!r}, ...): these sessions are bound already")
    program = program_of(app)
    hooks = SessionEvents(program, keys_of_models(program, keys, _is_model), apart=apart)
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


_HOOKS: Final[WeakKeyDictionary[type[Session] | Session, SessionEvents]] = WeakKeyDictionary()


def _hooks_of(target: type[Session] | Session) -> SessionEvents | None:
    places: list[Any] = list(target.__mro__) if isinstance(target, type) else [target, *type(target).__mro__]
    return next((hooks for place in places if (hooks := _HOOKS.get(place)) is not None), None)


def target_of(sessions: Any) -> type[Session] | Session:
    """Return what events are listened to at. Makers of asynchronous sessions get a class of synchronous ones of their own."""
    if isinstance(sessions, (scoped_session, async_scoped_session)):
        return target_of(cast("Any", sessions).session_factory)
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
