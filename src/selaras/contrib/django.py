"""Transactions of Django as scopes: `bind(app, {Product: product})` in an `AppConfig.ready`.

Every transaction of a connection is one, whoever opens it: `transaction.atomic`, `ATOMIC_REQUESTS`, the admin, or
`set_autocommit(False)`. Django tells nobody before a commit nor after a rollback, so the connection's own `commit`,
`rollback` and `set_autocommit` are wrapped as it connects.

    a transaction begins      reads and enqueues of the code around it are within it
    a row is saved, deleted   its keys, as it was and as it is, belong to the transaction
    commit                    intents are planted; if that fails it is rolled back. Then COMMIT, then they are resolved,
                              jobs are released, and `on_commit` hooks run
    rollback                  jobs are dropped; the store was never asked
    a row is saved outside    its statement is the transaction: planted before it, resolved after it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from django.core.exceptions import ValidationError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Model, signals
from django.db.utils import DEFAULT_DB_ALIAS

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

_BARE: Final = (str, int, float, bytes, bool)
_WRITING: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "WITH")

_log = logging.getLogger("selaras")


def bind(app: AnyApp, keys: Mapping[type[Model], KeysOf], *, apart: bool = False) -> None:
    """Let transactions be scopes of `app`. In `AppConfig.ready`; each Django app may bind its own models.

    Args:
        keys: which cached values hang on a row of each model, and of models derived from it: a family, whose argument is
            the primary key, or a function that returns a key or several. It is asked for the row as it was, which
            costs a query before each save, and as it is: another one after saves of expressions, of values that the database
            has as another type, and of models with generated fields.
        apart: True says that no loader reads through the connection of its caller. That is so where loaders are plain
            functions: they run in threads of their own, and so with connections of their own. Then what is loaded while a
            transaction is open is kept like any other.

    Raises:
        ConfigurationError: what does not fit; a model is bound already.
    """
    program = program_of(app)
    of_models = keys_of_models(program, keys, lambda model: issubclass(model, Model))
    hooks = _HOOKS.get(program)
    if hooks is None:
        hooks = _HOOKS[program] = _Hooks(program, apart=apart)
        connection_created.connect(hooks.connected, weak=False)
        for connection in connections.all(initialized_only=True):
            if connection.connection is not None:
                hooks.connected(None, connection)
    elif hooks.apart is not apart:
        raise ConfigurationError(f"bind(..., apart={apart}): this app was bound with apart={hooks.apart} before")
    for model, one in of_models.items():
        hooks.bind(model, one)


def writes(*keys: AnyKey, using: str = DEFAULT_DB_ALIAS) -> None:
    """Say what the current transaction writes, where no row says it: `update()`, `bulk_create()`, SQL, relations.

    Raises:
        ConfigurationError: no transaction is open, no app is bound, or this is no key of the app.
    """
    connection = connections[using]
    if not _HOOKS:
        raise ConfigurationError("writes(...): no app is bound to Django: bind(app, {...}) in AppConfig.ready")
    if connection.get_autocommit():
        raise ConfigurationError(
            "writes(...): no transaction is open, so nothing tells when these are written: "
            "wrap both in transaction.atomic(), or the statement in key.writing()"
        )
    for program, hooks in _HOOKS.items():
        mine = [key for key in keys if _is_of(program, key)]
        hooks.here(connection).add(slots_of(program, keys if len(_HOOKS) == 1 else mine))


def _is_of(program: Program, key: AnyKey) -> bool:
    try:
        return bool(slots_of(program, [key]))
    except ConfigurationError:
        return False


class _Hooks:
    """One app's."""

    def __init__(self, program: Program, *, apart: bool) -> None:
        self.program = program
        self.apart = apart
        self._models: dict[type[Model], Keys] = {}
        self._connections: WeakKeyDictionary[BaseDatabaseWrapper, _Connection] = WeakKeyDictionary()

    def bind(self, model: type[Model], keys: Keys) -> None:
        if model in self._models:
            raise ConfigurationError(f"bind: {model.__name__} is bound already")
        self._models[model] = keys
        for one in _with_derived(model):
            signals.pre_save.connect(self._before_save, sender=one)
            signals.post_save.connect(self._after_save, sender=one)
            signals.pre_delete.connect(self._before_delete, sender=one)

    def connected(self, sender: object, connection: BaseDatabaseWrapper, **_: object) -> None:
        del sender
        self.here(connection)

    def here(self, connection: BaseDatabaseWrapper) -> _Connection:
        found = self._connections.get(connection)
        if found is None:
            found = self._connections[connection] = _Connection(self.program, connection, apart=self.apart)
        return found

    # -- rows

    def _before_save(
        self,
        sender: type[Model],
        instance: Model,
        using: str,
        update_fields: Collection[str] | None = None,
        **_: object,
    ) -> None:
        slots: list[Any] = []
        if instance.pk is not None:
            for model, keys in self._keys(sender):
                if keys.by_identity:
                    slots += _of(keys, instance)
                    continue
                was = _stored(sender, instance, using, as_a=model)  # of a new object, too: its row may be there
                is_told = _has_what_is_stored(instance)
                if is_told:
                    slots += keys.of(instance)
                if was is not None:
                    slots += keys.of(was)
                    if is_told and update_fields is not None:  # its other columns stay as they are there
                        slots += keys.of(_with(was, instance, update_fields))
        self.here(connections[using]).writes(instance, slots)

    def _after_save(self, sender: type[Model], instance: Model, using: str, **_: object) -> None:
        slots: list[Any] = []
        for model, keys in self._keys(sender):
            if keys.by_identity or _has_what_is_stored(instance):
                slots += _of(keys, instance)
            elif (now := _stored(sender, instance, using, as_a=model)) is not None:
                slots += keys.of(now)
        self.here(connections[using]).wrote(instance, slots)

    def _before_delete(self, sender: type[Model], instance: Model, using: str, **_: object) -> None:
        slots: list[Any] = []
        for model, keys in self._keys(sender):
            if keys.by_identity or _has_what_is_stored(instance):
                slots += _of(keys, instance)
            if not keys.by_identity and (was := _stored(sender, instance, using, as_a=model)) is not None:
                slots += keys.of(was)
        self.here(connections[using]).writes(instance, slots)

    def _keys(self, sender: type[Model]) -> Iterator[tuple[type[Model], Keys]]:
        return ((model, keys) for model, keys in self._models.items() if issubclass(sender, model))


