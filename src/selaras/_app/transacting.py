"""A datastore transaction that a library begins and ends, as a scope: what `selaras.contrib` hooks are made of.

    enter ──> add keys, as rows are flushed ──> plant, before the commit ──> settle, after it ──> leave
                                                                 └── killed here: the lease ends, intents stand a grace

Nothing is asked of the store before the commit, and nothing at all for a transaction that wrote no key, enqueued
no job and voided no tag. Until then jobs stay here, and are dropped with a rollback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from selaras._app.app import BlockingSelaras, Selaras
from selaras._app.jobs.placing import admit, admit_under
from selaras._app.jobs.task import BlockingTask, Task
from selaras._app.process.once import finish
from selaras._app.process.program import Program
from selaras._app.values.cached import BlockingCached, Cached
from selaras._app.values.key import BlockingKey, Key
from selaras._app.values.scoping import Scope
from selaras._cache.family import Slot
from selaras._cache.session import SESSION, Mark, Session, SessionKind, session_here
from selaras._core.errors import ConfigurationError, IdConflict, NotReplicated

M = TypeVar("M")

_log = logging.getLogger("selaras")

Places: TypeAlias = Sequence[Slot]
Savepoint: TypeAlias = Mark


class Transaction:
    """One transaction. From `enter` to its end, code in its context reads and enqueues within it.

    Args:
        apart: no loader reads through it, so that what is loaded meanwhile may be kept (P13).
    """

    def __init__(self, program: Program, *, apart: bool) -> None:
        self._program = program
        process = program.process()
        # As of its begin: what it decides by a cached value is not older than that.
        self._session = Session(
            SessionKind.TRANSACTION, process.clock.instant_ns(), parent=session_here(), started=True, apart=apart
        )
        self._scope: Scope | None = None

    @property
    def planted(self) -> bool:
        """Whether the store knows of it."""
        return self._scope is not None

    @property
    def children(self) -> int:
        """How many jobs wait here for its commit."""
        return len(self._session.children)

    def enter(self) -> None:
        """The code here is within it from now on."""
        SESSION.set(self._session)

    def leave(self) -> None:
        """It is over, in whatever context. Jobs that still wait here are dropped."""
        self._session.close()
        SESSION.set(session_here())

    def forget(self) -> None:
        """Whoever would have ended it is gone. Takes no lock: this may run in the middle of anything."""
        self._session.open = False
        if self._session.children:
            _log.warning(
                "a transaction was never ended: %d jobs enqueued in it are dropped", len(self._session.children)
            )

    def add(self, slots: Places) -> None:
        """It writes these: reads of them within it go to the datastore from now on."""
        session = self._session
        for slot in slots:
            (session.own if slot.family.during_write == "load" else session.serves)[slot.key] = slot

    def mark(self) -> Savepoint:
        """Return where it stands: a savepoint begins."""
        return self._session.mark()

    def back_to(self, mark: Savepoint) -> None:
        """A savepoint is rolled back: its jobs and puts are dropped."""
        self._session.back_to(mark)

    async def plant(self, *, jobs: bool = True) -> None:
        """Plant intents on all that was added, and let its jobs wait in the store. Call it again after more were.

        Args:
            jobs: False leaves them here, where the end of a savepoint can drop them.

        Raises:
            StoreUnavailable, LeaseLost, IdConflict: do not commit. `settle(False)` puts back what was done.
        """
        session = self._session
        slots = [slot for slot in (*session.own.values(), *session.serves.values()) if slot and not self._guarded(slot)]
        if self._scope is None:
            if not (slots or session.children or session.tags or session.families):
                return
            process = self._program.process()
            await process.open()
            scope = Scope(process, slots)
            await scope.begin()
            self._scope = scope
            session.since_ns, session.home, session.position = scope.since_ns, scope.home, scope.position
        else:
            await self._scope.plant(slots)
        if not jobs:
            return
        children = session.owns(self._scope.owner, self._scope.instance)
        for placed in await admit_under(self._program.process(), children, self._scope.owner):
            if placed.refusal is not None:
                raise IdConflict(f"job {placed.id!r} is there already, of another task or with other arguments")

    def _guarded(self, slot: Slot) -> bool:
        """Say whether an intent of a job or scope around this stands there already, and will after this."""
        owner = self._session.parent.owner_of(slot.key) if self._session.parent is not None else None
        return owner is not None and owner.kind is not SessionKind.TRANSACTION

    async def settle(self, committed: bool | None) -> None:
        """End it. None: nobody knows whether it was committed. Raises nothing that the store does: it is over anyway."""
        self._session.close()
        scope = self._scope
        if scope is None:
            return
        if committed is None:
            _log.warning("nobody knows whether the transaction that wrote %s was committed", scope.names())
            scope.abandon()
            return
        try:
            settled = await finish(scope.end(self._session, success=committed))
        except NotReplicated as doubt:
            _log.warning("the end of a transaction that wrote %s was stored: %s", scope.names(), doubt)
            return
        if settled is not None and settled.refusal is not None:
            _log.warning("the lease of a transaction that wrote %s ran out before its end", scope.names())

    async def release(self) -> None:
        """End it, and enqueue its jobs: it wrote nothing that they could depend on."""
        self._session.close()
        process = self._program.process()
        for placed in await admit(process, self._session.release()):
            if placed.refusal is not None:
                _log.error("job %s is there already, of another task or with other arguments", placed.id)


AnyApp: TypeAlias = Selaras | BlockingSelaras
AnyCached: TypeAlias = Cached[..., Any] | BlockingCached[..., Any]
AnyKey: TypeAlias = Key[Any] | BlockingKey[Any]

KeysOf: TypeAlias = AnyCached | Callable[[Any], AnyKey | Iterable[AnyKey]]
"""How keys come from a row: a family, whose arguments are the row's primary key; or a function of the row."""


