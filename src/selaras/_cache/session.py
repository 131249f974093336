"""What the current job or `writing()` scope must see, what it owns, and what waits for its end."""

from __future__ import annotations

import os
from asyncio import Semaphore
from collections.abc import AsyncGenerator, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Any, Final, Protocol

from msgspec import Struct

from selaras._cache.family import Family, Slot
from selaras._contracts.partition import Owner
from selaras._core.cache.entry import Entry
from selaras._core.cache.lifetimes import Past
from selaras._core.cache.opening import Opening
from selaras._core.jobs.job import NewJob, Put
from selaras._core.positions import Scope


class Watcher(Protocol):
    """Told of each read of a session."""

    def saw(self, slot: Slot, position: int | None, tier: str) -> None:
        """A key was read: at which position (None: straight from the datastore), from which tier."""
        ...


class SessionKind(Enum):
    """What a session stands for."""

    JOB = auto()
    WRITING = auto()  # a `writing()` scope: a datastore transaction is known to be open
    TRANSACTION = auto()  # as WRITING, but begun and ended by somebody else: it owns intents only from its commit on
    LOADING = auto()  # a loader that runs for several readers: it owns nothing, what it reads is as fresh as itself


class Effects(Struct, frozen=True, kw_only=True):
    """What a settle must do to the cache: fields of a `Settlement` by the same names."""

    puts: tuple[Put, ...] = ()
    tags: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    versions: tuple[tuple[str, int], ...] = ()
    closes: tuple[tuple[str, int], ...] = ()
    planted: tuple[str, ...] = ()


@dataclass(slots=True)
class Pending:
    """A put that waits for its attempt's success. `value` is the object itself only if it may be shared."""

    slot: Slot
    put: Put
    value: Any


class Mark(Struct, frozen=True):
    """How far a session had come: how many jobs, and its puts."""

    children: int
    puts: dict[str, Pending]


