"""Wakes idle workers in other processes of this machine: a datagram to a port of theirs, lost without harm."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from threading import Lock
from typing import Final

from selaras._stores.waiters import NOWHERE, Waiters

LOOK_EVERY_S: Final = 0.25
"""How often a waiter looks at the store itself: a datagram may be lost, or sent in another network namespace."""

_HOST: Final = "127.0.0.1"
_SAID: Final = 2
"""Bytes of a datagram: the partition. Earlier versions send one byte, and mean all of them."""


class Ringer:
    """Rings bells by their address: those of this process at once, others by a datagram."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bells: dict[str, SqliteBell] = {}
        self._socket: socket.socket | None = None

    def make(self, look: Callable[[int], object], partitions: int) -> SqliteBell:
        """Make a bell; `look` returns something of a partition that differs when there may be news."""
        bell = SqliteBell(look, partitions, self._forget)
        with self._lock:
            self._bells[bell.address] = bell
        return bell

    def ring(self, partition: int, address: str) -> None:
        """Ring for a partition, from any thread; never fails."""
        bell = self._bells.get(address)
        if bell is not None:
            bell.ring_for(partition)
            return
        host, _, port = address.rpartition(":")
        if host != _HOST or not port.isdigit():
            return
        try:
            if self._socket is None:
                self._socket = _datagram_socket()
            self._socket.sendto(partition.to_bytes(_SAID), (host, int(port)))
        except OSError:  # whoever waits there looks by itself
            pass

    def close(self) -> None:
        """Free the socket."""
        for bell in list(self._bells.values()):
            bell.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _forget(self, bell: SqliteBell) -> None:
        with self._lock:
            self._bells.pop(bell.address, None)


class SqliteBell:
    """A socket that others send to, and the tasks that wait for it, on any loop."""

    def __init__(self, look: Callable[[int], object], partitions: int, closed: Callable[[SqliteBell], None]) -> None:
        self._look = look
        self._told_closed = closed
        self._seen = [look(partition) for partition in range(partitions)]
        self._waiters = Waiters(partitions)
        self._listening: dict[asyncio.AbstractEventLoop, int] = {}
        self._socket = _datagram_socket()
        self._socket.bind((_HOST, 0))
        self.address = f"{_HOST}:{self._socket.getsockname()[1]}"

    async def wait(self, timeout: float) -> frozenset[int]:
        """See `Bell`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            if rung := self._heard():
                return rung
            left = end - loop.time()
            if left <= 0:
                return NOWHERE
            if rung := await self._wait_once(loop, min(left, LOOK_EVERY_S)):
                return rung
            if left < LOOK_EVERY_S:
                return self._heard()
            if differs := self._differs():
                return differs

    def ring(self) -> None:
        """See `Bell`."""
        self._waiters.ring(self._waiters.everywhere)

    def ring_for(self, partition: int) -> None:
        """It was rung there."""
        self._waiters.ring_for(partition)

    def close(self) -> None:
        """See `Bell`."""
        self._told_closed(self)
        for loop in list(self._listening):
            if not loop.is_closed():
                loop.remove_reader(self._socket)
        self._listening.clear()
        self._socket.close()

    def _differs(self) -> frozenset[int]:
        """Look where there may be news."""
        before, self._seen = self._seen, [self._look(partition) for partition in range(len(self._seen))]
        return frozenset(at for at, (now, then) in enumerate(zip(self._seen, before, strict=True)) if now != then)

    async def _wait_once(self, loop: asyncio.AbstractEventLoop, timeout: float) -> frozenset[int]:
        self._listen(loop)
        try:
            return await self._waiters.wait(timeout)
        finally:
            self._unlisten(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._listening.get(loop, 0)
        self._listening[loop] = waiting + 1
        if not waiting and self._socket.fileno() >= 0:
            try:
                loop.add_reader(self._socket, self._readable)
            except NotImplementedError:  # a loop without sockets: its waiters look by themselves
                pass

    def _unlisten(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._listening.get(loop, 0) - 1
        if waiting > 0:
            self._listening[loop] = waiting
        elif self._listening.pop(loop, None) is not None and self._socket.fileno() >= 0:
            try:
                loop.remove_reader(self._socket)
            except NotImplementedError:
                pass

    def _readable(self) -> None:
        if said := self._drain():
            self._waiters.ring(said)

    def _heard(self) -> frozenset[int]:
        """Say where it rang while nobody waited."""
        return self._waiters.take_ring() | self._drain()

    def _drain(self) -> frozenset[int]:
        heard, everywhere = NOWHERE, self._waiters.everywhere
        while True:
            try:
                said = self._socket.recv(16)
            except OSError:  # nothing is left, or it was closed
                return heard
            partition = int.from_bytes(said)
            is_one = len(said) == _SAID and partition in everywhere
            heard |= frozenset((partition,)) if is_one else everywhere


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
