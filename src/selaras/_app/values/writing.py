"""`key.writing()`, `tag.writing()`, `family.all().writing()`: an intent around a datastore write that no task declared."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from selaras._app.process.once import finish
from selaras._app.process.portal import wait_for
from selaras._app.process.program import Program
from selaras._app.values.scoping import Scope
from selaras._cache.family import Slot
from selaras._cache.session import SESSION, Session, SessionKind, session_here
from selaras._core.cache.opening import Opening
from selaras._core.errors import LeaseLost, NotReplicated, SelarasError, StoreUnavailable


class Writing:
    """A scope: from its beginning to its end nothing is stored for its keys, nor what bears its tags and families. Not
    re-usable.

    Inside, puts and enqueued jobs wait for the scope's success; when the body raises they are dropped; when the
    process dies they are released, since the commit may have happened.

    Raises:
        StoreUnavailable: on entry: the intent could not be planted; write nothing.
        LeaseLost: on exit: the lease had run out meanwhile. The keys were voided once more, so nothing stale stays;
            puts were refused.
    """

    def __init__(self, program: Program, slots: Sequence[Slot] = (), opens: Sequence[Opening] = ()) -> None:
        self._program = program
        self._slots = tuple(slots)
        self._opens = tuple(opens)
        self._session: Session | None = None
        self._scope: Scope | None = None

    @property
    def fence(self) -> int:
        """Grows with every scope and claim of its partition; for the datastore's own `where fence <= :fence`."""
        return self._session.owner.fence if self._session is not None and self._session.owner is not None else 0

    @property
    def sync(self) -> BlockingWriting:
        """The twin of which every call blocks."""
        return BlockingWriting(self)

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise SelarasError("a writing() scope is entered once: make another one")
        process = self._program.process()
        await process.open()
        scope = Scope(process, self._slots, self._opens)
        await scope.begin()
        self._scope = scope
        self._session = Session(
            SessionKind.WRITING,
            scope.since_ns,
            home=scope.home,
            position=scope.position,
            instance=scope.instance,
            owner=scope.owner,
            own=dict(scope.own),
            serves=dict(scope.serves),
            opens=frozenset(self._opens),
            late=process.cache.closing(self._opens),
            started=True,
            parent=session_here(),
        )
        SESSION.set(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        assert self._scope is not None
        # Not reset by a token: fixtures and generators may leave in another context than they entered in.
        SESSION.set(self._session.parent)
        # Cancelled from outside, it may have left a commit that is still on its way (P18).
        unsure = error is not None and not isinstance(error, Exception)
        try:
            settled = await finish(self._scope.end(self._session, success=error is None, unsure=unsure))
        except NotReplicated:
            if error is None:
                raise
            return
        if error is not None:
            return
        if settled is None:
            raise StoreUnavailable(
                f"the end of writing {self._scope.names()} could not be stored: nothing is cached for it until its "
                f"lease ends"
            )
        if settled.refusal is not None:
            raise LeaseLost(
                f"the lease of writing {self._scope.names()} ran out before its end; what is cached was voided once more"
            )


class BlockingWriting:
    """A scope: from its beginning to its end nothing is stored for its keys. See `selaras.Writing`."""

    def __init__(self, aio: Writing) -> None:
        self.aio = aio

    @property
    def fence(self) -> int:
        """As of `selaras.Writing`."""
        return self.aio.fence

    def __enter__(self) -> Self:
        wait_for(self.aio.__aenter__, keep=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_for(lambda: self.aio.__aexit__(kind, error, traceback), keep=True)
