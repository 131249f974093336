"""Between a process and the store: calls that travel, and sometimes don't arrive, or whose replies don't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Protocol

from selaras._contracts.partition import HeartbeatReply, HeartbeatRequest
from selaras._contracts.store import Bell, Pulse, Store
from selaras._core.errors import StoreUnavailable
from selaras._core.positions import Cursor, Grown
from simulation.loop import Event, Lane, Loop
from simulation.machine import Bells
from simulation.plan import Plan

_TRIP: Final = 0.000_3
_LOCAL_TRIP: Final = 0.000_02
_SLOW_MOST: Final = 4.0
_TOLD_LATE: Final = 0.3
"""After how long, about, a caller is told that its call, or the reply, was lost."""


class Witness(Protocol):
    """Who watches what the store does."""

    def executed(
        self, partition: int, verb: str, arguments: tuple[Any, ...], reply: Any, begun_ns: int, ended_ns: int
    ) -> None:
        """A verb was executed in between these instants."""
        ...

    def happened(self, fault: str, lane: Lane | None) -> None:
        """A fault happened."""
        ...


class Fate:
    """What may happen to the calls of one process. `at_call`: asked at each, and may end or stop the process."""

    def __init__(
        self, plan: Plan, chance: Random, loop: Loop, lane: Lane, witness: Witness, at_call: Callable[[], None]
    ) -> None:
        self._draw = chance.random
        self._loop = loop
        self._lane = lane
        self._witness = witness
        self._at_call = at_call
        self._slow = plan.rate("slow")
        self._lost_request = plan.rate("lost-request")
        self._lost_reply = plan.rate("lost-reply")
        self._trip = _TRIP if plan.store == "memory" else _LOCAL_TRIP
        self.healed = False
        self.cut_until_ns = 0
        self.away_until_ns = 0

    @property
    def away(self) -> bool:
        """Whether the store cannot be reached from here now."""
        return self._loop.now_ns < self.cut_until_ns

    def of_a_call(self) -> tuple[float, float, str]:
        """Return how long a call and its reply travel, and what is lost of it: "", "lost-request" or "lost-reply"."""
        draw, trip = self._draw, self._trip
        out, back = trip * (0.5 + draw()), trip * (0.5 + draw())
        if self.healed:
            return out, back, ""
        self._at_call()
        if self.away:
            return out, back + _TOLD_LATE * draw(), "lost-request"
        dice = draw()
        if dice < self._slow:
            self._witness.happened("slow", self._lane)
            late = _SLOW_MOST * draw() ** 3
            if dice < self._slow / 2:
                out += late
            else:
                back += late
        elif dice < self._slow + self._lost_request:
            self._witness.happened("lost-request", self._lane)
            return out, back + _TOLD_LATE * draw(), "lost-request"
        elif dice < self._slow + self._lost_request + self._lost_reply:
            self._witness.happened("lost-reply", self._lane)
            return out, back + _TOLD_LATE * draw(), "lost-reply"
        return out, back, ""


class Far:
    """A partition in a server: what is on its way arrives, whatever became of its caller."""

    def __init__(self, real: Any, fate: Fate, loop: Loop, witness: Witness, is_up: Callable[[], bool]) -> None:
        self.index: int = real.index
        self._real = real
        self._fate = fate
        self._loop = loop
        self._witness = witness
        self._is_up = is_up

    def tail_now(self) -> Cursor | None:
        """A server cannot be looked at without waiting."""
        return None

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        real = getattr(self._real, verb)

        async def call(*arguments: Any, **options: Any) -> Any:
            loop = self._loop
            future = loop.create_future()
            out, back, lost = self._fate.of_a_call()

            def arrive() -> None:
                value: Any = None
                error: Exception | None = None
                if lost == "lost-request" or not self._is_up():
                    error = StoreUnavailable("it could not be reached")
                else:
                    try:
                        value = at_once(real(*arguments, **options))
                    except Exception as raised:  # noqa: BLE001 - it is the caller's
                        error = raised
                    else:
                        now = loop.now_ns
                        self._witness.executed(self.index, verb, arguments, value, now, now)
                    if lost:
                        error = StoreUnavailable("its reply was lost")
                loop.outside_later(back, deliver, value, error)

            def deliver(value: Any, error: Exception | None) -> None:
                if future.done():
                    return
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)

            loop.outside_later(out, arrive)
            return await future

        setattr(self, verb, call)
        return call


class Near:
    """A partition in a file, which the process itself reads and writes."""

    def __init__(self, real: Any, fate: Fate, loop: Loop, witness: Witness, is_up: Callable[[], bool]) -> None:
        self.index: int = real.index
        self._real = real
        self._fate = fate
        self._loop = loop
        self._witness = witness
        self._is_up = is_up

    def tail_now(self) -> Cursor | None:
        """See `Partition`."""
        if self._fate.away:
            raise StoreUnavailable("it could not be read")
        found: Cursor | None = self._real.tail_now()
        return found

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        real = getattr(self._real, verb)

        async def call(*arguments: Any, **options: Any) -> Any:
            out, back, lost = self._fate.of_a_call()
            await asyncio.sleep(out)
            if lost == "lost-request" or not self._is_up():
                raise StoreUnavailable("it could not be reached")
            begun = self._loop.now_ns
            reply = await real(*arguments, **options)
            self._witness.executed(self.index, verb, arguments, reply, begun, self._loop.now_ns)
            await asyncio.sleep(back)
            if lost:
                raise StoreUnavailable("its reply was lost")
            return reply

        setattr(self, verb, call)
        return call


class FarPulse:
    """Heartbeats to a server, from a simulated thread."""

    def __init__(self, store: Linked) -> None:
        self._store = store
        self._real = store.real.pulse()

    def beat(self, partition: int, request: HeartbeatRequest) -> HeartbeatReply:
        """See `Pulse`."""
        store = self._store
        out, back, lost = store.fate.of_a_call()
        answered = Event()
        replies: list[HeartbeatReply] = []

        def arrive() -> None:
            if lost != "lost-request" and store.is_up():
                reply = self._real.beat(partition, request)
                now = store.loop.now_ns
                store.witness.executed(partition, "beat", (request,), reply, now, now)
                if not lost:
                    replies.append(reply)
            store.loop.outside_later(back, answered.set)

        if store.far:
            store.loop.outside_later(out, arrive)
            answered.wait()
        else:
            Event().wait(out)
            begun = store.loop.now_ns
            if lost != "lost-request" and store.is_up():
                reply = self._real.beat(partition, request)
                store.witness.executed(partition, "beat", (request,), reply, begun, store.loop.now_ns)
                if not lost:
                    replies.append(reply)
            Event().wait(back)
        if not replies:
            raise StoreUnavailable("the beat, or its answer, was lost")
        return replies[0]

    def close(self) -> None:
        """See `Pulse`."""
        self._real.close()


class Linked:
    """A store as one process reaches it. `far`: a server's, shared by all; else a file, opened by each for itself."""

    def __init__(
        self,
        real: Store,
        fate: Fate,
        loop: Loop,
        bells: Bells,
        witness: Witness,
        *,
        far: bool,
        is_up: Callable[[], bool],
        hints: Callable[[Grown], None],
    ) -> None:
        self.real = real
        self.fate = fate
        self.loop = loop
        self.witness = witness
        self.far = far
        self.is_up = is_up
        self.url = real.url
        self._bells = bells
        self._hints = hints
        kind = Far if far else Near
        self.partitions: Sequence[Any] = [kind(one, fate, loop, witness, is_up) for one in real.partitions]

    async def open(self) -> None:
        """See `Store`."""
        if not self.far:
            await self.real.open()

    @property
    def returns(self) -> bool:
        """See `Store`."""
        return self.far

    async def close(self) -> None:
        """See `Store`."""
        if not self.far:
            await self.real.close()

    def pulse(self) -> Pulse:
        """See `Store`."""
        return FarPulse(self)

    def bell(self) -> Bell:
        """See `Store`."""
        return self._bells.make(None, len(self.partitions))

    def listen(self, told: Grown) -> None:
        """See `Store`."""
        self._hints(told)


def at_once(verb: Any) -> Any:
    """Run a verb that never waits."""
    try:
        verb.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError(f"{verb} waits")