_HOOKS: Final[dict[Program, _Hooks]] = {}


def _with_derived(model: type[Model]) -> Iterator[type[Model]]:
    yield model
    for derived in model.__subclasses__():
        yield from _with_derived(derived)


def _of(keys: Keys, row: Model) -> Places:
    return keys.of_identity([row._meta.pk.to_python(row.pk)]) if keys.by_identity else keys.of(row)  # noqa: SLF001


def _has_what_is_stored(row: Model) -> bool:
    """Say whether an object has what the database has of it, or will: no expression, no value that comes back as another
    type, no column that the database makes.
    """
    for field in row._meta.concrete_fields:  # noqa: SLF001 - a documented name
        if getattr(field, "generated", False):
            return False
        value = row.__dict__.get(field.attname)
        if value is None:  # or it is not loaded
            continue
        if hasattr(value, "resolve_expression") or (isinstance(value, _BARE) and type(value) not in _BARE):
            return False
        try:
            if type(field.to_python(value)) is not type(value):
                return False
        except ValidationError:
            return False
    return True


def _stored(sender: type[Model], row: Model, using: str, *, as_a: type[Model]) -> Model | None:
    """Return the row as the database has it, locked as the statement that follows will lock it.

    One that is there only as a row of a parent is returned as that, if it is one of `as_a`.
    """
    connection = connections[using]
    for model in (sender, *sender._meta.get_parent_list()):  # noqa: SLF001 - documented names
        if issubclass(model, as_a):
            rows = model._base_manager.using(using).filter(pk=row.pk)  # noqa: SLF001
            if connection.features.has_select_for_update and not connection.get_autocommit():
                rows = rows.select_for_update(no_key=connection.features.has_select_for_no_key_update)
            # `first` would limit it, and Oracle locks nothing that is limited.
            if (found := next(iter(rows), None)) is not None:
                return found
    return None


def _with(row: Model, changed: Model, names: Collection[str]) -> Model:
    """Return a row of which only these fields are changed."""
    for field in row._meta.concrete_fields:  # noqa: SLF001 - a documented name
        if field.name in names or field.attname in names:
            setattr(row, field.attname, getattr(changed, field.attname))
    return row


