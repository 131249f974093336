"""A shelf in memory, as many processes of a host share it; a test can hold its answers, lose, damage and mix up what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from selaras._contracts.shelf import Found, ShelfDown, Told
from selaras._core.cache.hosted import Hosted, host_name, hosted_bytes, hosted_of

OWNER = b"test"


class FakeShelf:
    """Bytes by name.

    Attributes:
        asked: how often it was looked at. `down`: it does not answer.
    """

    url = "fake"

    def __init__(self) -> None:
        self.items: dict[bytes, Found] = {}
        self.asked = 0
        self.down = False
        self._count = 0
        self._held: list[Callable[[], None]] | None = None

    def ask(self, name: bytes, told: Told) -> None:
        self.asked += 1

        def answer() -> None:  # it looks now, and says so now: what it said before it was held is held, too
            told(ShelfDown("down") if self.down else found)

        found = self.items.get(name)
        if self._held is not None:
            self._held.append(answer)
        else:
            asyncio.get_running_loop().call_soon(answer)

    def put(self, name: bytes, data: bytes, ttl_s: int, *, over: int | None = None) -> None:
        del ttl_s
        asyncio.get_running_loop()
        there = self.items.get(name)
        if self.down or (over is not None and (there.seen if there else 0) != over):
            return
        self._count += 1
        self.items[name] = Found(data, self._count)

    async def close(self) -> None:
        pass

    # -- what a test does

    def hold(self) -> None:
        """Answer nothing until `release`."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for answer in held:
            answer()

    def at(self, key: str) -> Hosted | None:
        found = self.items.get(host_name(OWNER, key))
        return None if found is None else hosted_of(found.data)

    def set(self, key: str, hosted: Hosted) -> None:
        """Put an entry in a key's place, whatever it says of itself."""
        self._count += 1
        self.items[host_name(OWNER, key)] = Found(hosted_bytes(hosted), self._count)

    def change(self, key: str, how: Callable[[bytes], bytes]) -> None:
        """Change the bytes in a key's place."""
        name = host_name(OWNER, key)
        self.items[name] = Found(how(self.items[name].data), self.items[name].seen)
