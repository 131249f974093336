"""Events of rows: what is written of a bound model, as it was and as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Mapper, Session, object_session
from sqlalchemy.orm.exc import DetachedInstanceError

from selaras._app.transacting import Keys, Places
from selaras.contrib.sqlalchemy._aside import Row
from selaras.contrib.sqlalchemy._transaction import OpenTransaction


class RowEvents:
    """Events of one model's rows. `bound`: those of each."""

    def __init__(
        self,
        transactions: WeakKeyDictionary[Session, OpenTransaction],
        keys: Keys,
        bound: Mapping[type[Any], RowEvents],
    ) -> None:
        self._open = transactions
        self._keys = keys
        self._bound = bound
        self._by_primary_key: dict[Mapper[Any], bool] = {}  # whether its keys were made of nothing else until now

    def _of(self, row: object) -> OpenTransaction | None:
        session = object_session(row)
        return None if session is None else self._open.get(session)

    def _slots(self, mapper: Mapper[Any], row: object, one: OpenTransaction) -> Places:
        if self._keys.by_identity:
            return self._keys.of_identity(mapper.primary_key_from_instance(row))
        try:
            return self._keys.of(one.row(row).now())
        except InvalidRequestError:  # a relation that is not loaded unless one says so (lazy="raise")
            return self._keys.of(one.row(row).now(loads_all=True))

    def before_insert(self, mapper: Mapper[Any], connection: Connection, row: object) -> None:
        """In autocommit there is no later: but only a row that has its key by then has one to give."""
        one, identity = self._of(row), mapper.primary_key_from_instance(row)
        if one is None or None in identity:
            return
        self._before_switch(one, mapper.identity_key_from_primary_key(identity), connection, row)
        if one.autocommits:
            one.add(self._slots(mapper, row, one))
            one.plant()

    def _before_switch(self, one: OpenTransaction, identity: Any, connection: Connection, row: object) -> None:
        """In place of a row that is deleted in the same flush: then the two are one UPDATE, and nothing tells of the other."""
        session = object_session(row)
        there = None if session is None else session.identity_map.get(identity)
        if there is None or there is row:
            return
        for model, rows in self._bound.items():
            if isinstance(there, model):
                rows.before_delete(inspect(there).mapper, connection, there)
        one.row(there).leave()

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

    def _of_primary_key(self, mapper: Mapper[Any], row: Row) -> Places | None:
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
