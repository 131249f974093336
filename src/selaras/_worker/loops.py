"""What a process that is here for a worker alone runs on: uvloop where it is installed, and a calm collector."""

from __future__ import annotations

import asyncio
import gc
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

COLLECT_EVERY: Final = 20_000
"""Allocations between looks for garbage cycles. A batch of claims makes and frees ten thousand objects without a
cycle among them; looking every 700, as is usual, took a quarter of the worker's time."""

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


def calm_collector() -> None:
    """Look for garbage cycles less often, and never again at what is there already: the program's modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 10, 10)
