"""Reads on the calling thread, over a connection of its own: a reader waits for nobody and nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from selaras._core.errors import StoreUnavailable
from selaras._core.positions import Cursor
from selaras._stores.sqlite.connection import (
    Connection,
    DatabaseError,
    Value,
    is_broken,
    roll_back,
    translated,
)
from selaras._stores.sqlite.file import CommitSign, DatabaseFile
from selaras._stores.sqlite.log import TAIL

T = TypeVar("T")

_PATIENCE_S: Final = 0.005
"""How long a file that must be prepared anew is waited for: most reads are on an event loop, which must not stand."""


class Reader:
    """One read-only connection."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._link = file.link(writes=False)
        self._link.on_close(self._end_sign)
        self._sign: CommitSign | None = None
        self._tail_sign = b""
        self._tail: Cursor | None = None
        self._closed = False

    def at_once(self, look: Callable[[Connection], T]) -> T:
        """Run a look that is one statement, and so of one snapshot. Raises StoreUnavailable."""
        link = self._link
        with link.lock:
            try:
                return look(self._connection())
            except (DatabaseError, UnicodeEncodeError) as error:
                raise self._failed(error) from error

    def first(self, statement: str, values: tuple[Value, ...]) -> Any:
        """Return the first row of one statement, or None. Raises StoreUnavailable."""
        with self._link.lock:
            try:
                return self._connection().execute(statement, values).fetchone()
            except (DatabaseError, UnicodeEncodeError) as error:
                raise self._failed(error) from error

    def snapshot(self, look: Callable[[Connection], T]) -> T:
        """Run a look of several statements in one snapshot. Raises StoreUnavailable."""
        with self._link.lock:
            try:
                con = self._connection()
                con.execute("BEGIN")
                try:
                    return look(con)
                finally:
                    roll_back(con)
            except (DatabaseError, UnicodeEncodeError) as error:
                raise self._failed(error) from error

    def tail(self) -> Cursor | None:
        """Return the log's tail, from memory if nothing was committed since it was read; None if it cannot be read."""
        with self._link.lock:
            try:
                con = self._connection()
                sign = self._sign.read() if self._sign is not None else b""
                if sign and sign == self._tail_sign:
                    return self._tail
                # The sign was read first: if a commit comes between, it will differ next time.
                row = con.execute(TAIL).fetchone()
            except (DatabaseError, StoreUnavailable):
                return None
            self._tail, self._tail_sign = Cursor(row[0], row[1]), sign
            return self._tail

    def open(self) -> None:
        """Look again, after `close`."""
        self._closed = False

    def close(self) -> None:
        """Disconnect."""
        with self._link.lock:
            self._closed = True
            self._link.drop()

    def _connection(self) -> Connection:
        if self._closed:
            raise StoreUnavailable(f"the store {self._file.path.absolute()} is closed")
        con = self._link.to_file(_PATIENCE_S)
        if self._sign is None:
            con.execute(TAIL).fetchone()  # maps the memory that the sign is read from
            self._sign = CommitSign(self._file.path)
        return con

    def _end_sign(self) -> None:
        if self._sign is not None:
            self._sign.end()
        self._sign, self._tail_sign = None, b""

    def _failed(self, error: Exception) -> Exception:
        if is_broken(error):
            self._file.forget()
            self._link.drop()
        return translated(error, self._file.path)