_APPS: Final = (Selaras, BlockingSelaras)


def _owner(method: object) -> object:
    return getattr(method, "__self__", None)


def keys_of_models(
    program: Program, keys: Mapping[type[M], KeysOf], is_model: Callable[[type[object]], bool]
) -> dict[type[M], Keys]:
    """Return the keys of each model that a program binds. Raises ConfigurationError for what is no model, or says no keys."""
    if not isinstance(keys, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(
            f"bind(..., {keys!r}): say which cached values hang on the rows of which model: {{Product: product}}"
        )
    for model in keys:
        given = cast(object, model)
        if not isinstance(given, type) or not is_model(given):
            raise ConfigurationError(f"bind(..., {{{given!r}: ...}}): give a model, the class itself: {{Product: ...}}")
    return {model: Keys(program, model, how) for model, how in keys.items()}


class Keys:
    """The keys of a model's rows. `by_identity`: they hang on nothing but the primary key."""

    def __init__(self, program: Program, model: type[Any], keys: KeysOf) -> None:
        said = cast(object, keys)
        if not callable(said) or isinstance(said, (Task, BlockingTask)) or isinstance(_owner(said), _APPS):
            raise ConfigurationError(
                f"bind: {model.__name__}: {keys!r} is neither a cached family nor a function of a row that returns keys"
            )
        self._program = program
        self._model = model
        self._keys: Any = keys
        self.by_identity = isinstance(keys, (Cached, BlockingCached))

    def of_identity(self, identity: Sequence[Any]) -> Places:
        """Return the places of a row by its primary key; only if `by_identity`."""
        return slots_of(self._program, [self._keys.key(*identity)])

    def of(self, row: Any) -> Places:
        """Return the places of a row."""
        keys: object = self._keys(row)
        if isinstance(keys, (Key, BlockingKey)):
            return slots_of(self._program, [keys])  # pyright: ignore[reportUnknownArgumentType] - of whatever type
        if not isinstance(keys, Iterable):
            raise ConfigurationError(
                f"bind: the function of {self._model.__name__} returned {keys!r}, which is no key and no list of keys"
            )
        return slots_of(self._program, cast("Iterable[AnyKey]", keys))


def slots_of(program: Program, keys: Iterable[AnyKey]) -> Places:
    """Return the places of keys. Raises ConfigurationError for what is none, or of another app."""
    slots: list[Slot] = []
    for key in keys:
        aio: object = key.aio if isinstance(key, BlockingKey) else key
        slot: object = getattr(aio, "slot", None)
        if not isinstance(slot, Slot):
            raise ConfigurationError(f"{key!r} is no key: name each, as in family.key(42)")
        known = program.registry.families.get(slot.family.name)
        if known is None or known.family is not slot.family:
            raise ConfigurationError(f"{key!r} is of another app than the one that was bound")
        slots.append(slot)
    return slots


def program_of(app: AnyApp) -> Program:
    """Return the inside of an app. Raises ConfigurationError for what is none."""
    if not isinstance(app, (Selaras, BlockingSelaras)):  # pyright: ignore[reportUnnecessaryIsInstance] - users' values
        raise ConfigurationError(f"bind({app!r}, ...): give the app first: bind(app, ...)")
    return (app.aio if isinstance(app, BlockingSelaras) else app).program
