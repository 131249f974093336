"""The event loop a worker process runs on: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return uvloop's factory, or None for the default loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a fresh loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)
