"""Threads for plain functions: daemons of our own, for a pool that waits at exit would wait for a body that hangs."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any


class _Call:
    """One function on its way through a thread."""

    __slots__ = ("context", "function", "future")

    def __init__(self, function: Callable[[], Any], context: Context, future: Future[Any]) -> None:
        self.function = function
        self.context = context
        self.future = future


class Threads:
    """At most `most` threads, started when they are needed."""

    def __init__(self, most: int, loop: AbstractEventLoop) -> None:
        self._most = most
        self._loop = loop
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` in a thread; see `Executors.in_thread`."""
        future: Future[Any] = self._loop.create_future()
        self._busy += 1
        if self._busy > len(self._threads) < self._most:
            self._spawn()
        self._calls.put(_Call(function, copy_context(), future))
        try:
            return await self._wait(future)
        finally:
            self._busy -= 1

    async def _wait(self, future: Future[Any]) -> Any:
        """Wait for the real end, through cancels."""
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # its end was heard, and does not count
            raise cancelled
        return future.result()

    def _spawn(self) -> None:
        thread = Thread(
            target=_work, args=(self._calls, self._loop), name=f"selaras-body-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Let idle threads end; one in a body ends after it."""
        for _ in self._threads:
            self._calls.put(None)


def _work(calls: SimpleQueue[_Call | None], loop: AbstractEventLoop) -> None:
    while (call := calls.get()) is not None:  # None: the pool is closed
        result: Any = None
        problem: BaseException | None = None
        try:
            result = call.context.run(call.function)
        except StopIteration as error:
            problem = RuntimeError("the function raised StopIteration")
            problem.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - a body may raise anything; the thread lives on
            problem = error
        try:
            loop.call_soon_threadsafe(_deliver, call.future, result, problem)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return
        del call, result, problem


def _deliver(future: Future[Any], result: Any, problem: BaseException | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)
