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
from collections.abc import Sequence
from typing import Final, cast

from selaras._contracts.host import Servant
from selaras._worker.loops import run
from selaras._worker.processes import LENGTH

ORPHANED: Final = 5


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
        writer.write(LENGTH.pack(0))
        while True:
            try:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                request = await reader.readexactly(length)
            except (EOFError, OSError):
                return
            answer = await servant.serve(request)
            writer.write(LENGTH.pack(len(answer)) + answer)
            await writer.drain()
    finally:
        await servant.close()


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
