"""Calls of one verb that are made in one turn of a loop go out as one, in the same write as all else of that turn.

call ─┐
call ─┼─ a meeting ── just before the write: one script over the items of all ── reply ──> each its own results
call ─┘                                │ not connected, refused, moved
└──> the long way: `Link.call_among`
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from selaras._core.positions import Cursor
from selaras._stores.redis.caller import Caller
from selaras._stores.redis.context import Command
from selaras._stores.redis.errors import FINAL, meaning_of
from selaras._stores.redis.wire import ReplyError, Wire, WireLost

Item = TypeVar("Item")
Result = TypeVar("Result")
Shared = TypeVar("Shared")

TOGETHER_MOST: Final = 1_000
"""So many items are sent together at most: one script must not keep the others waiting."""


class Call(NamedTuple):
    """What a script is asked, with plain commands behind it. `beside`: what whoever reads the replies will want to know."""

    request: Any
    after: Sequence[Command] = ()
    beside: Any = None


class Replies(NamedTuple):
    """What came back for a call. `first_at`: the loop's time when it was sent first, if it was sent again."""

    call: Call
    script: list[Any]
    after: list[Any]
    first_at: float | None = None


_NONE_YET: Final = Call(None)


class Gathered(Generic[Item, Result, Shared]):
    """A verb whose calls meet, where they are made with one cursor.

    Args:
        verb: its script.
        compose: makes the call for the items of all.
        conclude: reads the replies: a result an item, and what is told to all alike, such as the news; or returns a
            coroutine that finds them out.
        urgent, repeats: see `Link.call`.
    """

    def __init__(
        self,
        caller: Caller,
        verb: str,
        compose: Callable[[Sequence[Item]], Call],
        conclude: Callable[
            [Sequence[Item], Cursor, Replies],
            tuple[Sequence[Result], Shared] | Coroutine[Any, Any, tuple[Sequence[Result], Shared]],
        ],
        *,
        urgent: bool = False,
        repeats: bool = False,
    ) -> None:
        self.caller = caller
        self.verb = verb
        self.compose = compose
        self.conclude = conclude
        self.urgent = urgent
        self.repeats = repeats
        self.under_way: set[Task[None]] = set()
        self.open: _Meeting[Item, Result, Shared] | None = None
        """The latest, which those may join who call on its loop with its cursor."""

    def __call__(
        self, items: Sequence[Item], since: Cursor, *, alone: bool = False
    ) -> Awaitable[tuple[Sequence[Result], Shared]]:
        """Return the results of these items. A caller who goes away does not disturb the others.

        Args:
            alone: they meet nobody; they are large, say.
        """
        loop = asyncio.get_running_loop()
        meeting = self.open
        if (
            meeting is not None
            and not alone
            and meeting.loop is loop
            and meeting.since == since
            and len(meeting.items) + len(items) <= TOGETHER_MOST
        ):
            return meeting.join(items)
        wire = self.caller.link.ready(self.caller.index, self.verb)
        meeting = _Meeting(self, loop, since, wire)
        if not alone:
            self.open = meeting
        future = meeting.join(items)
        if wire is not None:
            wire.at_flush(meeting.go)
        else:
            loop.call_soon(meeting.go)
        return future


