"""Runs verbs, one after the other, many in one transaction (group commit).

Whoever asks first runs the verbs of all who asked meanwhile. On an event loop that is a callback at the end of the
loop's turn: a verb of a few microseconds is cheaper done there than handed to another thread, which would wait for
the interpreter's lock once for every statement while the loop is busy. Whatever might wait goes to a thread:
another process is writing, the file must be opened, a commit waits for the disk (synchronous="full"), or a verb says it is heavy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import getpid
from threading import Event, Thread, get_ident
from typing import Any, Final, TypeVar

from selaras._core.errors import SelarasError, StoreUnavailable
from selaras._stores.sqlite.connection import (
    BUSY_MOST_S,
    WAL_KEPT_BYTES,
    Connection,
    DatabaseError,
    begin,
    begin_at_once,
    is_broken,
    is_full,
    roll_back,
    translated,
)
from selaras._stores.sqlite.file import DatabaseFile
from selaras._stores.sqlite.steps import Replies, Steps

T = TypeVar("T")

BATCH_MOST: Final = 512
"""Verbs of one transaction: more would keep other processes waiting."""

CHECKPOINT_EVERY: Final = 32_000
"""Changed rows after which the write-ahead log is copied into the database. Half of what a copy costs is waiting for the
disk: at every 4,000 rows it took a fifth of a drain."""

CHECKPOINT_BYTES: Final = WAL_KEPT_BYTES
"""A log that is longer is copied however few rows that are: they hold large values. Not less than what is kept of the
file when it begins anew."""

_LOOK_EVERY: Final = 64
"""Changed rows after which the log's size is looked at."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A verb, and who waits for it."""

    verb: Callable[[Steps], Any]
    future: asyncio.Future[Any] | None  # None: a thread waits, not a task
    loop: asyncio.AbstractEventLoop | None
    result: Any = None
    error: BaseException | None = None


