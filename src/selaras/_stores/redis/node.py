"""A server as one event loop knows it: its connection, and when it is tried next."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable
from typing import Any, Final

from selaras._core.errors import StoreRefused, StoreUnavailable
from selaras._core.jobs.retry import Backoff
from selaras._stores.redis.address import Endpoint
from selaras._stores.redis.context import Common, Patience, repeated, share
from selaras._stores.redis.dialling import ask_once, dial, tls_doubt
from selaras._stores.redis.errors import RIGHTS_PAGE, Passing, meaning_of, told
from selaras._stores.redis.rights import QUESTION, QUESTION_SHA, calls, is_sentinel, lacking, too_old, vital
from selaras._stores.redis.wire import ReplyError, Wire, WireLost, Word, pack, rest

ATTEMPTS: Final = Backoff(first_us=20_000, most_us=1_000_000)
"""Between two attempts at a server that failed: many processes make them."""

PROBE_S: Final = 0.4
"""A silent server's second chance: with the time until it is asked, less than `max_lag`."""


class Node:
    """A server: the connection to it, or when it is tried next.

    Args:
        waits_s: so long may it wait itself, for its replicas. on_lost: told when a connection is over.
    """

    def __init__(
        self,
        common: Common,
        loop: AbstractEventLoop,
        endpoint: Endpoint,
        waits_s: float,
        on_lost: Callable[[Node, Wire], None],
    ) -> None:
        self.endpoint = endpoint
        self.wire: Wire | None = None
        self.run_id = ""
        self.eviction = ""
        self._common = common
        self._loop = loop
        self._on_lost = on_lost
        self._waits_s = waits_s
        self._attempt: Task[Wire] | None = None
        self._probe: Task[None] | None = None
        self._tries = 0
        self._again_at = 0.0
        self._error: BaseException = StoreUnavailable("")

    async def connected(self, patience: Patience) -> Wire:
        """Return the connection. Raises StoreUnavailable: it cannot be made, or could not a moment ago."""
        if self.wire is not None and self.wire.open:
            return self.wire
        if self._attempt is None:
            if self._loop.time() < self._again_at:
                self._common.topology.doubt(self.endpoint)
                raise repeated(self._error)
            self._attempt = self._loop.create_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        return await share(self._attempt, patience, self.delay)

    def delay(self) -> str:
        """Say that it takes longer than somebody could wait, and why that may be."""
        if self.wire is not None and self.wire.open:
            return f"{self.endpoint} is slow to answer"
        common = self._common
        return (
            f"{self.endpoint}: connecting takes long{tls_doubt(self.endpoint, common.address.account, common.let_in)}"
        )

    def _attempted(self, attempt: Task[Wire]) -> None:
        self._attempt = None
        if attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self._tries, self._again_at = 0, 0.0
            return
        self._tries += 1
        self._error = error
        self._again_at = self._loop.time() + ATTEMPTS.delay_us(self._tries, self._common.entropy) / 1e6
        self._common.topology.doubt(self.endpoint)

    async def _connect(self) -> Wire:
        common = self._common
        wire = await dial(
            self.endpoint,
            common.address.account,
            let_in=common.let_in,
            on_quiet=self._look_again,
            on_lost=lambda wire: self._on_lost(self, wire),
            waits_s=self._waits_s,
        )
        try:
            info = _info(*[await self._ask(wire, "INFO", of) for of in ("SERVER", "REPLICATION", "MEMORY")])
            if is_sentinel(info):
                raise StoreRefused(
                    f"{self.endpoint} is a sentinel: say so, redis+sentinel://{self.endpoint}/SERVICE, with the name of what it watches"
                )
            if too_old(version := info.get("redis_version", "")):
                raise StoreRefused(
                    f"{self.endpoint} is Redis {version}: Selaras needs Redis 7.0 or newer, or any Valkey"
                )
            if info.get("role") != "master":
                raise StoreUnavailable(f"{self.endpoint} is a replica, or being made one: it takes no writes")
            self.run_id, self.eviction = info["run_id"], info.get("maxmemory_policy", "")
            await self._allowed(wire)
        except BaseException:
            wire.abort("it cannot be used")
            raise
        self.wire = wire
        return wire

    async def _allowed(self, wire: Wire) -> None:
        """See that no script will end half done for want of a right. Raises StoreRefused: it would."""
        address, stem = self._common.address, self._common.names.stem(0)
        needed = vital(address.shape, replicated=address.replicas_ms > 0)
        answer: list[int]
        _, answer = await asyncio.gather(
            self._ask(wire, "SCRIPT", "LOAD", QUESTION),
            self._ask(wire, "EVALSHA", QUESTION_SHA, "0", *calls(needed, stem)),
        )
        lacks = lacking(answer, needed, stem)
        if lacks:
            raise StoreRefused(f"{self.endpoint}: {lacks}. All rights: {RIGHTS_PAGE}; selaras doctor prints the rule")

    async def _ask(self, wire: Wire, *command: Word) -> Any:
        try:
            reply = await wire.send(pack(*command), 1, self._common.address.account.connect_s)
        except WireLost as error:
            raise Passing(f"{self.endpoint}: {error}") from error
        if isinstance(reply, ReplyError):
            raise told(
                reply, meaning_of(reply), where=str(self.endpoint), doing=" ".join(str(word) for word in command[:2])
            )
        return reply

    def _look_again(self, wire: Wire) -> None:
        if self._probe is None or self._probe.done():
            self._probe = self._loop.create_task(self._ask_aside(wire))

    async def _ask_aside(self, wire: Wire) -> None:
        """A second connection tells a dead one from a busy server, which answers neither."""
        begun = self._loop.time()
        account = self._common.address.account
        try:
            async with asyncio.timeout(PROBE_S):
                await ask_once(self.endpoint, account, ("PING",))
                await rest(PROBE_S / 8)  # what was written before the answer has its time to arrive
        except (TimeoutError, StoreUnavailable):
            return
        if wire.heard_at < begun:
            wire.abort("the connection is dead: the server answers over another one")

    def end(self) -> None:
        """End the connection."""
        for task in (self._attempt, self._probe):
            if task is not None:
                task.cancel()
        if self.wire is not None:
            self.wire.abort("the store was closed")


def _info(*answers: bytes) -> dict[str, str]:
    lines = (line.partition(":") for answer in answers for line in answer.decode().splitlines() if line[:1] != "#")
    return {name: value for name, sign, value in lines if sign}