class Session(Struct, eq=False):
    """One attempt, or one scope, as the cache sees it.

    Attributes:
        since_ns: the receipt of the reply that granted it (P1). `home`, `position`: its partition, and the log's tail
            in that reply.
        asked_ns: when the request for that reply was sent; 0: not known, and `since_ns` stands for it.
        instance, owner: who owns its intents; None: it can own none.
        own: keys under its intents, declared and planted; with the slot where it is known.
        serves: declared keys of families with `during_write="serve"`: no intent, an invalidation at settle.
        opens: tags and families that it writes as a whole.
        late: of tags and families that it changes, by the names under which they stand, for how long the datastore may
            answer with what was before.
        preimages: what its intents replaced. Served until `started`, that is until the body begins.
        puts, planted, tags, families, versions: what its settle must tell the cache.
        loads: keys whose loader this is: to read them here would wait for itself.
        turns: how many loaders of its batch run at a time; it gives its turn up while it waits for another read.
        children: jobs that are enqueued when it succeeds.
        refused: the store said that it owns nothing any more.
        apart: no loader reads through this transaction: what is loaded while it is open may be kept.
        open: False once its end is being told: what comes later finds no session here (see `close`).
        task: of its job, where it is known.
        watcher: is told of its reads.
    """

    kind: SessionKind
    since_ns: int
    home: int = -1
    position: int = 0
    instance: str = ""
    owner: Owner | None = None
    own: dict[str, Slot | None] = {}
    serves: dict[str, Slot | None] = {}
    opens: frozenset[Opening] = frozenset()
    preimages: dict[str, Entry] = {}
    pasts: dict[str, Past] = {}
    started: bool = False
    parent: Session | None = None
    puts: dict[str, Pending] = {}
    planted: dict[str, None] = {}
    tags: dict[str, None] = {}
    families: dict[str, None] = {}
    versions: dict[str, int] = {}
    loads: frozenset[str] = frozenset()
    turns: Semaphore | None = None
    children: list[NewJob] = []
    refused: bool = False
    asked_ns: int = 0
    apart: bool = False
    open: bool = True
    late: dict[str, int] = {}
    watcher: Watcher | None = None
    task: str = ""

    def close(self) -> None:
        """From here on nothing is added to it: its end is about to be told from what it holds.

        A task, a thread or a process that outlives the body still carries its session. What it does then belongs to
        nobody: it enqueues at once, its puts are invalidations, it reads like code outside of jobs.
        """
        with _changing:
            self.open = False

    def hold(self, jobs: Sequence[NewJob]) -> bool:
        """Keep jobs that are enqueued with its success. Returns False if it is over: then it does not. Nor does a
        transaction whose commit is under way: they go to the store now, and wait there.
        """
        with _changing:
            keeps = self.open and not (self.kind is SessionKind.TRANSACTION and self.owner is not None)
            if keeps:
                self.children.extend(jobs)
            return keeps

    def owns(self, owner: Owner, instance: str) -> list[NewJob]:
        """A transaction owns intents from here on. Returns the jobs kept until now: they are the caller's to place."""
        with _changing:
            self.owner, self.instance = owner, instance
        return self.release()

    def release(self) -> list[NewJob]:
        """Return the jobs kept until now; it keeps them no longer."""
        with _changing:
            kept = list(self.children)
            self.children.clear()
            return kept

    def mark(self) -> Mark:
        """Return where it stands, for `back_to`."""
        with _changing:
            return Mark(len(self.children), dict(self.puts))

    def back_to(self, mark: Mark) -> None:
        """Forget jobs and puts since: a savepoint was rolled back. Its keys stay: one too many does no harm."""
        with _changing:
            del self.children[mark.children :]
            self.puts = dict(mark.puts)

    def drop(self, id: str) -> bool:
        """Drop a job that waits for its success. Returns whether it did."""
        with _changing:
            kept = [child for child in self.children if child.id != id]
            dropped = self.open and len(kept) != len(self.children)
            if dropped:
                self.children[:] = kept
            return dropped

    def keep(self, pending: Pending) -> bool:
        """Keep a put until its success. Returns False if it is over: then it does not."""
        slot = pending.slot
        with _changing:
            if self.open:
                self.own[slot.key] = slot
                self.puts[slot.key] = pending
            return self.open

    def plants(self, slot: Slot) -> bool:
        """An intent of its own is about to be planted there. Returns False if it is over: then none may be."""
        with _changing:
            if self.open:
                self.own[slot.key] = slot
                self.planted[slot.key] = None
            return self.open

    def chain(self) -> Iterator[Session]:
        """Yield this session and those around it, innermost first; those that are over are left out."""
        session: Session | None = self
        while session is not None:
            if session.open:
                yield session
            session = session.parent

    def claim_ns(self) -> int:
        """Return the instant as of which it must see everything: the latest grant of this session and those around."""
        latest, session = self.since_ns, self.parent
        while session is not None:
            latest, session = max(latest, session.since_ns), session.parent
        return latest

    def owner_of(self, key: str) -> Session | None:
        """Return the session, this one or one around it, whose intent stands on `key`."""
        return next((session for session in self.chain() if key in session.own), None)

    def writes(self, key: str) -> Session | None:
        """As `owner_of`, and also for keys that are written without an intent."""
        session: Session | None = self
        while session is not None:  # not over `chain`: this stands in the way of every hit inside a job
            if (key in session.own or key in session.serves) and session.open:
                return session
            session = session.parent
        return None

    def has_opened(self, what: Opening) -> bool:
        """Say whether this session, or one around it, writes that tag or family as a whole."""
        return any(what in session.opens for session in self.chain())

    def opener_of(self, family: Family) -> Session | None:
        """Return the session, this one or one around it, whose body writes values of this family by a tag or as a whole.

        Which tags a value bears is known when it is loaded: any of a family that has some may bear those.
        """
        for session in self.chain():
            if session.opens and session.started:
                for scope, name in session.opens:
                    if (family.tags is not None) if scope is Scope.TAG else name == family.name:
                        return session
        return None

    def preimage_of(self, key: str) -> Entry | None:
        """Return what its intent replaced; once the body has begun it may have written, and nothing is returned (P10)."""
        return None if self.started else self.preimages.get(key)

    def scope(self) -> Session | None:
        """Return the innermost session that owns intents, or will."""
        return next((one for one in self.chain() if one.owner is not None or one.kind is SessionKind.TRANSACTION), None)

    def in_transaction(self) -> bool:
        """Say whether the caller's datastore transaction is known to be open (P13)."""
        return any(one.kind in _TRANSACTIONS and not one.apart for one in self.chain())

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """While it waits for another read another loader of its batch may run: perhaps the one that it waits for."""
        if self.turns is None:
            yield
            return
        self.turns.release()
        try:
            yield
        finally:
            await self.turns.acquire()

    def effects(self, *, success: bool) -> Effects:
        """Return what the settle of this session must tell the store.

        A version that was put is a floor only if the attempt succeeded: otherwise it may never have been committed.
        """
        if not (self.puts or self.tags or self.families or self.planted or self.versions):
            closes = (*_closes(self.own, self.serves), *self.late.items())
            return _NONE if not closes else Effects(closes=closes)
        versions: dict[str, int] = {}
        if success and (self.puts or self.versions):
            put = {key: pending.put.version for key, pending in self.puts.items() if pending.put.version is not None}
            versions = {**put, **self.versions}
        return Effects(
            puts=tuple(pending.put for pending in self.puts.values()) if success else (),
            tags=tuple(self.tags),
            families=tuple(self.families),
            versions=tuple(versions.items()),
            closes=(*_closes(self.own, self.serves, but=versions), *self.late.items()),
            planted=tuple(self.planted),
        )


_NONE: Final = Effects()


def _closes(*written: Mapping[str, Slot | None], but: Container[str] = ()) -> tuple[tuple[str, int], ...]:
    """Return the written keys whose datastore may answer late, and for how long; but for those that name a version."""
    late: dict[str, int] = {}
    for keys in written:
        for key, slot in keys.items():
            if slot is not None and slot.family.replica_lag_us and key not in but:
                late[key] = slot.family.replica_lag_us
    return tuple(late.items())


_TRANSACTIONS: Final = frozenset({SessionKind.WRITING, SessionKind.TRANSACTION})

_changing = Lock()
"""Held while something is added to a session, and while one is closed: it is told with the end, or refused."""

SESSION: ContextVar[Session | None] = ContextVar("selaras_session", default=None)
"""The session that the current code runs in; it may be over. Ask `session_here`."""


def session_here() -> Session | None:
    """Return the innermost session of the code here that is not over."""
    session = SESSION.get()
    while session is not None and not session.open:
        session = session.parent
    return session


def _begin_outside() -> None:
    """A forked child is not its parent's job: nobody tells what it would add to that."""
    global _changing  # noqa: PLW0603
    _changing = Lock()
    SESSION.set(None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_outside)
