"""The other end of `executor="process"`: `python -m selaras._worker.child FD LIFELINE_FD REFERENCE [ARGUMENT...]`.

Serves one request at a time over the socket FD, with the Servant that REFERENCE ("module:function") makes of the
arguments. It ends when the socket is closed, and at once when the lifeline is: then its parent is gone, and with it
the lease under which a body may still be running.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import sys
import threading
from asyncio import AbstractEventLoop, StreamWriter
from collections.abc import Sequence
from typing import Final, cast

from selaras._contracts.host import Servant
from selaras._worker.loops import run
from selaras._worker.processes import Said, framed, received

ORPHANED: Final = 5

REPORT_EVERY: Final = 0.1
"""Of what a body reports, the latest goes out so often."""


def main(arguments: Sequence[str]) -> None:
    """Serve until the parent has no more work."""
    channel, lifeline, reference, *rest = arguments
    # The worker decides when a body ends; a signal to the terminal's group is not meant for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(int(lifeline),), name="selaras-lifeline", daemon=True).start()
    run(_serve(int(channel), make_servant(reference, rest)))


def make_servant(reference: str, arguments: Sequence[str]) -> Servant:
    """Import "module:function" and call it."""
    module, _, name = reference.partition(":")
    return cast(Servant, getattr(importlib.import_module(module), name)(*arguments))


async def _serve(channel: int, servant: Servant) -> None:
    sock = socket.socket(fileno=channel)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock)
    await servant.open()
    try:
        writer.write(framed(Said.ANSWER, b""))
        while True:
            try:
                _, request = await received(reader)
            except (EOFError, OSError):
                return
            reports = _Reports(writer, asyncio.get_running_loop())
            answer = await servant.serve(request, reports.take)
            reports.open = False
            writer.write(framed(Said.ANSWER, answer))
            await writer.drain()
    finally:
        await servant.close()


class _Reports:
    """What the body of one attempt reports, on its way to the parent. `open`: until its answer is sent."""

    def __init__(self, writer: StreamWriter, loop: AbstractEventLoop) -> None:
        self.open = True
        self._writer = writer
        self._loop = loop
        self._latest: bytes | None = None
        self._resting = False

    def take(self, data: bytes) -> None:
        """Send it soon, unless a later one comes first; from any thread."""
        idle = self._latest is None
        self._latest = data
        if idle:
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        if self._resting or not self.open:
            return
        data, self._latest = self._latest, None
        if data is not None:
            self._writer.write(framed(Said.REPORT, data))
            self._resting = True
            self._loop.call_later(REPORT_EVERY, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._send()


def _follow(lifeline: int) -> None:
    with socket.socket(fileno=lifeline) as sock:
        try:
            sock.recv(1)
        except OSError:
            pass
    # Nothing is flushed on purpose: a body may hold any lock.
    os._exit(ORPHANED)


if __name__ == "__main__":
    main(sys.argv[1:])