class _Meeting(Generic[Item, Result, Shared]):
    """Those who call in one turn. It hears the reply itself: that is a turn sooner than a future would."""

    __slots__ = (
        "_answered",
        "_call",
        "_callers",
        "_gathered",
        "_repeated",
        "_sent_at",
        "_wire",
        "items",
        "loop",
        "since",
    )

    def __init__(
        self, gathered: Gathered[Item, Result, Shared], loop: AbstractEventLoop, since: Cursor, wire: Wire | None
    ) -> None:
        self.items: list[Item] = []
        self.loop = loop
        self.since = since
        self._gathered = gathered
        self._wire = wire
        self._callers: list[tuple[int, int, Future[tuple[Sequence[Result], Shared]]]] = []
        self._call = _NONE_YET
        self._sent_at = 0.0
        self._repeated = False
        self._answered = False

    def join(self, items: Sequence[Item]) -> Future[tuple[Sequence[Result], Shared]]:
        future: Future[tuple[Sequence[Result], Shared]] = self.loop.create_future()
        first = len(self.items)
        self.items += items
        self._callers.append((first, len(self.items), future))
        return future

    def go(self) -> None:
        """Nobody can join any more: send it."""
        gathered, wire = self._gathered, self._wire
        if gathered.open is self:
            gathered.open = None
        try:
            self._call = call = gathered.compose(self.items)
            caller = gathered.caller
            self._sent_at = self.loop.time()
            if wire is None or not wire.open or wire.stuffed:
                self._begin(self._go_the_long_way())
            else:
                packed, wanted = caller.packed(gathered.verb, call.request, call.after, self.since)
                wire.send_for(self, packed, wanted, caller.link.within_s(urgent=gathered.urgent))
        except Exception as error:  # noqa: BLE001 - it is told to those who wait
            self._fail(error)

    # -- as the one who is told the reply (`Answer`)

    def done(self) -> bool:
        return self._answered

    def set_exception(self, error: Exception, /) -> None:
        self._answered = True
        gathered = self._gathered
        lost = isinstance(error, WireLost) and error.sent
        if isinstance(error, WireLost) and lost and not gathered.repeats:
            caller = gathered.caller
            self._fail(caller.link.common.maybe_done(caller.index, gathered.verb, error))
        else:
            self._begin(self._go_the_long_way(lost=lost))

    def set_result(self, told: Any, /) -> None:
        self._answered = True
        script, *after = told if self._call.after else (told,)
        if script.__class__ is ReplyError:
            self._begin(self._go_the_long_way(refused=script))
        elif after and any(reply.__class__ is ReplyError for reply in after):
            self._begin(self._mend(script, after))
        else:
            self._conclude(script, after)

    # -- towards the end

    def _begin(self, way: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(way)
        self._gathered.under_way.add(task)
        task.add_done_callback(self._gathered.under_way.discard)

    async def _go_the_long_way(self, *, lost: bool = False, refused: Exception | None = None) -> None:
        gathered, call = self._gathered, self._call
        try:
            _, reply, after = await gathered.caller.among(
                *((), gathered.verb, call.request, self.since, call.after),
                urgent=gathered.urgent,
                repeats=gathered.repeats,
                on_repeat=self._is_repeated,
                lost=lost,
                refused=refused,
            )
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._conclude(reply, after)

    def _is_repeated(self) -> None:
        self._repeated = True

    async def _mend(self, script: list[Any], after: list[Any]) -> None:
        """The script is done, and must not be sent again; what was refused behind it may be, unless it would be again."""
        caller = self._gathered.caller
        refused = [
            place
            for place, reply in enumerate(after)
            if isinstance(reply, ReplyError) and meaning_of(reply) not in FINAL
        ]
        try:
            again = await caller.link.pipeline(caller.index, [self._call.after[place] for place in refused])
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return
        for place, reply in zip(refused, again, strict=True):
            after[place] = reply
        self._conclude(script, after)

    def _conclude(self, reply: list[Any], after: list[Any]) -> None:
        try:
            first_at = self._sent_at if self._repeated else None
            ended = self._gathered.conclude(self.items, self.since, Replies(self._call, reply, after, first_at))
        except Exception as error:  # noqa: BLE001 - it is told to those who wait
            self._fail(error)
            return
        if isinstance(ended, tuple):
            self._tell(*ended)
        else:
            self._begin(self._find_out(ended))

    async def _find_out(self, more: Coroutine[Any, Any, tuple[Sequence[Result], Shared]]) -> None:
        try:
            ended = await more
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._tell(*ended)

    def _tell(self, results: Sequence[Result], shared: Shared) -> None:
        for first, last, future in self._callers:
            if not future.done():
                future.set_result((results[first:last], shared))

    def _fail(self, error: BaseException) -> None:
        for _, _, future in self._callers:
            if not future.done():
                future.set_exception(error)
