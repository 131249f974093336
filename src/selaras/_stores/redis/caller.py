"""Calls the scripts of one partition: what stands beside a request in every call is put together here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from selaras._contracts.clock import Entropy
from selaras._core.positions import START, Cursor
from selaras._stores.redis.context import Command
from selaras._stores.redis.link import Link, unheard
from selaras._stores.redis.scripts import script
from selaras._stores.redis.wire import pack

_encode: Final = msgspec.msgpack.Encoder().encode
_EVENT_ID_BITS: Final = 50
"""Lua's numbers are exact up to 2**53, and a call counts its event ids from a random one."""


def raw(data: bytes) -> msgspec.Raw:
    """Return bytes as they may stand in a request: as text, for the scripts' MessagePack knows no binary."""
    size = len(data)
    if size < 32:
        head = bytes((0xA0 | size,))
    elif size < 1 << 8:
        head = bytes((0xD9, size))
    elif size < 1 << 16:
        head = b"\xda" + size.to_bytes(2, "big")
    else:
        head = b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + data)


class Caller:
    """One partition, to be called.

    Args:
        now_us: the time that scripts take for theirs; None: the server's own, as always but under a virtual clock.
    """

    __slots__ = ("_entropy", "_now_us", "_stem", "index", "link")

    def __init__(self, link: Link, index: int, entropy: Entropy, now_us: Callable[[], int] | None = None) -> None:
        self.link = link
        self.index = index
        self._entropy = entropy
        self._now_us = now_us
        self._stem = link.common.names.stem(index)

    def key(self, name: str) -> str:
        """Return a key of the partition."""
        return self._stem + name

    async def ask(
        self, verb: str, request: Any, since: Cursor = START, *, urgent: bool = False, repeats: bool = False
    ) -> list[Any]:
        """Run a verb's script and return its reply. See `Link.call`."""
        reply: list[Any] = await self.link.call(
            self.index, script(verb), self._args(request, since), urgent=urgent, repeats=repeats
        )
        return reply

    async def instant_us(self, at: float) -> int:
        """Return an instant of the server's time that was not later than the loop's time `at`."""
        loop = asyncio.get_running_loop()
        if self._now_us is not None:
            return self._now_us() - round((loop.time() - at) * 1e6)
        ((seconds, micros),) = await self.link.pipeline(self.index, [("TIME",)])
        return int(seconds) * 1_000_000 + int(micros) - round((loop.time() - at) * 1e6)

    async def among(
        self,
        before: Sequence[Command],
        verb: str,
        request: Any,
        since: Cursor,
        after: Sequence[Command],
        *,
        urgent: bool = False,
        repeats: bool = False,
        on_repeat: Callable[[], None] = unheard,
        lost: bool = False,
        refused: Exception | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Run a verb's script with plain commands before and behind it. See `Link.call_among`."""
        return await self.link.call_among(
            *(self.index, before, script(verb), self._args(request, since), after),
            urgent=urgent,
            repeats=repeats,
            on_repeat=on_repeat,
            lost=lost,
            refused=refused,
        )

    def packed(self, verb: str, request: Any, after: Sequence[Command], since: Cursor) -> tuple[bytes, int]:
        """Return a script with plain commands behind it as bytes, and how many replies will come."""
        called = self.link.common.packed(self.index, script(verb), self._args(request, since))
        if not after:
            return called, 1
        return b"".join((called, *(pack(*words) for words in after))), 1 + len(after)

    def _args(self, request: Any, since: Cursor) -> Command:
        now_us = self._now_us() if self._now_us is not None else 0
        chance = self._entropy.getrandbits(_EVENT_ID_BITS)
        return (now_us, chance, since.position, since.event_id, _encode(request))
