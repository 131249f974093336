"""What is done when a loop ends on which nobody closed a store's connections."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Callable


def at_end_of_loop(end: Callable[[], None]) -> AsyncGenerator[None]:
    """Let `asyncio.run` and its like call this at the end of the running loop; keep what is returned until then.

    They end asynchronous generators, last of all; this one waits for that.
    """
    last = _last(end)
    try:
        anext(last).__await__().__next__()
    except StopIteration:  # it has come to its yield
        pass
    return last


async def _last(end: Callable[[], None]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        end()
        loop = asyncio.get_running_loop()
        gone: Future[None] = loop.create_future()
        loop.call_soon(gone.set_result, None)  # what is closed is gone in the next turn of the loop
        await gone
