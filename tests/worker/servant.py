"""What the child processes of these tests do: the request is a word."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


class PlainServant:
    """See `Servant`."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder)
        self._served = 0

    async def open(self) -> None:
        if (self._folder / "broken").exists():
            raise RuntimeError("this child cannot start")

    async def serve(self, request: bytes, report: Callable[[bytes], None]) -> bytes:
        self._served += 1
        word, _, rest = request.decode().partition(" ")
        match word:
            case "pid":
                return f"{os.getpid()} {self._served}".encode()
            case "tell":
                report(b"half")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            case "exit":
                os._exit(int(rest))
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "spin":
                (self._folder / "spinning").write_text(str(os.getpid()))
                while True:
                    time.sleep(0.01)
            case "wait":
                (self._folder / "waiting").write_text(str(os.getpid()))
                await asyncio.Event().wait()
            case _:
                pass
        return request * 3

    async def close(self) -> None:
        (self._folder / "closed").write_text("in order")


def make_servant(folder: str) -> PlainServant:
    return PlainServant(folder)
