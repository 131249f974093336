"""Child processes for `executor="process"`: one attempt at a time each, kept warm, killed when it must end.

A message is a byte that says what it is, four bytes of length, and then the bytes; an empty answer from the child says
that it is ready. A second socket, which nothing is ever sent over, tells the child that its parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from selaras._contracts.clock import Clock
from selaras._contracts.host import ProcessDied
from selaras._contracts.observer import Observer
from selaras._core.events import BodyDied
from selaras._worker.telling import tell

HEADER: Final = struct.Struct("!BI")
FAILED_START_REST: Final = 1.0
"""A child that cannot start would otherwise use up every job in a moment."""

CLOSE_MOST: Final = 2.0
DYING_MOST: Final = 1.0
LOOK: Final = 0.005


class Said(IntEnum):
    """What a message is."""

    REQUEST = 0
    ANSWER = 1
    REPORT = 2  # what the body says of itself while it runs: any number of them, before the answer


def framed(said: Said, data: bytes) -> bytes:
    """Return a message as it is sent."""
    return HEADER.pack(said, len(data)) + data


async def received(reader: StreamReader) -> tuple[int, bytes]:
    """Wait for a message: what it is, and its bytes. Raises EOFError or OSError if the other side has ended."""
    said, length = HEADER.unpack(await reader.readexactly(HEADER.size))
    return said, await reader.readexactly(length)


class _Child:
    """One child process and the way to it."""

    def __init__(self, popen: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        self.popen = popen
        self._lifeline = lifeline
        self._reader: StreamReader
        self._writer: StreamWriter

    async def connect(self, sock: socket.socket) -> None:
        """Wait until it is ready. Raises EOFError or OSError if it ended instead."""
        self._reader, self._writer = await asyncio.open_connection(sock=sock)
        await received(self._reader)

    async def ask(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """Send one request and wait for the answer. Raises EOFError or OSError if the child ended instead."""
        self._writer.write(framed(Said.REQUEST, request))
        await self._writer.drain()
        while True:
            said, data = await received(self._reader)
            if said == Said.ANSWER:
                return data
            report(data)

    def kill(self) -> None:
        """End it and what it started."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.popen.kill()

    def let_go(self) -> None:
        """Say that there is no more work: an idle child ends by itself, in order."""
        if hasattr(self, "_writer"):
            self._writer.close()

    def forget(self) -> None:
        """It has ended: close what is left of the ways to it. Of a child that lives this is the end, at once."""
        self.let_go()
        self._lifeline.close()


class Processes:
    """Children that make their Servant by `servant`: (reference, arguments...)."""

    def __init__(self, servant: Sequence[str], clock: Clock, observer: Observer) -> None:
        self._servant = tuple(servant)
        self._clock = clock
        self._observer = observer
        self._idle: list[_Child] = []

    async def call(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        """Run one attempt; see `Executors.in_process`."""
        child = self._idle.pop() if self._idle else await self._start()
        try:
            answer = await child.ask(request, report)
        except (EOFError, OSError):
            raise await self._died(child) from None
        except BaseException:  # a cancel: the body must really have ended before its settlement goes out (P18)
            await self._end(child)
            raise
        self._idle.append(child)
        return answer

    async def _start(self) -> _Child:
        child, sock = self._spawn()
        try:
            await child.connect(sock)
        except (EOFError, OSError):
            died = await self._died(child)
            await self._clock.sleep(FAILED_START_REST)
            raise died from None
        except BaseException:
            await self._end(child)
            raise
        return child

    def _spawn(self) -> tuple[_Child, socket.socket]:
        ours, theirs = socket.socketpair()
        lifeline, their_end = socket.socketpair()
        ours.setblocking(False)
        with theirs, their_end:
            fds = (theirs.fileno(), their_end.fileno())
            popen = subprocess.Popen(
                [sys.executable, "-m", "selaras._worker.child", *map(str, fds), *self._servant],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path)},
                start_new_session=True,  # a Ctrl-C in the terminal is for the worker, which decides
            )
        return _Child(popen, lifeline), ours

    async def _died(self, child: _Child) -> ProcessDied:
        await self._wait(child, DYING_MOST)  # it may be on its way out: its own code says more than a kill's
        await self._end(child)
        code = child.popen.returncode
        tell(self._observer, BodyDied(pid=child.popen.pid, code=code))
        return ProcessDied(code)

    async def _end(self, child: _Child) -> None:
        """Kill it, and what it started, and wait until it is dead, through cancels."""
        cancelled: asyncio.CancelledError | None = None
        child.kill()
        while child.popen.poll() is None:
            try:
                await self._clock.sleep(LOOK)
            except asyncio.CancelledError as error:
                cancelled = error
        child.forget()
        if cancelled is not None:
            raise cancelled

    async def close(self) -> None:
        """Let idle children end, and kill those that do not."""
        idle, self._idle = self._idle, []
        for child in idle:
            child.let_go()
        for child in idle:
            await self._wait(child, CLOSE_MOST)
            await self._end(child)

    async def _wait(self, child: _Child, seconds: float) -> None:
        end_ns = self._clock.instant_ns() + int(seconds * 1e9)
        while child.popen.poll() is None and self._clock.instant_ns() < end_ns:
            await self._clock.sleep(LOOK)