class _Connection:
    """One thread's connection to one database, and what is under way on it."""

    def __init__(self, program: Program, connection: BaseDatabaseWrapper, *, apart: bool) -> None:
        self._program = program
        self._apart = apart
        self._connection = connection
        self._open: Transaction | None = None
        self._savepoints: dict[str, Savepoint] = {}
        # Rows that are being saved outside of a transaction, unless that failed on its way to the database.
        self._alone: dict[int, tuple[ref[Model], Places]] = {}
        self._inner: dict[str, Callable[..., Any]] = {}
        for name in ("set_autocommit", "commit", "rollback", "close", "savepoint", "savepoint_rollback"):
            self._inner[name] = getattr(connection, name)
            setattr(connection, name, getattr(self, name))
        connection.execute_wrappers.insert(0, self._execute)
        if not connection.autocommit:
            self._begin()

    # -- what is written

    def add(self, slots: Places) -> None:
        if self._open is not None:
            self._open.add(slots)

    def writes(self, row: Model, slots: Places) -> None:
        """A row is about to be written."""
        if self._open is not None:
            self._open.add(slots)
        elif slots:
            self._alone[id(row)] = ref(row), slots

    def wrote(self, row: Model, slots: Places) -> None:
        """It was, and now it has all its fields: a new one, its key."""
        if self._open is not None:
            self._open.add(slots)
            return
        known = {slot.key for slot in self._alone.pop(id(row), (None, ()))[1]}
        late = [slot for slot in slots if slot.key not in known]
        if late:
            one = self._transaction(late)
            wait_for(one.plant)
            self._settle(one, committed=True)

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._open is not None or not self._alone or not sql.lstrip()[:7].upper().startswith(_WRITING):
            return execute(sql, params, many, context)
        one = self._transaction([slot for row, slots in self._alone.values() if row() is not None for slot in slots])
        try:
            wait_for(one.plant)
        except BaseException:
            self._alone.clear()
            self._settle(one, committed=False)
            raise
        try:
            done = execute(sql, params, many, context)
        except BaseException as error:
            self._alone.clear()
            self._settle(one, committed=False if is_refusal(error) else None)
            raise
        self._settle(one, committed=True)
        return done

    # -- the connection's own methods

    def set_autocommit(self, autocommit: bool, *args: Any, **kwargs: Any) -> None:
        """As the connection's: off begins a transaction, on ends it."""
        if not autocommit:
            self._inner["set_autocommit"](autocommit, *args, **kwargs)
            if self._open is None:
                self._begin()
                # A save of a model with parents opens a transaction for itself, after it has told of the row.
                for row, slots in self._alone.values():
                    if row() is not None:
                        self.add(slots)
            return
        # Databases differ in whether it commits what is open; here it counts as a commit.
        self._connection.validate_no_atomic_block()
        self._committing(lambda: self._inner["set_autocommit"](autocommit, *args, **kwargs), goes_on=False)

    def commit(self) -> None:
        """As the connection's."""
        self._connection.validate_no_atomic_block()
        self._committing(self._inner["commit"], goes_on=True)

    def rollback(self) -> None:
        """As the connection's."""
        self._connection.validate_no_atomic_block()
        try:
            self._inner["rollback"]()
        finally:
            self._end(committed=False, goes_on=True)

    def close(self) -> None:
        """As the connection's: what is open is rolled back by the database."""
        try:
            self._inner["close"]()
        finally:
            self._end(committed=False, goes_on=False)

    def savepoint(self) -> Any:
        """As the connection's."""
        sid = self._inner["savepoint"]()
        if sid and self._open is not None:
            self._savepoints[sid] = self._open.mark()
        return sid

    def savepoint_rollback(self, sid: str) -> None:
        """As the connection's: jobs enqueued since are dropped."""
        self._inner["savepoint_rollback"](sid)
        mark = self._savepoints.pop(sid, None)
        if mark is not None and self._open is not None:
            self._open.back_to(mark)

    # -- transactions

    def _transaction(self, slots: Places) -> Transaction:
        one = Transaction(self._program, apart=self._apart)
        one.add(slots)
        return one

    def _begin(self) -> None:
        self._open = Transaction(self._program, apart=self._apart)
        self._open.enter()

    def _committing(self, commit: Callable[[], None], *, goes_on: bool) -> None:
        if self._open is not None:
            try:
                wait_for(self._open.plant)
            except BaseException:
                # Nobody above rolls back for an error that is not the database's, and then autocommit would commit.
                self.rollback()
                raise
        one, self._open = self._open, None  # hooks that run in `commit` are outside
        if one is None:
            commit()
            return
        one.leave()
        try:
            commit()
        except BaseException as error:
            self._over(one, committed=False if is_refusal(error) else None, goes_on=goes_on)
            raise
        self._over(one, committed=True, goes_on=goes_on)

    def _end(self, *, committed: bool | None, goes_on: bool) -> None:
        one, self._open = self._open, None
        if one is not None:
            self._over(one, committed=committed, goes_on=goes_on)

    def _over(self, one: Transaction, *, committed: bool | None, goes_on: bool) -> None:
        self._savepoints.clear()
        self._settle(one, committed=committed)
        if goes_on:
            self._begin()

    def _settle(self, one: Transaction, *, committed: bool | None) -> None:
        try:
            if one.planted:
                wait_for(lambda: one.settle(committed))
        except Exception:  # noqa: BLE001 - see below
            # It is over in the database, and whoever commits must not be told otherwise; its lease ends what is left.
            _log.exception("the end of a transaction could not be told to the store")
        finally:
            one.leave()