class Writer:
    """The one who changes a partition in this process. `ring` wakes an instance by its bell, after the commit."""

    def __init__(self, file: DatabaseFile, ring: Callable[[str], None], *, inline: bool) -> None:
        self._file = file
        self._ring = ring
        self._inline = inline
        self._link = file.link(writes=True)
        self._link.on_close(self._forget_steps)
        self._steps: Steps | None = None
        self._replies = Replies()
        self._asked: deque[_Asked] = deque()
        self._soon: asyncio.AbstractEventLoop | None = None  # the loop that is going to run what was asked
        self._thread: Thread | None = None
        self._thread_pid = 0
        self._kicked = Event()
        self._closed = False
        self._changes_copied = 0
        self._look_at = 0  # changes in all, at the next look at the log
        self._copy_wanted = False

    async def run(self, verb: Callable[[Steps], T], *, heavy: bool = False) -> T:
        """Run a verb atomically and return its result. Raises StoreUnavailable, and then nothing was done."""
        if self._closed:
            raise StoreUnavailable(f"the store {self._file.path.absolute()} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._asked.append(_Asked(verb, future, loop))
        if heavy or not self._inline:
            self._kick()
        elif self._soon is not loop:
            self._soon = loop
            loop.call_soon(self._run_here)
        return await future

    def run_blocking(self, verb: Callable[[Steps], T]) -> T:
        """Run a verb on the calling thread, however long it waits for other writers."""
        asked = _Asked(verb, None, None)
        with self._link.lock:
            try:
                begin(self._connection())
                self._transact([asked])
            except DatabaseError as error:
                self._fail([asked], error)
        if asked.error:
            raise asked.error
        result: T = asked.result
        return result

    def open(self) -> None:
        """Take verbs again, after `close`."""
        self._closed = False

    def close(self) -> None:
        """End what was asked, then disconnect."""
        self._closed = True
        self._run_waiting()
        thread, self._thread = self._thread, None
        if thread and thread.is_alive() and thread.ident != get_ident():
            self._kicked.set()
            thread.join()
        with self._link.lock:
            if self._link.is_open:
                self._copy_log()
                self._file.mark(self._file.clock.instant_ns())
            self._link.drop()

    # -- who runs it

    def _run_here(self) -> None:
        """Run what was asked on the event loop, unless that could block it."""
        self._soon = None
        if not self._asked:
            return
        if not self._link.is_current or not self._link.lock.acquire(blocking=False):
            self._kick()
            return
        asked: list[_Asked] = []
        try:
            if not self._begin_at_once():
                self._kick()
                return
            asked = self._next_batch()
            self._transact(asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who asked must hear of it
            asked = asked or self._next_batch()
            self._fail(asked, error)
        finally:
            self._link.lock.release()
        self._deliver(asked, here=asyncio.get_running_loop())
        if self._asked or self._copy_wanted:
            self._kick()

    def _begin_at_once(self) -> bool:
        return begin_at_once(self._connection(patience_s=0))

    def _run_waiting(self) -> None:
        """Run what was asked, on this thread, waiting for other writers."""
        while self._asked:
            with self._link.lock:
                asked: list[_Asked] = []
                try:
                    begin(self._connection())
                    asked = self._next_batch()
                    self._transact(asked)
                except Exception as error:  # noqa: BLE001 - whatever it is, those who asked must hear of it
                    asked = asked or self._next_batch()
                    self._fail(asked, error)
            self._deliver(asked, here=None)

    def _kick(self) -> None:
        if self._thread is None or self._thread_pid != getpid():
            self._thread_pid = getpid()
            self._kicked = Event()
            self._thread = Thread(target=self._serve, args=(self._kicked,), name="selaras-sqlite", daemon=True)
            self._thread.start()
        self._kicked.set()

    def _serve(self, kicked: Event) -> None:
        while not self._closed:
            kicked.wait()
            kicked.clear()
            self._run_waiting()
            if self._copy_wanted and not self._closed:
                with self._link.lock:
                    self._copy_log()
                self._run_waiting()

    # -- one transaction

    def _connection(self, patience_s: float = BUSY_MOST_S) -> Connection:
        """Return the connection, to the file that is there now."""
        con = self._link.to_file(patience_s)
        if self._steps is None:
            self._steps = Steps(con, self._file, self._replies)
            self._changes_copied = self._look_at = con.total_changes
        return con

    def _forget_steps(self) -> None:
        self._steps = None

    def _next_batch(self) -> list[_Asked]:
        batch: list[_Asked] = []
        while self._asked and len(batch) < BATCH_MOST:
            asked = self._asked.popleft()
            if asked.future is None or not asked.future.cancelled():
                batch.append(asked)
        return batch

    def _transact(self, batch: Sequence[_Asked]) -> None:
        """Run verbs in the transaction that was begun; if one fails, each in one of its own."""
        steps = self._steps
        assert steps is not None
        con = steps.con
        try:
            steps.load()
            for asked in batch:
                asked.result = asked.verb(steps)
            steps.save()
            con.execute("COMMIT")
        except BaseException as error:
            roll_back(con)
            steps.forget()
            if not isinstance(error, Exception):  # the process is being stopped
                self._fail(batch, StoreUnavailable("the process was interrupted: nothing was done"))
                raise
            if is_full(error):  # perhaps by the log itself: once it is copied it begins anew, in the room that it has
                self._copy_wanted = True
            if is_broken(error):
                self._file.forget()
                self._link.drop()
            if len(batch) == 1:
                batch[0].error = translated(error, self._file.path)
                return
            for asked in batch:
                try:
                    begin(self._connection())
                    self._transact([asked])
                except (SelarasError, DatabaseError) as again:
                    self._fail([asked], again)
            return
        self._file.reached(steps.counter)
        for address in steps.rings:
            self._ring(address)
        steps.rings.clear()
        changes = con.total_changes
        if changes >= self._look_at:
            self._look_at = changes + _LOOK_EVERY
            self._copy_wanted = (
                changes - self._changes_copied > CHECKPOINT_EVERY or self._file.log_size() > CHECKPOINT_BYTES
            )

    def _fail(self, batch: Sequence[_Asked], error: Exception) -> None:
        told = translated(error, self._file.path)
        for asked in batch:
            asked.error = told

    def _copy_log(self) -> None:
        """Copy the write-ahead log into the database, so that it begins anew instead of growing."""
        self._copy_wanted = False
        if self._steps is None:
            return
        con = self._steps.con
        self._changes_copied = con.total_changes
        try:
            con.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except DatabaseError:  # it is tried again after the next few thousand changes
            pass

    # -- answers

    def _deliver(self, batch: Sequence[_Asked], here: asyncio.AbstractEventLoop | None) -> None:
        elsewhere: dict[asyncio.AbstractEventLoop, list[_Asked]] = {}
        for asked in batch:
            if asked.loop is here:
                _answer(asked)
            elif asked.loop is not None:
                elsewhere.setdefault(asked.loop, []).append(asked)
        for loop, several in elsewhere.items():
            try:
                loop.call_soon_threadsafe(_answer_all, several)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                pass


def _answer(asked: _Asked) -> None:
    if asked.future is None or asked.future.done():
        return
    if asked.error is not None:
        asked.future.set_exception(asked.error)
    else:
        asked.future.set_result(asked.result)


def _answer_all(batch: Sequence[_Asked]) -> None:
    for asked in batch:
        _answer(asked)
