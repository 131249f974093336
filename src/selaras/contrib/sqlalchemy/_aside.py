"""Rows for the functions that are asked for their keys, beside the session that is being flushed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, inspect
from sqlalchemy.orm import (
    InstanceState,
    Mapper,
    RelationshipDirection,
    RelationshipProperty,
    Session,
    lazyload,
    make_transient_to_detached,
)
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.collections import collection_adapter


class Aside(Session):
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


class Row:
    """A row that is being flushed, as the datastore has it and as the flush leaves it.

    The session's own object tells neither: its columns are those to come, its relations those it once read, and another
    transaction may have changed the row since. So functions of a row are given other instances of its class, whose
    relations are what its foreign keys say.
    """

    def __init__(self, row: object, aside: Aside) -> None:
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

    def leave(self) -> None:
        """Make room aside for the row as it comes to be."""
        if self._shown is not None:
            self._aside.let_go(self._shown)
            self._shown, self._is_known = None, False

    def _get(self, identity: Any, **how: Any) -> Any:
        """Look at the datastore. Relations are read when they are asked for, whatever the model says of them."""
        return self._aside.get(self._state.mapper.class_, identity, options=[lazyload("*")], **how)

    def now(self, *, loads_all: bool = False) -> Any:
        """Return the row as it is when it has been written: what that left alone is as the datastore has it.

        Args:
            loads_all: at the price of a query relations, too, that the model lets nobody load by the way.
        """
        mapper, has = self._state.mapper, self._state.dict
        values = {name: has[name] for name in _columns(mapper) if name in has and _comes_back(mapper, name, has[name])}
        values |= {name: self._stored[name] for name, held in self._held.items() if has.get(name) is held}
        self.leave()
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


def _comes_back(mapper: Mapper[Any], name: str, value: object) -> bool:
    """Say whether the datastore has this value of a column as it is here, as far as its type tells."""
    column = mapper.column_attrs[name].columns[0]
    if value is None or column.primary_key:
        return True
    try:
        return type(value) is column.type.python_type
    except NotImplementedError:
        return True


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
